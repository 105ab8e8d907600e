"""Bounds of exp(-x) hold against a computation to 400 digits, and rounding never goes to the optimistic side."""

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from fleetcount_mechanisms import randomness
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import (
    CoinShape,
    ExponentialCoin,
    exp_minus_bounds,
    float_up,
    fraction_down,
    fraction_up,
    near_exp,
    near_log,
    rounded_up,
)

EXPONENTS = [Fraction(1, 10**6), Fraction(1, 3), Fraction(1), Fraction(1572442, 10**6), Fraction(89), Fraction(400)]


class Bytes:
    """A source that gives the bytes it was made of and then fails."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def random_bytes(self, count: int, /) -> bytes:
        if count > len(self.data):
            raise AssertionError(f"{count} bytes were asked for and {len(self.data)} are left")
        piece, self.data = self.data[:count], self.data[count:]
        return piece


def reference(exponent: Fraction) -> Fraction:
    """Return exp(-exponent) as the decimal module computes it, correct to 400 digits."""
    with decimal.localcontext(prec=400, Emin=-9999, Emax=9999):
        return Fraction((-Decimal(exponent.numerator) / exponent.denominator).exp())


@pytest.mark.parametrize("exponent", EXPONENTS, ids=str)
@pytest.mark.parametrize("bits", [1, 8, 64, 128, 256])
def test_bounds_of_a_power_hold_and_are_two_units_apart_at_most(exponent: Fraction, bits: int) -> None:
    low, high = exp_minus_bounds(exponent, bits)

    assert low <= reference(exponent) * 2**bits <= high
    assert high - low <= 2


@pytest.mark.parametrize("work", [8, 9, 10, 12, 16, 24])
def test_the_bracket_of_the_question_holds_at_a_precision_where_every_rounding_shows(work: int) -> None:
    for numerator in range(1, 300):
        exponent = Fraction(numerator, 300)

        low, high = randomness._taylor_bounds(exponent, work)

        assert low <= reference(exponent) * 2**work <= high


@pytest.mark.parametrize("exponent", EXPONENTS[:5], ids=str)
@pytest.mark.parametrize("bits", [3, 64, 128, 256])
def test_the_threshold_of_every_shape_is_the_floor_of_its_probability(exponent: Fraction, bits: int) -> None:
    thresholds = [ExponentialCoin(exponent=exponent, shape=shape).threshold(bits) for shape in CoinShape]

    power = reference(exponent)
    expected = [power, power / (1 + power), 2 * power / (1 + power)]
    assert thresholds == [math.floor(probability * 2**bits) for probability in expected]


def test_a_tie_on_every_digit_drawn_is_settled_by_further_digits() -> None:
    coin = ExponentialCoin(exponent=Fraction(1))
    digits = coin.threshold(256)
    first, second = digits >> 128, digits & (2**128 - 1)

    def outcome(*words: int) -> bool:
        return coin.toss(Bytes(b"".join(word.to_bytes(16, "little") for word in words)))

    assert outcome(first - 1) is True
    assert outcome(first + 1) is False
    assert outcome(first, second - 1) is True
    assert outcome(first, second + 1) is False


def test_rounding_goes_to_the_safe_side() -> None:
    third = Fraction(1, 3)

    assert (rounded_up(third), rounded_up(Fraction(3, 2)), rounded_up(Fraction(0))) == (
        Decimal("0.33334"),
        Decimal("1.5"),
        Decimal(0),
    )
    assert (fraction_down(third, 100), fraction_up(third, 100)) == (Fraction(33, 100), Fraction(34, 100))
    assert (fraction_down(Fraction(1, 4), 100), fraction_up(Fraction(1, 4), 100)) == (Fraction(1, 4), Fraction(1, 4))
    assert Fraction(float_up(third)) > third
    assert float_up(Fraction(0)) == 0.0


@pytest.mark.parametrize("value", [Fraction(1, 10**6), Fraction(1, 3), Fraction(7, 2), Fraction(90)], ids=str)
def test_logarithm_undoes_exponential_to_sixty_digits(value: Fraction) -> None:
    assert abs(near_log(near_exp(value)) - value) < Fraction(1, 10**60)
    assert float(near_exp(value)) == pytest.approx(math.exp(value), rel=1e-14)


def test_a_bad_exponent_is_refused() -> None:
    with pytest.raises(MechanismError, match="exponent is -1"):
        exp_minus_bounds(Fraction(-1), 8)
    with pytest.raises(MechanismError, match="exponent is 0, allowed: exponent > 0"):
        ExponentialCoin(exponent=Fraction(0))


def test_a_number_that_is_known_but_nearly_is_never_rounded_to_the_unsafe_side() -> None:
    doubt = Fraction(1, 10**61)

    for near in (Fraction(3) - doubt, Fraction(3) + doubt):
        assert fraction_down(near, 1) == 2
        assert fraction_up(near, 1) == 4


def test_a_tie_is_settled_by_the_digits_that_follow() -> None:
    coin = ExponentialCoin(exponent=Fraction(1, 3))
    following = coin.threshold(8 + 128) & (1 << 128) - 1

    for drawn, outcome in ((following - 1, True), (following + 1, False)):
        assert coin.settle(Bytes(drawn.to_bytes(16, "little")), 8) is outcome
