"""A device that has several categories at once tells them all, and of too many as many as the question lets it."""

from collections import Counter
from fractions import Fraction
from itertools import combinations
from pathlib import Path

from fleetcount_client.answering import truth_of
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.signals import Reading
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode

from tests.client.deployment import Deployment, open_policy
from tests.client.test_delivery import only

CODES = Categories(names=("P0301", "P0420", "U0100", "B1000"), most=2)
WORLD = Deployment()


def truths(reading: Reading, draws: int = 1) -> Counter[object]:
    window, source = WORLD.window(domain=CODES, mode=Mode.DIRECT, mechanism=None), SeededRandom(5)
    return Counter(truth_of(window, reading, source) for _ in range(draws))


def test_every_category_of_a_set_is_told_and_what_the_question_does_not_name_is_not() -> None:
    assert truths(Reading(value=frozenset({"P0420", "B1000"}))) == {(0, 1, 0, 1): 1}
    assert truths(Reading(value=frozenset({"P0420", "C0035"}))) == {(0, 1, 0, 0): 1}
    assert truths(Reading(value="U0100")) == {(0, 0, 1, 0): 1}
    assert truths(Reading(value=frozenset())) == truths(Reading()) == {(0, 0, 0, 0): 1}


def test_of_more_than_the_question_allows_each_choice_is_told_equally_often() -> None:
    found = truths(Reading(value=frozenset({"P0301", "P0420", "B1000"})), 3000)

    pairs = {tuple(int(place in pair) for place in range(4)) for pair in combinations((0, 1, 3), 2)}
    assert set(found) == pairs
    # Three choices of 1/3 each: more than 130 off happens once in 10^6 runs.
    assert all(abs(count - 1000) < 130 for count in found.values())


async def test_a_set_is_delivered_with_a_proof_that_holds(tmp_path: Path) -> None:
    world = Deployment()
    window = world.ask(domain=CODES, mode=Mode.DIRECT, mechanism=None)
    truth = frozenset({"P0301", "U0100"})
    policy = open_policy(allow_direct=True, largest_epsilon=Fraction(9), total_epsilon=Fraction(9))
    device = world.device(tmp_path / "device.db", world.transport(), truth=truth, policy=policy)

    outcome = await only(device)

    assert (outcome.kind, outcome.fault) == (OutcomeKind.DELIVERED, "")
    (report_id,) = world.report_ids(window, 0)
    assert world.verifies(window, report_id) == [1, 0, 1, 0, 1]
