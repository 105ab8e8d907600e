"""Consistent counts against dense least squares, their intervals by simulation, and what a pyramid costs."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.half_widths import combined, half_width
from fleetcount_analysis.answers.hierarchy import (
    Join,
    Pyramid,
    consistent,
    consistent_variances,
    even_variances,
    levels_of_grid,
)
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.errors import AnalysisError
from fleetcount_analysis.gaussian_sums import GaussianSum
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import SeededRandom
from numpy.typing import NDArray

from tests.support.geometric_noise import geometric_noise
from tests.support.nightly import NIGHTLY

LEVEL = Fraction(19, 20)
NOISE = [TwoSidedNoise(Fraction(1, 2)), TwoSidedNoise(Fraction(1, 3)), TwoSidedNoise(Fraction(1, 5))]


def grown(pyramid: Pyramid, finest: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the true counts of every level."""
    levels = [finest]
    for parent in reversed(pyramid.parents):
        levels.insert(0, np.bincount(parent, weights=levels[0]).astype(np.int64))
    return levels


def design_matrix(pyramid: Pyramid) -> NDArray[np.float64]:
    """Return every count of every level as a sum of finest cells."""
    rows = [np.eye(pyramid.sizes[-1])]
    for parent in reversed(pyramid.parents):
        rows.insert(0, np.stack([rows[0][parent == cell].sum(axis=0) for cell in range(parent.max() + 1)]))
    return np.concatenate(rows)


@pytest.mark.parametrize("grid", [(5, 3, 3), (4, 4, 3), (7, 1, 3)])
def test_the_two_passes_are_the_least_squares_of_the_whole_system(grid: tuple[int, int, int]) -> None:
    pyramid = levels_of_grid(*grid)
    opened = [np.random.default_rng(level).integers(-5, 60, size) for level, size in enumerate(pyramid.sizes)]

    found = consistent(pyramid, opened, NOISE, 2, LEVEL)

    matrix, y = design_matrix(pyramid), np.concatenate(opened)
    variances = [
        np.full(size, noise_sum(law.epsilon, 2).variance) for law, size in zip(NOISE, pyramid.sizes, strict=True)
    ]
    weight = 1 / np.concatenate(variances)
    inverse = np.linalg.inv(matrix.T @ (matrix * weight[:, None]))
    exact = matrix @ inverse @ matrix.T @ (weight * y)
    errors = np.sqrt(np.diag(matrix @ inverse @ matrix.T))
    assert np.allclose(np.concatenate(found.estimates), exact)
    assert np.allclose(np.concatenate(found.standard_errors), errors)
    for parent, above, below in zip(pyramid.parents, found.estimates, found.estimates[1:], strict=False):
        assert np.allclose(np.bincount(parent, weights=below), above)
    alone = [np.full(size, np.sqrt(one[0])) for size, one in zip(pyramid.sizes, variances, strict=True)]
    assert np.all(np.concatenate(found.standard_errors) < np.concatenate(alone))


@pytest.mark.parametrize("seed", range(12))
def test_sums_of_random_trees_have_the_weights_of_dense_least_squares(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = [1] if seed % 2 else [int(draw.integers(2, 4))]
    parents = []
    for _ in range(int(draw.integers(1, 4))):
        below = sizes[-1] + int(draw.integers(0, 9))
        parents.append(np.concatenate([np.arange(sizes[-1]), draw.integers(0, sizes[-1], below - sizes[-1])]))
        sizes.append(below)
    pyramid = Pyramid(sizes=tuple(sizes), parents=tuple(parents))
    laws = [GaussianSum(parameter=Fraction(int(s)), terms=2) for s in draw.integers(4, 400, len(sizes))]
    matrix = design_matrix(pyramid)
    weight = np.repeat([1 / law.variance for law in laws], sizes)
    inverse = np.linalg.inv(matrix.T @ (matrix * weight[:, None]))
    ends = np.cumsum(sizes)

    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        sums = draw.integers(-1, 2, size).astype(np.float64)
        found = Join(pyramid, laws).weights(number, sums)
        of_cells = matrix[end - size : end].T @ sums
        assert np.allclose(np.concatenate(found), weight * (matrix @ (inverse @ of_cells)))
        parts = combined([(found, 3)], laws)
        variance = sum(often * one**2 * law.variance for one, often, law in parts)
        assert variance == pytest.approx(3 * of_cells @ inverse @ of_cells, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "block", "noise", "wanted"),
    [  # Computed apart, by eigenspaces: cells, blocks of cells, the total.
        (16, 4, ("2", "5", "3"), (Fraction(4278, 2587), Fraction(6360, 2587), Fraction(480, 199))),
        (256, 64, ("4/3", "4", "1"), (Fraction(95992, 73097), Fraction(213760, 73097), None)),
    ],
)
def test_cells_blocks_and_a_total_have_the_variances_of_a_second_computation(
    values: int, block: int, noise: tuple[str, ...], wanted: tuple[Fraction | None, ...]
) -> None:
    blocks = values // block
    parents = (np.zeros(blocks, dtype=np.int64), np.arange(values) // block)
    pyramid = Pyramid(sizes=(1, blocks, values), parents=parents)

    found = consistent_variances(pyramid, [float(Fraction(one)) for one in reversed(noise)])

    for variances, exact in zip(reversed(found), wanted, strict=True):
        if exact is not None:
            assert variances == pytest.approx(np.full(variances.size, float(exact)), rel=1e-12)


def test_sums_of_m_cells_beside_a_total_have_noise_of_m_times_the_rest() -> None:
    values, law = 72, GaussianSum(parameter=Fraction(660), terms=2)
    join = Join(Pyramid(sizes=(1, values), parents=(np.zeros(values, dtype=np.int64),)), [law, law])

    for m in (1, 2, 36, 72):
        parts = combined([(join.weights(1, (np.arange(values) < m).astype(np.float64)), 1)], [law, law])
        variance = sum(often * weight**2 * one.variance for weight, often, one in parts)
        assert variance == pytest.approx(law.variance * m * (1 - m / (values + 1)), rel=1e-6)


def test_a_grid_has_squares_of_twice_the_side_above_it() -> None:
    pyramid = levels_of_grid(5, 3, 4)

    assert pyramid.sizes == (1, 2, 6, 15)
    assert pyramid.parents[2].tolist() == [0, 0, 1, 1, 2, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5]
    assert pyramid.parents[1].tolist() == [0, 0, 1, 0, 0, 1]


def test_the_budget_is_split_over_the_levels() -> None:
    pyramid = levels_of_grid(8, 8, 4)
    variances = even_variances(pyramid, Fraction(1, 10))

    assert pyramid.sizes == (1, 4, 16, 64)
    assert variances == (20, 40, 40, 40)
    assert pyramid.cost([1 / (2 * s) for s in variances]) == Fraction(1, 10)
    assert pyramid.cost([Fraction(1, 7)] * 4) == 1


def test_intervals_of_consistent_counts_cover_at_every_level_and_those_of_half_the_noise_do_not() -> None:
    pyramid, runs = levels_of_grid(4, 4, 3), 10_000
    truth = grown(pyramid, np.arange(16) * 3 + 20)
    source = SeededRandom(3)
    noised = [
        count + geometric_noise(law.epsilon, 2 * runs * count.size, source).reshape(2, runs, -1).sum(axis=0)
        for count, law in zip(truth, NOISE, strict=True)
    ]
    # The estimate is linear: its weights come from unit counts, its interval from the estimate of one run.
    first = consistent(pyramid, [one[0] for one in noised], NOISE, 2, LEVEL)
    narrow = consistent(pyramid, [one[0] for one in noised], NOISE, 1, LEVEL)
    basis = np.eye(sum(pyramid.sizes))
    splits = np.cumsum(pyramid.sizes)[:-1]
    map_of = np.array(
        [np.concatenate(consistent(pyramid, np.split(row, splits), NOISE, 2, LEVEL).estimates) for row in basis]
    )
    estimates = np.concatenate(noised, axis=1) @ map_of
    wanted = np.concatenate(truth)
    for result, verdict in ((first, "covers"), (narrow, "too seldom")):
        reach = [np.maximum(high - one, one - low) for one, low, high in zip(
            result.estimates, result.low, result.high, strict=True)]  # fmt: skip
        covered = np.mean(np.abs(estimates - wanted) <= np.concatenate(reach) + 0.5, axis=0)
        exact = np.mean(np.abs(estimates - wanted) <= np.concatenate(reach), axis=0)
        # At 95 % fewer than 93.9 % of 10,000 have probability 3e-7.
        assert (verdict == "covers") == bool(np.all(covered >= 0.939))
        assert np.all(exact < 0.999)


@pytest.mark.parametrize("weights", [(1.0,), (0.7, 0.2, 0.2, 0.2), (0.31, 0.05)])
@pytest.mark.parametrize("geometric", [True, False], ids=["geometric", "Gaussian"])
@pytest.mark.parametrize("level", [LEVEL, pytest.param(Fraction(99, 100), marks=pytest.mark.nightly)])
def test_a_combination_of_noises_is_within_its_half_width_as_often_as_said(
    weights: tuple[float, ...], geometric: bool, level: Fraction
) -> None:
    law = noise_sum(Fraction(1, 4), 2) if geometric else GaussianSum(parameter=Fraction(9), terms=2)
    runs, z = 400_000 if NIGHTLY else 100_000, np.arange(-200, 201)
    mass = np.exp(law.log_mass(z))
    drawn = np.random.default_rng(2).choice(z, (len(weights), runs), p=mass / mass.sum())
    size = np.abs(np.array(weights) @ drawn)

    width = half_width(tuple((weight, 1, law) for weight in weights), level)

    # Five standard deviations of so many runs; a lattice steps over the level by the weight of one point.
    room = 5 * math.sqrt((1 - level) * level / runs)
    assert np.mean(size <= width) >= level - room
    assert np.mean(size <= 0.9 * width - 1e-9) < level


@pytest.mark.parametrize("s", [Fraction(1, 2), Fraction(1), Fraction(3)], ids=str)
@pytest.mark.parametrize("values", [2, 5])
@pytest.mark.parametrize("level", [Fraction(9, 10), LEVEL, Fraction(99, 100)], ids=str)
def test_the_half_width_of_a_joined_cell_is_the_exact_one_or_one_step_more(
    s: Fraction, values: int, level: Fraction
) -> None:
    one, n = GaussianSum(parameter=s, terms=2), values + 1
    reach = math.ceil(12 * math.sqrt(2 * s)) + 3
    mass = np.exp(one.log_mass(np.arange(-reach, reach + 1)))
    # n E = (n - 1) Z_1 less the noises of the other cells and the total's: whole numbers, so a convolution is exact.
    law = np.zeros(2 * (n - 1) * reach + 1)
    law[:: n - 1] = mass
    for _ in range(values):
        law = np.convolve(law, mass)
    size = np.abs(np.arange(law.size) - law.size // 2)
    inside = np.array([law[size <= step].sum() for step in range(n * reach)])

    width = half_width((((n - 1) / n, 1, one), (1 / n, values, one)), level)

    exact = int(np.argmax(inside >= float(level)))
    assert exact / n <= width < 1.025 * exact / n + 1 / n


def test_every_interval_is_as_wide_as_the_standard_error_of_its_estimate_says() -> None:
    pyramid = levels_of_grid(6, 5, 3)
    laws = [GaussianNoise(Fraction(s)) for s in (40_000, 90_000, 10_000)]
    opened = [np.full(size, 10**6) for size in pyramid.sizes]

    found = consistent(pyramid, opened, laws, 2, LEVEL)

    for error, low, high in zip(found.standard_errors, found.low, found.high, strict=True):
        assert np.allclose((high - low) / 2 / error, 1.995, atol=0.02)


def test_a_level_of_one_cell_is_read_alone() -> None:
    found = consistent(levels_of_grid(1, 1, 1), [[17]], [NOISE[0]], 2, LEVEL)

    reach = noise_sum(Fraction(1, 2), 2).central_reach(0.025)
    assert found.estimates[0].tolist() == [17]
    assert abs(int(found.high[0][0]) - (17 + reach)) <= 1


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: levels_of_grid(4, 4, 4), r"at most 3 levels"),
        (lambda: levels_of_grid(0, 4, 1), r"is \(0, 4, 1\)"),
        (lambda: Pyramid(sizes=(2, 3), parents=()), "0 maps between 2 levels"),
        (lambda: Pyramid(sizes=(2, 3), parents=(np.array([0, 0, 0]),)), "3 cells does not divide"),
        (lambda: even_variances(levels_of_grid(2, 2, 2), Fraction(0)), "rho is 0"),
        (lambda: consistent(levels_of_grid(2, 1, 1), [[1]], [NOISE[0]], 2, LEVEL), "one number a cell"),
        (lambda: consistent(levels_of_grid(2, 1, 1), [[1, 2]], [NoNoise()], 2, LEVEL), "law of noise is none"),
        (lambda: consistent(levels_of_grid(2, 1, 1), [[1, 2]], [NOISE[0]], 0, LEVEL), "aggregators is 0"),
        (lambda: consistent(levels_of_grid(2, 1, 1), [[1, 2]], [OneSidedNoise(Fraction(1))], 2, LEVEL), "one-sided"),
    ],
)
def test_bad_pyramids_are_refused(ask, words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        ask()
