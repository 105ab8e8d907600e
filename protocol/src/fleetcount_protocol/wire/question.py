"""The codecs of messages about questions to devices (protos/…); those between aggregators are in `peer`.

Every message is a `WireMessage`. No signature is verified and nothing is decided about a question; only bytes that are
not the one encoding of a message are refused.
"""

from typing import Final

from fleetcount_protocol.limits import (
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_KEY_LIST_BYTES,
    MAX_ORDER_BYTES,
    MAX_ORDERS_PER_QUESTION,
    MAX_QUESTION_BYTES,
    MAX_QUESTION_LIST_BYTES,
    MAX_QUESTIONS_PER_LIST,
    MIN_AGGREGATORS,
)
from fleetcount_protocol.messages import QuestionList, QuestionOffer, QuestionQuery
from fleetcount_protocol.question.key_list import SignedKeyList, decode_key_list
from fleetcount_protocol.question.orders import SignedOrder, decode_order
from fleetcount_protocol.question.question import SignedQuestion, decode_question, signed_question
from fleetcount_protocol.v1 import device_pb2
from fleetcount_protocol.wire.codec import Bounds, Canonical, Count, Label, Size, conversion, message

SMALL_BYTES: Final = 1_024
ORDERS_BYTES: Final = MAX_ORDERS_PER_QUESTION * (MAX_ORDER_BYTES + ED25519_SIGNATURE_BYTES + 16)
_KEY_LISTS_BYTES: Final = MAX_AGGREGATORS * (MAX_KEY_LIST_BYTES + ED25519_SIGNATURE_BYTES + 16)
_SIGNATURE: Final = Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)
_SIGNED: Final[Bounds] = {
    SignedQuestion: {
        "question": Canonical(decode_question, 1, MAX_QUESTION_BYTES),
        "signatures": Count(MIN_AGGREGATORS, MAX_AGGREGATORS, Size(0, ED25519_SIGNATURE_BYTES)),
    },
    SignedKeyList: {"key_list": Canonical(decode_key_list, 1, MAX_KEY_LIST_BYTES), "signature": _SIGNATURE},
    SignedOrder: {"order": Canonical(decode_order, 1, MAX_ORDER_BYTES), "signature": _SIGNATURE},
}
SIGNED_QUESTION: Final = conversion(device_pb2.SignedQuestion, SignedQuestion, _SIGNED, make=signed_question)
QUESTION_BOUNDS: Final[Bounds] = {
    **_SIGNED,
    QuestionOffer: {
        "signed": SIGNED_QUESTION,
        "key_lists": Count(0, MAX_AGGREGATORS),
        "orders": Count(0, MAX_ORDERS_PER_QUESTION),
    },
    QuestionList: {"offers": Count(0, MAX_QUESTIONS_PER_LIST)},
    QuestionQuery: {"deployment": Label(0, 32), "held": Size(32, 32)},
}

# To devices.

QUESTION_OFFER: Final = message(
    "question offer",
    device_pb2.QuestionOffer,
    QuestionOffer,
    QUESTION_BOUNDS,
    MAX_QUESTION_BYTES + _KEY_LISTS_BYTES + ORDERS_BYTES + SMALL_BYTES,
)
"""A question with key lists and orders: the retained payload of a question topic."""

QUESTION_LIST: Final = message(
    "question list", device_pb2.ListQuestionsResponse, QuestionList, QUESTION_BOUNDS, MAX_QUESTION_LIST_BYTES
)
QUESTION_LIST_QUERY: Final = message(
    "question list query", device_pb2.ListQuestionsRequest, QuestionQuery, QUESTION_BOUNDS, SMALL_BYTES
)
