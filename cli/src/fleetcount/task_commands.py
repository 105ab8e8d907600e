"""`fleetcount task`: a counting task from its specification to its release.

Each sub-command is one party's step; what they share are files and the aggregators' own answers.
"""

import secrets
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.exits import CannotReachError, CheckFailedError, RefusedByPolicyError, one_line
from fleetcount.files import check_output_directory, staged_directory
from fleetcount.lazy import LazyGroup
from fleetcount.numbers import EPSILON, Count
from fleetcount.results import EXPLAIN, JSON, show

if TYPE_CHECKING:  # `fleetcount task --help` starts without cryptography.
    from fleetcount_protocol.ids import AggregatorId
    from fleetcount_protocol.messages import TaskStatus
    from fleetcount_protocol.task.task import Task

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
@EXPLAIN
def create(spec: Path, output: Path, epsilon: Fraction | None, explain: bool) -> None:
    """Write an unsigned task, and its verify key beside it (NAME.verify-key, mode 0600).

    Run by the leader's operator: the verify key is for the aggregators alone; anybody who has it can make false reports
    pass. The specification lists the question, its windows (times, or "in 10 s"), the mechanism, the release and the
    aggregators' descriptor files, the leader's first.
    """
    import hashlib

    from fleetcount_protocol.ids import Digest
    from fleetcount_protocol.task.task import SignedTask

    from fleetcount.task_files import describe_task, new_task_files, verify_key_path
    from fleetcount.task_spec import read_spec

    _check_task_name(output)
    verify_key = secrets.token_bytes(32)
    question = read_spec(spec, time.time(), Digest(hashlib.sha256(verify_key).digest()), epsilon)
    new_task_files(output, question, verify_key)
    unsigned = SignedTask(task=question, signatures=(b"",) * len(question.aggregators))
    for line in describe_task(unsigned, explain=explain):
        click.echo(one_line(line))
    click.echo(f"wrote {output} and {verify_key_path(output)}")


def _check_task_name(path: Path) -> None:
    if path.suffix != ".task" or not path.stem:
        raise UsageError(f"the task file is {str(path)[:80]!r}; its name must end in .task")


@task.command("sign", short_help="Sign NAME.task as one aggregator's operator.")
@_CONFIG
@EXPLAIN
@click.argument("path", metavar="NAME.task", type=_FILE)
def sign(config_path: Path, path: Path, explain: bool) -> None:
    """Show what the task asks and promises, check it against this aggregator's configuration, and sign it."""
    from fleetcount.task_files import add_signature, describe_task, operator_of

    _check_task_name(path)
    signed = add_signature(path, operator_of(config_path))
    for line in describe_task(signed, explain=explain):
        click.echo(one_line(line))
    click.echo(f"signed {path}: {'complete' if signed.complete else 'others have still to sign'}")


@task.command("submit", short_help="Hand a complete NAME.task to the leader.")
@_CONFIG
@click.argument("path", metavar="NAME.task", type=_FILE)
def submit(config_path: Path, path: Path) -> None:
    """Check all signatures and the verify key, and put both into the leader's task directory.

    The leader removes its copy of the verify key once the task is stored. Delete yours then.
    """
    from fleetcount.task_files import operator_of, submit_task, verify_key_path

    _check_task_name(path)
    target = submit_task(path, operator_of(config_path), time.time())
    click.echo(f"submitted {target}; once it is installed, delete {verify_key_path(path)}")


@task.command("status", short_help="How far a task is at every aggregator.")
@_CONFIG
@click.option("--task", "path", required=True, metavar="NAME.task", type=_FILE, help="The task's file.")
@JSON
def status(config_path: Path, path: Path, as_json: bool) -> None:
    """Ask every aggregator for its state, what it waits for, what it refused, and whether their set digests are equal.

    Run by an operator, with its aggregator's configuration. Exit code 0 when all answered and agree, 1 when digests
    differ, 3 when the task was aborted somewhere, 4 when one cannot be reached.
    """
    import asyncio

    from fleetcount.readers import ask_statuses
    from fleetcount.task_files import read_task

    question = read_task(path).task
    answers = asyncio.run(ask_statuses(config_path, question))
    lines = (
        one_line(f"{name:<12} {answer if isinstance(answer, str) else _status_text(question, name, answer)}")
        for name, answer in answers.items()
    )
    show([_status_json(str(name), answer) for name, answer in answers.items()], lines, as_json=as_json)
    _conclude(answers, quiet=as_json)


def _status_json(name: str, answer: "TaskStatus | str") -> dict[str, Any]:
    if isinstance(answer, str):
        return {"aggregator": name, "error": answer}
    return {
        "aggregator": name,
        "state": answer.state.value,
        "abort_reason": answer.abort_reason,
        "set_digest": None if answer.set_digest is None else answer.set_digest.hex(),
        "refused": {reason.label: count for reason, count in answer.rejections},
    }


def _status_text(question: "Task", name: "AggregatorId", answer: "TaskStatus") -> str:
    from fleetcount_aggregator.host.reasons import expected_wait

    parts = [answer.state.value + (f" ({answer.abort_reason})" if answer.abort_reason else "")]
    wait = expected_wait(question, answer.state, leads=name == question.leader.aggregator_id, give_up_s=None)
    if wait is not None:
        parts.append(wait.text(time.time()))
    if answer.set_digest is not None:
        parts.append(f"set {answer.set_digest.hex()[:16]}")
    refused = ", ".join(f"{reason.label} {count}" for reason, count in answer.rejections)
    parts.append(f"refused: {refused or 'none'}")
    return "  ".join(parts)


def _conclude(answers: "Mapping[AggregatorId, TaskStatus | str]", *, quiet: bool) -> None:
    statuses = [answer for answer in answers.values() if not isinstance(answer, str)]
    digests = {answer.set_digest for answer in statuses if answer.set_digest is not None}
    if len(digests) > 1:
        raise CheckFailedError("the aggregators' set digests differ; nothing can be released")
    if digests and not quiet:
        click.echo("set digests: equal")
    for answer in statuses:
        if answer.abort_reason:
            raise RefusedByPolicyError(f"the task was aborted: {answer.abort_reason}")
    silent = [str(name) for name, answer in answers.items() if isinstance(answer, str)]
    if silent:
        raise CannotReachError(f"no status from {', '.join(silent)}")


@task.command("release", short_help="Fetch, check and show the signed result.")
@click.option("--task", "path", required=True, metavar="NAME.task", type=_FILE, help="The task's file.")
@click.option(
    "--config",
    "config_path",
    required=True,
    metavar="FILE.toml",
    type=_FILE,
    help="Who asks: an analyst's configuration (keys init writes one) or a device's.",
)
@click.option("--output", required=True, metavar="DIR", type=_FILE, help="Where release.json goes.")
@click.option("--wait", "wait_s", type=Count(0, 86_400), default=0, show_default=True, help="Wait so many seconds.")
@EXPLAIN
@JSON
def release(path: Path, config_path: Path, output: Path, wait_s: int, explain: bool, as_json: bool) -> None:
    """Fetch the signed record, verify every aggregator's signature, and write release.json.

    Prints the table and the privacy statement. Exit code 3 when the task is not released yet or was aborted.
    """
    import asyncio

    from fleetcount_protocol.release import record_to_json

    from fleetcount.readers import ask_release, read_reader
    from fleetcount.release_report import checked_record, release_json, statement_lines, table_lines
    from fleetcount.task_files import read_task, utc

    check_output_directory(output)
    question = read_task(path).task
    reader = read_reader(config_path)
    deadline, told = time.monotonic() + wait_s, False
    while True:
        answer = asyncio.run(ask_release(reader, question))
        if answer.record or answer.abort_reason or time.monotonic() >= deadline:
            break
        if not told:
            click.echo(f"waiting up to {wait_s} s: the last window closes {utc(question.round_two_closes)}", err=True)
            told = True
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
    record = checked_record(answer, question, reader.trusted)
    with staged_directory(output) as stage:
        (stage / "release.json").write_text(record_to_json(record, answer.signatures), encoding="utf-8")
    lines = [
        *table_lines(record),
        "",
        *statement_lines(record, explain=explain),
        "",
        f"wrote {output / 'release.json'}, signed by all {len(answer.signatures)} aggregators",
    ]
    show(release_json(record) | {"written": str(output / "release.json")}, lines, as_json=as_json)
