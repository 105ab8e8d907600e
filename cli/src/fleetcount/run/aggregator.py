"""`fleetcount aggregator serve` and `repair`: run one aggregator, or end what is damaged as if it ran."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_aggregator.host.role import ALL_ROLES, read_roles
from fleetcount_aggregator.process.app import repair as mend
from fleetcount_aggregator.process.app import run
from fleetcount_aggregator.roles.outcomes import Settled
from fleetcount_aggregator.storage.backup import KEPT_KEYS, BackupFile, put_back, write_backup
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.move_store import move_store as move
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.schema import POSTGRES, SQLITE
from fleetcount_aggregator.storage.store_check import check_key, check_store
from fleetcount_aggregator.windows.status import (
    AggregatorStatus,
    QuestionLine,
    WindowLine,
    read_status,
    read_store_state,
    read_windows,
)
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError
from fleetcount_protocol.ids import WindowId
from fleetcount_transport.logs import configure

from fleetcount.command.base import JSON, CannotReachError, CheckFailedError, StrictCommand, show
from fleetcount.command.numbers import spans_text
from fleetcount.command.options import PATH, config_option
from fleetcount.run.health import waits_here

# `fleetcount aggregator status`, `windows`, `check`, `backup`, ...: what an aggregator's store holds, and care for it.
#
# Reads the store of this machine, whether the aggregator runs or not; starts nothing.

CONFIG = config_option("The aggregator's file.")


def _loaded(config: Path) -> AggregatorConfig:
    """Return a configuration."""
    return load_config(config, os.environ)


def _store_keys(settings: AggregatorConfig, instead: Mapping[str, Path] | None = None) -> StoreKeys:
    """Return the store's keys; `instead`: other files than the configuration's, by the names it has for them."""
    keys, instead = settings.keys, instead or {}
    return StoreKeys.load(
        instead.get("signing_key_file", keys.signing_key_file),
        instead.get("store_key_file", keys.store_key_file),
        keys.former_store_key_file,
    )


@click.command("status", cls=StrictCommand)
@CONFIG
@JSON
def status(config: Path, as_json: bool) -> None:
    """List every question with its windows, the last 100 windows with state and what each waits for, refusals, and
    debits.

    Reads the store of this machine, whether the aggregator runs or not. One that runs, and has [metrics], is asked why
    its windows wait: for whom, since when and until when. `fleetcount aggregator windows` goes through all windows.
    """
    settings = load_config(config, os.environ)
    found, not_served = read_status(settings.store_place), read_store_state(settings.store_place)
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


def _status_lines(config: Path, found: AggregatorStatus, waits: Mapping[str, str]) -> Iterator[str]:
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


@click.command("windows", cls=StrictCommand)
@CONFIG
@click.option("--count", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Windows a page.")
@click.option("--before", metavar="NUMBER", type=click.IntRange(min=0), help="Only windows installed before this one.")
@click.option("--open", "unfinished", is_flag=True, help="Only windows that have not ended.")
@JSON
def windows(config: Path, count: int, before: int | None, unfinished: bool, as_json: bool) -> None:
    """List windows with their numbers, the one installed last first; windows of questions and windows that ended too.

    The last line says how to see the next page. Reads the store of this machine, whether the aggregator runs or not.
    """
    settings = load_config(config, os.environ)
    found = read_windows(settings.store_place, count, before, unfinished=unfinished)
    waits = {} if settings.metrics is None else waits_here(settings.metrics.listen)
    lines = [
        f"{window.number:>8}  {line}" if number == 0 else f"{'':10}{line}"
        for window in found
        for number, line in enumerate(_window_lines(window, waits))
    ]
    if not_served := read_store_state(settings.store_place):
        click.echo(not_served, err=as_json)  # A program's answer is an array, as it always was.
    if len(found) == count:
        more = " --open" * unfinished
        lines.append(f"the next: fleetcount aggregator windows --config {config} --before {found[-1].number}{more}")
    show([_window_json(window, waits) for window in found], lines or ["no windows"], as_json=as_json)


def _window_json(window: WindowLine, waits: Mapping[str, str]) -> dict[str, Any]:
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


def _question_json(question: QuestionLine) -> dict[str, Any]:
    """Return a question for programs; `opens` is the Unix time at which the next window does.

    "ordered" has the windows ahead that orders skip, first and last of each run.
    """
    return {
        "question_id": question.question_id.hex(),
        "name": question.name,
        "windows": question.windows,
        "released": question.released,
        "next": question.upcoming,
        "opens": question.opens,
        "ordered": [[one[0], one[-1]] for one in question.skipped],
        "missing": {reason: list(windows) for reason, windows in question.missing.items()},
        "refused_by": question.refused_by,
    }


def _window_lines(window: WindowLine, waits: Mapping[str, str]) -> Iterator[str]:
    """Return the lines of one window: its state, what it waits for, and its refusals by reason."""
    why = f" ({window.abort_reason})" if window.abort_reason else ""
    place = "" if window.index is None else f"  window {window.index}"
    yield f"{window.window_id.hex()[:12]}  {window.state.value}{why}  {window.name}{place}"
    expected = "" if window.wait is None else window.wait.text(time.time())
    if wait := waits.get(window.window_id.hex(), expected):
        yield f"    {wait}"
    for reason, count in sorted(window.rejections.items(), key=lambda item: item[0].label):
        yield f"    refused: {reason.label} {count}"


def _question_lines(question: QuestionLine) -> Iterator[str]:
    """Return the lines of one question: how far it is, its next window, and which are skipped or missing, by reason."""
    following = (
        "no further window" if question.opens is None else f"window {question.upcoming} at {utc_text(question.opens)}"
    )
    head = f"question {question.question_id.hex()[:12]}  {question.released} of {question.windows} released"
    yield f"{head}, {following}  {question.name}"
    if question.refused_by:
        yield f"    {question.refused_by} does not take the question; its log says why"
    if question.skipped:
        yield f"    skipped by orders: {spans_text(index for one in question.skipped for index in one)}"
    for reason, windows in sorted(question.missing.items()):
        yield f"    missing: {reason} {len(windows)}, the last is window {windows[-1]}"


@click.command("check", cls=StrictCommand)
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def check(config: Path, as_json: bool) -> None:
    """Say what of the store is damaged, what that means, and what `repair` would do. Changes nothing.

    Rows by the tags they carry, data keys, and the report logs of windows under way; while the aggregator runs, not its
    logs, which are written to. An older copy of the whole store carries good tags: the other aggregators notice it.

    Exit codes: 0 nothing is damaged, 1 something is, 2 usage or configuration, 5 the store cannot be read at all.
    """
    settings = _loaded(config)
    found = check_store(settings.store_place, _store_keys(settings))
    if as_json:
        rows = [
            {
                "table": one.damage.table,
                "window": None if one.damage.window_id is None else one.damage.window_id.hex(),
                "what": one.damage.what,
                "means": one.means,
                "repair": one.repair,
            }
            for one in found.verdicts
        ]
        click.echo(json.dumps({"runs": found.runs, "damaged": rows}, indent=2))
    else:
        if found.runs and settings.store_place.url is None:
            click.echo("the aggregator runs: the logs of windows under way are not looked at")
        for one in found.verdicts:
            click.echo(f"{one.damage}")
            click.echo(f"    means:  {one.means}")
            click.echo(f"    repair: {one.repair}")
    if found.verdicts:
        raise CheckFailedError(f"{len(found.verdicts)} things of {settings.store_place.name} are damaged")
    if not as_json:
        click.echo(f"nothing of {settings.store_place.name} is damaged")


@click.command("backup", cls=StrictCommand)
@CONFIG
@click.option("--output", required=True, metavar="FILE", type=PATH, help="A new file.")
@click.option("--with-keys", is_flag=True, help="Put the store key and the signing key into it. Guard it like them.")
def backup(config: Path, output: Path, with_keys: bool) -> None:
    """Write what must not be forgotten into one file, while the aggregator runs or not.

    It has windows, records, debits, marks and questions; no data key, no share and no session, so nothing that is
    deleted at the end of a window lives on in it. A window under way when it was made does not go on after a restore:
    its record is adopted if the others have one, and otherwise it ends as aborted. Without the store key it
    cannot be put back.
    """
    settings = _loaded(config)
    files = {name: getattr(settings.keys, name) for name in KEPT_KEYS} if with_keys else {}
    about = BackupFile(
        aggregator_id=settings.aggregator.id,
        deployment=settings.aggregator.deployment,
        made_at=int(time.time()),
        keys=tuple(files),
    )
    keys = {name: path for name, path in files.items() if isinstance(path, Path)}
    sealed_by = _store_keys(settings)
    check_key(settings.store_place, sealed_by)
    with _terminable():
        write_backup(settings.store_place, sealed_by.row_seal, output, about, keys)
    click.echo(f"wrote {output}")
    click.echo(
        "no data key is in it: windows under way do not go on from it, and end as aborted unless released elsewhere"
    )
    if keys:
        click.echo(f"it holds {' and '.join(sorted(keys))}: any party that has it can act as this aggregator")
    else:
        click.echo("no key is in it: keep the store key and the signing key elsewhere, without them it is lost")


@contextmanager
def _terminable() -> Generator[None]:
    """Let SIGTERM end a command as Ctrl-C does: what it was making is taken away."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command("restore", cls=StrictCommand)
@CONFIG
@click.argument("file", metavar="FILE", type=PATH)
def restore(config: Path, file: Path) -> None:
    """Put a backup in the place of a store that is gone. Refused where a store is: move that away first.

    Checks every row before anything takes its name; run it again after whatever ended it. At its first start the
    aggregator asks the others how the windows that were under way have ended, before it does anything about them: a
    record with all signatures is adopted, the rest ends as `restored_backup`. Nothing is drawn for a window twice.
    """
    settings = _loaded(config)
    named = {name: getattr(settings.keys, name) for name in KEPT_KEYS}
    keys = {name: path for name, path in named.items() if isinstance(path, Path)}
    whose = (settings.aggregator.id, settings.aggregator.deployment)
    about = put_back(settings.store_place, file, lambda staged: _store_keys(settings, staged).row_seal, whose, keys)
    made = utc_text(about.made_at)
    click.echo(f"put back the backup of {made}; start the aggregator, and the others, so that it learns what it missed")


@click.command("migrate", cls=StrictCommand)
@CONFIG
def migrate(config: Path) -> None:
    """Bring a store up to the tables of this version: all of it, or it stays as it is.

    Processes of this version may serve it meanwhile, but none of an older one: as long as one lives it is refused.
    There is no way back but a backup. Does nothing to a store that has these tables.
    """
    place = _loaded(config).store_place
    version = (SQLITE if place.url is None else POSTGRES).version
    with closing(open_engine(place, alone=place.url is None, migrate=True)):
        click.echo(f"{place.name} has schema version {version}, that of this version of fleetcount")


@click.command("move-store", cls=StrictCommand)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="FILE.toml",
    type=PATH,
    help="The aggregator's file as it is: its store is what moves.",
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FILE.toml",
    type=PATH,
    help="Its file as it will be, with another [store] url or state_directory; that place is empty.",
)
def move_store(source: Path, target: Path) -> None:
    """Move an aggregator's store, between a SQLite file and a PostgreSQL database, both ways.

    Stop the aggregator first; serve the second file afterwards. Every row is read back and compared. Ended by anything,
    run it again: until it has ended well one place at most can be served. The place that the store has left keeps its
    rows, refuses to be served, and can be deleted; the data keys of windows have left it.
    """
    old, new = _loaded(source), _loaded(target)
    moved = move(old.store_place, new.store_place, lambda: _store_keys(old))
    said = "moved to" if moved else "had been moved to"
    click.echo(f"{old.store_place.name} {said} {new.store_place.name}; serve {target} from now on")


@click.command("serve", cls=StrictCommand)
@CONFIG
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
@click.option(
    "--clock-is-right",
    is_flag=True,
    help="This machine's clock is right, though the store was last acted on more than [limits] largest_skew_s ago and "
    "not all peers can be asked. Without it nothing is given up, deleted or refused for good until they agree.",
)
def serve(
    config: Path, roles: str | None, accept_failover: bool, restored: bool, migrate: bool, clock_is_right: bool
) -> None:
    """Serve devices and the other aggregators until SIGTERM or Ctrl-C.

    Prints one JSON line ("event": "ready") on standard output once it listens, with the ports it is bound to; logs go
    to standard error, a JSON object a line. A process that is elected coordinator prints "event": "coordinator" with
    the port for the other aggregators. SIGTERM finishes what is under way and exits with 0; SIGHUP reads [log] level
    again, and nothing else. Ends with 3 once a peer shows that a newer process runs as this aggregator.
    """
    settings = load_config(config, os.environ)
    configure(settings.log.level, settings.aggregator.id, lambda: load_config(config, os.environ).log.level)
    run(
        settings,
        roles=ALL_ROLES if roles is None else read_roles(roles),
        accept_failover=accept_failover,
        restored=restored,
        migrate=migrate,
        clock_is_right=clock_is_right,
    )


def _window_id(text: str) -> WindowId:
    try:
        return WindowId(bytes.fromhex(text))
    except (ValueError, FleetcountError) as error:
        raise click.BadParameter(
            f"{text!r} is not a window id: 64 hexadecimal digits", param_hint="--window"
        ) from error


@click.command("repair", cls=StrictCommand)
@CONFIG
@click.option("--window", "windows", multiple=True, metavar="ID", help="Only this window; may be given several times.")
@click.option("--dry-run", is_flag=True, help="Ask the other aggregators and say what would be done; change nothing.")
def repair(config: Path, windows: tuple[str, ...], dry_run: bool) -> None:
    """End the windows that `check` names, by the record that the others have, or here if none of them has one.

    Stop the aggregator first. A record is adopted only with the signatures of all its aggregators; no number is made
    up, and what a window was charged stays charged. A window waits while another aggregator of it does not answer,
    until the window expires. Without --window what belongs to no window is mended too: debits, marks of peers,
    sessions.

    Exit codes: 0 done, 2 usage or configuration, 4 a window waits for an aggregator, 5 something is beyond repair here.
    """
    chosen = [_window_id(one) for one in windows]
    settings = load_config(config, os.environ)
    configure(settings.log.level)
    mended, others = asyncio.run(mend(settings, os.environ, chosen, dry_run=dry_run))
    prefix = "without --dry-run: " if dry_run else ""
    for one in mended:
        silent = f" (no answer: {', '.join(one.silent)})" if one.silent else ""
        click.echo(f"{prefix}{one.settled.value}{silent}: window {one.window_id.hex()}")
    for line in others:
        click.echo(f"{prefix}{line}")
    if not (mended or others):
        click.echo("nothing was damaged")
    waiting = sorted({name for one in mended if one.settled is Settled.WAITS for name in one.silent})
    if beyond := [one for one in mended if one.settled is Settled.BEYOND_REPAIR]:
        raise StoreError(f"{len(beyond)} windows are beyond repair: put back a backup")
    if waiting:
        raise CannotReachError(f"{', '.join(waiting)} did not say how a window ended; run this again")
