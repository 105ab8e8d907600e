"""`fleetcount health`: whether a server that runs here lives, or is ready, for containers and service managers.

It reads one line of a configuration and asks one page; it must load nothing else, for it runs every few seconds.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.command.exits import CannotReachError, CheckFailedError
from fleetcount.command.lazy import StrictCommand
from fleetcount.command.results import JSON, show


@click.command("health", cls=StrictCommand, short_help="Whether a server of this machine lives, or is ready.")
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="An aggregator's or a relay's configuration, with [metrics].",
)
@click.option("--ready", is_flag=True, help="Whether it can do all of its work: /readyz in place of /healthz.")
@click.option("--exclude", multiple=True, metavar="CHECK", help="With --ready: do without this check; may be repeated.")
@JSON
def health(path: Path, ready: bool, exclude: tuple[str, ...], as_json: bool) -> None:
    """Ask a server of this machine for /healthz, or /readyz, on its [metrics] listen.

    Exit code 0 when it lives (is ready), 1 when it says no, with every reason, and 4 when nothing answers.
    """
    from urllib.parse import urlencode

    from fleetcount_transport.settings import overridden
    from fleetcount_transport.toml_table import read_toml

    from fleetcount.run.pages import ask_page

    if exclude and not ready:
        raise UsageError(f"--exclude is {exclude[0]!r}; allowed: with --ready")
    content = read_toml(path)
    content = content if content.has("relay") else overridden(content, ("metrics",), _own_variables(), ())
    if not content.has("metrics"):
        raise UsageError(f"{path} has no [metrics]: a server without it has no page for its health")
    listen = content.section("metrics", ("listen", "insecure")).listener("listen")
    query = urlencode([("exclude", name) for name in exclude])
    page = ask_page(listen, f"/readyz?{query}" if ready else "/healthz")
    if page is None:
        raise CannotReachError(f"nothing of fleetcount answers at {listen}")
    if "error" in page:
        raise UsageError(f"--exclude: {page['error']}")
    lines = [
        f"{'ok' if one['ok'] else 'NO'}  {one['name']}: {one['reason'] or 'fine'}" for one in page.get("checks", [])
    ]
    show({"listen": listen, **page}, lines if ready else [*lines, f"{listen} lives"], as_json=as_json)
    if ready and not page["ready"]:
        raise CheckFailedError(f"{listen} is not ready")


def _own_variables() -> Mapping[str, str]:
    """Return the variables of this environment that say where an aggregator has its pages."""
    return {name: value for name, value in os.environ.items() if name.upper().startswith("FLEETCOUNT_METRICS__")}
