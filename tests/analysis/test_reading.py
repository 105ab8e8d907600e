"""A release is read by its design: one or many at once, as the channels say, and never by a law nobody worked out."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_analysis import intervals
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.one_sided import one_sided_map
from fleetcount_analysis.reading import exact_estimates, read
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.noise import OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planning import predicted_sd
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import views_of
from scipy.stats import binom, nbinom, norm

from tests.support.cases import case
from tests.support.designs import design_name, every_design
from tests.support.nightly import NIGHTLY

LEVEL = Fraction(9, 10)
DESIGNS = every_design((2, 5) if NIGHTLY else (2,))


def releases(design: Design) -> np.ndarray:
    generator = np.random.default_rng(8)
    rows = generator.integers(-3, 120, (6, design.output_count))
    rows[:, 0] += 200  # a release of some hundred devices, where the first number counts them
    rows[3] = rows[0]
    return rows


def test_many_releases_are_read_as_each_alone() -> None:
    for design in DESIGNS:
        with case(design_name(design)):
            rows = releases(design)

            together = read(design, rows, LEVEL)

            for row, outputs in enumerate(rows.tolist()):
                alone = read(design, outputs, LEVEL)
                for name in ("estimates", "standard_errors", "low", "high"):
                    np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name))


def test_estimates_are_the_exact_ones_and_lie_in_their_intervals() -> None:
    for design in DESIGNS:
        with case(design_name(design)):
            outputs = releases(design)[0].tolist()

            reading, exact = read(design, outputs, LEVEL), exact_estimates(design, outputs)

            np.testing.assert_allclose(reading.estimates, [float(one) for one in exact], atol=1e-6)
            for estimate, low, high in zip(reading.estimates, reading.low, reading.high, strict=True):
                assert low - 1 <= max(estimate, 0) <= high + 1


def test_standard_errors_are_those_a_plan_predicts_for_the_estimates() -> None:
    for design in DESIGNS:
        with case(design_name(design)):
            devices, count = 400, 100
            hit, miss = design.channel
            mean = design.aggregators * Fraction(design.noise.mean)
            cell = round(hit * count + miss * (devices - count) + mean)
            bits = design.outputs is Outputs.PARTICIPATION
            outputs = [cell] * design.values if bits else [cell] + [0] * (design.values - 1)
            if design.baseline_opened:
                outputs = [devices - (cell if design.outputs.value == "0..V" else 0), *outputs]

            reading = read(design, outputs, LEVEL)

            told_least = design.channels.index(design.channel)
            assert reading.standard_errors[told_least] == pytest.approx(
                predicted_sd(design, count, devices), rel=0.02, abs=1e-6
            )


def test_an_interval_comes_from_the_exact_channel() -> None:
    design = next(one for one in DESIGNS if one.name == "sampling" and one.noised and one.values == 3)

    reading = read(design, [40, -2, 7], LEVEL)

    ends = intervals.sampling_intervals([40, -2, 7], Fraction(1, 4), design.noise.epsilon, 2, LEVEL)
    assert list(zip(reading.low, reading.high, strict=True)) == ends


def with_exact_noise(mass: np.ndarray, noise: TwoSidedNoise, aggregators: int) -> np.ndarray:
    """Return the law of a count with the noise of every aggregator, by convolution; the middle of the array is 0."""
    reach = len(mass) // 2
    one = np.exp(-float(noise.epsilon) * np.abs(np.arange(-reach, reach + 1)))
    for _ in range(aggregators):
        mass = np.convolve(mass, one / one.sum(), mode="same")
    return mass


@pytest.mark.parametrize("aggregators", [2, 3, 5])
@pytest.mark.parametrize("answer", [Truth(1), SamplingDie.uniform(Fraction(1, 4), 1)], ids=["direct", "sampling"])
def test_an_interval_is_the_inverse_of_the_law_with_the_noise_of_every_aggregator(
    answer: Any, aggregators: int
) -> None:
    noise, reach, output = TwoSidedNoise(Fraction(1, 2)), 400, 30
    design = Design(answer=answer, noise=noise, values=1, aggregators=aggregators)

    reading = read(design, [output], LEVEL)

    inside = []
    for count in range(301):
        mass = np.zeros(2 * reach + 1)
        mass[reach : reach + count + 1] = binom.pmf(np.arange(count + 1), count, float(design.channel[0]))
        law = with_exact_noise(mass, noise, aggregators)
        above, below = law[reach + output :].sum(), law[: reach + output + 1].sum()
        if min(above, below) > 0.05:
            inside.append(count)
    assert (reading.low[0], reading.high[0]) == (inside[0], inside[-1])


@pytest.mark.parametrize("aggregators", [2, 3, 5])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_one_sided_release_is_read_with_the_noise_of_every_aggregator(direction: Any, aggregators: int) -> None:
    noise = OneSidedNoise(Fraction(1, 2), direction)
    design = Design(answer=Truth(1), noise=noise, values=1, aggregators=aggregators)
    keep = 1 - math.exp(-0.5)
    sign = 1 if direction == "up" else -1
    reach = next(z for z in range(200) if nbinom.sf(z, aggregators, keep) <= 0.1)

    reading, [exact] = read(design, [100], LEVEL), exact_estimates(design, [100])

    mean = aggregators * (1 - keep) / keep
    assert reading.estimates[0] == pytest.approx(100 - sign * mean, abs=1e-9)
    assert float(exact) == pytest.approx(100 - sign * mean, abs=1e-8)
    ends = (reading.low[0], reading.high[0])
    assert ends == ((100 - reach, 100) if direction == "up" else (100, 100 + reach))


RESPONSES = [one for one in every_design((2, 3, 5)) if one.outputs is not Outputs.CELLS and one.noised]


def test_a_response_is_read_with_the_noise_of_every_aggregator() -> None:
    # So much noise that it decides the width: the ends lie one quantile of its normal law away, to a few percent.
    noise = TwoSidedNoise(Fraction(1, 50))
    for one in RESPONSES:
        with case(design_name(one)):
            design = Design(answer=one.answer, noise=noise, values=one.values, aggregators=one.aggregators)
            hit, miss = design.channel
            outputs, devices = [50_000] * (design.values + 1), 50_000 * (design.values + 1)
            if design.outputs is not Outputs.ALL:
                outputs, devices = [100_000, *[round(50_000 * (hit + miss))] * design.values], 100_000
            cell = design.channels.index(design.channel)

            reading = read(design, outputs, LEVEL)

            half = norm.isf(0.05) * predicted_sd(design, round(reading.estimates[cell]), devices)
            assert reading.high[cell] - reading.low[cell] == pytest.approx(2 * half, rel=0.08)


@pytest.mark.parametrize("outputs", [[1, 2], [1, 2, 3, 4], [[1, 2], [3, 4]], 7, [[[1, 2, 3]]]])
def test_another_number_of_outputs_is_refused(outputs: Any) -> None:
    design = next(one for one in DESIGNS if one.name == "direct" and one.values == 3)

    with pytest.raises(ShapeError, match="allowed is 3"):
        read(design, outputs, LEVEL)
    with pytest.raises(ShapeError, match="allowed is 3"):
        exact_estimates(design, [1, 2])


@dataclass(frozen=True)
class Unknown:
    """A law of noise whose promise and sums nobody has worked out."""

    name: str = "unknown"
    epsilon: None = None
    mean: float = 0.0
    draw_variance: float = 1.0

    @property
    def parameters(self) -> dict[str, Fraction]:
        """None."""
        return {}

    def draw(self, source: object, count: int) -> list[int]:
        """Return zeros."""
        del source
        return [0] * count


@pytest.mark.parametrize("answer", [Truth(1), SamplingDie.uniform(Fraction(1, 4), 1)], ids=["truth", "sampling"])
def test_a_law_of_noise_nobody_worked_out_is_taken_for_no_other(answer: Any) -> None:
    design = Design(answer=answer, noise=Unknown(), values=1, aggregators=2)

    with pytest.raises(RangeError, match="law of noise is unknown"):
        read(design, [1], LEVEL)
    with pytest.raises(MechanismError, match="noise is 'unknown'"):
        views_of(design)


@pytest.mark.parametrize("wrong", [0.5, math.nan, math.inf, "1", None, 2**63, -(2**63), True])
def test_what_is_no_opened_number_is_refused(wrong: Any) -> None:
    design = Design(answer=Truth(1), noise=TwoSidedNoise(Fraction(1)), values=1, aggregators=2)
    ways = (
        lambda one: read(design, [one], LEVEL),
        lambda one: exact_estimates(design, [one]),
        lambda one: intervals.direct_intervals([one], Fraction(1), 2, LEVEL),
        lambda one: one_sided_map([one], 3),
    )

    for way in ways:
        with pytest.raises(RangeError, match=r"output is .*; allowed is a whole number"):
            way(wrong)
    assert read(design, [7.0], LEVEL).low.tolist() == read(design, [7], LEVEL).low.tolist()
    with pytest.raises(ShapeError, match="rows of one length"):
        read(design, [[1], [1, 2]], LEVEL)
