"""Discrete Gaussian noise: its table bounds its law, its draws follow it, ties are settled, its steps are the same."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from fleetcount_mechanisms import gaussian
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.gaussian import DiscreteGaussian, noise_reach
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_mechanisms.randomness import SeededRandom, SystemRandom
from mpmath import mp, mpf
from scipy import stats

VARIANCES = [Fraction(1, 4), Fraction(1), Fraction(9), Fraction(66211, 100), Fraction(10**6)]
DRAWS = 200_000


class Words:
    """A source whose bytes are prescribed, then seeded, and whose requests are counted."""

    def __init__(self, first: bytes, seed: int = 1) -> None:
        self.first, self.rest = first, SeededRandom(seed)
        self.asked: list[int] = []

    def random_bytes(self, count: int, /) -> bytes:
        self.asked.append(count)
        piece, self.first = self.first[:count], self.first[count:]
        return piece + self.rest.random_bytes(count - len(piece))


def at_most(variance: Fraction, size: int) -> mpf:
    """Return P[|Z| <= size] to 60 digits."""
    parameter, reach = mpf(variance.numerator) / variance.denominator, int(20 * math.sqrt(variance)) + 20
    weights = [mp.exp(-j * j / (2 * parameter)) for j in range(reach)]
    return (2 * sum(weights[: size + 1]) - 1) / (2 * sum(weights) - 1)


@pytest.mark.parametrize("variance", VARIANCES[:4], ids=str)
def test_the_table_bounds_the_law_to_120_binary_digits(variance: Fraction) -> None:
    noise = DiscreteGaussian(variance)
    with mp.workdps(60):
        for size in {0, 1, 2, 5, int(math.sqrt(variance)), 4 * int(math.sqrt(variance)) + 1}:
            low, high = noise.at_most(size)
            truth = at_most(variance, size)

            assert mpf(low.numerator) / low.denominator <= truth <= mpf(high.numerator) / high.denominator
            assert high - low <= Fraction(1, 2**120)


def probabilities(variance: float, reach: int) -> list[float]:
    weights = [
        math.exp(-z * z / (2 * variance)) for z in range(-40 * int(variance**0.5 + 1), 40 * int(variance**0.5 + 1))
    ]
    total = math.fsum(weights)
    inner = [math.exp(-z * z / (2 * variance)) / total for z in range(-reach, reach + 1)]
    tail = (1 - math.fsum(inner)) / 2
    return [tail, *inner, tail]


def p_value(draws: list[int], variance: float) -> float:
    """Return the chi-square p-value of draws under N_Z(0, variance), in values up to 2.5 sigma and two tails."""
    reach = int(2.5 * variance**0.5) + 1
    counts = Counter(max(-reach - 1, min(reach + 1, value)) for value in draws)
    expected = [len(draws) * chance for chance in probabilities(variance, reach)]
    seen = [counts[value] for value in range(-reach - 1, reach + 2)]
    return float(stats.chisquare(seen, expected, sum_check=False).pvalue)


@pytest.mark.parametrize("variance", VARIANCES[:4], ids=str)
def test_draws_follow_the_law_and_not_that_of_a_tenth_more_variance(variance: Fraction) -> None:
    draws = DiscreteGaussian(variance).sample_many(SystemRandom(), DRAWS)

    assert p_value(draws, float(variance)) > 1e-12
    assert p_value(draws, float(variance) * 1.1) < 1e-12
    assert p_value(draws, float(variance) / 1.1) < 1e-12


@pytest.mark.nightly
def test_draws_are_those_of_another_exact_sampler() -> None:
    opendp = pytest.importorskip("opendp.prelude", reason="needs OpenDP (`make nightly` installs it)")
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)
    theirs = opendp.m.make_gaussian(*space, scale=3.0)([0] * 50_000)

    ours = DiscreteGaussian(Fraction(9)).sample_many(SystemRandom(), 50_000)

    assert p_value(theirs, 9.0) > 1e-12
    seen = [Counter(max(-9, min(9, value)) for value in drawn) for drawn in (ours, theirs)]
    table = [[counts[value] for value in range(-9, 10)] for counts in seen]
    assert stats.chi2_contingency(table).pvalue > 1e-12


@pytest.mark.parametrize("variance", [Fraction(9), pytest.param(Fraction(662), marks=pytest.mark.nightly)], ids=str)
def test_a_sampler_of_two_hundredths_more_variance_is_caught(variance: Fraction) -> None:
    """The sum of squares over s has mean 1 and sd sqrt(2/n); 2 % at n = 200,000 is 6.3 of them, on each side 3.1."""
    draws = [DiscreteGaussian(one).sample_many(SeededRandom(7), 4 * DRAWS) for one in (variance, variance * 51 / 50)]
    right, wide = (sum(one * one for one in drawn) / len(drawn) / float(variance) for drawn in draws)

    deviation = math.sqrt(2 / (4 * DRAWS))
    assert abs(right - 1) < 5 * deviation
    assert abs(wide - 1) > 7 * deviation


def test_the_exact_variance_of_a_draw_is_that_of_the_golden_rows() -> None:
    assert GaussianNoise(Fraction(1, 4)).draw_variance == pytest.approx(0.215012675088138, abs=1e-14)
    assert GaussianNoise(Fraction(9)).draw_variance == pytest.approx(9, abs=1e-13)
    assert GaussianNoise(Fraction(39999, 10**4)).draw_variance == pytest.approx(3.9999, rel=1e-13)


def test_every_draw_asks_for_the_same_bytes_and_searches_as_long() -> None:
    noise, middle, far = DiscreteGaussian(Fraction(9)), Words(bytes(16)), Words(bytes(15) + b"\xfe")

    assert noise.sample(middle) == 0
    assert abs(noise.sample(far)) > 2
    assert middle.asked == far.asked == [16]
    for variance in VARIANCES:
        table = gaussian._table(variance, 127)
        assert len(table.lows) == len(table.highs)
        assert (len(table.lows) + 1).bit_count() == 1


def test_the_lowest_bit_is_the_sign() -> None:
    digits = int(DiscreteGaussian(Fraction(9)).at_most(3)[1] * 2**127) + 1
    words = b"".join((digits << 1 | sign).to_bytes(16, "little") for sign in (0, 1))

    assert DiscreteGaussian(Fraction(9)).sample_many(Words(words), 2) == [4, -4]


def test_digits_that_do_not_decide_are_followed_by_more() -> None:
    """At P[|Z| <= 3] itself, to 127 digits, the next digits say whether the value is 3 or 4."""
    noise = DiscreteGaussian(Fraction(9))
    table = gaussian._table(Fraction(9), 127)
    word = (table.lows[3] << 1).to_bytes(16, "little")
    assert table.lows[3] < table.highs[3]

    sources = [Words(word + further * 16) for further in (b"\x00", b"\xff")]

    assert [noise.sample(source) for source in sources] == [3, 4]
    assert [source.asked for source in sources] == [[16, 16], [16, 16]]


def test_beyond_the_table_the_value_goes_on() -> None:
    noise, table = DiscreteGaussian(Fraction(9)), gaussian._table(Fraction(9), 127)
    size = noise.sample(Words(b"\xfe" + b"\xff" * 15 + b"\xff" * 15))

    assert abs(size) > next(place for place, high in enumerate(table.highs) if high >= 2**127) - 2
    assert abs(size) > 12 * 3


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_the_reach_is_exceeded_as_rarely_as_it_says(variance: Fraction) -> None:
    with mp.workdps(60):
        beyond = noise_reach(variance, 1, 6)
        assert 1 - at_most(
            min(variance, Fraction(662)), noise_reach(min(variance, Fraction(662)), 1, 6) - 1
        ) < 2 * mp.exp(-6)
    assert (beyond - 1) ** 2 < 2 * variance * 6 <= beyond**2
    assert noise_reach(variance, 3, 6) >= beyond


def test_other_variances_and_counts_are_refused() -> None:
    for wrong in (Fraction(1, 5), Fraction(10**8 + 1), Fraction(1), 0.5):
        if wrong == 1:
            continue
        with pytest.raises(MechanismError, match="noise variance"):
            DiscreteGaussian(wrong)  # type: ignore[arg-type] # a float is refused too
    with pytest.raises(MechanismError, match="terms up to"):
        GaussianNoise(Fraction(2**64 + 1, 2**64))
    with pytest.raises(MechanismError, match="count is -1"):
        DiscreteGaussian(Fraction(1)).sample_many(SeededRandom(1), -1)
    assert DiscreteGaussian(Fraction(1)).sample_many(SeededRandom(1), 0) == []
