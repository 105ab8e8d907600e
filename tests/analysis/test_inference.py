"""What two published counts teach: the delta-method moments, the principal value, the meter."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.inference import infer_ratio, principal_value_mean, ratio_moments

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())["inference"]


@pytest.mark.parametrize("row", GOLDEN)
def test_moments_match_the_golden_numbers(row: dict) -> None:
    mean, variance = ratio_moments(row["x"], row["y"], row["b"])

    assert math.isclose(mean, row["mean"], rel_tol=1e-12)
    assert math.isclose(variance, row["var"], rel_tol=1e-12)
    assert math.isclose(principal_value_mean(row["x"], row["y"], row["b"]), row["pv_mean"], rel_tol=1e-12)


def test_the_meter_gives_the_law_of_the_published_ratio() -> None:
    generator = np.random.default_rng(7)
    x, y, epsilon, draws = 300, 240, 0.2, 200_000
    q = -math.expm1(-epsilon)
    noise = [generator.geometric(q, draws) - generator.geometric(q, draws) for _ in range(2)]
    ratios = (y + noise[1]) / (x + noise[0])

    meter = infer_ratio(x, y, epsilon)
    inside = np.mean((ratios >= meter.low) & (ratios <= meter.high))

    assert meter.true_ratio == 0.8
    assert abs(inside - 0.95) < 0.005
    assert abs(np.mean(ratios <= meter.median) - 0.5) < 0.01
    wide = infer_ratio(x, y, epsilon / 1.3)
    assert abs(np.mean((ratios >= wide.low) & (ratios <= wide.high)) - 0.95) > 0.005


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: infer_ratio(0, 0, 1.0), "x is 0"),
        (lambda: infer_ratio(5, 6, 1.0), "y is 6"),
        (lambda: infer_ratio(5, 4, 0.0), "noise epsilon is 0.0"),
        (lambda: infer_ratio(5, 4, math.nan), "noise epsilon is nan"),
        (lambda: infer_ratio(5, 4, 1.0, level=1.0), "level is 1.0"),
        (lambda: ratio_moments(100, 0, 10), "y is 0"),
        (lambda: principal_value_mean(1e6, 1, 1), "x/scale is 1000000.0"),
    ],
)
def test_bad_counts_are_named(call, words) -> None:
    with pytest.raises(RangeError, match=words):
        call()
