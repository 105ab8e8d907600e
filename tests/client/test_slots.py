"""One window of several: a device's own follows from its secret and the question, and it answers in no other."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.answering import slot_of
from fleetcount_client.ledger import Ledger, charges_of_question
from fleetcount_client.policy import JoinRule, PolicyRefusal
from fleetcount_client.subscriptions import KnownQuestion
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.question.fields import Coin, Schedule
from fleetcount_protocol.question.question import Question, SignedQuestion, decode_question
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind
from scipy import stats

from tests.client.deployment import START, Deployment, open_policy

WORLD = Deployment()
W = 720
SECRET = bytes(range(32))


def rotated(
    windows: int = W, one_in: int = W, every_s: int = 3600, world: Deployment = WORLD, **changes: object
) -> Question:
    """Return hourly windows of which each device answers one in a month, by a response of epsilon 10."""
    schedule = Schedule(
        first=START // 3600 * 3600, every_s=every_s, windows=windows, round_one_s=600, round_two_s=0, expiry_s=60
    )
    fields = {
        "mode": Mode.RESPONSE,
        "mechanism": KaryResponse.from_epsilon(Fraction(10), 3),
        "schedule": schedule,
        "release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(10), level=Fraction(19, 20)),
        "one_in": one_in,
    }
    return world.question(**(fields | changes))


def known(question: Question, slot: int | None) -> KnownQuestion:
    signed = SignedQuestion(question=question, signatures=(b"",) * len(question.aggregators))
    return KnownQuestion(offer=QuestionOffer(signed=signed, key_lists=(), orders=()), slot=slot)


def test_slots_are_uniform_and_follow_from_the_secret_and_the_question_alone() -> None:
    one, other = (QuestionId(bytes([tag]) * 32) for tag in (1, 2))
    drawn = Counter(slot_of(number.to_bytes(32), one, 12) for number in range(12_000))

    assert set(drawn) == set(range(12))
    assert stats.chisquare([drawn[slot] for slot in range(12)]).pvalue > 1e-9
    assert slot_of(SECRET, one, W) == slot_of(SECRET, one, W)
    # Whoever chooses the question meets another device elsewhere, and cannot know where.
    moved = [(slot_of(number.to_bytes(32), one, W), slot_of(number.to_bytes(32), other, W)) for number in range(500)]
    assert len({(second - first) % W for first, second in moved}) > 300


@pytest.mark.parametrize("slot", [0, 5, W - 1])
def test_a_device_answers_in_its_own_window_of_every_cycle_and_pays_for_it_alone(slot: int) -> None:
    question = rotated(windows=2 * W + 6)
    asked, policy = known(question, slot), open_policy(largest_local_epsilon=Fraction(10))
    own = [index for index in (slot, slot + W, slot + 2 * W) if index < question.schedule.windows]

    found, after = list[int](), -1
    while (index := asked.next_window(after, 0)) is not None:
        found.append(index)
        after = index
    charges = charges_of_question(question, policy, 0, -(10**9), asked.of_others)

    assert found == own
    assert [one.asked_at for one in charges] == [question.schedule.opens(index) for index in own]
    # One answer with all of epsilon in every period of 30 days, and never two.
    assert Ledger().judge(policy, charges) is None
    near = replace(charges[0], charge_id=b"another", asked_at=charges[0].asked_at + 3600, counts_until=None)
    near = replace(near, asked_until=near.asked_at + 600)
    refusal = Ledger(charges).judge(policy, [near])
    assert refusal is not None
    assert refusal.rule == "total_epsilon"


def test_a_question_of_one_window_in_several_is_of_responses_and_covers_the_period(tmp_path: Path) -> None:
    question = rotated()

    assert decode_question(question.canonical) == question
    assert question.shape.units == (1,)
    assert rotated(windows=W + 1).shape.units == (1, 1)
    with pytest.raises(QuestionError, match="one_in is 719, allowed: 720 or more, so that a device answers once"):
        rotated(one_in=719)
    with pytest.raises(QuestionError, match="one_in is 720 in direct mode, allowed: response"):
        rotated(mode=Mode.DIRECT, mechanism=None)
    with pytest.raises(QuestionError, match="one_in is 0"):
        rotated(one_in=0)
    assert question.coin is Coin.WINDOW


def test_a_real_device_reserves_its_own_window_of_each_cycle_and_keeps_it_when_it_begins_anew(tmp_path: Path) -> None:
    world = Deployment()
    question = rotated(windows=2 * W, world=world)
    policy = open_policy(largest_local_epsilon=Fraction(10), largest_epsilon=Fraction(10), total_epsilon=Fraction(10))
    slots = set[int]()
    for name in ("one", "two", "three"):
        found = list[tuple[int, ...]]()
        for _ in range(2):
            device = world.device(tmp_path / f"{name}.db", world.transport(), join=JoinRule.AUTO, policy=policy)
            assert not device.questions.take([world.offer(question)])
            joined = device.questions.joined(question.question_id)
            assert joined is not None
            first = joined.next_window(-1, START)
            assert first is not None
            second = joined.next_window(first, START)
            assert second == first + W
            assert joined.next_window(second, START) is None
            found.append(tuple(one.asked_at for one in device.spool.charges()))
            assert found[-1] == (question.schedule.opens(first), question.schedule.opens(second))
            other = device.questions.assign(joined, first + 1)
            assert isinstance(other, PolicyRefusal)
            assert other.rule == "reserved"
            assert not isinstance(device.questions.assign(joined, first), PolicyRefusal)
        assert found[0] == found[1]
        slots.add(first)
    assert len(slots) > 1
