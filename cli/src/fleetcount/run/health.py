"""`fleetcount health`: whether a server that runs here lives, or is ready, for containers and service managers.

Also reads that server's other pages on its [metrics] listen. The command runs every few seconds, so it must read no
more than a configuration, ask no more than one page, and load nothing else.
"""

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import click
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import split_listener
from fleetcount_transport.settings import overridden
from fleetcount_transport.strangers import Answer, NoAnswerError, ask
from fleetcount_transport.toml_table import read_toml

from fleetcount.command.base import JSON, CannotReachError, CheckFailedError, StrictCommand, show
from fleetcount.command.options import config_option

_WAIT_S: Final = 5.0
"""Seconds for a whole page, to its last byte."""
_MOST_BYTES: Final = 4 * 2**20
_SAID: Final = (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)
"""With these comes a page: /readyz says with 503 what is not ready."""
_REFUSES: Final = "exclude is "
"""How /readyz begins to say, with 400, that it knows no such check."""
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - asked, not bound.


@click.command("health", cls=StrictCommand)
@config_option("An aggregator's or a relay's configuration, with [metrics].", "path")
@click.option("--ready", is_flag=True, help="Whether it can do all of its work: /readyz in place of /healthz.")
@click.option("--exclude", multiple=True, metavar="CHECK", help="With --ready: do without this check; may be repeated.")
@JSON
def health(path: Path, ready: bool, exclude: tuple[str, ...], as_json: bool) -> None:
    """Ask a server of this machine for /healthz, or /readyz, on its [metrics] listen.

    Exit code 0 when it lives (is ready), 1 when it is not ready, with every reason, and 4 when no server of fleetcount
    answers.
    """
    if exclude and not ready:
        raise UsageError(f"--exclude is {exclude[0]!r}; allowed: with --ready")
    content = read_toml(path)
    content = content if content.has("relay") else overridden(content, ("metrics",), _own_variables(), ())
    if not content.has("metrics"):
        raise UsageError(f"{path} has no [metrics]: a server without it has no page for its health")
    listen = content.section("metrics", ("listen", "insecure")).listener("listen")
    query = urlencode([("exclude", name) for name in exclude])
    page = ask_page(listen, f"/readyz?{query}", "ready") if ready else ask_page(listen, "/healthz", "alive")
    if page is None:
        raise CannotReachError(f"nothing of fleetcount answers at {listen}")
    if "error" in page:
        raise UsageError(f"--exclude: {page['error']}")
    lines = [
        f"{'ok' if one['ok'] else 'NO'}  {one['name']}: {one['reason'] or 'fine'}"
        + (" (excluded)" if one["name"] in exclude else "")
        for one in page.get("checks", [])
    ]
    show({"listen": listen, **page}, lines if ready else [*lines, f"{listen} lives"], as_json=as_json)
    if ready and not page["ready"]:
        raise CheckFailedError(f"{listen} is not ready")


def _own_variables() -> Mapping[str, str]:
    """Return the variables of this environment that say where an aggregator has its pages."""
    return {name: value for name, value in os.environ.items() if name.upper().startswith("FLEETCOUNT_METRICS__")}


def ask_page(listen: str, path: str, key: str) -> dict[str, Any] | None:
    """Return what a server says on a page, as JSON; {"error": text} if it knows no check that is excluded.

    None if nothing answers, or something else than this page of fleetcount, which has the `key`.

    One that listens on all addresses is asked on loopback. Port 0 cannot be asked: only its server's first line says
    which it became.
    """
    answer = _answer(listen, path)
    if answer is None:
        return None
    if answer.status == HTTPStatus.BAD_REQUEST:
        text = answer.content.decode("utf-8", "replace").strip()
        return {"error": text} if text.startswith(_REFUSES) else None
    if answer.status not in _SAID:
        return None
    try:
        found = json.loads(answer.content)
    except ValueError:
        return None
    return found if isinstance(found, dict) and key in found else None


def ask_bytes(listen: str, path: str) -> bytes | None:
    """Return what a server says on a page, None if none answers or it has no such page; where as `ask_page`."""
    answer = _answer(listen, path)
    return None if answer is None or answer.status not in _SAID else answer.content


def _answer(listen: str, path: str) -> Answer | None:
    host, port = split_listener(listen)
    if port == 0:
        return None
    asked = _LOOPBACK.get(host, host)
    url = f"http://[{asked}]:{port}{path}" if ":" in asked else f"http://{asked}:{port}{path}"
    try:
        # Straight to it, whatever proxies the environment names.
        return ask(url, total_s=_WAIT_S, most_bytes=_MOST_BYTES, direct=True)
    except NoAnswerError:
        return None


def waits_here(listen: str) -> dict[str, str]:
    """Return why windows of a running aggregator do not go on, by window id in hexadecimal form.

    Its page lists at most a thousand open windows.
    """
    page = ask_page(listen, "/windows", "windows") or {}
    waits = {row["window"]: row["wait"]["text"] for row in page.get("windows", []) if row.get("wait")}
    return waits | {name: f"in quarantine: {damage}" for name, damage in page.get("quarantined", {}).items()}
