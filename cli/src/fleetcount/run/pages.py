"""What a server that runs here says on the pages of its `[metrics] listen`, for its operator's commands.

Loads nothing but HTTP; it must not decide what follows.
"""

import http.client
import json
from typing import Any, Final

from fleetcount_protocol.endpoint import split_listener

_WAIT_S: Final = 5.0
_MOST_BYTES: Final = 4 * 2**20
_SAID: Final = (http.client.OK, http.client.SERVICE_UNAVAILABLE)
"""/readyz says with 503 what is not ready."""
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - asked, not bound.


def ask_page(listen: str, path: str) -> dict[str, Any] | None:
    """Return what a server says on a page, as JSON; {"error": text} if it refuses the question, None if none answers.

    One that listens on all addresses is asked on loopback. Port 0 cannot be asked: only its server's first line says
    which it became.
    """
    answer = _answer(listen, path)
    if answer is None:
        return None
    status, body = answer
    if status == http.client.BAD_REQUEST:
        return {"error": body.decode("utf-8", "replace").strip()}
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def ask_bytes(listen: str, path: str) -> bytes | None:
    """Return what a server says on a page, None if none answers or it has no such page; where as `ask_page`."""
    answer = _answer(listen, path)
    return None if answer is None or answer[0] not in _SAID else answer[1]


def _answer(listen: str, path: str) -> tuple[int, bytes] | None:
    host, port = split_listener(listen)
    if port == 0:
        return None
    # Straight to it, whatever proxies the environment names.
    connection = http.client.HTTPConnection(_LOOPBACK.get(host, host), port, timeout=_WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def waits_here(listen: str) -> dict[str, str]:
    """Return why each open window of a running aggregator does not go on, by window id in hexadecimal form."""
    page = ask_page(listen, "/windows") or {}
    waits = {row["window"]: row["wait"]["text"] for row in page.get("windows", []) if row.get("wait")}
    return waits | {name: f"in quarantine: {damage}" for name, damage in page.get("quarantined", {}).items()}
