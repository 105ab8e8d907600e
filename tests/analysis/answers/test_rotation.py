"""Counts of a fleet of which each device is asked in one window of several: unbiased, and covered at the level."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.rotation import fleet_ends, fleet_estimates
from fleetcount_analysis.errors import RangeError
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_mechanisms.planning import predicted_sd
from fleetcount_mechanisms.responses import KaryResponse, OptimizedUnaryEncoding, RandomizedResponse

from tests.support.nightly import NIGHTLY

W, DEVICES, RUNS = 720, 100_000, 100_000 if NIGHTLY else 10_000
LEVEL = Fraction(19, 20)


def drawn(design: Design, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what counts in a cell of `count` devices, and how many were asked, with both aggregators' noise."""
    generator, (hit, miss) = np.random.default_rng(seed), (float(one) for one in design.channel)
    held = generator.binomial(count, 1 / W, RUNS)
    others = generator.binomial(DEVICES - count, 1 / W, RUNS)
    cell = generator.binomial(held, hit) + generator.binomial(others, miss)
    ratio = math.exp(-float(design.noise.epsilon or 0))
    many = design.values + 1 if isinstance(design.answer, KaryResponse) else 1

    def noise(terms: int) -> np.ndarray:
        return generator.negative_binomial(terms, 1 - ratio, RUNS) - generator.negative_binomial(terms, 1 - ratio, RUNS)

    return cell + noise(2), held + others + noise(2 * many)


@pytest.mark.parametrize("noise", ["10", "1"])
@pytest.mark.parametrize("law", [KaryResponse, OptimizedUnaryEncoding])
@pytest.mark.parametrize("count", [0, 100, 1000, 20_000])
def test_a_fleet_is_estimated_without_bias_with_the_error_that_is_planned_and_covered(
    law: type[KaryResponse] | type[OptimizedUnaryEncoding], count: int, noise: str
) -> None:
    answer: RandomizedResponse = law.from_epsilon(Fraction(10), 72)
    design = Design(answer=answer, noise=TwoSidedNoise(Fraction(noise)), values=72, aggregators=2)
    cell, asked = drawn(design, count, count + 7)

    found = fleet_estimates(design, cell, asked, W)
    low, high = fleet_ends(design, cell, asked, W, DEVICES, LEVEL)

    planned = predicted_sd(design, count, DEVICES, W)
    assert abs(float(found.mean()) - count) < 6 * planned / math.sqrt(RUNS)
    # What is counted of nobody is rare, and its spread known the less.
    assert float(found.std()) == pytest.approx(planned, rel=0.04 if count else 0.3)
    assert float(((low <= count) & (count <= high)).mean()) >= 0.95
    if noise == "10" and law is KaryResponse and count in (0, 100, 1000):
        assert planned <= {0: 60, 100: 276, 1000: 860}[count]


def test_a_small_cell_is_known_to_nobody() -> None:
    design = Design(
        answer=KaryResponse.from_epsilon(Fraction(10), 72), noise=TwoSidedNoise(Fraction(10)), values=72, aggregators=2
    )

    low, high = fleet_ends(design, np.array([0]), np.array([139]), W, DEVICES, LEVEL)

    assert low[0] == 0
    assert 2_500 < high[0] < 2_900


def test_what_is_not_asked_so_is_refused() -> None:
    direct = Design(answer=Truth(3), noise=TwoSidedNoise(Fraction(1)), values=3, aggregators=2)
    asked = Design(answer=KaryResponse(Fraction(1, 2), 3), noise=TwoSidedNoise(Fraction(1)), values=3, aggregators=2)
    one = np.array([1])

    for design, one_in, devices in ((direct, W, 5), (asked, 1, 5), (asked, W, 0)):
        with pytest.raises(RangeError, match="allowed"):
            fleet_ends(design, one, one, one_in, devices, LEVEL)
