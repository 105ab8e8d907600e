"""The server of a demo's page: what it says before there is something to say, and to whom."""

import http.client
import json
from urllib.parse import urlsplit

import pytest
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.window import Window
from fleetcount_site.watch.server import Shown, showing

from tests.site.watch.conftest import run


def ask(shown: Shown, path: str, host: str | None = None) -> tuple[int, bytes]:
    """Return status and body of a path, asked under another name of the host if one is given."""
    where = urlsplit(shown.address)
    assert where.hostname is not None
    connection = http.client.HTTPConnection(where.hostname, where.port or 0, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = b"" if path == "/events" and answer.status == 200 else answer.read()
    connection.close()
    return answer.status, body


def test_nothing_is_split_before_a_window_is_signed_and_nobody_else_is_answered(shown: Shown, window: Window) -> None:
    status, body = ask(shown, "/report.json")
    assert (status, json.loads(body)) == (404, {"error": "the window is not signed yet"})

    run(shown, window)

    assert ask(shown, "/report.json")[0] == 200
    for path in ("/", "/events", "/report.json"):
        assert ask(shown, path, "evil.example")[0] == 421


def test_a_port_that_is_taken_is_refused(shown: Shown) -> None:
    port = urlsplit(shown.address).port or 0

    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}"), showing(port):
        raise AssertionError("served twice")
