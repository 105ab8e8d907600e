"""What is to be looked at and when: only what is due costs anything, however much waits.

Does not know what it names, and looks at no clock.
"""

import heapq
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=bytes)


class DueQueue(Generic[KeyT]):
    """Keys by the moment at which they are due. A key that is put in again counts at the earlier of both moments."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, KeyT]] = []
        self._moments: dict[KeyT, float] = {}

    def put(self, moment: float, key: KeyT) -> None:
        """Let a key be due at a moment."""
        if moment < self._moments.get(key, float("inf")):
            self._moments[key] = moment
            heapq.heappush(self._heap, (moment, key))

    def take(self, now: float) -> list[KeyT]:
        """Return the keys that are due, earliest first, each once; they are not in the agenda any more."""
        due: list[KeyT] = []
        while self._heap and self._heap[0][0] <= now:
            moment, key = heapq.heappop(self._heap)
            if self._moments.get(key) == moment:
                del self._moments[key]
                due.append(key)
        return due
