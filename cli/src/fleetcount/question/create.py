"""`fleetcount question`: a question from its specification to its signed counts, asked once or again and again.

Each sub-command is one party's step; what they share are files and the aggregators' own answers.
"""

import secrets
import shutil
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.command.lazy import LazyGroup, OneOf, table
from fleetcount.command.numbers import EPSILON
from fleetcount.command.results import EXPLAIN, JSON, show, utc

if TYPE_CHECKING:  # `fleetcount question --help` starts without cryptography.
    from fleetcount_protocol.question.question import SignedQuestion

_FILE = click.Path(path_type=Path)
_CONFIG = click.option(
    "--config", "config_path", required=True, metavar="FILE.toml", type=_FILE, help="The aggregator's configuration."
)
_WIDEST: Final = 100
_SAMPLES: Final = ("window", "month", "drill-down")
_READING: Final = "fleetcount.read.release"


@click.group(
    cls=LazyGroup,
    short_help="Create, sign, submit, follow and release a question.",
    lazy=table(
        [
            ("status", _READING, "status", "How far it is: windows released or missing, states, refusals."),
            ("release", _READING, "release", "Fetch, check and keep the signed counts."),
            ("export", "fleetcount.read.export", "export", "Tables, maps and answers from the records of many."),
            ("places", "fleetcount.read.places", "places", "What the walks of a drill-down found."),
        ]
    ),
)
def question() -> None:
    """Ask a question of a fleet, once or again and again, under one promise.

    \b
    create   the asker writes NAME.question from a specification
    show     what it asks, and what it lets anybody learn
    sign     every operator signs it, once for all windows (also: reads it first)
    submit   the leader's operator hands it to its aggregator
    status   how far it is; windows released, missing and why; what was refused
    release  the signed counts, checked: of one window with its table, of many a folder of records
    export   tables and maps from these records
    places   what the walks of a drill-down found
    pause    the leader's operator skips windows from one on; resume asks them again
    stop     any operator ends its own part, and with it the question, for good
    """


@question.command("create", short_help="Write NAME.question from a specification.")
@click.option("--spec", metavar="SPEC.toml", type=_FILE, help="What is asked, when, and the promise.")
@click.option("--sample", type=OneOf(_SAMPLES), help="A ready one in its place, written beside --output as NAME.toml.")
@click.option("--output", required=True, metavar="NAME.question", type=_FILE, help="The file to make.")
@click.option("--epsilon", type=EPSILON, help="The loss of all that is published, in place of the file's.")
@EXPLAIN
def create(spec: Path | None, sample: str | None, output: Path, epsilon: Fraction | None, explain: bool) -> None:
    """Write an unsigned question, NAME.json for people, and the seed of its verify keys (NAME.seed, mode 0600).

    Run by the leader's operator: the seed is for the aggregators alone; anybody who has it can make false reports pass.

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
    _check_name(output)
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
    from importlib import resources

    from fleetcount.command.files import write_file

    write_file(path, resources.files("fleetcount.samples").joinpath(f"{name}.toml").read_bytes(), overwrite=False)
    return path


def _create(spec: Path, output: Path, epsilon: Fraction | None, explain: bool) -> None:
    import hashlib

    from fleetcount_protocol.ids import Digest

    from fleetcount.question.files import new_question_files, seed_path, unsigned
    from fleetcount.question.spec import read_spec

    seed = secrets.token_bytes(32)
    made = read_spec(spec, time.time(), Digest(hashlib.sha256(seed).digest()), epsilon)
    new_question_files(output, made, seed)
    _describe(unsigned(made), explain)
    click.echo(f"wrote {output}, {output.with_suffix('.json')} and {seed_path(output)}")


@question.command("show", short_help="What a question asks, and what it lets anybody learn.")
@EXPLAIN
@JSON
@click.argument("path", metavar="NAME.question", type=_FILE)
def show_question(path: Path, explain: bool, as_json: bool) -> None:
    """Show what the question asks and promises, in plain words first."""
    from fleetcount.question.files import question_json, read_question

    _check_name(path)
    signed = read_question(path)
    if as_json:
        show(question_json(signed.question), (), as_json=True)
    else:
        _describe(signed, explain)


@question.command("sign", short_help="Sign NAME.question as one aggregator's operator.")
@_CONFIG
@EXPLAIN
@click.argument("path", metavar="NAME.question", type=_FILE)
def sign(config_path: Path, path: Path, explain: bool) -> None:
    """Show what the question asks and promises, check it against this aggregator's configuration, and sign it.

    One signature stands for every window: nothing more is signed until the question ends.
    """
    from fleetcount.question.files import add_signature, operator_of

    _check_name(path)
    signed = add_signature(path, operator_of(config_path))
    _describe(signed, explain)
    click.echo(f"signed {path}: {'complete' if signed.complete else 'others have still to sign'}")


@question.command("submit", short_help="Hand a complete NAME.question to the leader.")
@_CONFIG
@click.argument("path", metavar="NAME.question", type=_FILE)
def submit(config_path: Path, path: Path) -> None:
    """Check all signatures and the seed, and put both files into the leader's question directory.

    A question that is counted from submission starts now: the leader fixes its times as it installs it, once; submitted
    again it keeps them. The leader removes its copy of the seed once the question is stored. Delete yours then.
    """
    from fleetcount.question.files import operator_of, seed_path, submit_question

    _check_name(path)
    target = submit_question(path, operator_of(config_path), time.time())
    click.echo(f"submitted {target}; once it is installed, delete {seed_path(path)}")


def _order_command(action: str, short: str, text: str) -> None:
    """Add the sub-command of one kind of order."""

    @question.command(action, short_help=short, help=text)
    @_CONFIG
    @click.option(
        "--from",
        "start",
        metavar="WINDOW|TIME",
        help="A window's number, or a time in UTC (2026-12-01T08:00Z). Default: the next that can still be skipped.",
    )
    @click.option("--yes", is_flag=True, help="Do not ask before a question is stopped.", hidden=action != "stop")
    @click.argument("path", metavar="NAME.question", type=_FILE)
    def order(config_path: Path, start: str | None, yes: bool, path: Path) -> None:
        from fleetcount_protocol.question.orders import OrderAction

        from fleetcount.command.exits import RefusedByPolicyError
        from fleetcount.question.files import operator_of, read_question
        from fleetcount.question.orders import give_order, stop_lines

        _check_name(path)
        asked, operator, kind = read_question(path).question, operator_of(config_path), OrderAction[action.upper()]
        given = give_order(asked, operator, kind, start, time.time(), path.stem)
        if kind is OrderAction.STOP:
            for line in stop_lines(given, operator):
                click.echo(line)
            if not yes and not click.confirm("Stop it?"):
                raise RefusedByPolicyError("not stopped; nothing was written")
        given.write()
        window, number = given.order.from_window, given.order.number
        opens = utc(given.question.schedule.opens(window))
        click.echo(f"{action} from window {window} on, which opens {opens}: order {number}, {given.target}")


_order_command(
    "pause",
    "Skip windows from one on, until resume.",
    """Sign an order that skips windows from one on, and put it into the leader's question directory.

    Run by the leader's operator. Windows keep their numbers and times: nothing moves, is made up for or costs less.
    Devices keep their reservations, because a pause may end. Windows are decided about a minute before they open.
    """,
)
_order_command(
    "resume",
    "Ask again from a window on.",
    """Sign an order that asks windows again from one on, and put it into the leader's question directory.

    Run by the leader's operator, after a pause.
    """,
)
_order_command(
    "stop",
    "End this operator's part, and with it the question.",
    """Sign an order that ends this operator's part from a window on, and put it into its aggregator's question
    directory.

    Run by any operator: without its part no window can be opened. Nothing follows a stop. Says first what stays charged
    and what comes back, at aggregators and devices, and asks; a question that is stopped before its first window costs
    nothing. Devices get back what they have reserved for windows that are no longer asked, where nothing of the same
    toss was sent.
    """,
)


def _check_name(path: Path) -> None:
    if path.suffix != ".question" or not path.stem:
        raise UsageError(f"the question file is {str(path)[:80]!r}; its name must end in .question")


def _describe(signed: "SignedQuestion", explain: bool) -> None:
    from fleetcount.question.files import describe_question

    width = min(_WIDEST, max(40, shutil.get_terminal_size((_WIDEST, 24)).columns))
    for line in describe_question(signed, width, explain=explain):
        click.echo(line)
