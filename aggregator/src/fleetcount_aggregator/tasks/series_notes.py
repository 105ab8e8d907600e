"""What the store notes beside a series: its orders, the key lists of others, what each was given, who refused it.

The one place that spells the names of notes, which existing stores hold: never change one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.series.key_list import SignedKeyList, decode_signed_key_list, encode_signed_key_list
from fleetcount_protocol.series.orders import SignedOrder, decode_signed_order, encode_signed_order, started_series
from fleetcount_protocol.series.series import SignedSeries
from fleetcount_protocol.series.signed_file import decode_signed_series

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.tasks.key_lists import keep_key_list

__all__ = [
    "SERIES",
    "forget_given",
    "is_spread",
    "note_given",
    "note_key_list",
    "note_order",
    "note_refusal",
    "order_name",
    "orders_of",
    "refused_by",
    "rest_series",
    "start_note",
    "stored_series",
    "take_up_notes",
    "was_given",
]

SERIES: Final = "series"
"""What is given: the series itself; an order goes by its `order_name`."""
_ORDER, _KEYS, _GIVEN, _REFUSED = "order/", "keys/", "given/", "refused"


def order_name(signed: SignedOrder) -> str:
    """Return the name of an order among the notes of its series."""
    return f"{_ORDER}{signed.order.aggregator_id}/{signed.order.number}"


async def rest_series(context: Context, series: InstalledSeries) -> None:
    """Let a series that is over leave memory: nobody asks for the key lists of others any more.

    Raises:
        StoreError: the store failed; the series stays.
    """
    await context.store.rest_series(series.series_id, series.asked.schedule.end, _KEYS)
    del context.series[series.series_id]


async def note_order(context: Context, series: InstalledSeries, signed: SignedOrder) -> None:
    """Keep an order durably, then in memory."""
    await context.store.note_series(series.series_id, order_name(signed), encode_signed_order(signed))
    series.orders = _in_order([*series.orders, signed])


def start_note(signed: SignedOrder | None) -> dict[str, bytes]:
    """Return the note of a start, which is stored with its series at once; nothing where there is none."""
    return {} if signed is None else {order_name(signed): encode_signed_order(signed)}


def stored_series(data: bytes, notes: Mapping[str, bytes]) -> SignedSeries:
    """Return a series as it is stored, with the start that stands among its notes.

    Raises:
        DecodeError: what was signed or an order cannot be read.
        TaskError: the start among its notes is not one of this series.
    """
    signed = decode_signed_series(data)
    return replace(signed, series=started_series(signed.series, [one.order for one in orders_of(notes)]))


async def note_given(context: Context, series: InstalledSeries, other: AggregatorId, what: str) -> None:
    """Remember that another aggregator has something."""
    name = f"{_GIVEN}{other}/{what}"
    await context.store.note_series(series.series_id, name, b"")
    series.given.add(name)


def was_given(series: InstalledSeries, other: AggregatorId, what: str) -> bool:
    """Return whether another aggregator has something."""
    return f"{_GIVEN}{other}/{what}" in series.given


def is_spread(series: InstalledSeries) -> bool:
    """Return whether every other aggregator has the series."""
    return all(was_given(series, other, SERIES) for other in series.others)


def forget_given(series: InstalledSeries, other: AggregatorId) -> None:
    """Let everything be given again to an aggregator that came back without the series."""
    series.given = {name for name in series.given if not name.startswith(f"{_GIVEN}{other}/")}


async def note_key_list(context: Context, series: InstalledSeries, signed: SignedKeyList) -> None:
    """Keep another aggregator's list of sealing keys, if it is newer than the one known."""
    if keep_key_list(context, series.asked, signed):
        name = _KEYS + signed.key_list.aggregator_id
        await context.store.note_series(series.series_id, name, encode_signed_key_list(signed))


async def note_refusal(context: Context, series: InstalledSeries, other: AggregatorId) -> None:
    """Remember that another aggregator does not take the series."""
    await context.store.note_series(series.series_id, _REFUSED, other.encode())
    series.refused_by = other


def orders_of(notes: Mapping[str, bytes]) -> tuple[SignedOrder, ...]:
    """Return the orders among the notes of a series, by aggregator and number."""
    return _in_order(decode_signed_order(note) for name, note in notes.items() if name.startswith(_ORDER))


def refused_by(notes: Mapping[str, bytes]) -> str:
    """Return which other aggregator does not take the series, by its notes; "" if none is known to refuse it."""
    return notes.get(_REFUSED, b"").decode()


def take_up_notes(context: Context, series: InstalledSeries, notes: Mapping[str, bytes]) -> None:
    """Take the notes of a series into memory, when the process starts."""
    series.orders = orders_of(notes)
    series.given = {name for name in notes if name.startswith(_GIVEN)}
    series.refused_by = refused_by(notes)
    for name, note in notes.items():
        if name.startswith(_KEYS):
            keep_key_list(context, series.asked, decode_signed_key_list(note))


def _in_order(orders: Iterable[SignedOrder]) -> tuple[SignedOrder, ...]:
    return tuple(sorted(orders, key=lambda one: (one.order.aggregator_id, one.order.number)))
