"""Logs: one JSON object a line that says whose it is, at a level that SIGHUP sets again."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from fleetcount_protocol.errors import UsageError
from fleetcount_transport import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the configuration of this process's logs as it was."""
    known, handlers = structlog.get_config(), list(logging.getLogger().handlers)
    level = logging.getLogger().level
    yield
    structlog.configure(**known)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    logs.configure.__globals__["_again"].clear()


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_every_line_says_whose_it_is_that_of_a_library_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "alpha")

    logs.log.info("window_installed", window="12ab")
    logs.log.debug("not_shown")
    logging.getLogger("grpc").warning("unwell")

    ours, library = written(capsys)
    assert {key: ours[key] for key in ("party", "event", "level", "window")} == {
        "party": "alpha",
        "event": "window_installed",
        "level": "info",
        "window": "12ab",
    }
    assert library == {"party": "alpha", "event": "library", "logger": "grpc", "level": "warning", "message": "unwell"}


def test_a_line_that_cannot_be_written_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("info", "alpha")
    with Path("/dev/full").open("w", buffering=1) as full, monkeypatch.context() as here:
        here.setattr(sys, "stderr", full)

        logs.log.info("window_installed", window="12ab")
        logging.getLogger("grpc").warning("unwell")

        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # What waits in the file can be written at its end.


async def test_a_hang_up_sets_the_level_again_also_of_a_logger_that_has_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    levels, asked = iter(["debug", "error"]), asyncio.Event()

    async def hang_up() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asked.wait()
        asked.clear()

    def read() -> str:
        asked.set()
        found = next(levels, None)
        if found is None:
            raise UsageError("log.level is 'loud'; allowed: debug, info, warning, error")
        return found

    logs.configure("info", "alpha", read)
    logs.follow_hangups()
    logs.log.debug("before")
    await hang_up()
    logs.log.debug("between")
    await hang_up()
    logs.log.info("after")
    logging.getLogger("grpc").warning("after")
    await hang_up()

    lines = written(capsys)
    assert [line["event"] for line in lines] == ["log_level_changed", "between", "log_level_not_changed"]
    assert lines[0]["to"] == "debug"
    assert "allowed: debug, info, warning, error" in lines[2]["reason"]


@pytest.mark.processes
def test_logs_load_no_library_that_colours_terminals_and_leave_it_to_others() -> None:
    pytest.importorskip("rich")
    code = (
        "import sys, fleetcount_transport.logs as l; print('rich.console' in sys.modules, end=' '); import rich; l.log"
    )

    said = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)

    assert said.stdout == "False "
