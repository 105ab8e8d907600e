"""Logs of events as JSON lines on standard error; never a share, key, coin, device or number of reports."""

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TextIO, cast

from fleetcount_protocol.errors import FleetcountError

# structlog loads rich where it is installed, to colour tracebacks, which these logs never have: 5 MB, half the time.
_RICH: Final = "rich"
_absent = _RICH not in sys.modules
if _absent:
    sys.modules[_RICH] = cast("Any", None)  # An import of it fails now, which structlog expects.
import structlog  # noqa: E402 - the line above has to come first.

if _absent:
    del sys.modules[_RICH]

LEVELS: Final = ("debug", "info", "warning", "error")

log: Any = structlog.get_logger("fleetcount.aggregator")
"""The aggregator's logger; structlog's bound loggers have no static type for their event methods."""


class _LibraryFormatter(logging.Formatter):
    """Libraries' own warnings, one JSON object per line, without their tracebacks."""

    def __init__(self, party: Mapping[str, str]) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {**self._party, "event": "library", "logger": record.name, "level": record.levelname.lower()}
        return json.dumps({**fields, "message": record.getMessage()[:500]})


class _StandardError:
    """`sys.stderr` at the time of each write: an embedding program or a test may replace it.

    A line that cannot be written (full disk, closed pipe) is dropped: a missing log must not stop a count.
    """

    def write(self, text: str) -> int:
        """Write a text, or drop it if that fails."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing if that fails."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def configure(level: str = "info", party: str = "", again: Callable[[], str] | None = None) -> None:
    """Send every log of this process at or above `level` to standard error, one JSON object per line.

    Each line names `party`, unless that is "". `again` returns the level that `follow_hangups` sets.
    """
    named = {"party": party} if party else {}

    def name(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**named, **event}

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            name,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _StandardError())),
        # With the cache a logger would keep the level of its first line, and SIGHUP could not change it.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_StandardError())
    handler.setFormatter(_LibraryFormatter(named))
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, getattr(logging, level.upper())), force=True)
    _again[:] = [] if again is None else [lambda: _set_level(again, party)]


_again: Final[list[Callable[[], None]]] = []
"""The action of SIGHUP, if there is one: one per process, like the configuration of its logs."""


def _set_level(read: Callable[[], str], party: str) -> None:
    try:
        level = read()
    except FleetcountError as error:
        log.error("log_level_not_changed", reason=str(error))
        return
    configure(level, party, read)
    log.warning("log_level_changed", to=level)


def follow_hangups() -> None:
    """From now on read the level again at each SIGHUP, on the running event loop; nothing else is read again.

    A signal needs no further listener, and only this user and root can send it. Without `configure(again=...)` SIGHUP
    ends the process, as is its default.
    """
    if _again:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _again[0])
