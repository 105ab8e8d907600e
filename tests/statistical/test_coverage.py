"""The published intervals cover the truth as often as they say, and the test sees intervals that do not.

Ten thousand simulated releases for each mechanism and population; NumPy draws the true channel (fixed seeds). An
interval computed for the wrong noise must fall outside the same bounds: power in both directions.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from fleetcount_analysis.intervals import (
    closed_form_intervals,
    direct_intervals,
    one_sided_intervals,
    response_intervals,
    sampling_intervals,
    sum_interval,
)
from fleetcount_mechanisms import KaryResponse, Mangat, TwoCoin, Warner
from numpy.typing import NDArray

RELEASES = 10_000
LEVEL = Fraction(95, 100)
# Three standard errors of a coverage of 95 % at 10,000 releases are 0.65 %; integer ends add a little from above.
LOW, HIGH = 0.943, 0.975

Integers = NDArray[np.int64]
Intervals = Callable[[list[int]], list[tuple[int, int]]]


def two_sided(generator: np.random.Generator, epsilon: float, parties: int, shape: tuple[int, ...]) -> Integers:
    stop = -np.expm1(-epsilon)
    draws = generator.geometric(stop, (2, parties, *shape))
    return (draws[0] - draws[1]).sum(axis=0)


def coverage(outputs: Integers, truth: int, intervals: Intervals) -> float:
    ends = np.array(intervals(outputs.tolist()))
    return float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])))


def sampling_outputs(truth: int, rate: float, epsilon: float, parties: int, seed: int) -> Integers:
    generator = np.random.default_rng(seed)
    return generator.binomial(truth, rate, RELEASES) + two_sided(generator, epsilon, parties, (RELEASES,))


@pytest.mark.parametrize("truth", [60, 400, 5_000])
@pytest.mark.parametrize(
    ("rate", "epsilon", "parties"),
    [(Fraction(1, 4), Fraction(1, 5), 2), (Fraction(9, 20), Fraction(3, 10), 3), (Fraction(1, 10), Fraction(1, 2), 5)],
)
def test_sampling_intervals_cover(truth: int, rate: Fraction, epsilon: Fraction, parties: int) -> None:
    outputs = sampling_outputs(truth, float(rate), float(epsilon), parties, seed=truth)

    covered = coverage(outputs, truth, lambda y: sampling_intervals(y, rate, epsilon, parties, LEVEL))

    assert LOW <= covered <= HIGH


@pytest.mark.parametrize(("factor", "too_narrow"), [(Fraction(10, 13), False), (Fraction(13, 10), True)])
def test_intervals_for_the_wrong_noise_are_seen(factor: Fraction, too_narrow: bool) -> None:
    rate, epsilon, parties, truth = Fraction(1, 4), Fraction(1, 5), 2, 60
    outputs = sampling_outputs(truth, float(rate), float(epsilon), parties, seed=1)

    covered = coverage(outputs, truth, lambda y: sampling_intervals(y, rate, epsilon * factor, parties, LEVEL))

    assert covered < LOW if too_narrow else covered > HIGH


def test_one_noise_taken_for_two_is_seen() -> None:
    rate, epsilon, truth = Fraction(1, 4), Fraction(1, 5), 60
    outputs = sampling_outputs(truth, float(rate), float(epsilon), 2, seed=2)

    assert coverage(outputs, truth, lambda y: sampling_intervals(y, rate, epsilon, 1, LEVEL)) < LOW


@pytest.mark.parametrize("level", [Fraction(1, 2), Fraction(8, 10), Fraction(99, 100)])
def test_every_level_is_kept(level: Fraction) -> None:
    rate, epsilon, truth = Fraction(1, 4), Fraction(1, 10), 200
    outputs = sampling_outputs(truth, float(rate), float(epsilon), 2, seed=3)

    covered = coverage(outputs, truth, lambda y: sampling_intervals(y, rate, epsilon, 2, level))

    slack = 3 * float(level * (1 - level)) ** 0.5 / 100
    assert float(level) - slack <= covered <= float(level) + slack + 0.02


def test_an_empty_cell_is_covered_at_least_as_often_as_stated() -> None:
    outputs = sampling_outputs(0, 0.25, 1.7, 2, seed=4)

    assert coverage(outputs, 0, lambda y: sampling_intervals(y, Fraction(1, 4), Fraction(17, 10), 2, LEVEL)) >= 0.975


def test_direct_intervals_cover() -> None:
    epsilon = Fraction(1, 10)
    outputs = 300 + two_sided(np.random.default_rng(5), float(epsilon), 3, (RELEASES,))

    assert LOW <= coverage(outputs, 300, lambda y: direct_intervals(y, epsilon, 3, LEVEL)) <= HIGH


def test_closed_form_intervals_cover_large_counts() -> None:
    outputs = sampling_outputs(5_000, 0.25, 0.2, 2, seed=6)

    low, high = closed_form_intervals(outputs, Fraction(1, 4), Fraction(1, 5), 2, LEVEL)

    assert LOW <= np.mean((low <= 5_000) & (high >= 5_000)) <= HIGH


def test_the_interval_of_a_sum_of_cells_covers_the_sum() -> None:
    rate, epsilon, truths, releases = Fraction(1, 4), Fraction(1, 5), np.array([10, 50, 0, 140]), 1_000
    generator = np.random.default_rng(7)
    outputs = generator.binomial(truths, 0.25, (releases, 4)) + two_sided(generator, 0.2, 2, (releases, 4))

    ends = np.array([sum_interval(row, rate, epsilon, 2, LEVEL) for row in outputs.tolist()])

    covered = np.mean((ends[:, 0] <= truths.sum()) & (truths.sum() <= ends[:, 1]))
    assert 0.929 <= covered <= 0.985


@lru_cache
def _responses() -> dict[str, Mangat | Warner | TwoCoin | KaryResponse]:
    return {
        "mangat": Mangat.from_epsilon(Fraction(1)),
        "warner": Warner.from_epsilon(Fraction(1)),
        "two-coin": TwoCoin(Fraction(8, 10), Fraction(2, 10)),
        "k-ary": KaryResponse.from_epsilon(Fraction(2), 4),
    }


def response_outputs(name: str, counts: list[int], epsilon: float, parties: int, releases: int) -> Integers:
    response = _responses()[name]
    generator = np.random.default_rng(11)
    law = np.array(
        [[float(response.probability(output, truth)) for output in range(len(counts))] for truth in range(len(counts))]
    )
    answers = sum(generator.multinomial(count, row, releases) for count, row in zip(counts, law, strict=True))
    return answers + two_sided(generator, epsilon, parties, (releases, len(counts)))


@pytest.mark.parametrize("name", ["mangat", "warner", "two-coin", "k-ary"])
def test_response_intervals_cover(name: str) -> None:
    counts = [9_000, 1_000] if name != "k-ary" else [4_000, 3_000, 2_000, 900, 100]
    releases = 4_000
    outputs = response_outputs(name, counts, 0.1, 2, releases)
    response = _responses()[name]

    hits = np.zeros(len(counts) - 1)
    narrow = np.zeros(len(counts) - 1)
    for row in outputs.tolist():
        for tally, noise in ((hits, Fraction(1, 10)), (narrow, Fraction(100))):
            ends = response_intervals(row, response, noise, 2, LEVEL)
            tally += [low <= count <= high for (low, high), count in zip(ends, counts[1:], strict=True)]

    assert np.all((hits / releases >= 0.938) & (hits / releases <= 0.975))
    assert np.all(narrow < hits)


def test_one_sided_intervals_cover() -> None:
    epsilon = Fraction(1, 10)
    noise = np.random.default_rng(13).negative_binomial(2, -np.expm1(-0.1), RELEASES)

    covered = coverage(25 + noise, 25, lambda y: one_sided_intervals(y, epsilon, 2, LEVEL))

    assert LOW <= covered <= HIGH
