"""What a store keeps of windows that have ended, and the rows that nothing loads until somebody asks.

Defines the `Archive` part of the `Store` protocol. A window is in work until nothing is left to do for it, then at
rest: not loaded at a start, and answered about as before. Once its reports' digests are not needed any more it is
retired: its outcome, its record and its debit stay. At last it may be forgotten. Decides neither when nor why
(windows.retention).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import WindowState

from fleetcount_aggregator.storage.row_types import LedgerRow, Rest

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


class Archive(Protocol):
    """The ended windows of one aggregator's store; a write returns after it is durable."""

    async def windows_in_work(self) -> Sequence[WindowId]:
        """Return the windows that are not at rest and not damaged, in order of installation: all a start has to
        know.
        """
        ...

    async def put_to_rest(self, rows: Sequence[RestRow]) -> None:
        """Remember that nothing is left to do for windows; doing it again changes nothing.

        Raises:
            StoreError: one of them has not ended; then nothing changes.
        """
        ...

    async def resting(self, rest: Rest, above: Place, until: int) -> Sequence[RestRow]:
        """Return windows at rest, or retired, by expiry: above a place, expired at `until`, and `AT_ONCE` at most."""
        ...

    async def retire(self, window_ids: Sequence[WindowId], kept: Mapping[WindowState, Sequence[str]]) -> None:
        """Delete the digests of windows at rest, and their steps but for those kept by the state they ended in.

        Doing it again changes nothing; a window that is in work is passed over.
        """
        ...

    async def forget(self, window_ids: Sequence[WindowId]) -> Sequence[WindowId]:
        """Delete retired windows with all there is of them, debits too; return those that are gone.

        A window stays while its question is in work: the next record's chain names it. A question at rest goes with the
        last of its windows.
        """
        ...

    async def debit(self, window_id: WindowId) -> "LedgerRow | None":
        """Return what a window was debited, or None."""
        ...

    async def ledger_rows(self) -> int:
        """Return how many debits there have ever been, those that are forgotten too: it never falls."""
        ...

    async def rest_question(self, question_id: QuestionId, end: int, dropped: str) -> None:
        """Remember that nothing is left to do for a question that ended then; delete its notes of a name that begins
        so.

        Its windows and orders stay; it is read at a start only as `Store.question` says.
        """
        ...
