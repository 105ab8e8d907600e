"""Orders about a running series: pause, resume, stop. They skip windows; they never move, reorder or lengthen anything.

It must not know which windows have opened: an aggregator refuses an order about those when it arrives.
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
from fleetcount_protocol.limits import MAX_ORDER_BYTES, MAX_SERIES_WINDOWS
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.rules import check_range
from fleetcount_protocol.task.signatures import encode_with_signature, read_with_signature
from fleetcount_protocol.task.signing import TrustedAggregator, verify_by

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
    "stopped_at",
    "verify_order",
]

ORDER_LABEL: Final = b"FCORDR01"
_LARGEST_NUMBER: Final = 2**32 - 1


class OrderAction(enum.Enum):
    """What an order does to the windows from its `from_window` on."""

    PAUSE = 1
    """The leader's: they are skipped, until a later order of the leader resumes."""
    RESUME = 2
    """The leader's: they are asked again."""
    STOP = 3
    """Any aggregator's, for its own part, without which nothing can be opened: they are skipped for ever."""


@dataclass(frozen=True, kw_only=True)
class SeriesOrder:
    """What one aggregator orders about a series; `number` is above that of every order it gave before for the series.

    Raises:
        TaskError: a number outside 1 to 2**32 - 1, or a window that no series has.
    """

    series_id: SeriesId
    number: int
    action: OrderAction
    aggregator_id: AggregatorId
    from_window: int

    def __post_init__(self) -> None:
        check_range("number of the order", self.number, 1, _LARGEST_NUMBER)
        check_range("from_window", self.from_window, 0, MAX_SERIES_WINDOWS - 1)

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the aggregator signs (docs/wire.md, "Order")."""
        head = ORDER_LABEL + self.series_id + uint(self.number, 4) + uint(self.action.value, 1)
        return head + text_bytes(self.aggregator_id) + uint(self.from_window, 4)


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
    aggregator_id, from_window = AggregatorId(reader.text(1, 32)), reader.uint(4)
    reader.finish()
    try:
        return SeriesOrder(
            series_id=series_id, number=number, action=action, aggregator_id=aggregator_id, from_window=from_window
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

    Raises:
        TaskError: another series, an aggregator it does not list, a pause or resume that is not the leader's, or a
            window that the series has not.
        SignatureError: the signature is missing or does not verify.
    """
    order, leader = signed.order, series.aggregators[0]
    if order.series_id != series.series_id:
        raise TaskError(f"order about series {order.series_id}, not {series.series_id}")
    issuer = next((one for one in series.aggregators if one.aggregator_id == order.aggregator_id), None)
    if issuer is None:
        raise TaskError(f"series {series.name!r} does not list aggregator {order.aggregator_id!r}")
    if order.action is not OrderAction.STOP and issuer is not leader:
        raise TaskError(f"{order.action.name.lower()} is {issuer.aggregator_id}'s, allowed: {leader.aggregator_id}'s")
    check_range("from_window", order.from_window, 0, series.schedule.windows - 1)
    what = f"signature of {issuer.aggregator_id} under order {order.number}"
    known, moment = (trusted or {}).get(issuer.aggregator_id), series.schedule.opens(order.from_window)
    verify_by(issuer, known, signed.signature, order.canonical, what, moment)


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
        if order.action is not OrderAction.STOP:
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
