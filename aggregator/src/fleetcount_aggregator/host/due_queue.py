"""A priority queue of keys by due time: its cost is that of the due keys, however many wait.

It does not know the meaning of a key, and reads no clock.
"""

import heapq
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=bytes)


class DueQueue(Generic[KeyT]):
    """Keys by the moment at which they are due. A key that is put twice is due at the earlier moment."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, KeyT]] = []
        self._moments: dict[KeyT, float] = {}

    def put(self, moment: float, key: KeyT) -> None:
        """Add a key that is due at a moment."""
        if moment < self._moments.get(key, float("inf")):
            self._moments[key] = moment
            heapq.heappush(self._heap, (moment, key))

    def take(self, now: float) -> list[KeyT]:
        """Remove and return the keys that are due, earliest first, each once."""
        due: list[KeyT] = []
        while self._heap and self._heap[0][0] <= now:
            moment, key = heapq.heappop(self._heap)
            if self._moments.get(key) == moment:
                del self._moments[key]
                due.append(key)
        return due
