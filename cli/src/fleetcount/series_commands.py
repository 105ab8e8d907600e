"""`fleetcount series`: a standing question from its specification to a growing table of maps.

Each sub-command is one party's step; what they share are files and the aggregators' own answers.
"""

import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.lazy import LazyGroup, table
from fleetcount.results import JSON, show

if TYPE_CHECKING:  # `fleetcount series --help` starts without cryptography.
    from fleetcount_protocol.series.series import SignedSeries

__all__ = ["series"]

_FILE = click.Path(path_type=Path)
_CONFIG = click.option(
    "--config", "config_path", required=True, metavar="FILE.toml", type=_FILE, help="The aggregator's configuration."
)
_EXPLAIN = click.option("--explain", is_flag=True, help="Add the statement in full: every adversary, every change.")
_WIDEST: Final = 100


_READING: Final = "fleetcount.series_reading"


@click.group(
    cls=LazyGroup,
    short_help="Ask the same question every hour: one signature, one budget.",
    lazy=table(
        [
            ("status", _READING, "status", "Windows released, missing and why, and which comes next."),
            ("records", _READING, "records", "Every released window's signed record, checked and kept."),
            ("export", "fleetcount.series_export", "export", "Tables, maps and answers from these records."),
            ("places", "fleetcount.series_places", "places", "What the walks of a drill-down found."),
        ]
    ),
)
def series() -> None:
    """Ask a question of a fleet again and again, under one promise.

    \b
    create   the asker writes NAME.series from a specification
    show     what it asks, and what it lets anybody learn
    sign     every operator signs it, once for all windows
    submit   the leader's operator hands it to its aggregator
    status   windows released, missing and why, and which comes next
    records  every released window's signed record, checked
    export   tables and maps from these records
    places   what the walks of a drill-down found
    pause    the leader's operator skips windows from one on; resume asks them again
    stop     any operator ends its own part, and with it the series, for good
    """


@series.command("create", short_help="Write NAME.series from a specification.")
@click.option("--spec", required=True, metavar="SPEC.toml", type=_FILE, help="The question and its schedule.")
@click.option("--output", required=True, metavar="NAME.series", type=_FILE, help="The file to make.")
@_EXPLAIN
def create(spec: Path, output: Path, explain: bool) -> None:
    """Write an unsigned series, NAME.json for people, and the seed of its verify keys (NAME.verify-seed, mode 0600).

    Run by the leader's operator: the seed is for the aggregators alone; anybody who has it can make false reports
    pass. The specification is that of a task with [series] in place of [windows]: first, every, windows or until,
    window, coin. The noise of a window is given, or solved from epsilon and delta of the whole series. All times are
    UTC.
    """
    import hashlib

    from fleetcount_protocol.ids import Digest
    from fleetcount_protocol.series.series import SignedSeries

    from fleetcount.series_files import new_series_files, seed_path
    from fleetcount.series_spec import read_series_spec

    _check_series_name(output)
    seed = secrets.token_bytes(32)
    made = read_series_spec(spec, time.time(), Digest(hashlib.sha256(seed).digest()))
    new_series_files(output, made, seed)
    _describe(SignedSeries(series=made, signatures=(b"",) * len(made.aggregators)), explain)
    click.echo(f"wrote {output}, {output.with_suffix('.json')} and {seed_path(output)}")


@series.command("show", short_help="What a series asks, and what it lets anybody learn.")
@_EXPLAIN
@JSON
@click.argument("path", metavar="NAME.series", type=_FILE)
def show_series(path: Path, explain: bool, as_json: bool) -> None:
    """Show what the series asks and promises, in plain words first."""
    from fleetcount.series_files import read_series, series_json

    _check_series_name(path)
    signed = read_series(path)
    if as_json:
        show(series_json(signed.series), (), as_json=True)
    else:
        _describe(signed, explain)


@series.command("sign", short_help="Sign NAME.series as one aggregator's operator.")
@_CONFIG
@_EXPLAIN
@click.argument("path", metavar="NAME.series", type=_FILE)
def sign(config_path: Path, path: Path, explain: bool) -> None:
    """Show what the series asks and promises, check it against this aggregator's configuration, and sign it.

    One signature stands for every window: nothing more is signed until the series ends.
    """
    from fleetcount.series_files import add_series_signature
    from fleetcount.task_files import operator_of

    _check_series_name(path)
    signed = add_series_signature(path, operator_of(config_path))
    _describe(signed, explain)
    click.echo(f"signed {path}: {'complete' if signed.complete else 'others have still to sign'}")


@series.command("submit", short_help="Hand a complete NAME.series to the leader.")
@_CONFIG
@click.argument("path", metavar="NAME.series", type=_FILE)
def submit(config_path: Path, path: Path) -> None:
    """Check all signatures and the seed, and put both into the leader's task directory."""
    from fleetcount.series_files import submit_series
    from fleetcount.task_files import operator_of

    _check_series_name(path)
    target = submit_series(path, operator_of(config_path), time.time())
    click.echo(f"submitted {target}")


def _order_command(action: str, short: str, text: str) -> None:
    """Add the sub-command of one kind of order."""

    @series.command(action, short_help=short, help=text)
    @_CONFIG
    @click.option(
        "--from",
        "start",
        metavar="WINDOW|TIME",
        help="A window's number, or a time in UTC (2026-12-01T08:00Z). Default: the next that can still be skipped.",
    )
    @click.argument("path", metavar="NAME.series", type=_FILE)
    def order(config_path: Path, start: str | None, path: Path) -> None:
        from fleetcount_protocol.series.orders import OrderAction

        from fleetcount.series_files import read_series
        from fleetcount.series_order_files import give_order
        from fleetcount.task_files import operator_of, utc

        _check_series_name(path)
        question = read_series(path).series
        kind = OrderAction[action.upper()]
        target, given = give_order(question, operator_of(config_path), kind, start, time.time(), path.stem)
        opens = utc(question.schedule.opens(given.from_window))
        click.echo(f"{action} from window {given.from_window} on, which opens {opens}: order {given.number}, {target}")


_order_command(
    "pause",
    "Skip windows from one on, until resume.",
    """Sign an order that skips windows from one on, and put it into the leader's task directory.

    Run by the leader's operator. Windows keep their numbers and times: nothing moves, is made up for or costs less.
    Devices keep their reservations, because a pause may end. Windows are decided about a minute before they open.
    """,
)
_order_command(
    "resume",
    "Ask again from a window on.",
    """Sign an order that asks windows again from one on, and put it into the leader's task directory.

    Run by the leader's operator, after a pause.
    """,
)
_order_command(
    "stop",
    "End this operator's part, and with it the series.",
    """Sign an order that ends this operator's part from a window on, and put it into its aggregator's task directory.

    Run by any operator: without its part no window can be opened. Nothing follows a stop. Devices get back what they
    have reserved for windows that are no longer asked, where nothing of the same toss was sent.
    """,
)


def _check_series_name(path: Path) -> None:
    if path.suffix != ".series" or not path.stem:
        raise UsageError(f"the series file is {str(path)[:80]!r}; its name must end in .series")


def _describe(signed: "SignedSeries", explain: bool) -> None:
    from fleetcount.series_files import describe_series

    width = min(_WIDEST, max(40, shutil.get_terminal_size((_WIDEST, 24)).columns))
    for line in describe_series(signed, width, explain=explain):
        click.echo(line)
