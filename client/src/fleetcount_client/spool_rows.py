"""What a device's file keeps of its answers: the values, and how rows become them.

Reads and writes nothing, and shows no coin, secret or ciphertext.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from fleetcount_mechanisms.answers import Relation
from fleetcount_protocol.ids import QuestionId, SessionId, WindowId
from fleetcount_protocol.layout import Reader, sized, uint

from fleetcount_client.charges import Charge

if TYPE_CHECKING:
    from fleetcount_mechanisms.accounting.vectors import LossVector


class Phase(enum.Enum):
    """Where an answer stands. Nothing moves backwards; the last three are final and hold no secret any more."""

    ROUND_ONE = 1
    """The first bytes are stored, not all of them receipted. A report of one message stays here until it is done."""
    BETWEEN = 2
    """Round one is out; only the compact secret is left until round two opens."""
    ROUND_TWO = 3
    DELIVERED = 4
    """Every aggregator has receipted everything."""
    GIVEN_UP = 5
    """A window closed before every receipt was there; it counts only if all hold it even so, the charge stands."""
    REJECTED = 6
    """An aggregator refused for good; the report does not count anywhere, the charge stands."""

    @property
    def final(self) -> bool:
        """Whether there is nothing left to do."""
        return self in _FINAL


_FINAL: Final = frozenset({Phase.DELIVERED, Phase.GIVEN_UP, Phase.REJECTED})
NEXT: Final = {
    Phase.ROUND_ONE: frozenset({Phase.BETWEEN, Phase.DELIVERED, Phase.GIVEN_UP, Phase.REJECTED}),
    Phase.BETWEEN: frozenset({Phase.ROUND_TWO, Phase.GIVEN_UP}),
    Phase.ROUND_TWO: frozenset({Phase.DELIVERED, Phase.GIVEN_UP, Phase.REJECTED}),
}
"""The one transition table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    """The exact bytes for one aggregator, kept until its receipt: `position` is 0..k-1, `round` 0, 1 or 2."""

    round: int
    position: int
    instalment: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One answer: its phase, why it ended if it did, and the compact secret: coins, seeds and window keys.

    The secret is empty once the bytes of the last round are there.
    """

    window_id: WindowId
    phase: Phase
    reason: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer as its owner reads about it: when it was asked (Unix seconds), about what, and how it ended."""

    asked_at: int
    name: str
    signal: str
    phase: Phase
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session as stored: the chain key of the window that comes next, its `number`, and the key of receipts.

    The receipt key opens nothing. `hpke_key` is the key of the aggregator that the session was sealed to.
    """

    session_id: SessionId
    aggregator_id: str
    hpke_key: bytes
    secret: bytes = field(repr=False)
    receipt_key: bytes = field(repr=False)
    number: int
    expiry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What an answer begins with: its report, the bytes of its first round, and its sessions moved on by one window."""

    report: Report
    entries: Sequence[OutboxEntry]
    sessions: Sequence[SessionRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedRefusal:
    """A question the device did not answer, and why, for its owner to read."""

    question_id: QuestionId
    name: str
    rule: str
    message: str
    refused_at: float


def charge_of_row(row: tuple[Any, ...]) -> Charge:
    return Charge(
        charge_id=bytes(row[0]),
        name=row[1],
        signal=row[2],
        asked_at=row[3],
        asked_until=row[4],
        epsilon=None if row[5] is None else Decimal(row[5]),
        exposure=Fraction(row[6]),
        relation=Relation(row[7]),
        answers=Fraction(row[8]),
        promise=row[9],
        loss=_loss(row[10]),
        question_id=None if row[11] is None else bytes(row[11]),
        sent=bool(row[12]),
        counts_until=row[13],
    )


def loss_text(loss: "LossVector | None") -> str | None:
    """Return a loss as the file keeps it: "order:loss" of every order, then the pure one if it is finite."""
    if loss is None:
        return None
    parts = [f"{order}:{at}" for order, at in zip(loss.orders, loss.at, strict=True)]
    return " ".join(parts if loss.pure is None else [*parts, str(loss.pure)])


def _loss(text: str | None) -> "LossVector | None":
    from fleetcount_mechanisms.accounting.vectors import LossVector  # As in `ledger`.

    if text is None:
        return None
    parts = [part.partition(":") for part in text.split()]
    pure = [int(first) for first, colon, _ in parts if not colon]
    orders = [(int(first), int(at)) for first, colon, at in parts if colon]
    return LossVector(
        orders=tuple(order for order, _ in orders), at=tuple(at for _, at in orders), pure=pure[0] if pure else None
    )


def outbox_bytes(entries: Iterable[OutboxEntry]) -> bytes:
    """Return the bytes of a round as the file keeps them beside their report."""
    return b"".join(uint(one.round, 1) + uint(one.position, 1) + sized(one.instalment, 4) for one in entries)


def outbox_of(stored: bytes) -> tuple[OutboxEntry, ...]:
    """Return what `outbox_bytes` was given; raises DecodeError for anything else."""
    reader, found, size = Reader(stored, "a stored outbox", len(stored)), list[OutboxEntry](), 0
    while size < len(stored):
        one = OutboxEntry(round=reader.uint(1), position=reader.uint(1), instalment=reader.sized(4, 0, len(stored)))
        size += 6 + len(one.instalment)
        found.append(one)
    return tuple(found)


def report_of_row(row: tuple[Any, ...]) -> Report:
    return Report(window_id=WindowId(row[0]), phase=Phase(row[1]), reason=row[2], secret=bytes(row[3]))


def session_of_row(row: tuple[Any, ...]) -> SessionRow:
    return SessionRow(
        session_id=SessionId(row[0]),
        aggregator_id=row[1],
        hpke_key=bytes(row[2]),
        secret=bytes(row[3]),
        receipt_key=bytes(row[4]),
        number=row[5],
        expiry=row[6],
    )


def refusal_of_row(row: tuple[Any, ...]) -> NotedRefusal:
    return NotedRefusal(question_id=QuestionId(row[0]), name=row[1], rule=row[2], message=row[3], refused_at=row[4])
