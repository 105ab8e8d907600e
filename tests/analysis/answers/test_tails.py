"""Tails of sampled sums against brute force, and the search for interval ends."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.noises import NoiseTotal, Parts, ScaledNoise, noise_total, variance_of
from fleetcount_analysis.answers.tails import JoinedLaw, SumLaw, first_true, joined_ends, tail_of
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.errors import RangeError, TooLargeError
from fleetcount_analysis.gaussian_sums import GaussianSum
from fleetcount_mechanisms.noise import OneSidedNoise
from scipy import stats

NOISES: list[NoiseTotal] = [
    noise_sum(Fraction(1, 2), 2),
    noise_sum(None, 0),
    GaussianSum(parameter=Fraction(9), terms=4),
    GaussianSum(parameter=Fraction(1, 4), terms=1),
]


@pytest.mark.parametrize("noise", NOISES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("steps", [(1, -1), (3, -3), (2, 1)])
def test_tails_are_those_of_the_convolution(noise: NoiseTotal, steps: tuple[int, int]) -> None:
    law = SumLaw(steps=steps, sampling_rate=Fraction(1, 4), noise=noise)
    for counts in ((7, 4), (0, 0), (12, 1)):
        parts = [np.arange(n + 1) for n in counts]
        mass = np.outer(*(stats.binom.pmf(part, n, 0.25) for part, n in zip(parts, counts, strict=True)))
        where = np.add.outer(steps[0] * parts[0], steps[1] * parts[1])
        for y in (-30, -4, 0, 3, 9, 40):
            exact = float(np.sum(mass * noise.upper_tail(y - where)))
            rows, outputs = np.array([counts]), np.array([y])
            assert law.upper_tail(rows, outputs)[0] == pytest.approx(exact, abs=2e-12)
            below = 1 - float(np.sum(mass * noise.upper_tail(y + 1 - where)))
            assert law.lower_tail(rows, outputs)[0] == pytest.approx(below, abs=2e-12)


def combined_mass(parts: Parts, fine: int, reach: int) -> np.ndarray:
    """Return P[Z = z/fine], z from -reach to reach, for a combination of noises with weights of whole 1/fine."""
    found = np.zeros(2 * reach + 1)
    found[reach] = 1
    for weight, often, law in parts:
        step = round(weight * fine)
        far = np.arange(-(reach // step), reach // step + 1)
        one = np.zeros(2 * reach + 1)
        one[reach + step * far] = np.exp(law.log_mass(far))
        for _ in range(often):
            found = np.convolve(found, one)[reach : 3 * reach + 1]
    return found


@pytest.mark.parametrize(
    "parts",
    [
        ((0.8, 1, GaussianSum(parameter=Fraction(9), terms=2)), (0.2, 4, GaussianSum(parameter=Fraction(9), terms=2))),
        ((0.7, 2, noise_sum(Fraction(1, 2), 2)), (0.3, 3, noise_sum(Fraction(1, 2), 2))),
        (
            (0.9, 1, GaussianSum(parameter=Fraction(1, 4), terms=2)),
            (0.1, 9, GaussianSum(parameter=Fraction(1), terms=2)),
        ),
    ],
    ids=["Gaussian", "geometric", "narrow"],
)
@pytest.mark.parametrize("steps", [(1,), (3,), (1, -1)])
def test_joined_tails_are_never_below_the_true_ones_and_above_them_by_what_is_near_a_threshold(
    parts: Parts, steps: tuple[int, ...]
) -> None:
    rate, fine, reach = 0.25, 10, 1500
    law = JoinedLaw(steps=steps, sampling_rate=Fraction(1, 4), parts=parts, tail=0.01)
    mass, last = combined_mass(parts, fine, reach), (400 + 3 / math.sqrt(0.01)) / math.sqrt(variance_of(parts))
    assert mass.sum() == pytest.approx(1, abs=1e-12)
    z = np.arange(-reach, reach + 1) / fine

    def mean(counts: tuple[int, ...], of: Callable[[np.ndarray], np.ndarray]) -> float:
        coins = np.ones(1), np.zeros(1)
        for step, n in zip(steps, counts, strict=True):
            here = np.arange(n + 1)
            coins = (
                np.outer(coins[0], stats.binom.pmf(here, n, rate)).ravel(),
                np.add.outer(coins[1], step * here).ravel(),
            )
        return float(sum(one * (mass @ of(z + where)) for one, where in zip(*coins, strict=True)))

    for counts in ((0,) * len(steps), (23, 4)[: len(steps)]):
        middle = rate * float(np.dot(steps, counts))
        for y in middle + np.array([-31.0, -8.3, -2.05, 0.0, 3.7, 9.9]):
            rows, outputs = np.array([counts]), np.array([y])
            upper, lower = law.upper_tail(rows, outputs)[0], law.lower_tail(rows, outputs)[0]
            near = mean(counts, lambda v, y=y: np.sinc(last * (v - y) / (2 * math.pi)) ** 2) + 1e-9
            true, below = (mean(counts, one) for one in (lambda v, y=y: v >= y - 1e-9, lambda v, y=y: v <= y + 1e-9))
            assert true - 1e-14 <= upper <= true + near
            assert below - 1e-14 <= lower <= below + near


FINE = 3
SAMPLED_ZOOMS: dict[str, Parts] = {
    name: ((2 / 3, 1, law), (1 / 3, 2, law))
    for name, law in (
        ("Gaussian", GaussianSum(parameter=Fraction(9), terms=2)),
        ("geometric", noise_sum(Fraction(1, 4), 2)),
    )
}
"""A cell of a pair beside the number of the pair, all three with one noise: 2/3 of its own, 1/3 of both others."""


@pytest.mark.parametrize("name", SAMPLED_ZOOMS)
@pytest.mark.parametrize("level", [Fraction(19, 20), Fraction(999, 1000)])
def test_joined_ends_cover_every_count_at_their_level_by_the_exact_law(name: str, level: Fraction) -> None:
    parts, tail, reach = SAMPLED_ZOOMS[name], tail_of(level), 1200
    mass = combined_mass(parts, FINE, reach)
    law = JoinedLaw(steps=(1,), sampling_rate=Fraction(1, 4), parts=parts, tail=tail)
    values = np.arange(-reach, reach + FINE * 400 + 1) / FINE

    low, high = joined_ends(law, values)

    covered = []
    for count in (0, 1, 2, 5, 17, 40, 150, 400):
        spread = np.zeros(FINE * count + 1)
        spread[::FINE] = stats.binom.pmf(np.arange(count + 1), count, 0.25)
        chances = np.convolve(mass, spread)
        inside = ((np.maximum(low, 0) <= count) & (count <= high))[: chances.size]
        covered.append(float(chances[inside].sum()))
    assert min(covered) >= float(level) - 1e-9
    # Ends below 0 are cut; from some devices on hardly more than the level is covered.
    assert max(covered[5:]) <= float(level) + 0.15 * (1 - float(level))


@pytest.mark.parametrize("name", SAMPLED_ZOOMS)
@pytest.mark.parametrize("step", [1, 3])
def test_joined_ends_are_those_of_a_search_by_tails_alone_whatever_was_asked_before(name: str, step: int) -> None:
    law = JoinedLaw(steps=(step,), sampling_rate=Fraction(1, 4), parts=SAMPLED_ZOOMS[name], tail=0.025)
    random = np.random.default_rng(5)
    for most in (40, 4000):
        values = random.uniform(-20, most, 60)
        found = joined_ends(law, values)
        assert [one.tolist() for one in joined_ends(law, values[::-1])] == [one[::-1].tolist() for one in found]
        for value, low, high in zip(values.tolist(), *found, strict=True):
            first, past = (low - 1) // step + 1, high // step + 1
            tails = [law.upper_tail(np.array([[n]]), np.array([value]))[0] for n in (first - 1, first)]
            assert first == 0 or tails[0] <= 0.025
            assert tails[1] > 0.025
            tails = [law.lower_tail(np.array([[n]]), np.array([value]))[0] for n in (past - 1, past)]
            assert tails[1] <= 0.025
            assert past == 0 or high == 0 or tails[0] > 0.025


def test_scaled_noise_is_the_law_of_the_multiple() -> None:
    noise = noise_sum(Fraction(1, 2), 2)
    scaled = ScaledNoise(noise=noise, factor=3)
    z = np.arange(-600, 601)
    mass = np.exp(scaled.log_mass(z))

    assert mass.sum() == pytest.approx(1)
    assert scaled.variance == pytest.approx(float(np.sum(mass * z**2)), rel=1e-9)
    assert np.allclose(scaled.upper_tail(z), np.cumsum(mass[::-1])[::-1], atol=1e-12)
    assert np.allclose(np.exp(scaled.log_characteristic(np.array([0.7]))), np.cos(0.7 * z) @ mass)
    assert scaled.central_reach(0.01) == 3 * noise.central_reach(0.01)


def test_the_first_true_is_found_from_any_guess() -> None:
    wanted = np.array([-7, 0, 3, 1000, 10**9, -(10**9)])

    for guess in (0, -50, 10**6):
        start = np.full(wanted.shape, guess)
        found = first_true(lambda n, rows: n >= wanted[rows], start, np.full(wanted.shape, -(10**12)))
        assert found.tolist() == wanted.tolist()

    assert first_true(lambda n, _: n >= -5, np.array([9]), np.array([0])).tolist() == [0]


@pytest.mark.parametrize("level", [Fraction(0), Fraction(1), 1 - Fraction(1, 10**10)])
def test_levels_that_tails_cannot_hold_are_refused(level: Fraction) -> None:
    with pytest.raises(RangeError, match="confidence level"):
        tail_of(level)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(RangeError, match="one-sided geometric"):
        noise_total(OneSidedNoise(Fraction(1)), 1)
    wide = SumLaw(steps=(1,), sampling_rate=Fraction(1, 2), noise=noise_sum(Fraction(1, 10**6), 2))
    with pytest.raises(TooLargeError):
        wide.upper_tail(np.array([[5]]), np.array([3]))
