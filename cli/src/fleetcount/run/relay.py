"""`fleetcount relay`: carry the reports of many devices to aggregators, unread.

It must not read a report.
"""

from pathlib import Path

import click
from fleetcount_relay.app import run
from fleetcount_relay.config import load_relay_config
from fleetcount_transport.logs import configure

from fleetcount.command.base import StrictCommand
from fleetcount.command.options import config_option


@click.command("relay", cls=StrictCommand)
@config_option("The relay's file.")
def relay(config: Path) -> None:
    """Carry reports of many devices to aggregators in large batches, and the receipts back, until SIGTERM or Ctrl-C.

    A relay can read neither reports nor receipts and keeps nothing but the newest deny list: devices send again what
    has no receipt. It prints one JSON line ("event": "ready") on standard output once it listens; logs go to
    standard error. SIGTERM finishes what is under way and exits with 0; SIGHUP reads [log] level again, and nothing
    else.
    """
    settings = load_relay_config(config)
    configure(settings.log.level, "relay", lambda: load_relay_config(config).log.level)
    run(settings)
