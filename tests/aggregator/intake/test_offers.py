"""Who holds every offer of an aggregator is told so; whatever changes of them is another digest."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.intake.device_service import DeviceService
from fleetcount_aggregator.intake.offers import Offers
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.transport import mqtt_announcing
from fleetcount_aggregator.transport.mqtt_announcing import Announcing
from fleetcount_aggregator.windows.question_orders import take_own_order
from fleetcount_client import grpc_transport
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.messages import QuestionList, QuestionQuery, held_digest
from fleetcount_protocol.question.key_list import sign_key_list
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_OFFER

from tests.support.aggregators import Network

LIMITS = Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=4)
ALPHA, BETA = AggregatorId("alpha"), AggregatorId("beta")


def asked(service: DeviceService, after: QuestionId | None = None, held: bytes | None = None) -> QuestionList:
    return service.questions(QuestionQuery(aggregator_id=ALPHA, deployment="test", after=after, held=held))


def digests_of(service: DeviceService) -> list[bytes]:
    """Return the digest of every offer from the bytes of all lists, as a device computes them."""
    digests, after, more = list[bytes](), None, True
    while more:
        data = QUESTION_LIST.encode(asked(service, after))
        listed = grpc_transport._read_list(data)
        digests += [hashlib.sha256(one.SerializeToString()).digest() for one in listed.offers]
        ids = [one.signed.question.question_id for one in QUESTION_LIST.decode(data).offers]
        after, more = max(ids, default=None), listed.more
    return digests


async def standing(questions: int) -> tuple[Network, list[Question]]:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    return network, [await network.stand(signal=f"Vehicle.Signal{one}") for one in range(questions)]


async def test_who_holds_all_offers_is_told_so_in_a_few_bytes_and_who_lacks_one_gets_the_first_list() -> None:
    network, questions = await standing(66)
    service = network.core(0).service
    digests = digests_of(service)
    encoded = [
        QUESTION_OFFER.encode(offer)
        for question_id in sorted(one.question_id for one in questions)
        if (offer := service.offer(question_id))
    ]

    answer = asked(service, held=held_digest(digests))
    first = asked(service)

    assert digests == [hashlib.sha256(one).digest() for one in encoded]
    assert answer == QuestionList(offers=(), unchanged=True)
    assert len(QUESTION_LIST.encode(answer)) == 2
    assert (len(first.offers), first.more) == (64, True)
    for other in (digests[:-1], digests[::-1], []):
        assert asked(service, held=held_digest(other)) == first
    elsewhere = QuestionQuery(aggregator_id=ALPHA, deployment="elsewhere", held=held_digest(digests))
    assert service.questions(elsewhere) == QuestionList(offers=()), "nothing is said of another deployment's questions"


async def _installs(network: Network, _: Question) -> None:
    await network.stand(name="another", signal="Vehicle.Another")


async def _archives(network: Network, question: Question) -> None:
    questions = network.core(0).context.questions
    await questions.archive(questions[question.question_id])


async def _orders(network: Network, question: Question) -> None:
    order = QuestionOrder(
        question_id=question.question_id, number=1, action=OrderAction.STOP, aggregator_id=ALPHA, from_window=4
    )
    await take_own_order(network.core(0).context.questions, sign_order(order, network.seats[0].signing_key))


async def _lists_keys_of_another(network: Network, question: Question) -> None:
    questions = network.core(0).context.questions
    listed = network.core(1).context.questions.key_lists.own().key_list
    later = sign_key_list(replace(listed, issued_at=listed.issued_at + 1), network.seats[1].signing_key)
    network.clock.advance(5)
    await questions.note_key_list(questions[question.question_id], later)


async def _lists_own_keys(network: Network, _: Question) -> None:
    network.core(0).context.host.keys = KeyRing({7: HpkeKeyPair.generate(7)})


async def _is_refused(network: Network, question: Question) -> None:
    questions = network.core(0).context.questions
    await questions.note_refusal(questions[question.question_id], BETA)


async def _is_lost_by_another(network: Network, question: Question) -> None:
    questions = network.core(0).context.questions
    questions.forget_given(questions[question.question_id], BETA)


async def _is_given_again(network: Network, question: Question) -> None:
    await _is_lost_by_another(network, question)
    assert not network.core(0).service.offered()
    await network.look_after_all()
    await _orders(network, question)


async def _follows_another_process(network: Network, question: Question) -> None:
    """Read the notes of a question again, where the coordinator has stored an order."""
    questions = network.core(0).context.questions
    before = questions[question.question_id].orders
    await _orders(network, question)
    questions[question.question_id].orders = before
    network.core(0).service.offered()
    await questions.follow(question.question_id)


async def _ends(network: Network, question: Question) -> None:
    await network.advance_to(question.schedule.end)


@pytest.mark.parametrize(
    "change",
    [
        _installs,
        _archives,
        _orders,
        _lists_keys_of_another,
        _lists_own_keys,
        _is_refused,
        _is_lost_by_another,
        _is_given_again,
        _follows_another_process,
        _ends,
    ],
)
async def test_whatever_changes_of_the_offers_is_another_digest(
    change: Callable[[Network, Question], Awaitable[None]],
) -> None:
    network, [question] = await standing(1)
    service = network.core(0).service
    before = held_digest(digests_of(service))
    assert asked(service, held=before).unchanged

    await change(network, question)

    assert not asked(service, held=before).unchanged, "nobody has asked for a list since"
    after = held_digest(digests_of(service))
    assert after != before
    assert asked(service, held=after).unchanged


async def test_a_question_that_everybody_has_by_now_is_told_of() -> None:
    network, [question] = await standing(1)
    service, before = network.core(0).service, held_digest(())
    await _is_lost_by_another(network, question)
    assert asked(service, held=before).unchanged

    network.core(0).context.questions.handovers.put(0, question.question_id)
    await network.look_after_all()

    assert len(asked(service, held=before).offers) == 1


async def test_a_clock_that_is_set_back_offers_again_what_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    network, [question] = await standing(1)
    service = network.core(0).service
    before = held_digest(digests_of(service))
    await network.advance_to(question.schedule.end)
    assert not asked(service, held=before).unchanged
    monkeypatch.setattr(network.clock, "now", lambda: question.schedule.end - 1)

    assert asked(service, held=before).unchanged


async def test_an_offer_is_hashed_once_however_often_devices_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    network, questions = await standing(3)
    service = network.core(0).service
    hashed = list[QuestionId]()
    honest = Offers._digest

    def counted(offers: Offers, question: InstalledQuestion) -> bytes:
        hashed.append(question.question_id)
        return honest(offers, question)

    monkeypatch.setattr(Offers, "_digest", counted)
    for _ in range(5):
        asked(service, held=bytes(32))
    await _orders(network, questions[1])
    for _ in range(5):
        asked(service, held=bytes(32))

    assert hashed == [*sorted(one.question_id for one in questions), questions[1].question_id]


class Broker:
    """Keeps what is published to it."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish_all(self, messages: Sequence[tuple[str, bytes]], *, retain: bool) -> None:
        assert retain
        self.published += messages


async def test_a_broker_is_told_what_changed_and_nothing_is_compared_while_nothing_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, questions = await standing(3)
    core, broker = network.core(0), Broker()
    announcing = Announcing(core.context.windows, core.service, broker, None)  # type: ignore[arg-type]  # Not asked.
    rounds, compared = 0, 0
    honest_offered, honest_offer = core.service.offered, announcing._offer

    def offered() -> Any:
        nonlocal rounds
        rounds += 1
        return honest_offered()

    async def offer(*what: Any) -> None:
        nonlocal compared
        compared += 1
        await honest_offer(*what)

    async def some_rounds() -> None:
        enough = rounds + 3  # One may have begun before what the test did, the next has ended when the third begins.
        while rounds < enough:
            await asyncio.sleep(0)

    monkeypatch.setattr(mqtt_announcing, "FOLLOW_S", 0)
    monkeypatch.setattr(core.service, "offered", offered)
    monkeypatch.setattr(announcing, "_offer", offer)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(announcing.offer())
        await some_rounds()
        assert (compared, len(broker.published)) == (1, 3)
        await _orders(network, questions[1])
        await some_rounds()
        assert (compared, len(broker.published)) == (2, 4)
        await network.advance_to(questions[1].schedule.end)
        await some_rounds()
        task.cancel()

    assert compared == 3
    assert [bool(payload) for _, payload in broker.published] == [True] * 4 + [False] * 3
