"""What is remembered of somebody, or of an address, beside what is under way: whether it was ever of use here.

A bounded memory of names in this process alone; it must not decide who gets in.
"""

import time
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
_MOST: Final = 65_536
"""Names remembered at once, some 200 bytes each; beyond, the oldest is forgotten."""


class Reputation(IntEnum):
    """In which line somebody waits: the lower goes first.

    Without a way to tell a new device from a new attacker, what one can tell is who has been of use before.
    """

    KNOWN = 0
    """A signature of it held not long ago, or it is this process itself."""
    NEW = 1
    FAILED = 2
    """It was of no use so far, and cost something."""


class Remembered(Generic[KeyT]):
    """Names that were noted in the last `seconds`, at most 65,536 of them."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[KeyT, float] = {}

    def note(self, name: KeyT) -> None:
        """Remember a name from now on."""
        self._until.pop(name, None)
        if len(self._until) >= _MOST:
            del self._until[next(iter(self._until))]
        self._until[name] = self._clock() + self._seconds

    def forget(self, name: KeyT) -> None:
        """Remember a name no longer."""
        self._until.pop(name, None)

    def __contains__(self, name: KeyT) -> bool:
        until = self._until.get(name)
        return until is not None and until > self._clock()
