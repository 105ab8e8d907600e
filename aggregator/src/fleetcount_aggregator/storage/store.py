"""What an aggregator remembers, and what every store keeps to: durable before answered, first bytes win.

Defines the rows and the `Store` protocol; it does not know files or SQL (memory_store, sql_store). Reports are
columns: they are named by their position among a closed window's complete reports.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, ReportId, SessionId, WindowId
from fleetcount_protocol.limits import MAX_QUESTION_WINDOWS

from fleetcount_aggregator.storage.archive import Archive
from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.errors import Damage
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.row_types import (
    BatchRow,
    Charged,
    Cost,
    DecidedWindow,
    LedgerRow,
    QuestionRow,
    SessionRow,
    StepRow,
    WindowChange,
    WindowRow,
)


class Store(Archive, Protocol):
    """The durable memory of one aggregator; a write returns after it is durable, any method may raise StoreError."""

    @property
    def data_keys(self) -> "DataKeys":
        """The keys that what lies sealed is sealed under, one a window; every window that has not ended has its key."""
        ...

    @property
    def begun_again(self) -> int:
        """How many of its transactions were begun again since others stood in their way."""
        ...

    async def add_session(self, row: SessionRow, *, most: int, now: int) -> SessionRow | None:
        """Remember a session, unless its certificate has `most` that have not expired at `now`: then None.

        Returns the row that is stored under its id, which is the first one. The limit holds over all processes.
        """
        ...

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """Return a session, or None."""
        ...

    async def sessions(self, session_ids: Sequence[SessionId]) -> Sequence[SessionRow]:
        """Return those of many sessions that are known, in their order."""
        ...

    async def sessions_of(self, certificate: Digest, now: int) -> int:
        """Return how many sessions of a certificate have not expired at `now`."""
        ...

    async def forget_sessions(self, expired_before: int) -> None:
        """Delete sessions that expired before the given second."""
        ...

    async def chains(self, session_ids: Sequence[bytes]) -> Sequence[tuple[bytes, bytes]]:
        """Return the sealed keys of sessions that are known, each with its session's id."""
        ...

    async def put_chains(self, chains: Sequence[tuple[bytes, bytes]]) -> None:
        """Overwrite the sealed keys of sessions, each given with its session's id; one that is forgotten stays so."""
        ...

    async def key_uses(self, window_id: WindowId) -> bytes:
        """Return which keys opened a window's instalments (`InstalmentRun.key_uses`), in any order; none once
        purged.
        """
        ...

    async def window(self, window_id: WindowId) -> WindowRow | None:
        """Return one window, or None."""
        ...

    async def canonical(self, window_id: WindowId) -> bytes | None:
        """Return a window's bytes, None if they are not as they were written, whatever else of it is."""
        ...

    async def damaged(self) -> Sequence["Damage"]:
        """Return what was found damaged when the store was opened; of windows at rest it shows later."""
        ...

    async def restored(self) -> bool:
        """Return whether the store was put back from a backup, and what came after it is not settled yet."""
        ...

    async def install_question(self, row: QuestionRow, notes: Mapping[str, bytes]) -> QuestionRow:
        """Remember a question with its first notes, all or nothing; return the row that is stored, which is the
        first.
        """
        ...

    async def questions(self, *, ended_after: int = -1) -> Sequence[QuestionRow]:
        """Return every question that is in work or ended after a second, in order of installation."""
        ...

    async def one_question(self, question_id: QuestionId) -> QuestionRow | None:
        """Return one question, or None."""
        ...

    async def note_question(self, question_id: QuestionId, name: str, note: bytes) -> None:
        """Remember something by name beside a question, in place of what was noted under this name before."""
        ...

    async def question_notes(self, question_id: QuestionId) -> Mapping[str, bytes]:
        """Return all notes of a question."""
        ...

    async def decide_windows(self, rows: Sequence[DecidedWindow], window: WindowRow | None = None) -> None:
        """Remember what was decided about windows and install the window of one of them: all of it or nothing.

        A window that is there stays as it is.

        Raises:
            StoreError: one of the windows is decided already, otherwise; then nothing changes.
        """
        ...

    async def decided(
        self, question_id: QuestionId, *, above: int = -1, below: int = MAX_QUESTION_WINDOWS
    ) -> Sequence[DecidedWindow]:
        """Return the windows of a question that are decided, in order, above an index and below another."""
        ...

    async def costs(self, asked: Sequence[Charged]) -> Sequence[Cost]:
        """Return what each question costs."""
        ...

    async def decided_of(self, window_id: WindowId) -> DecidedWindow | None:
        """Return what was decided about the window that this id names or would name; None if it is none's."""
        ...

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """Store instalments with one sync a window; for each run one byte of `StoreOutcome` an instalment, in order."""
        ...

    async def instalment_digest(self, window_id: WindowId, report_id: ReportId, round_number: int) -> Digest | None:
        """Return the digest of a stored instalment, or None."""
        ...

    async def count_rejections(self, window_id: WindowId, counts: Mapping[RejectReason, int]) -> None:
        """Add to a window's rejection counters."""
        ...

    async def rejections(self, window_id: WindowId) -> Mapping[RejectReason, int]:
        """Return a window's rejection counters."""
        ...

    async def complete_reports(self, window_id: WindowId) -> CompleteReports:
        """Return the complete reports of a window, until it is purged: the same ever after intake is closed."""
        ...

    async def reports_of(self, window_id: WindowId, devices: bytes) -> bytes:
        """Return the ids of the reports of a window under way that these devices sent, joined, in any order.

        `devices` are the digests of their public keys, n x 32.
        """
        ...

    async def batches(self, window_id: WindowId, *, above: int = -1) -> Sequence[BatchRow]:
        """Return the batches of a window by number, above a number and `BATCHES_AT_ONCE` at most (`every_batch`)."""
        ...

    async def batch(self, window_id: WindowId, number: int) -> BatchRow | None:
        """Return one batch, or None."""
        ...

    async def chosen(self, window_id: WindowId) -> bytes | None:
        """Return the sealed set, one byte of 0 or 1 a complete report; None before it is sealed and after purging."""
        ...

    async def step(self, window_id: WindowId, name: str) -> StepRow | None:
        """Return a step that was taken, or None."""
        ...

    async def apply(self, change: WindowChange) -> StepRow | None:
        """Apply a change; return the stored step if `change.step` had been taken before (then nothing is applied).

        Raises:
            StateConflictError: the window is not in a required state, or the table forbids the move.
        """
        ...

    async def ledger(self) -> Sequence[LedgerRow]:
        """Return every debit, oldest first."""
        ...

    async def raise_high_water(self, peer: AggregatorId, ledger_rows: int) -> None:
        """Remember the highest ledger count a peer has shown; a lower one is not stored."""
        ...

    async def high_water(self) -> Mapping[AggregatorId, int]:
        """Return the highest ledger count of every peer seen so far."""
        ...

    async def note_epoch(self, name: str, epoch: bytes) -> None:
        """Remember an epoch under a name; one that is not greater, as bytes, than the one there is not stored."""
        ...

    async def epochs(self) -> Mapping[str, bytes]:
        """Return the epochs by name (`greetings`)."""
        ...

    async def unpurged(self) -> Sequence[WindowId]:
        """Return the ended windows whose purge a crash has cut off before this start."""
        ...

    async def purge(self, window_id: WindowId) -> None:
        """Delete what an ended window no longer needs: share parts, batches, passing steps, its data key; never
        digests.

        An instalment that comes again is still known by its bytes, and which reports were in the set stays known. The
        data key goes last, once the end of the window is durable.

        Raises:
            StoreError: the window has not ended.
        """
        ...

    async def probe(self) -> None:
        """Write something that changes nothing, durably; raises StoreError if nothing can be written."""
        ...

    async def close(self) -> None:
        """Finish what is queued and let go of the files."""
        ...


async def every_batch(store: Store, window_id: WindowId) -> AsyncIterator[BatchRow]:
    """Yield the batches of a window by number; few are in memory at a time."""
    above = -1
    while rows := await store.batches(window_id, above=above):
        for row in rows:
            yield row
        above = rows[-1].number
