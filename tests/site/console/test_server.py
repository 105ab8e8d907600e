"""The server of a console: GET of the page alone, for this machine alone, and a reading that fails ends nothing."""

import http.client
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_site.console.server import LatestState
from fleetcount_site.console.state import StateReader

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


def test_the_console_reads_on_after_a_reading_that_fails(
    configured: AggregatorConfig, process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del tmp_path
    reader = StateReader(configured, process.ask)
    readings = threading.Event()

    def fails() -> None:
        readings.set()
        raise ZeroDivisionError

    with LatestState(reader, every_s=0.01) as latest:
        monkeypatch.setattr(reader, "read", fails)
        assert readings.wait(60)
        readings.clear()
        assert readings.wait(60)
        assert latest.error == "The last reading failed (ZeroDivisionError); what is below is older."
        monkeypatch.undo()
