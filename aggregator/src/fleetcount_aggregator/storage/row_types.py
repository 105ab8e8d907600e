"""The rows of a store as values.

Knows no files and no SQL (`rows`). Reports are columns: they are named by their position among the complete reports of
a closed window.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import Digest, QuestionId, SessionId, WindowId
from fleetcount_protocol.messages import WindowState
from numpy.typing import NDArray


class Lifecycle(enum.IntEnum):
    """How far the life of a window has come; the value is in existing stores."""

    ACTIVE = 0
    ARCHIVED = 1
    """It has ended, and what was released and charged is kept (`windows.retention`)."""
    RETIRED = 2
    """Its digests are deleted too."""


class ReportVerdict(enum.IntEnum):
    """How far one report of a batch has come at this aggregator; the value is a byte of `BatchRow.verdicts`."""

    VERIFIED = 0
    """`verify_init` is done, and what the others say is not known yet."""
    ACCEPTED = 1
    """The proof holds for this aggregator and, once the set is sealed, for all."""
    DROPPED = 2
    """Verified, and so in the batch's sum; excluded later, and counted under its reason."""
    REFUSED = 3
    """Not verified: in no sum, and counted under its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A device's session: the request as it came, what was answered, and its keys sealed at rest (`session_chains`).

    A stored request cannot open a second session; it is judged again when the session comes back into memory.
    `accepted` is the aggregator's ephemeral public key and its confirmation, joined.
    """

    session_id: SessionId
    request: bytes = field(repr=False)
    certificate: Digest
    expiry: int
    accepted: bytes = field(repr=False)
    chain: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """A window's canonical bytes, its verify key (sealed at rest) and where it stands."""

    window_id: WindowId
    canonical: bytes = field(repr=False)
    verify_key: bytes = field(repr=False)
    state: WindowState
    abort_reason: str
    installed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """A question signed by all and the seed of its verify keys, sealed at rest."""

    question_id: QuestionId
    signed: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    installed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedWindow:
    """What was decided about one window of a question, once: its window is installed, or it is missing for a reason.

    `window_id` is None where nothing says what the window would have been: a missing later step of a drill-down.
    """

    question_id: QuestionId
    index: int
    window_id: WindowId | None
    missing: str = ""


class Cost(enum.Enum):
    """What a question costs, by what was decided about its windows."""

    NOTHING = enum.auto()
    OPEN = enum.auto()
    """It may still be debited, or what was decided is damaged: it counts."""
    DEBITED = enum.auto()


class Charged(NamedTuple):
    """A question whose cost is asked for: how many windows it has, and whether it was withdrawn.

    It was if a party refused it, or stopped it before its first window.
    """

    question_id: QuestionId
    windows: int
    withdrawn: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchRow:
    """One batch of verified reports, in columns of n: what is needed to finish it and to add it up.

    `positions` are those of `CompleteReports`; `verdicts` one byte of `ReportVerdict` each; `share_digests` n x 32: of
    their public shares. `kept` is sealed at rest: the sum of the verified output shares, and at a helper the seeds.
    """

    number: int
    positions: NDArray[np.int64]
    verdicts: bytes
    share_digests: bytes
    kept: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step that happens once a window or batch: what was asked, or its digest, and the bytes answered ever after.

    `transient`: not needed once the window has ended; `Store.purge` deletes it.
    """

    name: str
    request: bytes
    answer: bytes = field(repr=False)
    transient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One release charged to a signal and window. `epsilon` is decimal text, "none" without a finite eps.

    Times are in Unix seconds, here and in all rows.
    """

    window_id: WindowId
    signal: str
    opens: int
    closes: int
    epsilon: str
    debited_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowChange:
    """Everything one step changes, applied in one transaction or not at all.

    `required` are the states in which the change is allowed. If `step` is stored already, nothing is applied.
    Moving to AGREEING closes intake: what lacks an instalment then is counted as a half pair.
    """

    window_id: WindowId
    required: frozenset[WindowState]
    new_state: WindowState | None = None
    abort_reason: str = ""
    step: StepRow | None = None
    batch: BatchRow | None = None
    """Stored under its number, in place of the one before."""
    included: bytes | None = field(default=None, repr=False)
    """The set: one byte of 0 or 1 a complete report, by position."""
    rejections: Mapping[RejectReason, int] = field(default_factory=dict[RejectReason, int])
    debit: LedgerRow | None = None
