"""Over ten thousand simulated releases a 95 % interval covers the truth in 94 to 97.5 % of them, and a wrong one not.

The seeds are fixed, so that a verdict never changes by chance; the band is five standard errors wide on either side.
Power both ways: an interval for noise of 0.7 times the scale covers too seldom, of 1.3 times too often.
"""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.intervals import (
    direct_intervals,
    one_sided_intervals,
    response_ends,
    sampling_intervals,
    simultaneous_level,
    sum_interval,
    unary_ends,
)
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.responses import KaryResponse, Mangat, TwoCoin, Warner
from numpy.typing import NDArray

from tests.support.geometric_noise import geometric_noise

RELEASES = 10_000
LEVEL = Fraction(19, 20)
LOWEST, HIGHEST = 0.94, 0.975
Integers = NDArray[np.int64]

# The true count, the sampling rate, the noise of one aggregator, the aggregators.
CASES = [
    (20, Fraction(9, 20), Fraction(3, 5), 2),
    (200, Fraction(9, 20), Fraction(1, 20), 2),
    (100, Fraction(1, 4), Fraction(1729, 1000), 2),
    (1000, Fraction(1, 10), Fraction(11, 4), 3),
    (50_000, Fraction(1, 4), Fraction(1, 2), 5),
    (40, Fraction(1, 4), Fraction(1, 10), 40),
    (3_000_000, Fraction(9, 20), Fraction(1), 2),
]


def noise(epsilon: Fraction | None, aggregators: int, shape: tuple[int, ...], seed: int = 1) -> Integers:
    """Return the sum of the aggregators' noises for every release."""
    if epsilon is None:
        return np.zeros(shape, dtype=np.int64)
    count = aggregators * int(np.prod(shape))
    return geometric_noise(epsilon, count, SeededRandom(seed)).reshape(aggregators, *shape).sum(axis=0)


def released(count: int, rate: Fraction, epsilon: Fraction | None, aggregators: int) -> Integers:
    """Return the opened differences of ten thousand releases of one cell."""
    sampled = np.random.default_rng(2).binomial(count, float(rate), RELEASES)
    return sampled + noise(epsilon, aggregators, (RELEASES,))


def coverage(intervals: list[tuple[int, int]], truth: int) -> float:
    ends = np.array(intervals)
    return float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])))


@pytest.mark.parametrize(("count", "rate", "epsilon", "aggregators"), CASES)
def test_the_exact_interval_covers(count: int, rate: Fraction, epsilon: Fraction, aggregators: int) -> None:
    outputs = released(count, rate, epsilon, aggregators).tolist()

    intervals = sampling_intervals(outputs, rate, epsilon, aggregators, LEVEL)

    assert LOWEST <= coverage(intervals, count) <= HIGHEST


@pytest.mark.parametrize(("scale", "verdict"), [(0.7, "too seldom"), (1, "covers"), (1.3, "too often")])
def test_noise_of_another_scale_is_seen(scale: float, verdict: str) -> None:
    epsilon = Fraction(1, 20)
    outputs = released(200, Fraction(9, 20), epsilon, 2).tolist()

    covered = coverage(sampling_intervals(outputs, Fraction(9, 20), epsilon / Fraction(scale), 2, LEVEL), 200)

    assert verdict == ("too seldom" if covered < LOWEST else "covers" if covered <= HIGHEST else "too often")


def test_one_noise_in_place_of_two_is_seen() -> None:
    outputs = released(200, Fraction(9, 20), Fraction(1, 20), 2).tolist()

    assert coverage(sampling_intervals(outputs, Fraction(9, 20), Fraction(1, 20), 1, LEVEL), 200) < LOWEST


def test_the_interval_of_an_exact_release_covers() -> None:
    outputs = released(200, Fraction(1, 4), None, 2).tolist()

    assert LOWEST <= coverage(sampling_intervals(outputs, Fraction(1, 4), None, 2, LEVEL), 200) <= HIGHEST


def test_the_direct_interval_covers() -> None:
    outputs = (70 + noise(Fraction(1, 5), 2, (RELEASES,))).tolist()

    assert LOWEST <= coverage(direct_intervals(outputs, Fraction(1, 5), 2, LEVEL), 70) <= HIGHEST


def test_the_interval_of_a_sum_covers_the_sum() -> None:
    counts, rate, epsilon = np.array([5, 40, 0, 90]), Fraction(1, 4), Fraction(1)
    sampled = np.random.default_rng(3).binomial(counts, float(rate), (RELEASES, 4))
    outputs = sampled + noise(epsilon, 2, (RELEASES, 4))
    sums, weights = np.unique(outputs.sum(axis=1), return_counts=True)

    ends = [sum_interval([int(total), 0, 0, 0], rate, epsilon, 2, LEVEL) for total in sums]

    covered = sum(weight for (low, high), weight in zip(ends, weights, strict=True) if low <= counts.sum() <= high)
    assert LOWEST <= covered / RELEASES <= HIGHEST


def test_simultaneous_intervals_all_cover_at_once() -> None:
    counts, rate, epsilon = np.array([5, 40, 0, 90, 300, 17, 60, 8, 1, 25]), Fraction(1, 4), Fraction(1, 2)
    sampled = np.random.default_rng(4).binomial(counts, float(rate), (RELEASES, 10))
    outputs = (sampled + noise(epsilon, 2, (RELEASES, 10))).ravel().tolist()
    level = simultaneous_level(LEVEL, 10)

    together, single = (
        np.array(sampling_intervals(outputs, rate, epsilon, 2, one)).reshape(RELEASES, 10, 2) for one in (level, LEVEL)
    )

    def all_cover(ends: Integers) -> float:
        return float(np.mean(np.all((ends[..., 0] <= counts) & (counts <= ends[..., 1]), axis=1)))

    assert all_cover(together) >= 0.95
    assert all_cover(single) < 0.85


def answers(response: KaryResponse, counts: list[int], seed: int) -> Integers:
    """Return the counts of the outputs 0..V of ten thousand response rounds, before noise."""
    generator, outputs = np.random.default_rng(seed), range(response.values + 1)
    laws = [[float(response.probability(output, truth)) for output in outputs] for truth in outputs]
    rounds = [generator.multinomial(count, law, RELEASES) for count, law in zip(counts, laws, strict=True)]
    return np.sum(rounds, axis=0)


@pytest.mark.parametrize(
    ("response", "counts"),
    [
        (Mangat(Fraction(1, 3)), [900, 100]),
        (Warner(Fraction(3, 4)), [1500, 500]),
        (TwoCoin(Fraction(4, 5), Fraction(1, 5)), [150, 50]),
        (KaryResponse(Fraction(1, 2), 4), [400, 250, 150, 150, 50]),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("epsilon", [None, Fraction(2), Fraction(1, 20)], ids=["exact", "noised", "drowned"])
def test_the_interval_of_a_response_covers(response: KaryResponse, counts: list[int], epsilon: Fraction | None) -> None:
    outputs = answers(response, counts, 5) + noise(epsilon, 2, (RELEASES, len(counts)))

    low, high = (end[:, 0] for end in response_ends(outputs, response, epsilon, 2, LEVEL))

    assert LOWEST <= np.mean((low <= counts[1]) & (counts[1] <= high)) <= HIGHEST


def test_the_interval_of_bits_covers() -> None:
    generator, flip, epsilon = np.random.default_rng(6), Fraction(1, 3), Fraction(1, 10)
    bits = 80 + generator.binomial(920, float(flip), RELEASES) + noise(epsilon, 2, (RELEASES,), seed=7)
    devices = 1000 + noise(epsilon, 2, (RELEASES,), seed=8)

    low, high = unary_ends(bits, devices, Fraction(1), flip, epsilon, 2, LEVEL)

    assert LOWEST <= np.mean((low <= 80) & (high >= 80)) <= HIGHEST


@pytest.mark.parametrize("aggregators", [1, 3])
def test_the_one_sided_interval_covers(aggregators: int) -> None:
    law, source = OneSidedGeometric(Fraction(1, 10)), SeededRandom(9)
    drawn = np.array(law.sample_many(source, aggregators * RELEASES)).reshape(aggregators, RELEASES).sum(axis=0)

    outputs = (500 + drawn).tolist()

    right, wider = (one_sided_intervals(outputs, Fraction(1, 10), k, LEVEL) for k in (aggregators, aggregators + 1))

    assert LOWEST <= coverage(right, 500) <= HIGHEST
    assert coverage(wider, 500) > HIGHEST
