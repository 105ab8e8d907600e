"""The law's own expectation: unbiased, as wide as noise and sampling make it, the same from the same seed."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import NoNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import Mangat
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_site.watch.expectation import expectation_of

LEVEL = Fraction(19, 20)


def test_the_ends_of_a_sampled_count_lie_about_the_truth_two_deviations_away() -> None:
    rate, noise = Fraction(1, 4), Fraction(1)
    design = Design(answer=SamplingDie.uniform(rate, 2), noise=TwoSidedNoise(noise), values=2, aggregators=2)

    found = expectation_of(design, [400, 0], 500, LEVEL, 1)

    # The variance of an estimate: n (1-p)/p of sampling, and of each noise 2a/((1-a)^2 p^2) with a = exp(-1).
    deviation = (400 * 3 + 2 * 2 * 0.3679 / (0.6321**2 * 0.0625)) ** 0.5
    assert found.low[0] == pytest.approx(400 - 1.96 * deviation, abs=0.25 * deviation)
    assert found.high[0] == pytest.approx(400 + 1.96 * deviation, abs=0.25 * deviation)
    assert found.high[1] - found.low[1] < found.high[0] - found.low[0]
    assert found.widths[0] == pytest.approx(4 * deviation, rel=0.2)


def test_it_is_the_same_from_the_same_seed_and_for_every_way_of_asking() -> None:
    for answer in (Truth(1), Mangat.from_epsilon(Fraction(1)), SamplingDie.uniform(Fraction(1, 3), 1)):
        design = Design(answer=answer, noise=TwoSidedNoise(Fraction(1)), values=1, aggregators=3)

        first, second = (expectation_of(design, [40], 100, LEVEL, 1) for _ in range(2))

        assert first == second
        assert first.low[0] < 40 < first.high[0]


def test_more_vehicles_in_cells_than_there_are_is_refused() -> None:
    design = Design(answer=Truth(1), noise=TwoSidedNoise(Fraction(1)), values=1, aggregators=2)

    with pytest.raises(ValueError, match="truths count 3 devices, allowed: 0 to 2"):
        expectation_of(design, [3], 2, LEVEL, 1)


def test_who_is_in_no_cell_is_drawn_too() -> None:
    design = Design(answer=Mangat.from_epsilon(Fraction(1)), noise=NoNoise(), values=1, aggregators=2)

    alone, beside = (expectation_of(design, [40], devices, LEVEL, 1) for devices in (40, 4_000))

    # Each of 3,960 others says Yes by chance: without noise of aggregators that is all there is.
    assert beside.high[0] - beside.low[0] > 3 * max(1.0, alone.high[0] - alone.low[0])


def test_the_ends_of_the_range_are_rounded_outwards(monkeypatch: pytest.MonkeyPatch) -> None:
    die = SamplingDie.uniform(Fraction(3, 10), 3)
    design = Design(answer=die, noise=NoNoise(), values=3, aggregators=2)
    ends = np.array([[36.66, -0.14, 40], [53.31, -0.11, 140.2]])
    monkeypatch.setattr(np, "quantile", lambda *_, **__: ends)

    found = expectation_of(design, [40, 0, 100], 200, LEVEL, 1)

    assert (found.low, found.high) == ((36.6, -0.2, 40), (53.4, -0.1, 140.2))
