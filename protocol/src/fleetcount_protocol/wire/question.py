"""The codecs of messages about questions, to devices and between aggregators (protos/…).

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
    VERIFY_KEY_BYTES,
)
from fleetcount_protocol.messages import InstallQuestion, QuestionAnswer, QuestionList, QuestionOffer, QuestionQuery
from fleetcount_protocol.question.key_list import SignedKeyList, decode_key_list
from fleetcount_protocol.question.orders import SignedOrder, decode_order
from fleetcount_protocol.question.question import SignedQuestion, decode_question
from fleetcount_protocol.question.signing import signed_question
from fleetcount_protocol.v1 import device_pb2, peer_pb2
from fleetcount_protocol.wire.codec import Bounds, Canonical, Count, Label, Size, conversion, message, single

_SMALL_BYTES: Final = 1_024
_ORDERS_BYTES: Final = MAX_ORDERS_PER_QUESTION * (MAX_ORDER_BYTES + ED25519_SIGNATURE_BYTES + 16)
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
_QUESTION: Final = conversion(device_pb2.SignedQuestion, SignedQuestion, _SIGNED, make=signed_question)
_BOUNDS: Final[Bounds] = {
    **_SIGNED,
    QuestionOffer: {
        "signed": _QUESTION,
        "key_lists": Count(0, MAX_AGGREGATORS),
        "orders": Count(0, MAX_ORDERS_PER_QUESTION),
    },
    QuestionList: {"offers": Count(0, MAX_QUESTIONS_PER_LIST)},
    QuestionQuery: {"deployment": Label(0, 32)},
    InstallQuestion: {
        "signed": _QUESTION,
        "seed": Size(VERIFY_KEY_BYTES, VERIFY_KEY_BYTES),
        "orders": Count(0, MAX_ORDERS_PER_QUESTION),
    },
}

# To devices.

QUESTION_OFFER: Final = message(
    "question offer",
    device_pb2.QuestionOffer,
    QuestionOffer,
    _BOUNDS,
    MAX_QUESTION_BYTES + _KEY_LISTS_BYTES + _ORDERS_BYTES + _SMALL_BYTES,
)
"""A question with key lists and orders: the retained payload of a question topic."""

QUESTION_LIST: Final = message(
    "question list", device_pb2.ListQuestionsResponse, QuestionList, _BOUNDS, MAX_QUESTION_LIST_BYTES
)
QUESTION_LIST_QUERY: Final = message(
    "question list query", device_pb2.ListQuestionsRequest, QuestionQuery, _BOUNDS, _SMALL_BYTES
)

# Between aggregators.

INSTALL_QUESTION: Final = message(
    "question installation",
    peer_pb2.InstallQuestionRequest,
    InstallQuestion,
    _BOUNDS,
    MAX_QUESTION_BYTES + _ORDERS_BYTES + _SMALL_BYTES,
)
INSTALL_QUESTION_ANSWER: Final = message(
    "question answer", peer_pb2.InstallQuestionResponse, QuestionAnswer, _BOUNDS, MAX_KEY_LIST_BYTES + _SMALL_BYTES
)
DELIVER_ORDER: Final = single(
    "order",
    peer_pb2.DeliverOrderRequest,
    SignedOrder,
    _SMALL_BYTES,
    conversion(device_pb2.SignedOrder, SignedOrder, _BOUNDS),
)
DELIVER_ORDER_ANSWER: Final = message(
    "question answer", peer_pb2.DeliverOrderResponse, QuestionAnswer, _BOUNDS, MAX_KEY_LIST_BYTES + _SMALL_BYTES
)
