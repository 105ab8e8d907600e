"""`fleetcount aggregator serve` and `repair`: run one aggregator, or end what is damaged as if it ran."""

import asyncio
import os
from pathlib import Path

import click
from fleetcount_aggregator.app import repair as mend
from fleetcount_aggregator.app import run
from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.host.role import ALL_ROLES, read_roles
from fleetcount_aggregator.roles.repair import Settled
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_protocol.errors import FleetcountError
from fleetcount_protocol.ids import WindowId
from fleetcount_transport.logs import configure

from fleetcount import __version__
from fleetcount.command.exits import CannotReachError
from fleetcount.command.lazy import StrictCommand
from fleetcount.run.store import CONFIG


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
def serve(config: Path, roles: str | None, accept_failover: bool, restored: bool, migrate: bool) -> None:
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
        release=__version__,
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
