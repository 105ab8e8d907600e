"""`fleetcount aggregator`: run one aggregator, and look at what it holds.

Loads the aggregator's packages only when a command runs.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetcount import __version__
from fleetcount.lazy import LazyGroup, table
from fleetcount.results import JSON, show

if TYPE_CHECKING:
    from fleetcount_aggregator.windows.status import AggregatorStatus, QuestionLine, WindowLine

_CONFIG = click.option(
    "--config",
    required=True,
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="The aggregator's file.",
)


@click.group(
    cls=LazyGroup,
    short_help="Run one aggregator.",
    lazy=table(
        [
            ("check", "fleetcount.aggregator_care", "check", "What of the store is damaged, and what that means."),
            (
                "repair",
                "fleetcount.aggregator_care",
                "repair",
                "End damaged windows by the record others have, or here.",
            ),
            ("backup", "fleetcount.aggregator_care", "backup", "Write a backup, while the aggregator runs or not."),
            ("restore", "fleetcount.aggregator_care", "restore", "Put a backup in the place of a store that is gone."),
            ("migrate", "fleetcount.aggregator_care", "migrate", "Bring a store up to the tables of this version."),
        ]
    ),
)
def aggregator() -> None:
    """Run one aggregator, or look at its windows.

    Exit codes: 0 done, 2 usage or configuration, 3 refused, 4 cannot reach a party, 5 this machine (disk, store, port),
    130 interrupted.
    """


@aggregator.command("serve", short_help="Serve devices and peers until SIGTERM.")
@_CONFIG
@click.option(
    "--roles",
    metavar="ROLE[,ROLE..]",
    help="What this process does of the aggregator: intake (serves devices), worker (verifies), coordinator (stands "
    "for election; the elected one talks to peers and releases). Without it all three, which a store in a file needs; "
    "several processes need [store] url.",
)
@click.option(
    "--accept-failover",
    is_flag=True,
    help="Go on though the store's PostgreSQL is another server than before, or was promoted: right after a standby "
    "took over that had all that was committed; never after a restored backup.",
)
@click.option(
    "--restored",
    is_flag=True,
    help="This state is an older copy that goes on: take an epoch above the newest that peers know.",
)
@click.option(
    "--migrate",
    is_flag=True,
    help="Bring a store in PostgreSQL up to the tables of this version first; refused while a process of an older "
    "version serves it. A store in a file is brought up at every start.",
)
def serve(config: Path, roles: str | None, accept_failover: bool, restored: bool, migrate: bool) -> None:
    """Serve devices and the other aggregators until SIGTERM or Ctrl-C.

    Prints one JSON line ("event": "ready") on standard output once it listens, with the ports it is bound to; logs go
    to standard error, a JSON object a line. A process that is elected coordinator prints "event": "coordinator" with
    the port for the other aggregators. SIGTERM finishes what is under way and exits with 0; SIGHUP reads [log] level
    again, and nothing else. Ends with 3 once a peer shows that a newer process runs as this aggregator.
    """
    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.host.role import ALL_ROLES, read_roles
    from fleetcount_aggregator.process.app import run
    from fleetcount_transport.logs import configure

    settings = load_config(config, os.environ)
    configure(settings.log.level, settings.aggregator.id, lambda: load_config(config, os.environ).log.level)
    run(
        settings,
        roles=ALL_ROLES if roles is None else read_roles(roles),
        accept_failover=accept_failover,
        restored=restored,
        migrate=migrate,
        release=__version__,
    )


@aggregator.command("move-store", short_help="Move a store between SQLite and PostgreSQL.")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="The aggregator's file as it is: its store is what moves.",
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="Its file as it will be, with another [store] url or state_directory; that place is empty.",
)
def move_store(source: Path, target: Path) -> None:
    """Move an aggregator's store, between a SQLite file and a PostgreSQL database, both ways.

    Stop the aggregator first; serve the second file afterwards. Every row is read back and compared. Ended by anything,
    run it again: until it has ended well one place at most can be served. The place that the store has left keeps its
    rows, refuses to be served, and can be deleted; the data keys of windows have left it.
    """
    from fleetcount_aggregator.storage.move_store import move_store as move

    from fleetcount.aggregator_care import loaded, store_keys

    old, new = loaded(source), loaded(target)
    moved = move(old.store_place, new.store_place, lambda: store_keys(old))
    said = "moved to" if moved else "had been moved to"
    click.echo(f"{old.store_place.name} {said} {new.store_place.name}; serve {target} from now on")


@aggregator.command("status", short_help="The windows of an aggregator and where they stand.")
@_CONFIG
@JSON
def status(config: Path, as_json: bool) -> None:
    """List every question with its windows, the last 100 windows with state and what each waits for, refusals, and
    debits.

    Reads the store of this machine, whether the aggregator runs or not. One that runs, and has [metrics], is asked why
    its windows wait: for whom, since when and until when. `fleetcount aggregator windows` goes through all windows.
    """
    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.windows.status import read_standing, read_status

    from fleetcount.pages import waits_here

    settings = load_config(config, os.environ)
    found, not_served = read_status(settings.store_place), read_standing(settings.store_place)
    waits = {} if settings.metrics is None else waits_here(settings.metrics.listen)
    result = {
        "not_served": not_served,
        "questions": [_question_json(one) for one in found.questions],
        "windows": [_window_json(one, waits) for one in found.windows],
        "ledger": [
            {"window_id": row.window_id.hex(), "signal": row.signal, "epsilon": str(row.epsilon)}
            for row in found.ledger
        ],
    }
    lines = [not_served] * bool(not_served)
    show(result, [*lines, *_status_lines(config, found, waits)], as_json=as_json)


def _status_lines(config: Path, found: "AggregatorStatus", waits: Mapping[str, str]) -> Iterator[str]:
    for question in found.questions:
        yield from _question_lines(question)
    for window in found.windows:
        yield from _window_lines(window, waits)
    if found.windows and found.windows[0].number > 0:
        yield f"older windows: fleetcount aggregator windows --config {config} --before {found.windows[0].number}"
    if not (found.windows or found.questions):
        yield "no windows"
    for row in found.ledger:
        yield f"ledger  {row.window_id.hex()[:12]}  {row.signal}  epsilon {row.epsilon}"


@aggregator.command("windows", short_help="All windows of an aggregator, page by page.")
@_CONFIG
@click.option("--count", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Windows a page.")
@click.option("--before", metavar="NUMBER", type=click.IntRange(min=0), help="Only windows installed before this one.")
@click.option("--open", "unfinished", is_flag=True, help="Only windows that have not ended.")
@JSON
def windows(config: Path, count: int, before: int | None, unfinished: bool, as_json: bool) -> None:
    """List windows with their numbers, the one installed last first; windows of questions and windows that ended too.

    The last line says how to see the next page. Reads the store of this machine, whether the aggregator runs or not.
    """
    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.windows.status import read_standing, read_windows

    from fleetcount.pages import waits_here

    settings = load_config(config, os.environ)
    found = read_windows(settings.store_place, count, before, unfinished=unfinished)
    waits = {} if settings.metrics is None else waits_here(settings.metrics.listen)
    lines = [
        f"{window.number:>8}  {line}" if number == 0 else f"{'':10}{line}"
        for window in found
        for number, line in enumerate(_window_lines(window, waits))
    ]
    if not_served := read_standing(settings.store_place):
        click.echo(not_served, err=as_json)  # A program's answer is an array, as it always was.
    if len(found) == count:
        more = " --open" * unfinished
        lines.append(f"the next: fleetcount aggregator windows --config {config} --before {found[-1].number}{more}")
    show([_window_json(window, waits) for window in found], lines or ["no windows"], as_json=as_json)


def _window_json(window: "WindowLine", waits: Mapping[str, str]) -> dict[str, Any]:
    """Return a window for programs; what was refused is by reason."""
    return {
        "number": window.number,
        "window_id": window.window_id.hex(),
        "name": window.name,
        "state": window.state.value,
        "abort_reason": window.abort_reason,
        "window": window.index,
        "wait": waits.get(window.window_id.hex(), "" if window.wait is None else window.wait.text(time.time())),
        "refused": {reason.label: count for reason, count in window.rejections.items()},
    }


def _question_json(question: "QuestionLine") -> dict[str, Any]:
    """Return a question for programs; `opens` is the Unix time at which the next window does."""
    return {
        "question_id": question.question_id.hex(),
        "name": question.name,
        "windows": question.windows,
        "released": question.released,
        "next": None if question.opens is None else question.following,
        "opens": question.opens,
        "missing": {reason: list(windows) for reason, windows in question.missing.items()},
        "refused_by": question.refused_by,
    }


def _window_lines(window: "WindowLine", waits: Mapping[str, str]) -> Iterator[str]:
    """Return what an operator reads of one window: where it stands, what it waits for, and what was refused why."""
    why = f" ({window.abort_reason})" if window.abort_reason else ""
    place = "" if window.index is None else f"  window {window.index}"
    yield f"{window.window_id.hex()[:12]}  {window.state.value}{why}  {window.name}{place}"
    expected = "" if window.wait is None else window.wait.text(time.time())
    if wait := waits.get(window.window_id.hex(), expected):
        yield f"    {wait}"
    for reason, count in sorted(window.rejections.items(), key=lambda item: item[0].label):
        yield f"    refused: {reason.label} {count}"


def _question_lines(question: "QuestionLine") -> Iterator[str]:
    """Return what an operator reads of one question: how far it is, what comes next, and what is missing why."""
    from fleetcount.results import utc

    following = (
        "no window to come" if question.opens is None else f"window {question.following} at {utc(question.opens)}"
    )
    head = f"question {question.question_id.hex()[:12]}  {question.released} of {question.windows} released"
    yield f"{head}, {following}  {question.name}"
    if question.refused_by:
        yield f"    {question.refused_by} does not take the question; its log says why"
    for reason, windows in sorted(question.missing.items()):
        yield f"    missing: {reason} {len(windows)}, the last is window {windows[-1]}"
