"""The ends of sampled differences by brute force: both tests, at the upper end of all devices."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.ends import Sums, difference_ends
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.intervals import sum_interval
from scipy import stats

from tests.analysis.answers.samples import LEVEL, sampling


def single(value: int) -> Sums:
    return Sums(values=np.array([value]), cells=1, windows=1)


@pytest.mark.parametrize("pair", [(6, 1), (3, 3), (-2, 4), (15, 9)])
def test_a_difference_passes_both_tests_at_the_most_devices_there_can_be(pair: tuple[int, int]) -> None:
    rate, epsilon, error = Fraction(1, 4), Fraction(1, 2), (1 - LEVEL) / 2
    most = sum_interval(list(pair), rate, epsilon, 2, 1 - 2 * error / 20)[1]
    noise, y, inside = noise_sum(epsilon, 4), pair[0] - pair[1], []
    for d in range(-300, 301):
        devices = max(most, abs(d)) + (max(most, abs(d)) + d) % 2
        counts = (devices + d) // 2, (devices - d) // 2
        mass = np.outer(*(stats.binom.pmf(np.arange(n + 1), n, 0.25) for n in counts))
        apart = np.subtract.outer(np.arange(counts[0] + 1), np.arange(counts[1] + 1))
        upper, lower = (float(np.sum(mass * noise.upper_tail(one))) for one in (y - apart, apart - y))
        if min(upper, lower) > float(error) * 0.95:
            inside.append(d)

    low, high = difference_ends(sampling(1), single(pair[0]), single(pair[1]), (1, 1), LEVEL)

    assert (int(low[0]), int(high[0])) == (inside[0], inside[-1])
