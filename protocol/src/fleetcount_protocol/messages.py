"""The messages between devices and aggregators, and between aggregators, as values without protobuf.

The modules of `wire` encode and decode them.
"""

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, ReportId, SessionId, WindowId
from fleetcount_protocol.layout import sized, uint
from fleetcount_protocol.limits import MAX_KEY_NUMBER, MAX_ORDERS_PER_QUESTION
from fleetcount_protocol.question.key_list import SignedKeyList
from fleetcount_protocol.question.orders import SignedOrder
from fleetcount_protocol.question.question import SignedQuestion


class WindowState(enum.Enum):
    """The state of a window at one aggregator; the value is the word on the wire. A state never goes backwards."""

    ANNOUNCED = "announced"
    COLLECTING = "collecting"
    AGREEING = "agreeing"
    RELEASING = "releasing"
    RELEASED = "released"
    ABORTED = "aborted"


SESSION_LABEL: Final = b"FCSESS03"
X509_CREDENTIAL: Final = b"\x01"
"""The kind byte of a credential that is a certificate. Kind 2 is reserved; every kind but 1 is refused."""
INSTALMENT_LABEL: Final = b"fleetcount v2 instalment"


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """The request with which a device opens a session with one aggregator (docs/wire.md, "Session").

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
    """The aggregator has stored the session's keys durably until `expiry`, Unix seconds.

    `ephemeral_key` is its X25519 public key of this session alone; `confirmation` proves that it has the keys. Both
    have 32 bytes.

    Raises:
        DecodeError: another size.
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
    is derived from the session's window key of this `key_number`, 1..65,535.

    Raises:
        DecodeError: a round or a key number out of range, or a public share in round 1.
    """

    window_id: WindowId
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
            raise DecodeError(f"the number of a window key is {self.key_number}, not 1 to {MAX_KEY_NUMBER}")

    @property
    def digest(self) -> Digest:
        """SHA-256 over the instalment's canonical bytes; a receipt covers it, and equal digests mean equal bytes."""
        named = self.window_id + self.report_id + self.session_id + uint(self.key_number, 2) + uint(self.round, 1)
        digest = hashlib.sha256(INSTALMENT_LABEL + named)
        digest.update(sized(self.public_share, 2))
        digest.update(sized(self.ciphertext, 4))
        return Digest(digest.digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The aggregator's promise, made after its commit: the part is durable, and counts if its report is the device's
    only one and all aggregators have theirs.

    `digest` is that of the instalment, `mac` 32 bytes of HMAC-SHA256 (docs/wire.md, "Receipt").
    """

    window_id: WindowId
    report_id: ReportId
    round: int
    session_id: SessionId
    digest: Digest
    mac: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An instalment that was not stored, and why."""

    window_id: WindowId
    report_id: ReportId
    round: int
    session_id: SessionId
    reason: RejectReason


InstalmentReply = Receipt | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseQuery:
    """Any party to aggregator: asks for the state of a window, and for its record if it is released."""

    aggregator_id: AggregatorId
    window_id: WindowId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAnswer:
    """The state of a window; with `released` the canonical record and all signatures, with `aborted` the public reason.

    Raises:
        DecodeError: a record without `released` or the other way round; a reason without `aborted` likewise.
    """

    state: WindowState
    abort_reason: str = ""
    record: bytes = b""
    signatures: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        released = self.state is WindowState.RELEASED
        if bool(self.record) != released or bool(self.signatures) != released:
            raise DecodeError(f"a window that is {self.state.value} with {len(self.signatures)} signatures")
        _check_reason(self.state, self.abort_reason)


def _check_reason(state: WindowState, reason: str) -> None:
    if bool(reason) != (state is WindowState.ABORTED):
        raise DecodeError(f"a window that is {state.value} with the abort reason {reason[:40]!a}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOffer:
    """Aggregator to device: a question signed by all, with the key lists and orders that this aggregator knows.

    `key_lists` are of different aggregators, in the question's order; a list that is missing here may be in another
    aggregator's offer. `orders` ascend by aggregator id and number. Making the value verifies no signature.

    Raises:
        DecodeError: key lists or orders of another question, given twice or out of order, or more than 256 orders.
    """

    signed: SignedQuestion
    key_lists: tuple[SignedKeyList, ...]
    orders: tuple[SignedOrder, ...]

    def __post_init__(self) -> None:
        places = [one.aggregator_id for one in self.signed.question.aggregators]
        listed = [one.key_list.aggregator_id for one in self.key_lists]
        if listed != [name for name in places if name in listed]:
            raise DecodeError(f"key lists of {', '.join(listed)} for aggregators {', '.join(places)}, in this order")
        _check_orders(self.signed, self.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionQuery:
    """Device to aggregator: asks for the questions of a deployment with ids above `after`; None asks from the first.

    With `over` the answer has also those whose last window has closed: a reader needs their start to derive windows.
    `held`, of a query for the first list without them, is the `held_digest` (32 bytes) of the offers that the device
    has already, None if it has none.

    Raises:
        DecodeError: `held` beside `after` or `over`.
    """

    aggregator_id: AggregatorId
    deployment: str
    after: QuestionId | None = None
    over: bool = False
    held: bytes | None = None

    def __post_init__(self) -> None:
        if self.held is not None and (self.after is not None or self.over):
            raise DecodeError("a query says what is held and asks for a later list, or for what is over")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionList:
    """Aggregator to device: offers, ascending by question id; `more` means that there are larger ids.

    `unchanged`, without offers, means that all offers are those that the query says are held.

    Raises:
        DecodeError: `unchanged` with offers or `more`.
    """

    offers: tuple[QuestionOffer, ...]
    more: bool = False
    unchanged: bool = False

    def __post_init__(self) -> None:
        check_unchanged(self.unchanged, len(self.offers), self.more)


def check_unchanged(unchanged: bool, offers: int, more: bool) -> None:
    """Refuse a list that is said to be unchanged and holds so many offers, or has more to come.

    Raises:
        DecodeError: it is so.
    """
    if unchanged and (offers or more):
        raise DecodeError(f"a list of questions is unchanged, and has {offers} offers{' and more' if more else ''}")


def held_digest(offers: Iterable[bytes]) -> bytes:
    """Return the digest of all offers of an aggregator, from the SHA-256 of each one's message, by question id."""
    return hashlib.sha256(b"".join(offers)).digest()


def _check_orders(signed: SignedQuestion, orders: tuple[SignedOrder, ...]) -> None:
    if len(orders) > MAX_ORDERS_PER_QUESTION:
        raise DecodeError(f"{len(orders)} orders, allowed: at most {MAX_ORDERS_PER_QUESTION}")
    if any(one.order.question_id != signed.question.question_id for one in orders):
        raise DecodeError("an order is about another question")
    places = [(one.order.aggregator_id, one.order.number) for one in orders]
    if places != sorted(set(places)):
        raise DecodeError("orders must ascend by aggregator id and number")


# Between aggregators. The leader drives; every request may be repeated and is answered with the same bytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallQuestion:
    """Leader to helper: a question signed by all, the seed of its windows' verify keys (32 bytes), the orders so far.

    Raises:
        DecodeError: orders as in `QuestionOffer`.
    """

    signed: SignedQuestion
    seed: bytes = field(repr=False)
    orders: tuple[SignedOrder, ...]

    def __post_init__(self) -> None:
        _check_orders(self.signed, self.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """Helper to leader: the question or the order is durable here; `key_list` is the helper's present key list.

    The leader repeats its request to learn of keys that the helper has announced since.
    """

    question_id: QuestionId
    key_list: SignedKeyList


# Batches are columns of n reports: joined fields of one size, in one order.


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProposal:
    """Leader to helper: reports to verify together, numbered from 0 within the window, each complete at the leader.

    `report_ids` n x 16 bytes, `share_digests` n x 32 (of the public shares), `verifier_shares` n of one size.
    """

    window_id: WindowId
    batch: int
    report_ids: bytes
    share_digests: bytes
    verifier_shares: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReply:
    """Helper to leader: one answer a proposed report, in the proposal's order.

    `reasons` n bytes: 0 with a verifier share; MISSING_AT_PEER if the helper does not have the complete report or has
    other bytes of it; or the reason why its verification failed, with which no aggregator counts the report.
    `verifier_shares` are those of the zeros.
    """

    window_id: WindowId
    batch: int
    report_ids: bytes
    reasons: bytes
    verifier_shares: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBatch:
    """Leader to helper: the verifier messages of the batch's valid reports; all others of the batch are rejected.

    `report_ids` n x 16 bytes, `messages` n of one size.
    """

    window_id: WindowId
    batch: int
    report_ids: bytes
    messages: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """Helper to leader: which of the finished reports the helper accepts (n x 16 bytes)."""

    window_id: WindowId
    batch: int
    accepted: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSet:
    """Leader to helper: the accepted set by the digests of its leaves (docs/wire.md, "Set digest"); one set a window.

    `leaf_digests` 256 x 32 bytes. `accepted` (n x 16 bytes, ascending) are the ids of the leaves for which the helper
    answered that they differ; the first request has none.
    """

    window_id: WindowId
    leaf_digests: bytes
    accepted: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAgreed:
    """Helper to leader: the helper computed the same digest and has stored it."""

    window_id: WindowId
    set_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDiffers:
    """Helper to leader: some leaves of the helper's set differ; the leader repeats with its report ids in them.

    `leaves` 32 bytes: bit 7 - n % 8 of byte n // 8 is set if leaf n differs; at least one bit is set.
    """

    window_id: WindowId
    leaves: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitQuery:
    """Leader to helper: asks for the commitment to the helper's noised share of this set."""

    window_id: WindowId
    set_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """SHA-256 of an aggregator's noised share, exchanged before any share is opened."""

    window_id: WindowId
    aggregator_id: AggregatorId
    set_digest: Digest
    commitment: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuery:
    """Leader to helper: asks for the helper's noised share; has all aggregators' commitments, in the window's order."""

    window_id: WindowId
    set_digest: Digest
    commitments: tuple[Commitment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedShare:
    """An aggregator's sum of shares plus its own noise: canonical field elements, and the blind of its commitment."""

    window_id: WindowId
    aggregator_id: AggregatorId
    set_digest: Digest
    vector: bytes = field(repr=False)
    blind: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordProposal:
    """Leader to helper: asks for a signature of a canonical record, with all noised shares from which it follows."""

    window_id: WindowId
    shares: tuple[NoisedShare, ...]
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSignature:
    """An aggregator's Ed25519 signature over the canonical bytes of the release record."""

    window_id: WindowId
    aggregator_id: AggregatorId
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRecord:
    """Leader to helper: the canonical record with the signatures of all, in the window's order."""

    window_id: WindowId
    record: bytes
    signatures: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortWindow:
    """Leader to helper: the window is aborted, with a reason for the public."""

    window_id: WindowId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStatus:
    """The state of a window at one aggregator, and its ledger's high-water mark, for recovery and `question status`.

    `rejections` are counts above 0, ascending by reason number; `ledger_rows` counts the rows of the whole ledger.

    Raises:
        DecodeError: counts out of order, or an abort reason without `aborted` or the other way round.
    """

    state: WindowState
    ledger_rows: int
    abort_reason: str = ""
    set_digest: Digest | None = None
    rejections: tuple[tuple[RejectReason, int], ...] = ()

    def __post_init__(self) -> None:
        _check_reason(self.state, self.abort_reason)
        numbers = [reason.value for reason, _ in self.rejections]
        if sorted(set(numbers)) != numbers or any(count <= 0 for _, count in self.rejections):
            raise DecodeError("rejection counts must be above 0 and ascend by reason")
