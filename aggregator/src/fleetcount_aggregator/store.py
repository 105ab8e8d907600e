"""What an aggregator remembers, and what every store keeps to: durable before answered, first bytes win.

Defines the rows and the `Store` protocol; knows nothing of files or SQL (memory_store, sqlite_store).
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from fleetcount_protocol.errors import MachineError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId

from fleetcount_aggregator.states import State

__all__ = [
    "PAGE",
    "CompleteReport",
    "InstalmentRow",
    "LedgerRow",
    "Outcome",
    "ReportRow",
    "ReportStatus",
    "SessionRow",
    "Step",
    "Store",
    "StoreBusyError",
    "StoreError",
    "StoredInstalment",
    "TaskChange",
    "TaskRow",
    "Verdict",
]

PAGE: Final = 256
"""Reports a store hands out at once, so that memory stays bounded whatever a task's size."""


class StoreError(MachineError):
    """The store could not do what it was asked: disk full, file damaged, another process in the directory, closed."""


class StoreBusyError(StoreError):
    """The store's queue is full; try again later."""


class Outcome(enum.Enum):
    """What became of one instalment."""

    STORED = "stored"
    SAME = "same"
    """The same bytes are held already: the same receipt is due."""
    OTHER_BYTES = "other_bytes"
    """Another instalment holds this (task, report id, round), or another device the report: the first one wins."""
    SECOND_REPORT = "second_report"
    """This device already has a report with another id in this task."""
    CLOSED = "closed"
    """The task takes no instalments any more."""


class ReportStatus(enum.Enum):
    """How far one report has come at this aggregator."""

    INCOMPLETE = 0
    COMPLETE = 1
    VERIFIED = 2
    """`verify_init` is done and stored; happens once a task."""
    ACCEPTED = 3
    """The proof holds for this aggregator and, once the set is sealed, for all."""
    REFUSED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A device's session, without its secret: `request` is still sealed and is opened again with the key files."""

    session_id: SessionId
    request: bytes = field(repr=False)
    certificate: Digest
    expiry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task signed by all, its verify key (sealed at rest) and where it stands."""

    task_id: TaskId
    signed: bytes = field(repr=False)
    verify_key: bytes = field(repr=False)
    state: State
    abort_reason: str
    installed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalmentRow:
    """One instalment as it arrived, still sealed; `expected` instalments (1 or 2) make its report complete."""

    task_id: TaskId
    report_id: ReportId
    round: int
    session_id: SessionId
    certificate: Digest
    digest: Digest
    public_share: bytes = field(repr=False)
    ciphertext: bytes = field(repr=False)
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredInstalment:
    """What verification needs of a stored instalment."""

    round: int
    session_id: SessionId
    public_share: bytes = field(repr=False)
    ciphertext: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteReport:
    """A report with all its instalments, ordered by round, not verified yet."""

    report_id: ReportId
    instalments: tuple[StoredInstalment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """A report's standing. `verification` is the sealed result of `verify_init`, empty before."""

    report_id: ReportId
    status: ReportStatus
    batch: int | None
    reason: RejectReason | None
    public_share_digest: Digest | None
    verification: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A new standing of one report; None leaves a field as it is."""

    report_id: ReportId
    status: ReportStatus
    reason: RejectReason | None = None
    batch: int | None = None
    public_share_digest: Digest | None = None
    verification: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that happens once a task: the digest of what was asked, and the bytes answered ever after."""

    name: str
    request: bytes
    answer: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One release charged to a signal and window. `epsilon` is decimal text, "none" without a finite eps."""

    task_id: TaskId
    signal: str
    opens: int
    closes: int
    epsilon: str
    debited_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """Everything one step changes, applied in one transaction or not at all.

    `required` are the states in which the change is allowed. If `step` is stored already, nothing is applied.
    Verdicts that refuse a report count its reason; `rejections` are further counts.
    """

    task_id: TaskId
    required: frozenset[State]
    new_state: State | None = None
    abort_reason: str = ""
    step: Step | None = None
    verdicts: tuple[Verdict, ...] = ()
    rejections: Mapping[RejectReason, int] = field(default_factory=dict[RejectReason, int])
    debit: LedgerRow | None = None
    refuse_incomplete: bool = False
    """Turn every incomplete report into a refused half pair (when intake closes)."""


class Store(Protocol):
    """The durable memory of one aggregator; a write returns after it is durable, any method may raise StoreError."""

    async def add_session(self, row: SessionRow) -> None:
        """Remember a session; an id that is known already is left as it is."""
        ...

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """Return a session, or None."""
        ...

    async def sessions_of(self, certificate: Digest, now: int) -> int:
        """Return how many sessions of a certificate have not expired at `now`."""
        ...

    async def forget_sessions(self, expired_before: int) -> None:
        """Delete sessions that expired before the given second."""
        ...

    async def install(self, row: TaskRow) -> TaskRow:
        """Remember a task; return the row that is stored, which is the first one."""
        ...

    async def tasks(self) -> Sequence[TaskRow]:
        """Return every task, in order of installation."""
        ...

    async def task(self, task_id: TaskId) -> TaskRow | None:
        """Return one task, or None."""
        ...

    async def add_instalments(self, rows: Sequence[InstalmentRow]) -> Sequence[Outcome]:
        """Store instalments in one transaction; one outcome a row, in order."""
        ...

    async def instalment_digest(self, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
        """Return the digest of a stored instalment, or None."""
        ...

    async def count_rejections(self, task_id: TaskId, counts: Mapping[RejectReason, int]) -> None:
        """Add to a task's rejection counters."""
        ...

    async def rejections(self, task_id: TaskId) -> Mapping[RejectReason, int]:
        """Return a task's rejection counters."""
        ...

    async def complete_reports(self, task_id: TaskId, limit: int) -> Sequence[CompleteReport]:
        """Return up to `limit` complete reports that are not verified yet, by report id."""
        ...

    async def reports(
        self, task_id: TaskId, *, status: ReportStatus | None = None, batch: int | None = None, after: bytes = b""
    ) -> Sequence[ReportRow]:
        """Return up to PAGE reports with an id above `after`, by report id."""
        ...

    async def report(self, task_id: TaskId, report_id: ReportId) -> ReportRow | None:
        """Return one report, or None."""
        ...

    async def step(self, task_id: TaskId, name: str) -> Step | None:
        """Return a step that was taken, or None."""
        ...

    async def apply(self, change: TaskChange) -> Step | None:
        """Apply a change; return the stored step if `change.step` had been taken before (then nothing is applied).

        Raises:
            StateConflictError: the task is not in a required state, or the table forbids the move.
        """
        ...

    async def ledger(self) -> Sequence[LedgerRow]:
        """Return every debit, oldest first."""
        ...

    async def remember_mark(self, peer: AggregatorId, ledger_rows: int) -> None:
        """Remember the highest ledger count a peer has shown; a lower one is not stored."""
        ...

    async def marks(self) -> Mapping[AggregatorId, int]:
        """Return the highest ledger count of every peer seen so far."""
        ...

    async def purge(self, task_id: TaskId) -> None:
        """Delete what a finished task no longer needs: share ciphertexts and verification results, never digests."""
        ...

    async def close(self) -> None:
        """Finish what is queued and let go of the files."""
        ...
