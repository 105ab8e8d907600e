"""Orders about a question: the start of one that is counted from submission; pause, resume and stop of any.

The start fixes all times, once; the other orders skip windows, and never move, reorder or lengthen one. It must not
know which windows have opened: an aggregator refuses an order about these when it arrives.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.layout import Reader, text_bytes, uint
from fleetcount_protocol.limits import MAX_ORDER_BYTES, MAX_QUESTION_WINDOWS, MAX_UNIX_TIME
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.keys import encode_with_signature, read_with_signature
from fleetcount_protocol.window.signing import TrustedAggregator, verify_by
from fleetcount_protocol.window.window import Window, check_range

ORDER_LABEL: Final = b"FCORDR01"
_LARGEST_NUMBER: Final = 2**32 - 1


class OrderAction(enum.Enum):
    """The kind of an order: a start fixes when window 0 opens, the others are about windows from `from_window` on."""

    PAUSE = 1
    """By the leader: the windows are skipped until the leader resumes."""
    RESUME = 2
    """By the leader: the windows are asked again."""
    STOP = 3
    """By any aggregator: the windows are skipped for ever, because no sum can be opened without its share."""
    START = 4
    """By the leader, as its first order, and only for a question that is counted from submission."""


@dataclass(frozen=True, kw_only=True)
class QuestionOrder:
    """An order of one aggregator about a question; its `number` is above those of its earlier orders for the question.

    `start` is when window 0 opens, Unix seconds, and None in all orders but a start; a start has `from_window` 0.

    Raises:
        QuestionError: a number outside 1 to 2**32 - 1, a window out of range, a start that is missing, out of range or
            in another kind of order, or a start with a number above 1.
    """

    question_id: QuestionId
    number: int
    action: OrderAction
    aggregator_id: AggregatorId
    from_window: int = 0
    start: int | None = None

    def __post_init__(self) -> None:
        check_range("number of the order", self.number, 1, _LARGEST_NUMBER)
        if self.action is OrderAction.START:
            check_range("number of a start", self.number, 1, 1)
            check_range("from_window of a start", self.from_window, 0, 0)
            check_range("start of the question", self.start, 0, MAX_UNIX_TIME)
        elif self.start is not None:
            raise QuestionError(f"start of the question is {self.start}, allowed in a start: this is a {self.name}")
        check_range("from_window", self.from_window, 0, MAX_QUESTION_WINDOWS - 1)

    @property
    def name(self) -> str:
        """The kind as a word: `start`, `pause`, `resume` or `stop`."""
        return self.action.name.lower()

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the aggregator signs (docs/wire.md, "Order")."""
        head = ORDER_LABEL + self.question_id + uint(self.number, 4) + uint(self.action.value, 1)
        about = uint(self.from_window, 4) if self.start is None else uint(self.start, 8)
        return head + text_bytes(self.aggregator_id) + about


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedOrder:
    """An order with its aggregator's Ed25519 signature, 64 bytes, which is not verified yet."""

    order: QuestionOrder
    signature: bytes


def decode_order(data: bytes) -> QuestionOrder:
    """Return the order whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of an order.
    """
    reader = Reader(data, "order", MAX_ORDER_BYTES)
    reader.expect(ORDER_LABEL)
    question_id, number = QuestionId(reader.take(QuestionId.SIZE)), reader.uint(4)
    action = OrderAction(reader.count(1, 1, len(OrderAction)))
    aggregator_id = AggregatorId(reader.text(1, 32))
    starts = action is OrderAction.START
    start, from_window = (reader.uint(8), 0) if starts else (None, reader.uint(4))
    reader.finish()
    try:
        return QuestionOrder(
            question_id=question_id,
            number=number,
            action=action,
            aggregator_id=aggregator_id,
            from_window=from_window,
            start=start,
        )
    except QuestionError as error:
        raise DecodeError(f"order that cannot be: {error}") from error


def encode_signed_order(signed: SignedOrder) -> bytes:
    """Return an order and its signature as one file."""
    return encode_with_signature(signed.order.canonical, signed.signature)


def decode_signed_order(data: bytes) -> SignedOrder:
    """Return the order that `encode_signed_order` wrote; the signature is not verified here.

    Raises:
        DecodeError: the bytes are not such a file.
    """
    canonical, signature = read_with_signature(data, "order", ORDER_LABEL, MAX_ORDER_BYTES)
    return SignedOrder(order=decode_order(canonical), signature=signature)


def sign_order(order: QuestionOrder, key: Ed25519PrivateKey) -> SignedOrder:
    """Return the order with the signature of its aggregator's signing key (RFC 8032, pure) over the canonical bytes."""
    return SignedOrder(order=order, signature=key.sign(order.canonical))


def verify_order(
    signed: SignedOrder, question: Question, trusted: Mapping[AggregatorId, TrustedAggregator] | None = None
) -> None:
    """Accept an order only from an aggregator of this question that may give it.

    With `trusted` also with a successor of the key in the question that is valid when the order's first window opens.
    Before the question has started only its start is accepted.

    Raises:
        QuestionError: another question, an aggregator that it does not list, a start, pause or resume that is not the
            leader's, a start outside the signed limits, another order before the start, or a window that the question
            does not have.
        SignatureError: the signature is missing or does not verify.
    """
    order, leader = signed.order, question.aggregators[0]
    if order.question_id != question.question_id:
        raise QuestionError(f"order about question {order.question_id}, not {question.question_id}")
    issuer = next((one for one in question.aggregators if one.aggregator_id == order.aggregator_id), None)
    if issuer is None:
        raise QuestionError(f"question {question.name!r} does not list aggregator {order.aggregator_id!r}")
    if order.action is not OrderAction.STOP and issuer is not leader:
        raise QuestionError(f"{order.name} is {issuer.aggregator_id}'s, allowed: {leader.aggregator_id}'s")
    if order.start is not None:
        question = question.started(order.start)
    elif order.number == 1 and issuer is leader and question.schedule.submission is not None:
        raise QuestionError(
            f"order 1 of {leader.aggregator_id} is a {order.name}, allowed: the start, which comes first"
        )
    check_range("from_window", order.from_window, 0, question.schedule.windows - 1)
    what = f"signature of {issuer.aggregator_id} under order {order.number}"
    known, moment = (trusted or {}).get(issuer.aggregator_id), question.schedule.opens(order.from_window)
    verify_by(issuer, known, signed.signature, order.canonical, what, moment)


def verify_orders(
    orders: Iterable[SignedOrder], question: Question, trusted: Mapping[AggregatorId, TrustedAggregator] | None = None
) -> Question:
    """Verify orders with `verify_order`, the start first; return the question, started if a start is among them.

    Raises:
        QuestionError, SignatureError: as `verify_order` and `started_question`.
    """
    given = sorted(orders, key=lambda one: one.order.action is not OrderAction.START)
    for signed in given:
        verify_order(signed, question, trusted)
        question = started_question(question, [signed.order])
    return question


def started_question(question: Question, orders: Iterable[QuestionOrder]) -> Question:
    """Return the question with the leader's start, or unchanged if no start is among the orders.

    The orders are not verified here: the caller does that before or afterwards.

    Raises:
        QuestionError: a start for a question with fixed times, one outside the signed limits, or a second, different
            one.
    """
    for order in orders:
        if order.start is not None:
            question = question.started(order.start)
    return question


def started_by_window(question: Question, window: Window) -> Question:
    """Return the question with the start that follows from a window, for instance of a record; fixed times stay.

    It does not check that the window belongs to the question: the caller compares it with `question.window_at`.

    Raises:
        QuestionError: the start is outside the signed limits.
    """
    if question.schedule.submission is None:
        return question
    return question.started(window.round_one_opens - window.question.index * question.schedule.every_s)


def check_follows(order: QuestionOrder, known: Iterable[QuestionOrder]) -> None:
    """Refuse an order that does not follow all known orders of its aggregator about this question.

    Raises:
        QuestionError: its number is not above theirs, or the aggregator has stopped its part.
    """
    before = [one for one in known if one.aggregator_id == order.aggregator_id]
    last = max((one.number for one in before), default=0)
    if order.number <= last:
        raise QuestionError(f"number of the order is {order.number}, allowed: above {last}")
    if any(one.action is OrderAction.STOP for one in before):
        raise QuestionError(f"{order.aggregator_id} has stopped its part of the question; nothing follows a stop")


def stopped_at(orders: Iterable[QuestionOrder]) -> int | None:
    """Return the first window that a stop skips, None without a stop."""
    return min((one.from_window for one in orders if one.action is OrderAction.STOP), default=None)


def skipped_windows(question: Question, orders: Iterable[QuestionOrder]) -> tuple[range, ...]:
    """Return the windows that are not asked, ascending: the same at every party that has the same verified orders.

    In the order of their numbers each pause or resume decides about all windows from its own on and replaces earlier
    decisions about them; a stop ends the question at its window.

    Raises:
        QuestionError: two different orders of one aggregator under one number.
    """
    given = sorted(set(orders), key=lambda one: (one.aggregator_id, one.number))
    if len({(one.aggregator_id, one.number) for one in given}) != len(given):
        raise QuestionError("an aggregator gave two different orders under one number")
    windows, stopped = question.schedule.windows, stopped_at(given)
    end = windows if stopped is None else min(windows, stopped)
    changes: list[tuple[int, bool]] = [(0, False)]
    for order in given:
        if order.action in (OrderAction.PAUSE, OrderAction.RESUME):
            changes = [one for one in changes if one[0] < order.from_window]
            changes.append((order.from_window, order.action is OrderAction.PAUSE))
    changes = [*(one for one in changes if one[0] < end), (end, True), (windows, False)]
    return _joined(changes)


def _joined(changes: list[tuple[int, bool]]) -> tuple[range, ...]:
    found: list[range] = []
    for (start, skipped), (stop, _) in pairwise(changes):
        if not skipped or start == stop:
            continue
        begin = found.pop().start if found and found[-1].stop == start else start
        found.append(range(begin, stop))
    return tuple(found)
