"""The laws under the randomized responses: a yes/no channel, probabilities rounded to the safe side, and errors.

It must not depend on a single response: `responses` uses these laws.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import exp, lcm, sqrt

from fleetcount_mechanisms.errors import MechanismError, require_between, require_position, require_positive
from fleetcount_mechanisms.randomness import (
    RandomSource,
    UniformBelow,
    float_up,
    fraction_down,
    fraction_up,
    near_exp,
    near_log,
)

# `from_epsilon` of every response returns probabilities that are multiples of 10**-12, for losses up to 20.
GRID = 10**12
_LARGEST_EPSILON = 20


def log_ratio_up(numerator: Fraction, denominator: Fraction) -> float:
    """Return ln(numerator/denominator), at least 0, rounded up to a float; infinite when the denominator is 0."""
    if denominator == 0:
        return float("inf")
    ratio = numerator / denominator
    return 0.0 if ratio == 1 else float_up(near_log(ratio))


def bounded_power(epsilon: Fraction) -> Fraction:
    """Return e**epsilon to 60 digits.

    Raises:
        MechanismError: epsilon not exact or not in (0, 20].
    """
    exact = require_positive("epsilon", epsilon)
    if exact > _LARGEST_EPSILON:
        raise MechanismError(f"epsilon is {exact}, allowed: 0 < epsilon <= {_LARGEST_EPSILON}")
    return near_exp(exact)


def probability_below(epsilon: Fraction, others: int) -> Fraction:
    """Return the largest grid value at or below e**epsilon / (e**epsilon + others).

    Raises:
        MechanismError: epsilon not in (0, 20], or too small for the grid.
    """
    power = bounded_power(epsilon)
    keep = fraction_down(power / (power + others), GRID)
    if not Fraction(1, others + 1) < keep < 1:
        raise MechanismError(
            f"epsilon is {epsilon}, allowed: one whose {others + 1} probabilities differ by more than 1/{GRID}"
        )
    return keep


def probability_above(epsilon: Fraction, extra: int) -> Fraction:
    """Return the smallest grid value at or above 1 / (e**epsilon + extra).

    Raises:
        MechanismError: epsilon not in (0, 20], or too small for the grid.
    """
    flip = fraction_up(1 / (bounded_power(epsilon) + extra), GRID)
    if not 0 < flip < Fraction(1, 1 + extra):
        raise MechanismError(f"epsilon is {epsilon}, allowed: one whose probabilities differ by more than 1/{GRID}")
    return flip


def response_sd(count: float, population: float, given_yes: float, given_no: float) -> float:
    """Return the sd of (Y - N B)/(A - B) for n Yes among N, A = P[1 | Yes], B = P[1 | No].

    Raises:
        MechanismError: the count is not in 0..population.
    """
    if not 0 <= count <= population:
        raise MechanismError(f"count is {count}, allowed: 0 <= count <= population = {population}")
    variance = count * given_yes * (1 - given_yes) + (population - count) * given_no * (1 - given_no)
    return sqrt(variance) / abs(given_yes - given_no)


@dataclass(frozen=True, slots=True)
class BinaryLaw:
    """A yes/no channel with P[1 | Yes] and P[1 | No], drawn by one uniform on their common denominator."""

    given_yes: Fraction
    given_no: Fraction
    uniform: UniformBelow = field(init=False, repr=False, compare=False)
    limits: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepare the draw on the common denominator."""
        common = lcm(self.given_yes.denominator, self.given_no.denominator)
        object.__setattr__(self, "uniform", UniformBelow(bound=common))
        object.__setattr__(self, "limits", (int(self.given_no * common), int(self.given_yes * common)))

    def probability(self, output: int, truth: int) -> Fraction:
        """Return P[output | truth], both 0 or 1.

        Raises:
            MechanismError: output or truth is neither 0 nor 1.
        """
        require_position(truth, 1)
        one = self.given_yes if truth else self.given_no
        return one if require_between("output", output, 0, 1) else 1 - one

    def draw(self, truth: int, source: RandomSource) -> int:
        """Return a random answer, 0 or 1, to a truth of 0 or 1.

        Raises:
            MechanismError: the truth is neither 0 nor 1 (the message withholds it).
        """
        limit = self.limits[require_position(truth, 1)]
        return int(self.uniform.draw(source) < limit)


def two_coin_sd(count: int, population: int, truth_probability: float, yes_probability: float) -> float:
    """Return the sd of the two-coin estimate: sqrt(n A(1-A) + (N-n) B(1-B))/q."""
    given_no = (1 - truth_probability) * yes_probability
    return response_sd(count, population, truth_probability + given_no, given_no)


def warner_sd(epsilon: float, population: int) -> float:
    """Return the sd of Warner's estimate, sqrt(N e**eps)/(e**eps - 1), the same for every count."""
    keep = 1 / (1 + exp(-epsilon))
    return response_sd(0, population, keep, 1 - keep)


def mangat_sd(epsilon: float, population: int, count: int) -> float:
    """Return the sd of Mangat's estimate, sqrt((N-n) e**-eps/(1 - e**-eps))."""
    return response_sd(count, population, 1.0, exp(-epsilon))


def k_ary_sd(epsilon: float, outputs: int, population: int, count: int) -> float:
    """Return the sd of a cell of k-ary randomized response with k outputs."""
    weight = exp(epsilon) + outputs - 1
    return response_sd(count, population, exp(epsilon) / weight, 1 / weight)


def unary_sd(epsilon: float, population: int, count: int) -> float:
    """Return the sd of a cell of the optimized unary encoding."""
    return response_sd(count, population, 0.5, 1 / (exp(epsilon) + 1))
