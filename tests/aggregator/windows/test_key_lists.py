"""Which key lists an aggregator makes, keeps and tells."""

from dataclasses import replace

import pytest
from fleetcount_aggregator.host.keys import KeyRing, Validity
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.question.key_list import sign_key_list

from tests.support.aggregators import START, Network


async def test_the_own_list_is_signed_anew_only_when_its_keys_have_changed() -> None:
    network = Network(2)
    await network.start_all()
    context = network.core(0).context
    first = context.questions.key_lists.own()
    network.clock.advance(100)

    same = context.questions.key_lists.own()
    context.host.keys = KeyRing(
        {1: HpkeKeyPair.generate(1), 2: HpkeKeyPair.generate(2)}, validities={1: Validity(0, START)}
    )
    second = context.questions.key_lists.own()

    assert same is first
    assert [one.key.key_id for one in second.key_list.keys] == [2], "a key that is over is not listed"
    assert second.key_list.issued_at == START + 100
    context.host.keys = KeyRing({1: HpkeKeyPair.generate(1)}, validities={1: Validity(0, START)})
    with pytest.raises(QuestionError, match="no sealing key"):
        context.questions.key_lists.own()


async def test_of_two_lists_the_one_issued_later_counts_and_a_forged_one_never() -> None:
    network = Network(2)
    await network.start_all()
    question = network.question()[0].question
    context, key = network.core(0).context, network.seats[1].signing_key
    listed = network.core(1).context.questions.key_lists.own().key_list
    first, later = (sign_key_list(replace(listed, issued_at=moment), key) for moment in (10, 20))
    forged = sign_key_list(replace(listed, issued_at=30), network.seats[0].signing_key)

    kept = [context.questions.key_lists.keep(question, one) for one in (first, later, first, forged)]

    assert kept == [True, True, False, False]
    assert context.questions.key_lists.of(question) == (context.questions.key_lists.own(), later)


async def test_a_list_with_a_sealing_key_of_another_aggregator_is_refused() -> None:
    network = Network(2)
    await network.start_all()
    question = network.question()[0].question
    context = network.core(0).context
    listed = network.core(1).context.questions.key_lists.own().key_list
    copied = replace(listed, issued_at=listed.issued_at + 1, keys=context.questions.key_lists.own().key_list.keys)

    assert not context.questions.key_lists.keep(question, sign_key_list(copied, network.seats[1].signing_key))


async def test_a_list_from_the_future_is_not_kept_and_one_that_is_held_gives_way() -> None:
    network = Network(2)
    await network.start_all()
    question = network.question()[0].question
    lists, key = network.core(0).context.questions.key_lists, network.seats[1].signing_key
    listed = network.core(1).context.questions.key_lists.own().key_list
    soon, future, true = (sign_key_list(replace(listed, issued_at=START + ahead_s), key) for ahead_s in (300, 301, 20))

    assert not lists.keep(question, future)
    assert lists.keep(question, soon), "clocks differ by less"
    assert not lists.keep(question, true)
    lists._newest[listed.aggregator_id] = future  # As an earlier version kept it.
    assert lists.keep(question, true)


async def test_under_a_clock_that_is_not_confirmed_the_own_list_bears_no_time_from_the_future() -> None:
    network = Network(2)
    await network.start_all()
    context = network.core(0).context
    context.host.moments.begin(START - 500, context.peers)
    network.clock.advance(7)

    assert context.questions.key_lists.own().key_list.issued_at == START - 493
