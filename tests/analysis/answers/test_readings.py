"""Readable numbers are the nearest allowed ones, and their bias is the documented one."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.readings import nearest_counts, readable
from fleetcount_analysis.answers.smoothing import smoothed
from fleetcount_analysis.errors import AnalysisError
from fleetcount_mechanisms.noise import OneSidedNoise
from scipy import optimize

from tests.analysis.answers.samples import direct, random_table, sampling, table_of


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("total", [0.0, 3.0, 40.0, 500.0])
def test_the_nearest_point_is_that_of_a_solver(total: float, exactly: bool) -> None:
    raw = np.random.default_rng(1).normal(4, 9, 12)

    found = nearest_counts(raw, total, exactly=exactly)

    solved = optimize.minimize(
        lambda x: float(np.sum((x - raw) ** 2)),
        np.full(12, total / 12),
        jac=lambda x: 2 * (x - raw),
        bounds=[(0, None)] * 12,
        constraints={"type": "eq" if exactly else "ineq", "fun": lambda x: total - x.sum()},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert np.allclose(found, solved.x, atol=1e-4)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(total) if exactly else found.sum() <= total + 1e-9


def test_numbers_are_whole_and_add_up_to_the_rounded_total() -> None:
    raw = np.random.default_rng(2).normal(5, 9, (30, 12))
    totals = np.full(30, 55.4)

    whole = readable(raw, totals, all_counted=True)

    assert whole.dtype == np.int64
    assert whole.min() >= 0
    assert set(whole.sum(axis=1).tolist()) == {55}
    assert readable(raw).min() == 0
    assert (
        np.array_equal(readable(raw, np.full(30, 1e6)), readable(raw))
        or np.abs(readable(raw, np.full(30, 1e6)) - readable(raw)).max() <= 1
    )
    assert readable([-3.0, 2.4, 0.5]).tolist() == [0, 2, 0]
    assert readable([4.0, 2.0], -7).tolist() == [0, 0]


def test_the_bias_of_an_empty_cell_is_the_documented_one_and_a_total_takes_most_of_it() -> None:
    truth, sd = np.concatenate([np.full(10, 200.0), np.zeros(90)]), 10.0
    raw = truth + np.random.default_rng(3).normal(0, sd, (4000, 100))

    alone, with_total = readable(raw), readable(raw, np.full(4000, 2000.0), all_counted=True)

    bias = float(alone[:, 10:].mean())
    # The mean of 360,000 numbers has a standard error of .01; rounding moves it by less.
    assert bias == pytest.approx(sd / math.sqrt(2 * math.pi), abs=0.06)
    assert float(with_total[:, 10:].mean()) < 0.3 * bias
    assert (
        float(np.mean((with_total - truth) ** 2))
        < float(np.mean((alone - truth) ** 2))
        < float(np.mean((raw - truth) ** 2))
    )


@pytest.mark.parametrize("design", [direct(), sampling()], ids=["direct", "sampling"])
def test_a_smoothed_walk_is_closer_to_the_truth_and_says_its_error(design) -> None:
    steps = np.random.default_rng(4).integers(-3, 4, (300, 4))
    truth = 80 + np.cumsum(steps, axis=0)
    rate = float(design.channel[0])
    noise = np.random.default_rng(5).normal(0, 1, truth.shape) * np.sqrt(2 * 7.835 + 80 * rate * (1 - rate))
    table = table_of(design, np.rint(truth * rate + noise).astype(int).tolist())

    curve = smoothed(table, [1, 3], change_sd=2)

    wanted, errors = truth[:, [0, 2]], curve.values - truth[:, [0, 2]]
    assert curve.values.shape == (300, 2)
    assert np.mean(errors**2) < 0.5 * np.mean((table.estimates[:, [0, 2]] - wanted) ** 2)
    assert np.mean(errors**2) == pytest.approx(float(np.mean(curve.standard_errors**2)), rel=0.4)
    assert "standard deviation 2 a window" in curve.model


def test_smoothing_is_the_dense_least_squares() -> None:
    table = table_of(direct(), [[10, 0, 0, 0], [30, 0, 0, 0], [20, 0, 0, 0]], missing=1)
    curve = smoothed(table, [1], change_sd=3)

    variance = 2 * 2 * math.exp(-0.5) / (1 - math.exp(-0.5)) ** 2
    pull = np.array([[1 / 18, -1 / 18, 0], [-1 / 18, 1 / 18 + 1 / 9, -1 / 9], [0, -1 / 9, 1 / 9]])
    exact = np.linalg.solve(pull + np.eye(3) / variance, np.array([10, 30, 20]) / variance)
    assert np.allclose(curve.values[:, 0], exact)


def test_a_count_that_hardly_moves_is_the_mean_of_all_windows() -> None:
    counts = np.arange(200) % 7 + 20
    curve = smoothed(table_of(direct(), [[one, 0, 0, 0] for one in counts.tolist()]), [1], change_sd=1e-7)

    variance = 2 * 2 * math.exp(-0.5) / (1 - math.exp(-0.5)) ** 2
    assert curve.values[:, 0] == pytest.approx(np.full(200, counts.mean()))
    assert curve.standard_errors[:, 0] == pytest.approx(np.full(200, math.sqrt(variance / 200)))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: readable([math.nan]), "estimate is not finite"),
        (lambda: readable([1.0], all_counted=True), "all_counted without"),
        (lambda: readable([[1.0], [2.0]], [1.0]), r"shape \(1,\)"),
        (lambda: smoothed(random_table(direct()), [1], change_sd=0), "change_sd is 0"),
        (lambda: smoothed(random_table(direct()), [9], change_sd=1), "cell is 9"),
        (lambda: smoothed(random_table(direct(noise=OneSidedNoise(Fraction(1)))), [1], change_sd=1), "one-sided"),
        (lambda: smoothed(random_table(sampling(), unit=3), [1], change_sd=1), "share a toss of the coin"),
    ],
)
def test_bad_readings_are_refused(ask, words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        ask()
