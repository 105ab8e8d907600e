"""`fleetcount console`: a page of this machine on which one aggregator's operator sees its state.

It must not change anything.
"""

import os
from pathlib import Path
from typing import Final

import click
from fleetcount_aggregator.config import load_config
from fleetcount_protocol.ids import split_listener
from fleetcount_site.console.server import serve
from fleetcount_site.console.state import AskPage, StateReader

from fleetcount.command.base import StrictCommand
from fleetcount.command.options import Count, config_option
from fleetcount.run.health import ask_bytes

_PORT: Final = 8_001


@click.command("console", cls=StrictCommand)
@config_option("The aggregator's file.")
@click.option("--port", type=Count(0, 65_535), default=_PORT, show_default=True, help="0 takes a free one.")
def console(config: Path, port: int) -> None:
    """Serve a page for an aggregator's operator on this machine's loopback address, until Ctrl-C.

    It shows the checks of /readyz, windows with their next deadline and why they wait, certificates, questions and the
    ledger. It reads the store, and asks the running aggregator at its [metrics] listen; it changes nothing, and shows
    nowhere how many reports there are. Everybody who can open pages of this machine can read it. From elsewhere:
    ssh -L 8001:127.0.0.1:8001 HOST. Alerts are Prometheus' (deploy/monitoring).

    Exit codes: 2 usage, configuration or a port that is taken, 5 the store cannot be read.
    """
    settings = load_config(config, os.environ)
    listen = "" if settings.metrics is None else settings.metrics.listen
    # Which port 0 became, its process alone has said.
    reader = StateReader(settings, None if not listen or split_listener(listen)[1] == 0 else asks(listen))
    serve(reader, port, lambda address: click.echo(f"{settings.aggregator.id}: {address}"))


def asks(listen: str) -> AskPage:
    """Return what asks an aggregator that listens there."""
    return lambda path: ask_bytes(listen, path)
