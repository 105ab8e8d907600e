"""The log of the windows that a relay carries, by the ids that also appear in the aggregators' logs.

It names no device and counts nothing. Anyone may invent window ids, so it writes few lines per minute.
"""

import time
from collections.abc import Callable
from typing import Final

from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_transport.logs import log

_MOST_WINDOWS: Final = 1_024
_LINES_A_MINUTE: Final = 30


class Carried:
    """The windows carried last, each with an aggregator."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: dict[tuple[WindowId, AggregatorId], None] = {}
        self._minute = 0.0
        self._lines = 0

    def note(self, window_id: WindowId, aggregator: AggregatorId) -> None:
        """Log, once per window and aggregator, that the window's instalments are carried and answered."""
        if (window_id, aggregator) in self._known:
            return
        self._known[window_id, aggregator] = None
        if len(self._known) > _MOST_WINDOWS:
            del self._known[next(iter(self._known))]
        now = self._monotonic()
        if now - self._minute >= 60:
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines <= _LINES_A_MINUTE:
            log.info("window_carried", window=str(window_id), aggregator=aggregator)
