"""The pauses between an aggregator's attempts to reach its broker."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

_FIRST_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0


class Reconnecting:
    """The backoff before the next attempt: between half and all of a delay that doubles, from 0.2 s to 5 s.

    `clock` returns seconds; after a connection that lasted longer than the last delay the delay is 0.2 s again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wait = _FIRST_RETRY_S
        self._started = clock()

    def attempt(self) -> None:
        """Note that an attempt begins."""
        self._started = self._clock()

    async def rest(self) -> None:
        """Wait before the next attempt."""
        if self._clock() - self._started > self._wait:  # It was a connection, not another attempt.
            self._wait = _FIRST_RETRY_S
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret.
        self._wait = min(2 * self._wait, _LONGEST_RETRY_S)
