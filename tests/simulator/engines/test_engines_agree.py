"""The laws: each engine draws exactly what the devices' mechanisms say, and so the engines agree.

Where a small fleet's outcomes can be counted, their exact probabilities are enumerated from the mechanisms' own
`pair_probability` and `probability`, device by device, and the engine's draws are compared by a chi-square test at
alpha = 1e-6: a right law fails once in a million. A law a little off must fail, or the test could not.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_analysis.channels import noise_sum
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.responses import AsymmetricVector, MangatVector, OptimizedUnaryEncoding
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_simulator.engines import engine
from fleetcount_simulator.engines.noise_sums import summed_noise
from fleetcount_simulator.model import Case, CaseOutcome, EngineName, Faults, Mechanism
from scipy import stats

from tests.simulator.fleets import (
    ASYMMETRIC,
    BITS,
    DIRECT,
    K_ARY,
    ONE_SIDED,
    RESPONSES,
    SAMPLING,
    Held,
    case,
    fleet,
    seed,
)
from tests.support.nightly import NIGHTLY

ALPHA = 1e-6
RUNS = 10_000
"""Draws of a law: with fewer a response to yes or no of an epsilon 1.3 times as large is not told for sure."""
FEWER = RUNS if NIGHTLY else 5_000
"""Draws that tell a law of more than two outputs."""
PAIRED = 2_000 if NIGHTLY else 600
"""Runs of each of two engines that are compared."""
ENGINES: tuple[EngineName, ...] = ("exact-law", "per-device")
Vector = tuple[int, ...]
Law = dict[Vector, Fraction]
LOSSY = Faults(loss=Fraction(1, 5), drop_out=Fraction(1, 4), late=Fraction(1, 10))


# What one device does, from the mechanisms alone.


def unit(position: int, length: int, value: int = 1) -> Vector:
    return tuple(value if index == position else 0 for index in range(length))


def answers(mechanism: Mechanism, truth: int, values: int) -> Iterator[tuple[Vector, Vector, Fraction]]:
    """Yield (what a whole report adds, what a counted half pair adds, probability)."""
    law = mechanism.answer(values)
    if isinstance(law, Truth):
        yield unit(truth - 1, values), (0,) * values, Fraction(1)
    elif isinstance(law, SamplingDie):
        for one, two in itertools.product(range(values + 1), repeat=2):
            first, second = unit(one - 1, values, -1), unit(two - 1, values)
            both = tuple(a + b for a, b in zip(first, second, strict=True))
            yield both, first, law.pair_probability(one, two, truth)
    elif isinstance(law, MangatVector | OptimizedUnaryEncoding | AsymmetricVector):
        for bits in itertools.product((0, 1), repeat=values):
            chances = (law.bit_probability(bit, int(cell == truth), cell) for cell, bit in enumerate(bits, start=1))
            yield bits, (0,) * values, math.prod(chances, start=Fraction(1))
    else:
        for output in range(values + 1):
            yield unit(output, values + 1), (0,) * (values + 1), law.probability(output, truth)


def device(one: Case, truth: int) -> Law:
    """Return the law of (counted histogram, opened outputs) that one device adds."""
    values, faults = one.population.question.values, one.faults
    rounds = 2 if one.mechanism.kind == "sampling" else 1
    stays = 1 - faults.drop_out if rounds == 2 else Fraction(1)
    whole = (1 - faults.loss) * stays * (1 - faults.late)
    half = (1 - faults.loss) * (1 - stays + stays * faults.late) if rounds == 2 else Fraction(0)
    law: Law = defaultdict(Fraction)
    for both, first, chance in answers(one.mechanism, truth, values):
        nothing = (0,) * len(both)
        law[unit(truth, values + 1) + both] += whole * chance
        law[(0,) * (values + 1) + (first if faults.naive else nothing)] += half * chance
        law[(0,) * (values + 1) + nothing] += (1 - whole - half) * chance
    return law


def fleet_law(one: Case) -> Law:
    """Return the exact law of (counted histogram, opened outputs) of the whole fleet, without noise."""
    total: Law = {}
    for truth in one.population.truths(0, 0, one.population.devices).tolist():
        alone = device(one, truth)
        grown: Law = defaultdict(Fraction)
        for (before, chance), (added, likelihood) in itertools.product((total or {None: 1}).items(), alone.items()):
            sum_of = added if before is None else tuple(a + b for a, b in zip(before, added, strict=True))
            grown[sum_of] += chance * likelihood
        total = grown
    return total


# Tests of a law.


def p_value(drawn: list[Vector], law: Law) -> float:
    """Return the p-value of a chi-square test; outcomes expected fewer than 5 times are one bin."""
    seen, runs = Counter(drawn), len(drawn)
    if any(law.get(outcome, 0) == 0 for outcome in seen):
        return 0.0
    common = [outcome for outcome, chance in law.items() if runs * chance >= 5]
    observed = [seen[outcome] for outcome in common]
    expected = [float(runs * law[outcome]) for outcome in common]
    if runs - sum(expected) > 1e-6 * runs:
        observed.append(runs - sum(observed))
        expected.append(runs - sum(expected))
    if len(expected) == 1:
        return float(observed == expected)
    return float(stats.chisquare(observed, np.array(expected) * runs / sum(expected)).pvalue)


def drawn(one: Case, name: EngineName, runs: int, number: int = 1) -> list[Vector]:
    outcome = engine(name).run(one, 0, range(runs), seed(number))
    return [tuple(row) for row in np.hstack([outcome.counted, outcome.outputs]).tolist()]


def slightly_off(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism with a rate or an epsilon 1.3 times as large."""
    factor = Fraction(13, 10)
    return Mechanism(
        name=mechanism.name,
        kind=mechanism.kind,
        sampling_rate=mechanism.sampling_rate and mechanism.sampling_rate * factor,
        epsilon_local=mechanism.epsilon_local and mechanism.epsilon_local * factor,
    )


CASES = [
    *((mechanism, (3, 2)) for mechanism in RESPONSES),
    (K_ARY, (1, 1, 2)),
    *((mechanism, (1, 1, 1)) for mechanism in (*BITS, replace(ASYMMETRIC, flips=ASYMMETRIC.flips[:2]))),
    (SAMPLING, (2, 1, 3)),
]
NAMES = [mechanism.name for mechanism, _ in CASES]


ALIKE = ("warner", "mangat-vector")
"""Mechanisms that engines draw as they draw another of the cases, with other numbers."""


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("mechanism", "counts"),
    [pytest.param(*one, marks=[pytest.mark.nightly] if one[0].name in ALIKE else []) for one in CASES],
    ids=NAMES,
)
def test_an_engine_draws_the_law_of_the_mechanism(
    mechanism: Mechanism, counts: tuple[int, ...], name: EngineName
) -> None:
    one = case(fleet(counts), mechanism, faults=LOSSY)

    found = drawn(one, name, RUNS if mechanism in RESPONSES else FEWER)

    assert p_value(found, fleet_law(one)) > ALPHA
    assert p_value(found, fleet_law(case(fleet(counts), slightly_off(mechanism), faults=LOSSY))) < ALPHA


@pytest.mark.nightly
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("faults", [Faults(), LOSSY], ids=["faultless", "lossy"])
@pytest.mark.parametrize(("mechanism", "counts"), CASES, ids=NAMES)
def test_a_hundred_thousand_draws_have_the_law_of_the_mechanism(
    mechanism: Mechanism, counts: tuple[int, ...], faults: Faults, name: EngineName
) -> None:
    one = case(fleet(counts), mechanism, faults=faults)

    assert p_value(drawn(one, name, 100_000, 2), fleet_law(one)) > ALPHA


@pytest.mark.parametrize("name", ENGINES)
def test_half_pairs_that_are_counted_take_their_first_answer_away(name: EngineName) -> None:
    faults = Faults(drop_out=Fraction(1, 4), late=Fraction(1, 10), naive=True)
    agreed = Faults(drop_out=Fraction(1, 4), late=Fraction(1, 10))
    one = case(fleet((2, 1, 2)), SAMPLING, faults=faults)

    found = drawn(one, name, FEWER)

    assert p_value(found, fleet_law(one)) > ALPHA
    assert p_value(found, fleet_law(case(fleet((2, 1, 2)), SAMPLING, faults=agreed))) < ALPHA


GAUSSIAN = Mechanism(name="gaussian", kind="direct", noise_variance=Fraction(5))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("mechanism", [DIRECT, ONE_SIDED, GAUSSIAN], ids=["direct", "one-sided", "gaussian"])
def test_truths_are_opened_with_the_sum_of_the_noises(mechanism: Mechanism, name: EngineName) -> None:
    counts = np.array([4, 7, 2])
    outcome = engine(name).run(case(fleet(counts.tolist()), mechanism, aggregators=3), 0, range(2000), seed())

    noise = (outcome.outputs - counts[1:]).ravel().tolist()

    assert p_value([(value,) for value in noise], noise_law(mechanism, 3)) > ALPHA
    assert p_value([(value,) for value in noise], noise_law(mechanism, 2)) < ALPHA


def noise_law(mechanism: Mechanism, aggregators: int) -> Law:
    """Return the law of the sum of the noises on -60..60, from the analysis' closed form or the negative binomial."""
    values = np.arange(-60, 61)
    epsilon = mechanism.noise_epsilon
    if epsilon is None:
        one = np.exp(-(np.arange(-60, 61) ** 2) / (2 * float(mechanism.noise_variance or 0)))
        mass = np.ones(1)
        for _ in range(aggregators):
            mass = np.convolve(mass, one / one.sum())
        mass = mass[60 * (aggregators - 1) :][:121]
    elif mechanism.kind == "direct":
        mass = np.exp(noise_sum(epsilon, aggregators).log_mass(values))
    else:
        far = values if mechanism.direction == "up" else -values
        mass = stats.nbinom.pmf(far, aggregators, -np.expm1(-float(epsilon)))
    return {(value,): Fraction(chance) for value, chance in zip(values.tolist(), mass.tolist(), strict=True)}


@pytest.mark.parametrize("aggregators", [2, 5])
@pytest.mark.parametrize("kind", ["direct", "up", "down", "gaussian"])
def test_noise_has_its_exact_law_and_another_scale_is_seen(kind: str, aggregators: int) -> None:
    def noisy(epsilon: Fraction) -> Mechanism:
        if kind == "gaussian":
            return Mechanism(name="n", kind="direct", noise_variance=10 * epsilon)
        if kind == "direct":
            return Mechanism(name="n", kind="direct", noise_epsilon=epsilon)
        return Mechanism(name="n", kind="one-sided", noise_epsilon=epsilon, direction="up" if kind == "up" else "down")

    values = summed_noise(noisy(Fraction(4, 5)).noise, aggregators, 100_000, np.random.default_rng(5)).tolist()

    assert p_value([(value,) for value in values], noise_law(noisy(Fraction(4, 5)), aggregators)) > ALPHA
    assert p_value([(value,) for value in values], noise_law(noisy(Fraction(4, 5) * 13 / 10), aggregators)) < ALPHA


# Larger fleets: two samples.


def statistics(outcome: CaseOutcome) -> dict[str, np.ndarray]:
    """Return what is compared of every run: each cell opened, the total, each value counted, each tally."""
    made = {f"output {cell}": outcome.outputs[:, cell] for cell in range(outcome.outputs.shape[1])}
    made |= {f"counted {value}": outcome.counted[:, value] for value in range(outcome.counted.shape[1])}
    return made | {"total": outcome.outputs.sum(axis=1)} | dict(outcome.tallies)


def two_sample(first: np.ndarray, second: np.ndarray) -> float:
    """Return the p-value of a chi-square test of two samples on at most ten common bins."""
    # The largest value has a bin of its own: else what is 0 nearly always would be one bin, whatever it is at times.
    edges = np.append(np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0, 1, 11))), np.inf)
    table = np.array([np.histogram(sample, edges)[0] for sample in (first, second)])
    tested: Any = stats.chi2_contingency(table[:, table.sum(axis=0) > 0])
    return float(tested.pvalue)


def worst(first: CaseOutcome, second: CaseOutcome) -> float:
    left, right = statistics(first), statistics(second)
    assert left.keys() == right.keys()
    return min(two_sample(left[name], right[name]) for name in left)


MISHAPS = Faults(
    loss=Fraction(1, 50),
    drop_out=Fraction(1, 20),
    late=Fraction(1, 30),
    duplicates=Fraction(1, 10),
    reorder=True,
    clock_skew_s=Fraction(45),
    outage=((1, "collecting", Fraction(40)),),
)


@pytest.mark.parametrize("naive", [False, True])
@pytest.mark.parametrize(
    ("mechanism", "counts"),
    [
        (SAMPLING, (300, 20, 100, 80)),
        (RESPONSES[0], (350, 150)),
        (K_ARY, (300, 20, 100, 80)),
        (BITS[0], (300, 20, 100, 80)),
        (DIRECT, (300, 20, 100, 80)),
        (ONE_SIDED, (300, 20, 100, 80)),
    ],
    ids=lambda value: value.name if isinstance(value, Mechanism) else "",
)
def test_the_engines_agree_under_every_fault_at_once(
    mechanism: Mechanism, counts: tuple[int, ...], naive: bool
) -> None:
    one = case(fleet(counts), mechanism, faults=replace(MISHAPS, naive=naive))

    law, devices = (engine(name).run(one, 0, range(PAIRED), seed(3)) for name in ENGINES)

    # About thirty statistics a case: a right pair of engines fails once in 30,000 a case at this threshold.
    assert worst(law, devices) > ALPHA


def test_the_comparison_of_two_samples_sees_another_loss() -> None:
    lossy, worse = (case(fleet((300, 100)), SAMPLING, faults=Faults(loss=Fraction(n, 100))) for n in (3, 4))

    law, devices = engine("exact-law").run(lossy, 0, range(PAIRED), seed()), engine("per-device")

    assert worst(law, devices.run(worse, 0, range(PAIRED), seed(4))) < ALPHA


def test_the_comparison_of_two_samples_sees_what_is_rare() -> None:
    rarely, oftener = (np.arange(PAIRED) < PAIRED * share for share in (0.01, 0.1))

    assert two_sample(rarely.astype(int), oftener.astype(int)) < ALPHA


def test_the_engines_agree_where_devices_are_switched_off() -> None:
    generator = np.random.default_rng(6)
    values = generator.integers(0, 4, (3, 500)).astype(np.uint16)
    population = Held(values, 3, generator.random((3, 2, 500)) < 0.8)
    one = case(population, SAMPLING, faults=Faults(ignition=True, loss=Fraction(1, 20), naive=True))

    law, devices = (engine(name).run(one, 2, range(PAIRED), seed(7)) for name in ENGINES)

    assert worst(law, devices) > ALPHA
    absent = int((~population.on[2, 0]).sum()) if population.on is not None else 0
    assert set(law.tallies["absent"].tolist()) == set(devices.tallies["absent"].tolist()) == {absent}
