"""The reputation of identities and addresses: whether a valid signature came from them lately.

A bounded memory of names in this process alone; it must not decide who is admitted.
"""

import time
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
_MOST: Final = 65_536
"""Names remembered at once, some 200 bytes each; beyond, the oldest is forgotten."""


class Reputation(IntEnum):
    """Queue priority: the lower value goes first.

    A server cannot tell a new device from a new attacker, but it can tell which identities it has served before.
    """

    KNOWN = 0
    """A signature of it was valid lately, or it is this process itself."""
    NEW = 1
    FAILED = 2
    """It has failed lately, and no signature of it was valid."""


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
        """Forget a name."""
        self._until.pop(name, None)

    def __contains__(self, name: KeyT) -> bool:
        until = self._until.get(name)
        return until is not None and until > self._clock()
