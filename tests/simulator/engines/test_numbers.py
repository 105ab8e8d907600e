"""Devices that hold numbers between points round them in every run and window anew, in each engine by the same law.

Chi-square tests at alpha = 1e-6, as in `test_engines_agree`: a right law fails once in a million.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.window.domain import Numbers, Outside
from fleetcount_simulator.engines import engine
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Case, EngineName, Epochs, Faults, Mechanism
from fleetcount_simulator.network.plan import plan_of
from fleetcount_simulator.network.question import question_of
from fleetcount_simulator.rounding import fleet_truth, mean_of, rounding_of

from tests.simulator.engines.test_engines_agree import ALPHA, ENGINES, LOSSY, Law, device, drawn, p_value
from tests.simulator.fleets import BITS, DIRECT, K_ARY, SAMPLING, Counted, Held, attacker, case, fleet, seed
from tests.simulator.test_standing import question
from tests.support.nightly import NIGHTLY

TENS = Numbers(low=Fraction(0), high=Fraction(20), values=3, unit="")
READINGS = (Fraction(-7), Fraction(3), Fraction(10), Fraction(16), Fraction(25))
DRAWS = 10_000 if NIGHTLY else 4_000


def space(domain: Numbers = TENS, readings: Sequence[Fraction] = READINGS) -> AnswerSpace:
    labels = tuple(domain.label(value) for value in range(1, domain.values + 1))
    return AnswerSpace(title="how much?", labels=labels, domain=domain, readings=tuple(readings))


@dataclass(frozen=True, eq=False)
class Numbered(Held):
    """Devices that hold readings: `values` are their numbers 0..R."""

    asked: AnswerSpace | None = None

    @property
    def question(self) -> AnswerSpace:
        assert self.asked is not None
        return self.asked


@dataclass(frozen=True, eq=False)
class Census(Counted):
    """How many devices hold each reading, and no devices."""

    @property
    def question(self) -> AnswerSpace:
        return SPACE


SPACE = space()


def numbered(counts: Sequence[int], asked: AnswerSpace = SPACE) -> Numbered:
    """Return so many devices of each reading 0..R, in their order."""
    held = np.repeat(np.arange(len(counts)), counts).astype(np.uint16)
    return Numbered(held[None, :], len(asked.readings), asked=asked)


def law_of(one: Case, off: Fraction = Fraction(0)) -> Law:
    """Return the exact law of (counted histogram, outputs); the chance to round up is larger by `off`."""
    asked = one.population.question
    assert isinstance(asked.domain, Numbers)
    plain = replace(one, population=fleet([1] * (asked.values + 1)))
    places = [Fraction(0), *map(asked.domain.place_of, asked.readings)]
    total: Law = {(): Fraction(1)}
    for held in one.population.truths(0, 0, one.population.devices).tolist():
        below, part = int(places[held]), places[held] % 1
        part += off if part else 0
        alone: Law = defaultdict(Fraction)
        for value, chance in ((below, 1 - part), (below + 1, part)):
            for added, likelihood in device(plain, value).items() if chance else ():
                alone[added] += chance * likelihood
        grown: Law = defaultdict(Fraction)
        for (before, chance), (added, likelihood) in itertools.product(total.items(), alone.items()):
            grown[tuple(a + b for a, b in zip(before or (0,) * len(added), added, strict=True))] += chance * likelihood
        total = grown
    return total


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("mechanism", "faults"),
    [
        (SAMPLING, Faults()),
        (SAMPLING, LOSSY),
        (K_ARY, Faults()),
        pytest.param(BITS[0], LOSSY, marks=pytest.mark.nightly),
    ],
    ids=["sampling", "lossy", "k-ary", "bits"],
)
def test_an_engine_draws_the_law_of_roundings_and_answers(
    mechanism: Mechanism, faults: Faults, name: EngineName
) -> None:
    one = case(numbered((1, 1, 2, 0, 1)), mechanism, faults=faults)

    found = drawn(one, name, DRAWS)

    assert p_value(found, law_of(one)) > ALPHA
    assert p_value(found, law_of(one, Fraction(1, 5))) < ALPHA


@pytest.mark.parametrize("name", ENGINES)
def test_numbers_beyond_the_ends_are_the_ends_or_none_of_the_values(name: EngineName) -> None:
    strict = space(replace(TENS, outside=Outside.NONE))
    counts = {"clamp": [5, 6, 0, 0, 7], "none": [18, 0, 0, 0, 0]}
    for asked, outside in ((SPACE, "clamp"), (strict, "none")):
        one = case(numbered((5, 6, 0, 0, 0, 7), asked), DIRECT)
        counted = engine(name).run(one, 0, range(3), seed()).counted
        assert counted.tolist() == [[counts[outside][0], counts[outside][1], 0, counts[outside][4]]] * 3


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("coin", [Coin.WINDOW, Coin.QUESTION])
def test_every_window_has_roundings_of_its_own_whatever_the_coin_holds(coin: Coin, name: EngineName) -> None:
    fives = space(readings=(Fraction(5),))
    held = np.ones((2, 2), dtype=np.uint16)
    one = case(Numbered(held, 1, asked=fives), SAMPLING, epochs=Epochs(count=2, question=question(coin, 2)))

    def run(epoch: int) -> Any:
        return engine(name).run(one, epoch, range(DRAWS), np.random.SeedSequence(1, spawn_key=(0, epoch)))

    both = np.hstack([run(epoch).outputs for epoch in (0, 1)])
    drawn_ones = [tuple(row) for row in both.tolist()]

    assert p_value(drawn_ones, joint(held=coin is Coin.QUESTION, fresh=True)) > ALPHA
    assert p_value(drawn_ones, joint(held=coin is Coin.QUESTION, fresh=False)) < ALPHA


def joint(*, held: bool, fresh: bool) -> Law:
    """Return the law of both windows' sums of two devices half way between the first two of three points."""
    rate = Fraction(3, 10)
    alone: Law = defaultdict(Fraction)
    for coins in itertools.product((0, 1), repeat=2):
        for points in itertools.product((0, 1), repeat=2):
            if held:
                chance = (rate if coins[0] else 1 - rate) * (coins[0] == coins[1])
            else:
                chance = (rate if coins[0] else 1 - rate) * (rate if coins[1] else 1 - rate)
            chance *= Fraction(1, 4) if fresh else Fraction(points[0] == points[1], 2)
            moved = [coin * (point == cell) for coin, point in zip(coins, points, strict=True) for cell in range(3)]
            alone[tuple(moved)] += chance
    total: Law = defaultdict(Fraction)
    for (first, chance), (second, likelihood) in itertools.product(alone.items(), repeat=2):
        total[tuple(a + b for a, b in zip(first, second, strict=True))] += chance * likelihood
    return {outcome: chance for outcome, chance in total.items() if chance}


def test_the_law_of_a_billion_numbers_needs_no_device() -> None:
    one = case(Census([10**8, 0, 3 * 10**8, 0, 6 * 10**8, 0]), DIRECT)

    counted = engine("exact-law").run(one, 0, range(4), seed()).counted

    # 3 is 0.3 of a step above 0, and 16 is 0.6 above 10: deviations of 7,937 and 12,000 devices.
    assert (np.abs(counted - np.array([10**8, 21 * 10**7, 33 * 10**7, 36 * 10**7])) < 120_000).all()
    assert len({tuple(row) for row in counted.tolist()}) == 4


def test_what_a_study_compares_with_is_what_devices_answer_on_average_and_the_mean_of_what_they_read() -> None:
    population = numbered((1, 1, 2, 1, 5, 1))

    assert fleet_truth(population, 0).tolist() == [1, 1 + 1.4, 0.6 + 1 + 2, 3 + 1]
    mean = mean_of(population, 0)
    assert mean is not None
    assert mean[0].tolist() == [0, 10, 20]
    assert mean[1] == pytest.approx((-7 + 3 + 3 + 10 + 5 * 16 + 25) / 10)
    strict = mean_of(numbered((1, 1, 2, 1, 5, 1), space(replace(TENS, outside=Outside.NONE))), 0)
    assert strict is not None
    assert strict[1] == pytest.approx((3 + 3 + 10 + 5 * 16) / 8)


def test_values_that_are_held_are_not_rounded() -> None:
    population = fleet((1, 2, 3))

    assert rounding_of(population.question) is mean_of(population, 0) is None
    assert fleet_truth(population, 0).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["known-others", "colluding-aggregators", "repeating-analyst", "tracker"])
def test_an_attacker_who_guesses_a_value_is_refused(kind: str) -> None:
    one = case(numbered((1, 1, 2, 0, 1)), SAMPLING, attackers=(attacker(kind),))

    with pytest.raises(ScenarioError, match=f"of kind '{kind}' guesses a value.*allows: liars, cheats"):
        engine("exact-law").run(one, 0, [0], seed())


def test_real_devices_read_the_points_to_which_a_plan_rounds() -> None:
    counts = (100, 0, 1000, 0, 1000)
    noised = replace(SAMPLING, noise_epsilon=Fraction(1))
    one = case(numbered(counts), noised, min_batch_size=2)
    asked = question_of(one)

    plans = [plan_of(one, asked, run, seed()) for run in (0, 1, 0)]

    assert plans[0].truths.tolist() == plans[2].truths.tolist() != plans[1].truths.tolist()
    assert {*plans[0].part.readings[0]} == {(None,), (0.0,), (10.0,), (20.0,)}
    found = np.bincount(plans[0].truths[0], minlength=4)
    # 700 of those who read 3 round down, with a deviation of 14.5; 600 of those who read 16 round up, with one of 15.5.
    assert found[0] == 100
    assert (np.abs(found[1:] - np.array([700, 300 + 400, 600])) < (90, 140, 95)).all()


def test_points_that_no_signal_reads_exactly_are_refused_by_the_network() -> None:
    thirds = space(replace(TENS, values=4))

    one = case(numbered((1, 1, 1), thirds), replace(SAMPLING, noise_epsilon=Fraction(1)), min_batch_size=2)
    asked = question_of(one)

    with pytest.raises(ScenarioError, match=r"point 2 \(20/3\) has no decimal that a signal reads exactly"):
        plan_of(one, asked, 0, seed())
