"""Vectorised noise: the exact law from the given source alone, ties and the far tail included."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.errors import RangeError
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.geometric import digit_thresholds
from fleetcount_mechanisms.randomness import SeededRandom, SystemRandom
from scipy import stats

from tests.support.geometric_noise import geometric_noise

DRAWS = 100_000


class Scripted:
    """Hand out the given bytes first, then a seeded stream."""

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.rest = SeededRandom(1)
        self.asked: list[int] = []

    def random_bytes(self, count: int, /) -> bytes:
        self.asked.append(count)
        piece, self.first = self.first[:count], self.first[count:]
        return piece + self.rest.random_bytes(count - len(piece))


def fit(epsilon: float, values: np.ndarray) -> float:
    """Return the chi-square p-value of the values under the two-sided geometric law."""
    ratio, width = np.exp(-epsilon), 1
    while len(values) * ratio ** (width + 1) > 20:
        width += 1
    z = np.arange(-width, width + 1)
    law = (1 - ratio) / (1 + ratio) * ratio ** np.abs(z)
    law[0] = law[-1] = ratio**width / (1 + ratio)
    counted = Counter(np.clip(values, -width, width).tolist())
    return float(stats.chisquare([counted[int(i)] for i in z], law * len(values)).pvalue)


@pytest.mark.parametrize("epsilon", [Fraction(1, 4), Fraction(173, 100), Fraction(5)])
def test_the_law_fits_and_one_of_another_scale_does_not(epsilon: Fraction) -> None:
    values = geometric_noise(epsilon, DRAWS, SystemRandom())

    assert fit(float(epsilon), values) > 1e-20
    assert fit(float(epsilon) / 1.3, values) < 1e-20
    assert fit(float(epsilon) * 1.3, values) < 1e-20


def test_neighbouring_cells_are_independent() -> None:
    values = geometric_noise(Fraction(1), DRAWS, SystemRandom())

    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 6 / DRAWS**0.5
    assert abs(np.corrcoef(np.abs(values[:-1]), np.abs(values[1:]))[0, 1]) < 6 / DRAWS**0.5


def test_every_bit_comes_from_the_source_and_as_many_whatever_the_values() -> None:
    low, high = Scripted(b"\x01" * 10**6), Scripted(b"\xfe" * 10**6)

    first, second = geometric_noise(Fraction(1), 1000, low), geometric_noise(Fraction(1), 1000, high)

    assert low.asked == high.asked
    assert set(first.tolist()) != set(second.tolist())
    assert np.array_equal(
        geometric_noise(Fraction(1), 1000, SeededRandom(9)), geometric_noise(Fraction(1), 1000, SeededRandom(9))
    )


def test_a_word_equal_to_its_threshold_is_settled_by_further_digits() -> None:
    coins = digit_thresholds(Fraction(1), 64)
    words = [threshold.to_bytes(8, "little") for threshold in coins.thresholds]
    outcomes = set()
    for seed in range(60):
        source = Scripted(b"".join(words) + bytes(8))
        source.rest = SeededRandom(seed)
        outcomes.add(int(geometric_noise(Fraction(1), 1, source)[0]))
        assert len(source.asked) > 1

    # "Not 0" alone is a coin with a tie: were ties always below or never, all seeds would agree.
    assert len(outcomes) > 3


def test_beyond_the_digits_the_value_goes_on() -> None:
    coins = digit_thresholds(Fraction(1), 64)
    # The coin "beyond" has a threshold of 0: only a tie can make it true, then digits below its true threshold.
    words = [0] * (coins.digits + 2) + [0]
    source = Scripted(b"".join(word.to_bytes(8, "little") for word in words) + bytes(200))

    value = int(geometric_noise(Fraction(1), 1, source)[0])

    # All digits are 1, so the value without "beyond" is 2 to the power of their number.
    assert abs(value) >= 2 << coins.digits


def test_counts_and_epsilons_outside_their_range_are_refused() -> None:
    source = SeededRandom(1)
    assert geometric_noise(Fraction(1), 0, source).tolist() == []
    for count in (-1, 2**30 + 1):
        with pytest.raises(RangeError, match=f"number of noise values is {count}"):
            geometric_noise(Fraction(1), count, source)
    with pytest.raises(MechanismError, match="noise epsilon is 101"):
        geometric_noise(Fraction(101), 1, source)
