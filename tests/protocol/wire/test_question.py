"""Offers, installations and orders hold what belongs to their question, each part once and in one order."""

from dataclasses import replace

import pytest
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.limits import MAX_ORDERS_PER_QUESTION
from fleetcount_protocol.messages import InstallQuestion, QuestionList, QuestionOffer
from fleetcount_protocol.question.key_list import sign_key_list
from fleetcount_protocol.question.orders import OrderAction, SignedOrder, sign_order
from fleetcount_protocol.v1 import device_pb2, peer_pb2
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.wire.peer import INSTALL_QUESTION
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_OFFER

from tests.support.protocol_samples import signing_key
from tests.support.question_samples import SEED, key_list, one_round_question, order, sampling_question, sign_everywhere

QUESTION = one_round_question(Mode.RESPONSE)
SIGNED = sign_everywhere(QUESTION)
LISTS = tuple(sign_key_list(key_list(position), signing_key(position)) for position in range(3))


def signed_order(number: int, position: int = 0) -> SignedOrder:
    return sign_order(order(QUESTION, number, OrderAction.STOP, 3, position=position), signing_key(position))


def test_key_lists_are_of_different_aggregators_of_the_question_in_its_order() -> None:
    for lists in ((), LISTS[:1], LISTS[1:2], LISTS[:2]):
        offer = QuestionOffer(signed=SIGNED, key_lists=lists, orders=())
        assert QUESTION_OFFER.decode(QUESTION_OFFER.encode(offer)) == offer
    for lists in ((LISTS[1], LISTS[0]), (LISTS[0], LISTS[0]), (LISTS[2],)):
        with pytest.raises(DecodeError, match="for aggregators alpha, beta, in this order"):
            QuestionOffer(signed=SIGNED, key_lists=lists, orders=())


def test_orders_are_about_the_question_each_once_ascending() -> None:
    first, second, other = signed_order(1), signed_order(2), signed_order(1, position=1)
    for orders in ((), (first,), (first, second), (first, second, other)):
        offer = QuestionOffer(signed=SIGNED, key_lists=(), orders=orders)
        assert QUESTION_OFFER.decode(QUESTION_OFFER.encode(offer)) == offer
        install = InstallQuestion(signed=SIGNED, seed=SEED, orders=orders)
        assert INSTALL_QUESTION.decode(INSTALL_QUESTION.encode(install)) == install
    foreign = sign_order(order(sampling_question(), 1, OrderAction.STOP, 3), signing_key(0))
    for orders in ((second, first), (first, first), (other, first), (foreign,)):
        with pytest.raises(DecodeError, match="order"):
            QuestionOffer(signed=SIGNED, key_lists=(), orders=orders)
        with pytest.raises(DecodeError, match="order"):
            InstallQuestion(signed=SIGNED, seed=SEED, orders=orders)


def test_orders_have_a_cap_on_both_sides() -> None:
    many = tuple(signed_order(number) for number in range(1, MAX_ORDERS_PER_QUESTION + 2))
    full = QuestionOffer(signed=SIGNED, key_lists=(), orders=many[:-1])

    assert QUESTION_OFFER.decode(QUESTION_OFFER.encode(full)) == full
    with pytest.raises(DecodeError, match="257 orders, allowed: at most 256"):
        replace(full, orders=many)
    one = device_pb2.SignedOrder(order=many[-1].order.canonical, signature=many[-1].signature)
    message = QUESTION_OFFER.to_pb(full)
    message.orders.append(one)
    with pytest.raises(DecodeError, match="more than 256 orders"):
        QUESTION_OFFER.decode(message.SerializeToString(deterministic=True))


def test_a_list_has_a_cap() -> None:
    offer = QuestionOffer(signed=SIGNED, key_lists=(), orders=())

    assert len(QUESTION_LIST.decode(QUESTION_LIST.encode(QuestionList(offers=(offer,) * 64))).offers) == 64
    with pytest.raises(DecodeError, match="more than 64 offers"):
        QUESTION_LIST.decode(QUESTION_LIST.encode(QuestionList(offers=(offer,) * 65)))


def test_the_seed_has_its_size_and_is_not_shown() -> None:
    install = InstallQuestion(signed=SIGNED, seed=SEED, orders=())
    message = INSTALL_QUESTION.to_pb(install)
    short = peer_pb2.InstallQuestionRequest(signed=message.signed, seed=SEED[1:])

    assert SEED.hex() not in repr(install)
    assert repr(SEED)[2:-1] not in repr(install)
    with pytest.raises(DecodeError, match="seed has 31 bytes"):
        INSTALL_QUESTION.decode(short.SerializeToString(deterministic=True))
