"""What is said about series, to devices and between aggregators, between domain values and protobuf (protos/…).

Every message is a `WireMessage`. Verifies no signature and decides nothing about a series; it only refuses what is not
the one encoding of a message.
"""

from typing import Final

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
from fleetcount_protocol.wire.codec import Bounds, Canonical, Count, Label, Size, message, shape, single

__all__ = [
    "DELIVER_ORDER",
    "DELIVER_ORDER_ANSWER",
    "INSTALL_SERIES",
    "INSTALL_SERIES_ANSWER",
    "SERIES_LIST",
    "SERIES_LIST_QUERY",
    "SERIES_OFFER",
]

_SMALL_BYTES: Final = 1_024
_ORDERS_BYTES: Final = MAX_ORDERS_PER_SERIES * (MAX_ORDER_BYTES + ED25519_SIGNATURE_BYTES + 16)
_KEY_LISTS_BYTES: Final = MAX_AGGREGATORS * (MAX_KEY_LIST_BYTES + ED25519_SIGNATURE_BYTES + 16)
_SIGNATURE: Final = Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)
_SIGNED: Final[Bounds] = {
    SignedSeries: {
        "series": Canonical(decode_series, 1, MAX_SERIES_BYTES),
        "signatures": Count(MIN_AGGREGATORS, MAX_AGGREGATORS, Size(0, ED25519_SIGNATURE_BYTES)),
    },
    SignedKeyList: {"key_list": Canonical(decode_key_list, 1, MAX_KEY_LIST_BYTES), "signature": _SIGNATURE},
    SignedOrder: {"order": Canonical(decode_order, 1, MAX_ORDER_BYTES), "signature": _SIGNATURE},
}
_SERIES: Final = shape(device_pb2.SignedSeries, SignedSeries, _SIGNED, make=signed_series)
_BOUNDS: Final[Bounds] = {
    **_SIGNED,
    SeriesOffer: {
        "signed": _SERIES,
        "key_lists": Count(0, MAX_AGGREGATORS),
        "orders": Count(0, MAX_ORDERS_PER_SERIES),
    },
    SeriesList: {"offers": Count(0, MAX_SERIES_PER_LIST)},
    SeriesQuery: {"deployment": Label(0, 32)},
    InstallSeries: {
        "signed": _SERIES,
        "seed": Size(VERIFY_KEY_BYTES, VERIFY_KEY_BYTES),
        "orders": Count(0, MAX_ORDERS_PER_SERIES),
    },
}

# To devices.

SERIES_OFFER: Final = message(
    "series offer",
    device_pb2.SeriesOffer,
    SeriesOffer,
    _BOUNDS,
    MAX_SERIES_BYTES + _KEY_LISTS_BYTES + _ORDERS_BYTES + _SMALL_BYTES,
)
"""A series with key lists and orders: the retained payload of a series topic."""

SERIES_LIST: Final = message("series list", device_pb2.ListSeriesResponse, SeriesList, _BOUNDS, MAX_SERIES_LIST_BYTES)
SERIES_LIST_QUERY: Final = message(
    "series list query", device_pb2.ListSeriesRequest, SeriesQuery, _BOUNDS, _SMALL_BYTES
)

# Between aggregators.

INSTALL_SERIES: Final = message(
    "series installation",
    peer_pb2.InstallSeriesRequest,
    InstallSeries,
    _BOUNDS,
    MAX_SERIES_BYTES + _ORDERS_BYTES + _SMALL_BYTES,
)
INSTALL_SERIES_ANSWER: Final = message(
    "series answer", peer_pb2.InstallSeriesResponse, SeriesAnswer, _BOUNDS, MAX_KEY_LIST_BYTES + _SMALL_BYTES
)
DELIVER_ORDER: Final = single(
    "order",
    peer_pb2.DeliverOrderRequest,
    SignedOrder,
    _SMALL_BYTES,
    shape(device_pb2.SignedOrder, SignedOrder, _BOUNDS),
)
DELIVER_ORDER_ANSWER: Final = message(
    "series answer", peer_pb2.DeliverOrderResponse, SeriesAnswer, _BOUNDS, MAX_KEY_LIST_BYTES + _SMALL_BYTES
)
