"""What a store keeps of windows that have ended, and the rows that nothing loads until somebody asks.

Defines the `Archive` part of the `Store` protocol. A window is in work until nothing is left to do for it, then at
rest: not loaded at a start, and answered about as before. Once its reports' digests are not needed any more it is
retired: its outcome, its record and its debit stay. At last it may be forgotten. Decides neither when nor why
(windows.retention).
"""

from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.ids import WindowId

AT_ONCE: Final = 64
"""Windows read, put to rest, retired or forgotten together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRow:
    """A window for which nothing is left to do: when it expires, Unix seconds, and whether this aggregator leads it."""

    window_id: WindowId
    expiry: int
    led: bool

    @property
    def place(self) -> "Place":
        """Where it is among the others."""
        return self.expiry, self.window_id


Place = tuple[int, bytes]
"""Where a window at rest is in the order by expiry."""
FIRST: Final[Place] = (-1, b"")
