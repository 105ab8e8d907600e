"""What is said about series, to devices and between aggregators, between domain values and protobuf (protos/…).

Every message is a `WireMessage`. Verifies no signature and decides nothing about a series; it only refuses what is not
the one encoding of a message.
"""

from collections.abc import Sequence
from typing import Final

from fleetcount_protocol.ids import SeriesId
from fleetcount_protocol.limits import (
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_KEY_LIST_BYTES,
    MAX_ORDER_BYTES,
    MAX_ORDERS_PER_SERIES,
    MAX_SERIES_BYTES,
    MAX_SERIES_LIST_BYTES,
    MAX_SERIES_PER_LIST,
    MIN_AGGREGATORS,
    VERIFY_KEY_BYTES,
)
from fleetcount_protocol.messages import InstallSeries, SeriesAnswer, SeriesList, SeriesOffer, SeriesQuery
from fleetcount_protocol.series.key_list import SignedKeyList, decode_key_list
from fleetcount_protocol.series.orders import SignedOrder, decode_order
from fleetcount_protocol.series.series import SignedSeries, decode_series
from fleetcount_protocol.series.signed_file import signed_series
from fleetcount_protocol.v1 import device_pb2, peer_pb2
from fleetcount_protocol.wire.strict import WireMessage, check_count, check_label, check_size

__all__ = [
    "DELIVER_ORDER",
    "DELIVER_ORDER_ANSWER",
    "INSTALL_SERIES",
    "INSTALL_SERIES_ANSWER",
    "SERIES_LIST",
    "SERIES_LIST_QUERY",
    "SERIES_OFFER",
    "decode_series_offer",
    "encode_series_offer",
]

_SMALL_BYTES: Final = 1_024
_ORDERS_BYTES: Final = MAX_ORDERS_PER_SERIES * (MAX_ORDER_BYTES + ED25519_SIGNATURE_BYTES + 16)
_KEY_LISTS_BYTES: Final = MAX_AGGREGATORS * (MAX_KEY_LIST_BYTES + ED25519_SIGNATURE_BYTES + 16)
_PARTS: Final = MAX_ORDERS_PER_SERIES + MAX_AGGREGATORS


# Parts.


def _series_to_pb(signed: SignedSeries) -> device_pb2.SignedSeries:
    return device_pb2.SignedSeries(series=signed.series.canonical, signatures=signed.signatures)


def _read_series(message: device_pb2.SignedSeries) -> SignedSeries:
    check_count("signatures", len(message.signatures), MIN_AGGREGATORS, MAX_AGGREGATORS)
    data = check_size("series", message.series, 1, MAX_SERIES_BYTES)
    return signed_series(decode_series(data), tuple(message.signatures))


def _key_list_to_pb(signed: SignedKeyList) -> device_pb2.SignedKeyList:
    return device_pb2.SignedKeyList(key_list=signed.key_list.canonical, signature=signed.signature)


def _read_key_list(message: device_pb2.SignedKeyList) -> SignedKeyList:
    signature = check_size("signature", message.signature, ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)
    return SignedKeyList(key_list=decode_key_list(message.key_list), signature=signature)


def _order_to_pb(signed: SignedOrder) -> device_pb2.SignedOrder:
    return device_pb2.SignedOrder(order=signed.order.canonical, signature=signed.signature)


def _read_order(message: device_pb2.SignedOrder) -> SignedOrder:
    signature = check_size("signature", message.signature, ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)
    return SignedOrder(order=decode_order(message.order), signature=signature)


def _read_orders(orders: Sequence[device_pb2.SignedOrder]) -> tuple[SignedOrder, ...]:
    check_count("orders", len(orders), 0, MAX_ORDERS_PER_SERIES)
    return tuple(_read_order(one) for one in orders)


# To devices.


def _offer_to_pb(offer: SeriesOffer) -> device_pb2.SeriesOffer:
    return device_pb2.SeriesOffer(
        series=_series_to_pb(offer.signed),
        key_lists=map(_key_list_to_pb, offer.key_lists),
        orders=map(_order_to_pb, offer.orders),
    )


def _read_offer(message: device_pb2.SeriesOffer) -> SeriesOffer:
    check_count("key lists", len(message.key_lists), 0, MAX_AGGREGATORS)
    return SeriesOffer(
        signed=_read_series(message.series),
        key_lists=tuple(_read_key_list(one) for one in message.key_lists),
        orders=_read_orders(message.orders),
    )


SERIES_OFFER: Final = WireMessage(
    name="series offer",
    pb_type=device_pb2.SeriesOffer,
    to_pb=_offer_to_pb,
    read=_read_offer,
    largest=MAX_SERIES_BYTES + _KEY_LISTS_BYTES + _ORDERS_BYTES + _SMALL_BYTES,
    most=_PARTS,
)
"""A series with key lists and orders: the retained payload of a series topic."""

encode_series_offer, decode_series_offer = SERIES_OFFER.encode, SERIES_OFFER.decode


def _list_to_pb(listed: SeriesList) -> device_pb2.ListSeriesResponse:
    return device_pb2.ListSeriesResponse(offers=map(_offer_to_pb, listed.offers), more=listed.more)


def _read_list(message: device_pb2.ListSeriesResponse) -> SeriesList:
    check_count("series", len(message.offers), 0, MAX_SERIES_PER_LIST)
    return SeriesList(offers=tuple(_read_offer(one) for one in message.offers), more=message.more)


SERIES_LIST: Final = WireMessage(
    name="series list",
    pb_type=device_pb2.ListSeriesResponse,
    to_pb=_list_to_pb,
    read=_read_list,
    largest=MAX_SERIES_LIST_BYTES,
    most=MAX_SERIES_PER_LIST,
)


def _list_query_to_pb(query: SeriesQuery) -> device_pb2.ListSeriesRequest:
    return device_pb2.ListSeriesRequest(deployment=query.deployment, after=query.after or b"")


def _read_list_query(message: device_pb2.ListSeriesRequest) -> SeriesQuery:
    return SeriesQuery(
        deployment=check_label("deployment", message.deployment, 32),
        after=SeriesId(check_size("after", message.after, SeriesId.SIZE, SeriesId.SIZE)) if message.after else None,
    )


SERIES_LIST_QUERY: Final = WireMessage(
    "series list query", device_pb2.ListSeriesRequest, _list_query_to_pb, _read_list_query, _SMALL_BYTES
)


# Between aggregators.


def _install_to_pb(install: InstallSeries) -> peer_pb2.InstallSeriesRequest:
    return peer_pb2.InstallSeriesRequest(
        series=_series_to_pb(install.signed), seed=install.seed, orders=map(_order_to_pb, install.orders)
    )


def _read_install(message: peer_pb2.InstallSeriesRequest) -> InstallSeries:
    return InstallSeries(
        signed=_read_series(message.series),
        seed=check_size("seed", message.seed, VERIFY_KEY_BYTES, VERIFY_KEY_BYTES),
        orders=_read_orders(message.orders),
    )


INSTALL_SERIES: Final = WireMessage(
    name="series installation",
    pb_type=peer_pb2.InstallSeriesRequest,
    to_pb=_install_to_pb,
    read=_read_install,
    largest=MAX_SERIES_BYTES + _ORDERS_BYTES + _SMALL_BYTES,
    most=_PARTS,
)


def _deliver_to_pb(signed: SignedOrder) -> peer_pb2.DeliverOrderRequest:
    return peer_pb2.DeliverOrderRequest(order=_order_to_pb(signed))


def _read_deliver(message: peer_pb2.DeliverOrderRequest) -> SignedOrder:
    return _read_order(message.order)


DELIVER_ORDER: Final = WireMessage("order", peer_pb2.DeliverOrderRequest, _deliver_to_pb, _read_deliver, _SMALL_BYTES)


def _installed_to_pb(answer: SeriesAnswer) -> peer_pb2.InstallSeriesResponse:
    return peer_pb2.InstallSeriesResponse(series_id=answer.series_id, key_list=_key_list_to_pb(answer.key_list))


def _delivered_to_pb(answer: SeriesAnswer) -> peer_pb2.DeliverOrderResponse:
    return peer_pb2.DeliverOrderResponse(series_id=answer.series_id, key_list=_key_list_to_pb(answer.key_list))


def _read_answer(message: peer_pb2.InstallSeriesResponse | peer_pb2.DeliverOrderResponse) -> SeriesAnswer:
    return SeriesAnswer(series_id=SeriesId(message.series_id), key_list=_read_key_list(message.key_list))


INSTALL_SERIES_ANSWER: Final = WireMessage(
    "series answer",
    peer_pb2.InstallSeriesResponse,
    _installed_to_pb,
    _read_answer,
    MAX_KEY_LIST_BYTES + _SMALL_BYTES,
)
DELIVER_ORDER_ANSWER: Final = WireMessage(
    "series answer",
    peer_pb2.DeliverOrderResponse,
    _delivered_to_pb,
    _read_answer,
    MAX_KEY_LIST_BYTES + _SMALL_BYTES,
)
