"""Orders about a series: the start of one that is counted from submission; pause, resume, stop of any that runs.

The start fixes all times, once; the others skip windows, and never move, reorder or lengthen anything. It must not know
which windows have opened: an aggregator refuses an order about those when it arrives.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.errors import DecodeError, TaskError
from fleetcount_protocol.ids import AggregatorId, SeriesId
from fleetcount_protocol.layout import Reader, text_bytes, uint
from fleetcount_protocol.limits import MAX_ORDER_BYTES, MAX_SERIES_WINDOWS, MAX_UNIX_TIME
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.rules import check_range
from fleetcount_protocol.task.signatures import encode_with_signature, read_with_signature
from fleetcount_protocol.task.signing import TrustedAggregator, verify_by
from fleetcount_protocol.task.task import Task

__all__ = [
    "OrderAction",
    "SeriesOrder",
    "SignedOrder",
    "check_follows",
    "decode_order",
    "decode_signed_order",
    "encode_signed_order",
    "sign_order",
    "skipped_windows",
    "started_by_window",
    "started_series",
    "stopped_at",
    "verify_order",
    "verify_orders",
]

ORDER_LABEL: Final = b"FCORDR01"
_LARGEST_NUMBER: Final = 2**32 - 1


class OrderAction(enum.Enum):
    """What an order does: `START` fixes when window 0 opens, the others are about the windows from `from_window` on."""

    PAUSE = 1
    """The leader's: they are skipped, until a later order of the leader resumes."""
    RESUME = 2
    """The leader's: they are asked again."""
    STOP = 3
    """Any aggregator's, for its own part, without which nothing can be opened: they are skipped for ever."""
    START = 4
    """The leader's first, of a series that is counted from submission, and of no other."""


@dataclass(frozen=True, kw_only=True)
class SeriesOrder:
    """What one aggregator orders about a series; `number` is above that of every order it gave before for the series.

    `start` is when window 0 opens, Unix seconds, in a start alone, which is about all windows: its `from_window` is 0.

    Raises:
        TaskError: a number outside 1 to 2**32 - 1, a window that no series has, a start that is missing, out of range
            or given to another action, or a start that has a number above 1.
    """

    series_id: SeriesId
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
            raise TaskError(f"start of the question is {self.start}, allowed in a start: this is a {self.name}")
        check_range("from_window", self.from_window, 0, MAX_SERIES_WINDOWS - 1)

    @property
    def name(self) -> str:
        """What the order is called: `start`, `pause`, `resume` or `stop`."""
        return self.action.name.lower()

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the aggregator signs (docs/wire.md, "Order")."""
        head = ORDER_LABEL + self.series_id + uint(self.number, 4) + uint(self.action.value, 1)
        about = uint(self.from_window, 4) if self.start is None else uint(self.start, 8)
        return head + text_bytes(self.aggregator_id) + about


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedOrder:
    """An order with its aggregator's Ed25519 signature, 64 bytes, not verified by being here."""

    order: SeriesOrder
    signature: bytes


def decode_order(data: bytes) -> SeriesOrder:
    """Return the order whose canonical bytes these are.

    Raises:
        DecodeError: they are not those of an order.
    """
    reader = Reader(data, "order", MAX_ORDER_BYTES)
    reader.expect(ORDER_LABEL)
    series_id, number = SeriesId(reader.take(SeriesId.SIZE)), reader.uint(4)
    action = OrderAction(reader.count(1, 1, len(OrderAction)))
    aggregator_id = AggregatorId(reader.text(1, 32))
    starts = action is OrderAction.START
    start, from_window = (reader.uint(8), 0) if starts else (None, reader.uint(4))
    reader.finish()
    try:
        return SeriesOrder(
            series_id=series_id,
            number=number,
            action=action,
            aggregator_id=aggregator_id,
            from_window=from_window,
            start=start,
        )
    except TaskError as error:
        raise DecodeError(f"order that cannot be: {error}") from error


def encode_signed_order(signed: SignedOrder) -> bytes:
    """Return an order and its signature as one file."""
    return encode_with_signature(signed.order.canonical, signed.signature)


def decode_signed_order(data: bytes) -> SignedOrder:
    """Return what `encode_signed_order` wrote; the signature is not verified here.

    Raises:
        DecodeError: it is no such file.
    """
    canonical, signature = read_with_signature(data, "order", ORDER_LABEL, MAX_ORDER_BYTES)
    return SignedOrder(order=decode_order(canonical), signature=signature)


def sign_order(order: SeriesOrder, key: Ed25519PrivateKey) -> SignedOrder:
    """Return the order with the signature of its aggregator's signing key (RFC 8032, pure) over the canonical bytes."""
    return SignedOrder(order=order, signature=key.sign(order.canonical))


def verify_order(
    signed: SignedOrder, series: Series, trusted: Mapping[AggregatorId, TrustedAggregator] | None = None
) -> None:
    """Accept an order only from an aggregator of this series that may give it.

    With `trusted`, also under a successor of the key that the series names, at the time of the order's first window.
    Of a series that has not started only its start is accepted.

    Raises:
        TaskError: another series, an aggregator it does not list, a start, pause or resume that is not the leader's, a
            start that the series does not take, another first order of a leader that has to start it, or a window
            that the series has not.
        SignatureError: the signature is missing or does not verify.
    """
    order, leader = signed.order, series.aggregators[0]
    if order.series_id != series.series_id:
        raise TaskError(f"order about series {order.series_id}, not {series.series_id}")
    issuer = next((one for one in series.aggregators if one.aggregator_id == order.aggregator_id), None)
    if issuer is None:
        raise TaskError(f"series {series.name!r} does not list aggregator {order.aggregator_id!r}")
    if order.action is not OrderAction.STOP and issuer is not leader:
        raise TaskError(f"{order.name} is {issuer.aggregator_id}'s, allowed: {leader.aggregator_id}'s")
    if order.start is not None:
        series = series.started(order.start)
    elif order.number == 1 and issuer is leader and series.schedule.submission is not None:
        raise TaskError(f"order 1 of {leader.aggregator_id} is a {order.name}, allowed: the start, which comes first")
    check_range("from_window", order.from_window, 0, series.schedule.windows - 1)
    what = f"signature of {issuer.aggregator_id} under order {order.number}"
    known, moment = (trusted or {}).get(issuer.aggregator_id), series.schedule.opens(order.from_window)
    verify_by(issuer, known, signed.signature, order.canonical, what, moment)


def verify_orders(
    orders: Iterable[SignedOrder], series: Series, trusted: Mapping[AggregatorId, TrustedAggregator] | None = None
) -> Series:
    """Accept orders as `verify_order` does, the start first; return the series with its start, if that is known.

    Raises:
        TaskError, SignatureError: as `verify_order` and `started_series`.
    """
    given = sorted(orders, key=lambda one: one.order.action is not OrderAction.START)
    for signed in given:
        verify_order(signed, series, trusted)
        series = started_series(series, [signed.order])
    return series


def started_series(series: Series, orders: Iterable[SeriesOrder]) -> Series:
    """Return the series with its windows: by the leader's start, or as it is where no start is among the orders.

    The orders are verified, or will be: this decides what they say.

    Raises:
        TaskError: a start for a series with fixed times, outside what was signed, or another one than that it has.
    """
    for order in orders:
        if order.start is not None:
            series = series.started(order.start)
    return series


def started_by_window(series: Series, task: Task) -> Series:
    """Return the series with the start that follows from a window's task, say of a record; fixed times stay.

    Whether the task is one of the series shows when it is made again from it (`derive.window_task`).

    Raises:
        TaskError: no start that was signed puts this window there.
    """
    if series.schedule.submission is None:
        return series
    return series.started(task.round_one_opens - task.series.index * series.schedule.every_s)


def check_follows(order: SeriesOrder, known: Iterable[SeriesOrder]) -> None:
    """Refuse an order that does not come after all orders known of its aggregator about this series.

    Raises:
        TaskError: its number is not above theirs, or the aggregator has stopped its part.
    """
    before = [one for one in known if one.aggregator_id == order.aggregator_id]
    last = max((one.number for one in before), default=0)
    if order.number <= last:
        raise TaskError(f"number of the order is {order.number}, allowed: above {last}")
    if any(one.action is OrderAction.STOP for one in before):
        raise TaskError(f"{order.aggregator_id} has stopped its part of the series; nothing follows a stop")


def stopped_at(orders: Iterable[SeriesOrder]) -> int | None:
    """Return the first window that a stop skips for good, None while none is stopped."""
    return min((one.from_window for one in orders if one.action is OrderAction.STOP), default=None)


def skipped_windows(series: Series, orders: Iterable[SeriesOrder]) -> tuple[range, ...]:
    """Return the windows that are not asked, ascending: the same at every party that holds the same verified orders.

    In the order of their numbers each pause or resume decides about all windows from its own on, whatever was decided
    before; a stop ends the series at its window for good.

    Raises:
        TaskError: two different orders of one aggregator under one number.
    """
    given = sorted(set(orders), key=lambda one: (one.aggregator_id, one.number))
    if len({(one.aggregator_id, one.number) for one in given}) != len(given):
        raise TaskError("an aggregator gave two different orders under one number")
    windows, stopped = series.schedule.windows, stopped_at(given)
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
