"""`fleetcount aggregator check`, `repair`, `backup`, `restore`, `migrate`: care for an aggregator's store.

Loads the aggregator's packages only when a command runs.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetcount.exits import CannotReachError, CheckFailedError
from fleetcount.lazy import StrictCommand

if TYPE_CHECKING:
    from fleetcount_aggregator.config import AggregatorConfig
    from fleetcount_aggregator.storage.data_keys import StoreKeys
    from fleetcount_protocol.ids import WindowId

_CONFIG = click.option(
    "--config",
    required=True,
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="The aggregator's file.",
)


def loaded(config: Path) -> "AggregatorConfig":
    """Return a configuration."""
    from fleetcount_aggregator.config import load_config

    return load_config(config, os.environ)


def store_keys(settings: "AggregatorConfig", instead: Mapping[str, Path] | None = None) -> "StoreKeys":
    """Return the store's keys; `instead`: other files than the configuration's, by the names it has for them."""
    from fleetcount_aggregator.storage.data_keys import StoreKeys

    keys, instead = settings.keys, instead or {}
    return StoreKeys.load(
        instead.get("signing_key_file", keys.signing_key_file),
        instead.get("store_key_file", keys.store_key_file),
        keys.former_store_key_file,
    )


@click.command("check", cls=StrictCommand)
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def check(config: Path, as_json: bool) -> None:
    """Say what of the store is damaged, what that means, and what `repair` would do. Changes nothing.

    Rows by the tags they carry, data keys, and the report logs of windows under way; while the aggregator runs, not its
    logs, which are written to. An older copy of the whole store carries good tags: the other aggregators notice it.

    Exit codes: 0 nothing is damaged, 1 something is, 2 usage or configuration, 5 the store cannot be read at all.
    """
    from fleetcount_aggregator.storage.store_check import check_store

    settings = loaded(config)
    found = check_store(settings.store_place, store_keys(settings))
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


def _window_id(text: str) -> "WindowId":
    from fleetcount_protocol.errors import FleetcountError
    from fleetcount_protocol.ids import WindowId

    try:
        return WindowId(bytes.fromhex(text))
    except (ValueError, FleetcountError) as error:
        raise click.BadParameter(
            f"{text!r} is not a window id: 64 hexadecimal digits", param_hint="--window"
        ) from error


@click.command("repair", cls=StrictCommand)
@_CONFIG
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
    from fleetcount_aggregator.process.app import repair as mend
    from fleetcount_aggregator.roles.outcomes import Settled
    from fleetcount_aggregator.storage.errors import StoreError
    from fleetcount_transport.logs import configure

    chosen = [_window_id(one) for one in windows]
    settings = loaded(config)
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


@click.command("backup", cls=StrictCommand)
@_CONFIG
@click.option("--output", required=True, metavar="FILE", type=click.Path(path_type=Path), help="A new file.")
@click.option("--with-keys", is_flag=True, help="Put the store key and the signing key into it. Guard it like them.")
def backup(config: Path, output: Path, with_keys: bool) -> None:
    """Write what must not be forgotten into one file, while the aggregator runs or not.

    It has windows, records, debits, marks and questions; no data key, no share and no session, so nothing that is
    deleted at the end of a window lives on in it. A window under way when it was made does not go on after a restore:
    its record is adopted if the others have one, and otherwise it ends as aborted. Without the store key nobody can put
    it back.
    """
    from fleetcount_aggregator.storage.backup import KEPT_KEYS, BackupFile, write_backup
    from fleetcount_aggregator.storage.store_check import check_key

    settings = loaded(config)
    files = {name: getattr(settings.keys, name) for name in KEPT_KEYS} if with_keys else {}
    about = BackupFile(
        aggregator_id=settings.aggregator.id,
        deployment=settings.aggregator.deployment,
        made_at=int(time.time()),
        keys=tuple(files),
    )
    keys = {name: path for name, path in files.items() if isinstance(path, Path)}
    sealed_by = store_keys(settings)
    check_key(settings.store_place, sealed_by)
    with _terminable():
        write_backup(settings.store_place, sealed_by.row_seal, output, about, keys)
    click.echo(f"wrote {output}")
    click.echo(
        "no data key is in it: windows under way do not go on from it, and end as aborted unless released elsewhere"
    )
    if keys:
        click.echo(f"it holds {' and '.join(sorted(keys))}: whoever has it is this aggregator")
    else:
        click.echo("no key is in it: keep the store key and the signing key elsewhere, without them it is lost")


@contextmanager
def _terminable() -> Generator[None]:
    """Let SIGTERM end a command as Ctrl-C does: what it was registries is taken away."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command("restore", cls=StrictCommand)
@_CONFIG
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
def restore(config: Path, file: Path) -> None:
    """Put a backup in the place of a store that is gone. Refused where a store is: move that away first.

    Checks every row before anything takes its name; run it again after whatever ended it. At its first start the
    aggregator asks the others how the windows that were under way have ended, before it does anything about them: a
    record with all signatures is adopted, the rest ends as `restored_backup`. Nothing is drawn for a window twice.
    """
    from fleetcount_aggregator.storage.backup import KEPT_KEYS, put_back

    settings = loaded(config)
    named = {name: getattr(settings.keys, name) for name in KEPT_KEYS}
    keys = {name: path for name, path in named.items() if isinstance(path, Path)}
    whose = (settings.aggregator.id, settings.aggregator.deployment)
    about = put_back(settings.store_place, file, lambda staged: store_keys(settings, staged).row_seal, whose, keys)
    made = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(about.made_at))
    click.echo(f"put back the backup of {made}; start the aggregator, and the others, so that it learns what it missed")


@click.command("migrate", cls=StrictCommand)
@_CONFIG
def migrate(config: Path) -> None:
    """Bring a store up to the tables of this version: all of it, or it stays as it is.

    Processes of this version may serve it meanwhile, none of an older one: as long as one lives it is refused. There is
    no way back but a backup. Does nothing to a store that has these tables.
    """
    from contextlib import closing

    from fleetcount_aggregator.storage.opening import open_engine
    from fleetcount_aggregator.storage.schema import POSTGRES, SQLITE

    place = loaded(config).store_place
    version = (SQLITE if place.url is None else POSTGRES).version
    with closing(open_engine(place, alone=place.url is None, migrate=True)):
        click.echo(f"{place.name} has schema version {version}, that of this version of fleetcount")
