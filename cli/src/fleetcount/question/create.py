"""`fleetcount question create` and `show`: a question from its specification, and what a file asks and promises.

Reads a specification and writes files; it must not sign.
"""

import hashlib
import secrets
import shutil
import time
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Final

import click
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.question import SignedQuestion

from fleetcount.command.files import write_file
from fleetcount.command.lazy import OneOf, StrictCommand
from fleetcount.command.numbers import EPSILON
from fleetcount.command.results import EXPLAIN, JSON, show
from fleetcount.question.files import (
    check_name,
    describe_question,
    new_question_files,
    question_json,
    read_question,
    seed_path,
    unsigned,
)
from fleetcount.question.spec import read_spec

_FILE = click.Path(path_type=Path)
_WIDEST: Final = 100
_SAMPLES: Final = ("window", "month", "drill-down")


@click.command("create", cls=StrictCommand)
@click.option("--spec", metavar="SPEC.toml", type=_FILE, help="What is asked, when, and the promise.")
@click.option("--sample", type=OneOf(_SAMPLES), help="A ready one in its place, written beside --output as NAME.toml.")
@click.option("--output", required=True, metavar="NAME.question", type=_FILE, help="The file to make.")
@click.option("--epsilon", type=EPSILON, help="The loss of all that is published, in place of the file's.")
@EXPLAIN
def create(spec: Path | None, sample: str | None, output: Path, epsilon: Fraction | None, explain: bool) -> None:
    """Write an unsigned question, NAME.json for people, and the seed of its verify keys (NAME.seed, mode 0600).

    Run by the leader's operator: the seed is for the aggregators alone; with it any party makes false reports pass.

    \b
    [question]      name, deployment, signal, mode, min_batch_size
    [domain]        how the signal becomes a value
    [schedule]      opens, a time, "in 20 s" from now, or "20 s after submission" with submit_by, the last
                    time to submit: then reading and signing may take as long as they like; window, the
                    length of a window with both rounds;
                    for many windows also every, and windows or until: their times are UTC
    [mechanism]     how a device answers
    [release]       kind (without it geometric for one window, gaussian for many), and one of
                    epsilon (of the whole question), noise_epsilon, sd, variance (of each noise)
    [[aggregators]] their descriptor files, the leader's first

    With --sample: of one window, of a month of hourly windows, or a drill-down, each counted from submission. In the
    directory that `fleetcount keys init` made, which has the descriptors that they name:
    fleetcount question create --sample month --output deployment/month.question
    """
    check_name(output)
    if (spec is None) == (sample is None):
        raise UsageError("give --spec SPEC.toml or --sample NAME, one of them")
    if spec is not None:
        _create(spec, output, epsilon, explain)
        return
    spec = _write_sample(str(sample), output.with_suffix(".toml"))
    try:
        _create(spec, output, epsilon, explain)
    except BaseException:
        spec.unlink()
        raise


def _write_sample(name: str, path: Path) -> Path:
    write_file(path, resources.files("fleetcount.samples").joinpath(f"{name}.toml").read_bytes(), overwrite=False)
    return path


def _create(spec: Path, output: Path, epsilon: Fraction | None, explain: bool) -> None:
    seed = secrets.token_bytes(32)
    made = read_spec(spec, time.time(), Digest(hashlib.sha256(seed).digest()), epsilon)
    new_question_files(output, made, seed)
    print_question(unsigned(made), explain)
    click.echo(f"wrote {output}, {output.with_suffix('.json')} and {seed_path(output)}")


@click.command("show", cls=StrictCommand)
@EXPLAIN
@JSON
@click.argument("path", metavar="NAME.question", type=_FILE)
def show_question(path: Path, explain: bool, as_json: bool) -> None:
    """Show what the question asks and promises, in plain words first."""
    check_name(path)
    signed = read_question(path)
    if as_json:
        show(question_json(signed.question), (), as_json=True)
    else:
        print_question(signed, explain)


def print_question(signed: SignedQuestion, explain: bool) -> None:
    """Print what a person wants to know of a question, in lines of the terminal's width."""
    width = min(_WIDEST, max(40, shutil.get_terminal_size((_WIDEST, 24)).columns))
    for line in describe_question(signed, width, explain=explain):
        click.echo(line)
