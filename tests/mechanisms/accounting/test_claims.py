"""No printed loss is below the truth: random question (`make nightly`: a thousand) against enumeration of their
lattice.

The truth is summed over all outputs in a box; what lies outside only lowers it, so a claim below it is surely wrong.
"""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_mechanisms.accounting.charges import unit_loss, window_loss
from fleetcount_mechanisms.accounting.question_losses import part_loss, question_losses, units_loss
from fleetcount_mechanisms.accounting.vectors import SCALE, ScheduleShape, geometric_unit_epsilon
from fleetcount_mechanisms.answers import AnswerLaw, Relation, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.losses import moves_divergence, moves_loss
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, TwoSidedNoise
from fleetcount_mechanisms.repeated import optimal_loss_repeated
from fleetcount_mechanisms.responses import KaryResponse, Mangat, MangatVector, OptimizedUnaryEncoding
from fleetcount_mechanisms.sampling import SamplingDie
from scipy.stats import multinomial

from tests.support.nightly import NIGHTLY

Law = np.ndarray
SLACK = 1e-12
DELTAS = [Fraction(1, 10**n) for n in (2, 3, 5, 7)]


def seeds(count: int) -> list[Any]:
    """Return the seeds of a test: the first for every run, the others for `make nightly`."""
    return [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, count))]


def noise_pmf(noise: GaussianNoise | TwoSidedNoise, reach: int) -> Law:
    places = np.arange(-reach, reach + 1, dtype=float)
    if isinstance(noise, GaussianNoise):
        weights = np.exp(-places * places / (2 * float(noise.variance)))
        return weights / np.exp(-(np.arange(-400, 401.0) ** 2) / (2 * float(noise.variance))).sum()
    ratio = math.exp(-noise.epsilon)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(places)


def moved(noise: GaussianNoise | TwoSidedNoise, reach: int, counts: tuple[int, ...]) -> Law:
    """Return the joint law of some noised numbers, one axis each, when a device adds `counts` to them."""
    long = noise_pmf(noise, reach + 1)
    law = np.ones(1)
    for count in counts:
        law = np.multiply.outer(law, long[1 - count : long.size - 1 - count])
    return law.reshape(-1)


def hockey_stick(one: Law, other: Law, epsilon: Fraction) -> float:
    return float(np.maximum(0, one - math.exp(min(float(epsilon), 700)) * other).sum())


def divergence(one: Law, other: Law, order: int) -> float:
    seen = (one > 1e-250) & (other > 1e-250)
    powers = order * np.log(one[seen]) + (1 - order) * np.log(other[seen])
    largest = powers.max()
    return float(largest + np.log(np.exp(powers - largest).sum())) / (order - 1)


def some_noise(rng: random.Random, small: bool) -> GaussianNoise | TwoSidedNoise:
    if rng.random() < 0.5:
        return GaussianNoise(Fraction(rng.randint(25, 120 if small else 900), 100))
    return TwoSidedNoise(Fraction(rng.randint(60 if small else 20, 300), 100))


def panel_law(
    rate: float, noise: GaussianNoise | TwoSidedNoise, reach: int, answers: tuple[int, ...], values: int
) -> Law:
    """Return the law of a unit's outputs: windows after each other, `values` numbers each."""

    def one(given: tuple[int, ...]) -> Law:
        law = np.ones(1)
        for answer in given:
            counts = tuple(int(answer == value) for value in range(1, values + 1))
            law = np.multiply.outer(law, moved(noise, reach, counts)).reshape(-1)
        return law

    return (1 - rate) * one((0,) * len(answers)) + rate * one(answers)


def changes(values: int, windows: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return every change of a unit's answers, one of those that are the same by other names of values and windows."""
    sequences = itertools.product(range(values + 1), repeat=windows)
    names = [(0, *renamed) for renamed in itertools.permutations(range(1, values + 1))]
    found = {}
    for change in itertools.permutations(sequences, 2):
        same = min(sorted((name[a], name[b]) for a, b in zip(*change, strict=True)) for name in names)
        found.setdefault(tuple(same), change)
    return list(found.values())


@pytest.mark.parametrize("seed", seeds(10))
def test_sampled_units_lose_no_more_than_is_printed(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(35 if NIGHTLY else 20):
        values, windows = rng.choice([(1, 1), (1, 2), (2, 1), (2, 2)])
        noise = some_noise(rng, small=values * windows > 2)
        reach = 8 if values * windows > 2 else 40
        rate, delta, order = Fraction(rng.randint(5, 95), 100), rng.choice(DELTAS), rng.choice([2, 3, 5, 9])
        die = SamplingDie.uniform(rate, values, allow_large_rate=True)
        design = Design(answer=die, noise=noise, values=values, aggregators=2)
        vector = unit_loss(design, (order,), windows)
        sequences = itertools.product(range(values + 1), repeat=windows)
        laws = {answers: panel_law(float(rate), noise, reach, answers, values) for answers in sequences}
        losses = {changed: part_loss(design, windows, changed, delta) for changed in range(1, windows + 1)}
        for one, other in changes(values, windows):
            changed = sum(a != b for a, b in zip(one, other, strict=True))
            assert hockey_stick(laws[one], laws[other], losses[changed]) <= delta + Fraction(SLACK)
            assert divergence(laws[one], laws[other], order) <= vector.at[0] / SCALE + 1e-9
            if vector.pure is not None:
                assert hockey_stick(laws[one], laws[other], Fraction(vector.pure, SCALE)) <= SLACK


@pytest.mark.parametrize("seed", seeds(10))
def test_direct_answers_lose_no_more_than_is_printed_and_not_much_less(seed: int) -> None:
    """The loss of n moved numbers depends on one sum: of the noises, or of the signs of geometric ones."""
    rng = random.Random(seed)
    for _ in range(40):
        noise, count, delta = some_noise(rng, small=False), rng.randint(1, 60), rng.choice(DELTAS)
        epsilon = moves_loss([((noise, 1),)], count, delta)
        if isinstance(noise, GaussianNoise):
            one = total = noise_pmf(noise, 40)
            for _ in range(count - 1):
                total = np.convolve(total, one)
            sums = np.arange(total.size) - total.size // 2
            losses = (2 * sums + count) / (2 * float(noise.variance))
        else:
            up = 1 / (1 + math.exp(-noise.epsilon))
            ups = np.arange(count + 1)
            total = np.array([math.comb(count, k) * up**k * (1 - up) ** (count - k) for k in ups])
            losses = (2 * ups - count) * float(noise.epsilon)
        truth = float((total * np.maximum(0, 1 - np.exp(np.minimum(0, float(epsilon) - losses)))).sum())
        assert truth <= float(delta) + SLACK
        if isinstance(noise, TwoSidedNoise) and epsilon > 0:
            assert truth == pytest.approx(float(delta), rel=1e-6)
        one, other = (moved(noise, 80, (count,)) for count in (1, 0))
        assert moves_divergence([((noise, 1),)], 4) == pytest.approx(divergence(one, other, 4), rel=1e-3)


@pytest.mark.parametrize("seed", seeds(5))
def test_windows_with_coins_of_their_own_lose_no_more_than_is_printed(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20 if NIGHTLY else 10):
        noise, delta, rate = some_noise(rng, small=False), rng.choice(DELTAS), Fraction(rng.randint(5, 95), 100)
        days = rng.choice([(1, 1), (2,)])
        die = SamplingDie.uniform(rate, 2, allow_large_rate=True)
        design = Design(answer=die, noise=noise, values=2, aggregators=2)
        found = question_losses(design, ScheduleShape(units=(1, 1), days=days), delta)
        one, other = (panel_law(float(rate), noise, 16, (answer,), 2) for answer in (1, 2))
        assert hockey_stick(one, other, found.one_answer) <= delta + Fraction(SLACK)
        twice = np.multiply.outer(one, one).reshape(-1), np.multiply.outer(other, other).reshape(-1)
        assert hockey_stick(*twice, found.whole_question) <= delta + Fraction(SLACK)
        assert found.one_day == (found.whole_question if days == (2,) else found.one_answer)


@pytest.mark.parametrize("seed", seeds(5))
def test_an_answer_told_under_two_tosses_loses_no_more_than_is_printed(seed: int) -> None:
    """One truth of a walk over midnight, told once under each day's coin; the second day's other answer betrays it."""
    rng = random.Random(seed)
    shape = ScheduleShape(units=(1, 2, 1), days=(1, 2, 1), levels=2)
    for _ in range(20):
        noise, delta = some_noise(rng, small=True), rng.choice(DELTAS[:3])
        rate = rng.choice([delta, 2 * delta, Fraction(rng.randint(5, 95), 100)])
        die = SamplingDie.uniform(rate, 1, allow_large_rate=True)
        design = Design(answer=die, noise=noise, values=1, aggregators=2)
        epsilon = question_losses(design, shape, delta).one_answer
        for first, second in itertools.product((0, 1), repeat=2):
            one, other = (
                np.multiply.outer(
                    panel_law(float(rate), noise, 20, (a,), 1), panel_law(float(rate), noise, 20, (b, 1), 1)
                ).reshape(-1)
                for a, b in ((first, second), (1 - first, 1 - second))
            )
            assert hockey_stick(one, other, epsilon) <= delta + Fraction(SLACK)


RESPONSES: list[AnswerLaw] = [
    KaryResponse(Fraction(1, 2), 2),
    KaryResponse(Fraction(3, 4), 1),
    Mangat(Fraction(1, 5)),
    MangatVector(Fraction(1, 5), 2),
    MangatVector(Fraction(1, 5), 1),
    OptimizedUnaryEncoding(Fraction(1, 5), 2),
    OptimizedUnaryEncoding(Fraction(1, 5), 1),
    Truth(1),
    Truth(2),
]


def answered(answer: AnswerLaw, truth: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return the chance of each contribution to the opened numbers, the participation bit left out."""
    values = answer.values
    if isinstance(answer, Truth):
        return [(1.0, tuple(int(truth == value) for value in range(1, values + 1)))]
    if isinstance(answer, MangatVector | OptimizedUnaryEncoding):
        chances = [float(answer.bit_probability(1, int(truth == value))) for value in range(1, values + 1)]
        return [
            (math.prod(p if bit else 1 - p for p, bit in zip(chances, bits, strict=True)), bits)
            for bits in itertools.product((0, 1), repeat=values)
        ]
    return [
        (float(answer.probability(output, truth)), tuple(int(output == place) for place in range(values + 1)))
        for output in range(values + 1)
    ]


@pytest.mark.parametrize("answer", RESPONSES, ids=lambda answer: f"{type(answer).__name__}-{answer.values}")
def test_answers_are_charged_no_less_than_they_lose(answer: AnswerLaw) -> None:
    rng = random.Random(answer.values)
    for _ in range(20 if NIGHTLY else 3):
        noise, order, delta = some_noise(rng, small=False), rng.choice([2, 3, 5, 9]), rng.choice(DELTAS)
        design = Design(answer=answer, noise=noise, values=answer.values, aggregators=2)
        vector, shape = window_loss(design, (order,)), ScheduleShape(units=(1,), days=(1,))
        epsilon = question_losses(design, shape, delta).one_answer
        reach = 30 if answer.values == 2 else 45
        laws = [
            sum(chance * moved(noise, reach, counts) for chance, counts in answered(answer, truth))
            for truth in range(answer.values + 1)
        ]
        for [truth], [another] in changes(answer.values, 1):
            one, other = laws[truth], laws[another]
            assert divergence(one, other, order) <= vector.at[0] / SCALE + 1e-9
            assert hockey_stick(one, other, epsilon) <= delta + Fraction(SLACK)
            if vector.pure is not None:
                assert hockey_stick(one, other, Fraction(vector.pure, SCALE)) <= SLACK


def test_answers_without_noise_are_charged_their_own_loss() -> None:
    for answer in RESPONSES[:7]:
        design = Design(answer=answer, noise=NoNoise(), values=answer.values, aggregators=2)
        vector = window_loss(design, (3,))
        laws = [np.array([chance for chance, _ in answered(answer, truth)]) for truth in range(answer.values + 1)]
        # Value against none is what one-sided charges are for; it is one way of any value.
        assert hockey_stick(laws[1], laws[0], Fraction(vector.pure or 0, SCALE)) <= SLACK
        assert divergence(laws[1], laws[0], 3) <= vector.at[0] / SCALE + 1e-9
        if design.kind.relation is Relation.ANY_VALUE:
            worst = max(divergence(one, other, 3) for one, other in itertools.permutations(laws, 2))
            assert vector.at[0] / SCALE == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize(("values", "epsilon", "answers"), [(72, Fraction(1, 2), 20), (3, Fraction(1, 2), 60)])
def test_many_answers_of_many_values_lose_no_more_than_is_printed_and_less_than_as_many_of_two(
    values: int, epsilon: Fraction, answers: int
) -> None:
    answer, delta = KaryResponse.from_epsilon(epsilon, values), Fraction(1, 10**9)
    design = Design(answer=answer, noise=NoNoise(), values=values, aggregators=2)
    printed = units_loss(design, Counter({1: answers}), delta)
    # Each answer is the one truth, the other one, or neither: so often, with what chance under either.
    up, down, rest = float(answer.keep), float(answer.other), float(answer.other * (values - 1))
    counts = [(one, two, answers - one - two) for one in range(answers + 1) for two in range(answers + 1 - one)]
    one, other = (multinomial(answers, list(law)).pmf(np.array(counts)) for law in ((up, down, rest), (down, up, rest)))

    assert hockey_stick(one, other, printed) <= delta
    assert hockey_stick(one, other, printed * 9 / 10) > delta
    assert printed < Fraction(4, 5) * optimal_loss_repeated(epsilon, answers, delta)


@pytest.mark.parametrize(("windows", "e1"), [(1, Fraction(1, 2)), (2, Fraction(1)), (2, Fraction(7, 10))])
def test_the_epsilon_of_a_geometric_unit_is_exact(windows: int, e1: Fraction) -> None:
    rate, epsilon = Fraction(1, 4), Fraction(1, 5)
    reach = 45 if windows == 1 else 14
    one, other = (panel_law(0.25, TwoSidedNoise(e1), reach, (answer,) * windows, 2) for answer in (1, 2))

    truth = hockey_stick(one, other, epsilon)
    more, less = (
        geometric_unit_epsilon(rate, windows, e1, Fraction(truth) * factor, 2 * e1 * windows)
        for factor in (Fraction(998, 1000), Fraction(1002, 1000))
    )
    assert truth > 0
    assert less <= epsilon <= more
