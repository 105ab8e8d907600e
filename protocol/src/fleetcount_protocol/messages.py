"""The messages of the protocol as domain values: what devices, aggregators and peers say to each other.

Free of protobuf; the modules of `wire` turn them into bytes and back.
"""

import enum
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SeriesId, SessionId, TaskId
from fleetcount_protocol.layout import sized, uint
from fleetcount_protocol.limits import MAX_KEY_NUMBER, MAX_ORDERS_PER_SERIES
from fleetcount_protocol.series.key_list import SignedKeyList
from fleetcount_protocol.series.orders import SignedOrder
from fleetcount_protocol.series.series import SignedSeries

__all__ = [
    "X509_CREDENTIAL",
    "AbortTask",
    "BatchDecision",
    "BatchProposal",
    "BatchReply",
    "CommitQuery",
    "Commitment",
    "FinishBatch",
    "FinishedRecord",
    "InstallSeries",
    "Instalment",
    "InstalmentReply",
    "NoisedShare",
    "OpenQuery",
    "Receipt",
    "RecordProposal",
    "RecordSignature",
    "Refusal",
    "ReleaseAnswer",
    "ReleaseQuery",
    "SealSet",
    "SeriesAnswer",
    "SeriesList",
    "SeriesOffer",
    "SeriesQuery",
    "SessionAccepted",
    "SessionRefused",
    "SessionReply",
    "SessionRequest",
    "SetAgreed",
    "SetDiffers",
    "TaskState",
    "TaskStatus",
]


class TaskState(enum.Enum):
    """Where a task stands at one aggregator; the value is the word on the wire. Nothing moves backwards."""

    ANNOUNCED = "announced"
    COLLECTING = "collecting"
    AGREEING = "agreeing"
    RELEASING = "releasing"
    RELEASED = "released"
    ABORTED = "aborted"


SESSION_LABEL: Final = b"FCSESS03"
X509_CREDENTIAL: Final = b"\x01"
"""The kind byte of a credential that is a certificate. Kind 2 is reserved, and refused like every other."""
INSTALMENT_LABEL: Final = b"fleetcount v2 instalment"


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A sender opens a session with one aggregator (docs/wire.md, "Session").

    `sealed_secret` is HPKE(encapsulated key || ciphertext) of 32 random bytes; `ephemeral_key` an X25519 public key of
    this request alone, 32 bytes; `credential` a byte that names its kind, 1, and the sender's X.509 leaf in DER;
    `expiry` Unix seconds; `signature` ECDSA P-256 over SHA-256 of `signed_bytes`, DER.
    """

    aggregator_id: AggregatorId
    key_id: int
    sealed_secret: bytes
    ephemeral_key: bytes
    credential: bytes
    expiry: int
    signature: bytes

    @property
    def certificate(self) -> bytes:
        """The sender's certificate in DER."""
        return self.credential[len(X509_CREDENTIAL) :]

    @cached_property
    def session_id(self) -> SessionId:
        """The session's name on both sides, from the signed bytes: a re-send opens the same session."""
        return SessionId(hashlib.sha256(self.signed_bytes).digest()[:16])

    @cached_property
    def signed_bytes(self) -> bytes:
        """The canonical bytes that the device signs and whose hash names the session; the signature is not in them.

        Raises:
            DecodeError: a field beyond its size.
        """
        try:
            return b"".join(
                (
                    SESSION_LABEL,
                    sized(self.aggregator_id.encode(), 1),
                    uint(self.key_id, 1),
                    uint(self.expiry, 8),
                    sized(self.sealed_secret, 2),
                    sized(self.ephemeral_key, 2),
                    sized(self.credential, 2),
                )
            )
        except ValueError as error:
            raise DecodeError(f"session request: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAccepted:
    """The aggregator holds the session's keys durably until `expiry`.

    `ephemeral_key` is its X25519 public key of this session alone; `confirmation` proves that it has the keys, 32 bytes
    each.
    """

    session_id: SessionId
    expiry: int
    ephemeral_key: bytes
    confirmation: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for name, value in (("ephemeral_key", self.ephemeral_key), ("confirmation", self.confirmation)):
            if len(value) != 32:
                raise DecodeError(f"{name} of an accepted session has {len(value)} bytes, not 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRefused:
    """The aggregator does not open the session, and why."""

    session_id: SessionId
    reason: RejectReason


SessionReply = SessionAccepted | SessionRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Instalment:
    """One sealed part of a report for one aggregator.

    `round` is 1 or 2 for the instalments of a two-round report, 0 for a report that travels whole. `public_share` is
    empty in round 1. `ciphertext` is AES-128-GCM of the share part under the report key (docs/wire.md, "Report"), which
    comes from the session's task key of this `key_number`, 1..65,535.
    """

    task_id: TaskId
    report_id: ReportId
    session_id: SessionId
    key_number: int
    round: int
    public_share: bytes
    ciphertext: bytes

    def __post_init__(self) -> None:
        if self.round not in (0, 1, 2):
            raise DecodeError(f"round is {self.round}, not 0, 1 or 2")
        if self.round == 1 and self.public_share:
            raise DecodeError("round one carries no public share")
        if not 1 <= self.key_number <= MAX_KEY_NUMBER:
            raise DecodeError(f"the number of a task key is {self.key_number}, not 1 to {MAX_KEY_NUMBER}")

    @property
    def digest(self) -> Digest:
        """SHA-256 over the instalment's canonical bytes: what a receipt covers and what "the same bytes" means."""
        named = self.task_id + self.report_id + self.session_id + uint(self.key_number, 2) + uint(self.round, 1)
        digest = hashlib.sha256(INSTALMENT_LABEL + named)
        digest.update(sized(self.public_share, 2))
        digest.update(sized(self.ciphertext, 4))
        return Digest(digest.digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The aggregator's promise, made after its commit: durable here, counted if the report is complete everywhere."""

    task_id: TaskId
    report_id: ReportId
    round: int
    session_id: SessionId
    digest: Digest
    mac: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An instalment that was not stored, and why."""

    task_id: TaskId
    report_id: ReportId
    round: int
    session_id: SessionId
    reason: RejectReason


InstalmentReply = Receipt | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseQuery:
    """Anybody to aggregator: how a window ended there, or where it stands."""

    aggregator_id: AggregatorId
    task_id: TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAnswer:
    """The state of a task; with `released` the canonical record and all signatures, with `aborted` the public reason.

    Raises:
        DecodeError: a record without `released` or the other way round; a reason without `aborted` likewise.
    """

    state: TaskState
    abort_reason: str = ""
    record: bytes = b""
    signatures: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        released = self.state is TaskState.RELEASED
        if bool(self.record) != released or bool(self.signatures) != released:
            raise DecodeError(f"a task that is {self.state.value} with {len(self.signatures)} signatures")
        _check_reason(self.state, self.abort_reason)


def _check_reason(state: TaskState, reason: str) -> None:
    if bool(reason) != (state is TaskState.ABORTED):
        raise DecodeError(f"a task that is {state.value} with the abort reason {reason[:40]!a}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesOffer:
    """Aggregator to device: a series signed by all, with the key lists and orders that this aggregator knows.

    `key_lists` are of different aggregators, in the series' order; one may be missing here and stand in another's
    offer. `orders` ascend by aggregator id and number. No signature is verified by being here.

    Raises:
        DecodeError: key lists or orders that are not the series', twice, out of order, or more than 256 orders.
    """

    signed: SignedSeries
    key_lists: tuple[SignedKeyList, ...]
    orders: tuple[SignedOrder, ...]

    def __post_init__(self) -> None:
        places = [one.aggregator_id for one in self.signed.series.aggregators]
        listed = [one.key_list.aggregator_id for one in self.key_lists]
        if listed != [name for name in places if name in listed]:
            raise DecodeError(f"key lists of {', '.join(listed)} for aggregators {', '.join(places)}, in this order")
        _check_orders(self.signed, self.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    """Device to aggregator: which series are offered in a deployment, above `after` by id; None asks from the first.

    `over` asks for those as well whose last window has closed: a reader needs their start to name their windows.
    """

    aggregator_id: AggregatorId
    deployment: str
    after: SeriesId | None = None
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesList:
    """Aggregator to device: offers, ascending by series id; `more` are above the last one."""

    offers: tuple[SeriesOffer, ...]
    more: bool = False


def _check_orders(signed: SignedSeries, orders: tuple[SignedOrder, ...]) -> None:
    if len(orders) > MAX_ORDERS_PER_SERIES:
        raise DecodeError(f"{len(orders)} orders, allowed: at most {MAX_ORDERS_PER_SERIES}")
    if any(one.order.series_id != signed.series.series_id for one in orders):
        raise DecodeError("an order is about another series")
    places = [(one.order.aggregator_id, one.order.number) for one in orders]
    if places != sorted(set(places)):
        raise DecodeError("orders must ascend by aggregator id and number")


# Between aggregators. The leader drives; every request may be repeated and is answered with the same bytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSeries:
    """Leader to helper: a series signed by all, the seed of its windows' verify keys (32 bytes), the orders so far.

    Raises:
        DecodeError: orders as in `SeriesOffer`.
    """

    signed: SignedSeries
    seed: bytes = field(repr=False)
    orders: tuple[SignedOrder, ...]

    def __post_init__(self) -> None:
        _check_orders(self.signed, self.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesAnswer:
    """The answer to `InstallSeries` and to an order: the series is durable here, and this is the own key list of now.

    Asking again is how the others learn of keys that were announced since.
    """

    series_id: SeriesId
    key_list: SignedKeyList


# Batches are columns of n reports: joined fields of one size, in one order.


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProposal:
    """Leader to helper: reports to verify together, numbered from 0 within the task, each complete at the leader.

    `report_ids` n x 16 bytes, `share_digests` n x 32 (of the public shares), `verifier_shares` n of one size.
    """

    task_id: TaskId
    batch: int
    report_ids: bytes
    share_digests: bytes
    verifier_shares: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReply:
    """Helper to leader: one answer a proposed report, in the proposal's order.

    `reasons` n bytes: 0 with a verifier share; MISSING_AT_PEER, the helper does not hold the report complete or holds
    other bytes; or why it cannot verify it: then it is out everywhere. `verifier_shares` are those of the zeros.
    """

    task_id: TaskId
    batch: int
    report_ids: bytes
    reasons: bytes
    verifier_shares: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBatch:
    """Leader to helper: the verifier messages of the batch's surviving reports; every other one of it is out.

    `report_ids` n x 16 bytes, `messages` n of one size.
    """

    task_id: TaskId
    batch: int
    report_ids: bytes
    messages: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """Helper to leader: which of the finished reports the helper accepts (n x 16 bytes)."""

    task_id: TaskId
    batch: int
    accepted: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSet:
    """Leader to helper: the accepted set by the digests of its leaves (docs/wire.md, "Set digest"); one set a task.

    `leaf_digests` 256 x 32 bytes. `accepted` (n x 16 bytes, ascending) are the reports of the leaves that the helper
    has said differ, none at first.
    """

    task_id: TaskId
    leaf_digests: bytes
    accepted: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAgreed:
    """Helper to leader: the helper computed the same digest and has stored it."""

    task_id: TaskId
    set_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDiffers:
    """Helper to leader: in some leaves the helper holds other reports, so that the leader has to name its own there.

    `leaves` 32 bytes: bit 7 - n % 8 of byte n // 8 says it of leaf n; at least one bit is set.
    """

    task_id: TaskId
    leaves: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitQuery:
    """Leader to helper: commit to your noised share of this set."""

    task_id: TaskId
    set_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """SHA-256 of an aggregator's noised share, exchanged before any share is opened."""

    task_id: TaskId
    aggregator_id: AggregatorId
    set_digest: Digest
    commitment: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuery:
    """Leader to helper: every aggregator's commitment, in the task's order; open your noised share."""

    task_id: TaskId
    set_digest: Digest
    commitments: tuple[Commitment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedShare:
    """An aggregator's sum of shares plus its own noise: canonical field elements, and the blind of its commitment."""

    task_id: TaskId
    aggregator_id: AggregatorId
    set_digest: Digest
    vector: bytes = field(repr=False)
    blind: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordProposal:
    """Leader to helper: every noised share and the canonical record that follows from them; sign it."""

    task_id: TaskId
    shares: tuple[NoisedShare, ...]
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSignature:
    """An aggregator's Ed25519 signature over the canonical bytes of the release record."""

    task_id: TaskId
    aggregator_id: AggregatorId
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRecord:
    """Leader to helper: the canonical record with the signatures of all, in the task's order."""

    task_id: TaskId
    record: bytes
    signatures: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTask:
    """Leader to helper: the task is aborted, with a reason for the public."""

    task_id: TaskId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """A task at one aggregator: for recovery, for `question status`, and its ledger's high-water mark for the peers.

    `rejections` are counts above 0, ascending by reason number; `ledger_rows` counts the rows of the whole ledger.

    Raises:
        DecodeError: counts out of order, or an abort reason without `aborted` or the other way round.
    """

    state: TaskState
    ledger_rows: int
    abort_reason: str = ""
    set_digest: Digest | None = None
    rejections: tuple[tuple[RejectReason, int], ...] = ()

    def __post_init__(self) -> None:
        _check_reason(self.state, self.abort_reason)
        numbers = [reason.value for reason, _ in self.rejections]
        if sorted(set(numbers)) != numbers or any(count <= 0 for _, count in self.rejections):
            raise DecodeError("rejection counts must be above 0 and ascend by reason")
