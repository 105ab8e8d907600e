"""`fleetcount task`: a counting task from its specification to its release.

Each sub-command is one party's step; what they share are files and the aggregators' own answers.
"""

import secrets
import time
from fractions import Fraction
from pathlib import Path

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.exits import one_line
from fleetcount.lazy import LazyGroup
from fleetcount.numbers import EPSILON

__all__ = ["task"]

_FILE = click.Path(path_type=Path)
_CONFIG = click.option(
    "--config", "config_path", required=True, metavar="FILE.toml", type=_FILE, help="The aggregator's configuration."
)


@click.group(cls=LazyGroup, short_help="Create, sign, submit, follow and fetch a counting task.")
def task() -> None:
    """Ask a question of a fleet.

    \b
    create   the asker writes NAME.task from a specification
    sign     every operator signs it (also: reads it first)
    submit   the leader's operator hands it to its aggregator
    status   how far it is, and what was refused
    release  the signed result, checked, with its privacy statement
    """


@task.command("create", short_help="Write NAME.task from a specification.")
@click.option("--spec", required=True, metavar="SPEC.toml", type=_FILE, help="The question.")
@click.option("--output", required=True, metavar="NAME.task", type=_FILE, help="The file to make.")
@click.option("--epsilon", type=EPSILON, help="The loss of the published result, in place of the file's.")
def create(spec: Path, output: Path, epsilon: Fraction | None) -> None:
    """Write an unsigned task, and its verify key beside it (NAME.verify-key, mode 0600).

    Run by the leader's operator: the verify key is for the aggregators alone; whoever has it can make false reports
    pass. The specification lists the question, its windows (times, or "in 10 s"), the mechanism, the release and the
    aggregators' descriptor files, the leader's first.
    """
    import hashlib

    from fleetcount_protocol.ids import Digest
    from fleetcount_protocol.task import SignedTask

    from fleetcount.task_files import describe_task, new_task_files, verify_key_path
    from fleetcount.task_spec import read_spec

    _check_task_name(output)
    verify_key = secrets.token_bytes(32)
    question = read_spec(spec, time.time(), Digest(hashlib.sha256(verify_key).digest()), epsilon)
    new_task_files(output, question, verify_key)
    for line in describe_task(SignedTask(task=question, signatures=(b"",) * len(question.aggregators))):
        click.echo(one_line(line))
    click.echo(f"wrote {output} and {verify_key_path(output)}")


def _check_task_name(path: Path) -> None:
    if path.suffix != ".task" or not path.stem:
        raise UsageError(f"the task file is {str(path)[:80]!r}; its name must end in .task")


@task.command("sign", short_help="Sign NAME.task as one aggregator's operator.")
@_CONFIG
@click.argument("path", metavar="NAME.task", type=_FILE)
def sign(config_path: Path, path: Path) -> None:
    """Show what the task asks and promises, check it against this aggregator's configuration, and sign it."""
    from fleetcount.task_files import add_signature, describe_task, operator_of

    _check_task_name(path)
    signed = add_signature(path, operator_of(config_path))
    for line in describe_task(signed):
        click.echo(one_line(line))
    click.echo(f"signed {path}: {'complete' if signed.complete else 'others have still to sign'}")


@task.command("submit", short_help="Hand a complete NAME.task to the leader.")
@_CONFIG
@click.argument("path", metavar="NAME.task", type=_FILE)
def submit(config_path: Path, path: Path) -> None:
    """Check all signatures and the verify key, and put both into the leader's task directory."""
    from fleetcount.task_files import operator_of, submit_task

    _check_task_name(path)
    target = submit_task(path, operator_of(config_path), time.time())
    click.echo(f"submitted {target}")
