"""Which tasks a relay carries, for its log: a task's id there is the one in every aggregator's log.

Names no device and counts nothing. Strangers may invent tasks, so it writes few lines a minute.
"""

import time
from collections.abc import Callable
from typing import Final

from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_transport.logs import log

__all__ = ["Carried"]

_MOST_TASKS: Final = 1_024
_LINES_A_MINUTE: Final = 30


class Carried:
    """The tasks of late, each with an aggregator."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: dict[tuple[TaskId, AggregatorId], None] = {}
        self._minute = 0.0
        self._lines = 0

    def note(self, task_id: TaskId, aggregator: AggregatorId) -> None:
        """Log that a task's instalments are carried to an aggregator and answered, the first time."""
        if (task_id, aggregator) in self._known:
            return
        self._known[task_id, aggregator] = None
        if len(self._known) > _MOST_TASKS:
            del self._known[next(iter(self._known))]
        now = self._monotonic()
        if now - self._minute >= 60:
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines <= _LINES_A_MINUTE:
            log.info("task_carried", task=str(task_id), aggregator=aggregator)
