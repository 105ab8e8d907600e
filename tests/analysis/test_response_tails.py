"""The tails of a response's statistic are those of the enumerated law, never below it, at any size of fleet."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.channels import NoiseSum, noise_sum
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.response_tails import ResponseChannel
from numpy.typing import NDArray
from scipy import stats

REACH = 60


def channel_of(
    hit: Fraction, miss: Fraction, epsilon: Fraction | None, terms: tuple[int, int], tolerance: float = 1e-14
) -> ResponseChannel:
    cell, others = (noise_sum(epsilon, count) for count in terms)
    return ResponseChannel(hit=hit, miss=miss, weight=1 - miss, cell=cell, others=others, tolerance=tolerance)


def answered(n: int, participants: int, hit: Fraction, miss: Fraction) -> NDArray[np.float64]:
    """Return the law of Bin(n, P) + Bin(N-n, Q)."""
    yes = stats.binom.pmf(np.arange(n + 1), n, float(hit))
    return np.convolve(yes, stats.binom.pmf(np.arange(participants - n + 1), participants - n, float(miss)))


def mass(noise: NoiseSum) -> NDArray[np.float64]:
    return np.exp(noise.log_mass(np.arange(-REACH, REACH + 1)))


def enumerated(channel: ResponseChannel, n: int, participants: int, y: int, excess: int) -> tuple[float, float]:
    """Return P[S >= s] and P[S <= s], the three draws compared in whole multiples of 1/denominator."""
    parts, miss = channel.miss.denominator, channel.miss.numerator
    z = np.arange(-REACH, REACH + 1)
    noise = (parts - miss) * z[:, None] + miss * z[None, :]
    weight = np.outer(mass(channel.cell), mass(channel.others))
    upper = lower = 0.0
    for x, chance in enumerate(answered(n, participants, channel.hit, channel.miss)):
        above = parts * (x - y) + miss * excess + noise
        upper += chance * weight[above >= 0].sum()
        lower += chance * weight[above <= 0].sum()
    return upper, lower


@pytest.mark.parametrize("tolerance", [1e-14, 1e-6])
@pytest.mark.parametrize(
    ("n", "participants", "hit", "miss", "epsilon", "terms"),
    [
        (0, 10, Fraction(6, 100), Fraction(1, 100), Fraction(8), (2, 2)),
        (3, 10, Fraction(1, 3), Fraction(1, 6), Fraction(1), (3, 12)),
        (10, 10, Fraction(1), Fraction(9, 10), Fraction(3), (2, 2)),
        (30, 40, Fraction(1, 2), Fraction(1, 3), None, (2, 2)),
        (7, 7, Fraction(1), Fraction(0), Fraction(2), (5, 5)),
    ],
)
def test_both_tails_are_those_of_the_enumerated_law_and_never_below(
    n: int,
    participants: int,
    hit: Fraction,
    miss: Fraction,
    epsilon: Fraction | None,
    terms: tuple[int, int],
    tolerance: float,
) -> None:
    channel = channel_of(hit, miss, epsilon, terms, tolerance)
    outputs = np.arange(-4, participants + 6)
    same = np.ones(outputs.size, dtype=np.int64)
    for excess in (-2, 0, 1):
        upper = channel.upper_tail(n * same, participants * same, outputs, excess)
        lower = channel.lower_tail(n * same, participants * same, outputs, excess)
        for y, high, low in zip(outputs.tolist(), upper, lower, strict=True):
            for found, true in zip((high, low), enumerated(channel, n, participants, y, excess), strict=True):
                assert -1e-14 <= found - true <= 3 * tolerance + 1e-14


VERY_WIDE = pytest.param(Fraction(1, 5000), marks=pytest.mark.nightly)


@pytest.mark.parametrize("epsilon", [Fraction(1, 20), Fraction(1, 100), VERY_WIDE])
def test_wide_noise_adds_half_a_device_at_most(epsilon: Fraction) -> None:
    """Against the sum over the noise of the cell: the law is the same whether the noises are tabled or not."""
    channel = channel_of(Fraction(3, 4), Fraction(1, 4), epsilon, (2, 2), 1e-10)
    z = np.arange(-channel.cell.reach, channel.cell.reach + 1)
    law = answered(12, 30, channel.hit, channel.miss)
    y = round(2 / epsilon) + 15

    def tail(at_least: float) -> float:
        # P[3/4 Z + 1/4 W >= y - x + 1/4 * 3], W at least what Z leaves.
        rest = [np.ceil((at_least - x + 0.75 - 0.75 * z) * 4).astype(np.int64) for x in range(31)]
        weight = np.exp(channel.cell.log_mass(z))
        return float(sum(p * weight @ channel.others.upper_tail(one) for p, one in zip(law, rest, strict=True)))

    [found] = channel.upper_tail(np.array([12]), np.array([30]), np.array([y]), -3)

    assert tail(y) - 1e-9 <= found <= tail(y - 0.75)


def test_a_large_fleet_has_the_normal_law() -> None:
    channel = channel_of(Fraction(3, 5), Fraction(1, 5), Fraction(1), (2, 2))
    n, participants = 10**8, 10**9
    deviation = np.sqrt(n * 0.24 + (participants - n) * 0.16)
    y = np.rint(n * 0.6 + (participants - n) * 0.2 + deviation * np.array([-3.0, 0.0, 2.0])).astype(np.int64)
    everyone = np.full(3, participants)

    upper = channel.upper_tail(np.full(3, n), everyone, y, 0)

    np.testing.assert_allclose(upper, stats.norm.sf([-3.0, 0.0, 2.0]), rtol=1e-3)


def test_outputs_far_away_are_certain_or_impossible() -> None:
    channel = channel_of(Fraction(3, 4), Fraction(1, 4), Fraction(1), (2, 2))
    n, participants, y = np.array([5, 5]), np.array([20, 20]), np.array([-(10**9), 10**9])

    np.testing.assert_allclose(channel.upper_tail(n, participants, y, 0), [1, 0], atol=1e-13)
    np.testing.assert_allclose(channel.lower_tail(n, participants, y, 0), [0, 1], atol=1e-13)


def test_parameters_outside_their_range_are_refused() -> None:
    with pytest.raises(RangeError, match="0 <= Q < P <= 1"):
        channel_of(Fraction(1, 4), Fraction(1, 4), None, (1, 1))
    with pytest.raises(RangeError, match=r"tolerance is 0\.1"):
        channel_of(Fraction(1), Fraction(1, 4), None, (1, 1), 0.1)
    noise = noise_sum(None, 1)
    with pytest.raises(RangeError, match="weight of a noise is 2"):
        ResponseChannel(hit=Fraction(1), miss=Fraction(0), weight=Fraction(2), cell=noise, others=noise)
