"""A release is read by its design: one or many at once, as the channels say, and never by a law nobody worked out."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_analysis import intervals
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.reading import exact_estimates, read
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.planning import predicted_sd
from fleetcount_mechanisms.sampling import SamplingDie

from tests.support.designs import design_name, every_design

LEVEL = Fraction(9, 10)
DESIGNS = every_design((2, 5))


def releases(design: Design) -> np.ndarray:
    generator = np.random.default_rng(8)
    rows = generator.integers(-3, 120, (6, design.output_count))
    rows[:, 0] += 200  # a release of some hundred devices, where the first number counts them
    rows[3] = rows[0]
    return rows


@pytest.mark.parametrize("design", DESIGNS, ids=design_name)
def test_many_releases_are_read_as_each_alone(design: Design) -> None:
    rows = releases(design)

    together = read(design, rows, LEVEL)

    for row, outputs in enumerate(rows.tolist()):
        alone = read(design, outputs, LEVEL)
        for name in ("estimates", "standard_errors", "low", "high"):
            np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name))


@pytest.mark.parametrize("design", DESIGNS, ids=design_name)
def test_estimates_are_the_exact_ones_and_lie_in_their_intervals(design: Design) -> None:
    outputs = releases(design)[0].tolist()

    reading, exact = read(design, outputs, LEVEL), exact_estimates(design, outputs)

    np.testing.assert_allclose(reading.estimates, [float(one) for one in exact], atol=1e-6)
    for estimate, low, high in zip(reading.estimates, reading.low, reading.high, strict=True):
        assert low - 1 <= max(estimate, 0) <= high + 1


@pytest.mark.parametrize("design", DESIGNS, ids=design_name)
def test_standard_errors_are_those_a_plan_predicts_for_the_estimates(design: Design) -> None:
    devices, count = 400, 100
    hit, miss = design.channel
    mean = design.aggregators * Fraction(design.noise.mean)
    cell = round(hit * count + miss * (devices - count) + mean)
    outputs = [cell] + [0] * (design.values - 1)
    if design.baseline_opened:
        outputs = [devices - (cell if design.outputs.value == "0..V" else 0), *outputs]

    reading = read(design, outputs, LEVEL)

    assert reading.standard_errors[0] == pytest.approx(predicted_sd(design, count, devices), rel=0.02, abs=1e-6)


def test_an_interval_comes_from_the_exact_channel() -> None:
    design = next(one for one in DESIGNS if one.name == "sampling" and one.noised and one.values == 3)

    reading = read(design, [40, -2, 7], LEVEL)

    ends = intervals.sampling_intervals([40, -2, 7], Fraction(1, 4), design.noise.epsilon, 2, LEVEL)
    assert list(zip(reading.low, reading.high, strict=True)) == ends


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
    variance: float = 1.0

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
        design.views()
