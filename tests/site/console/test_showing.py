"""The server of a console: GET of the page alone, for this machine alone, and a look that fails ends nothing."""

import http.client
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_site.console.looking import Looker
from fleetcount_site.console.showing import Looking

from tests.site.console.conftest import Process


def test_nothing_can_be_asked_for_but_the_page(console: str) -> None:
    where = urlsplit(console).netloc
    for method, path, host, status in (
        ("POST", "/now", where, 405),
        ("DELETE", "/", where, 405),
        ("GET", "/metrics", where, 404),
        ("GET", "/", "elsewhere.example", 421),
    ):
        connection = http.client.HTTPConnection(where, timeout=10)
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status == status
        assert "frame-ancestors 'none'" in str(answer.headers["content-security-policy"])


def test_the_console_looks_on_after_a_look_that_fails(
    configured: AggregatorConfig, process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del tmp_path
    looker = Looker(configured, process.ask)
    looks = threading.Event()

    def fails() -> None:
        looks.set()
        raise ZeroDivisionError

    with Looking(looker, every_s=0.01) as looking:
        monkeypatch.setattr(looker, "look", fails)
        assert looks.wait(60)
        looks.clear()
        assert looks.wait(60)
        assert looking.failed == "The last look failed (ZeroDivisionError); what is below is older."
        monkeypatch.undo()
