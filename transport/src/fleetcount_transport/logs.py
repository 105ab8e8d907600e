"""Logs as JSON lines on standard error: what happened, never a share, key, coin, device or number of reports."""

import json
import logging
import sys
from typing import Any, Final

import structlog

__all__ = ["LEVELS", "configure", "log"]

LEVELS: Final = ("debug", "info", "warning", "error")

log: Any = structlog.get_logger("fleetcount.aggregator")
"""The aggregator's logger; structlog's bound loggers have no static type for their event methods."""


class _LibraryFormatter(logging.Formatter):
    """Libraries' own warnings, one JSON object a line, without their tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {"event": "library", "logger": record.name, "level": record.levelname.lower()}
        return json.dumps({**fields, "message": record.getMessage()[:500]})


def configure(level: str = "info") -> None:
    """Send every log of this process at or above `level` to standard error, one JSON object a line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LibraryFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
