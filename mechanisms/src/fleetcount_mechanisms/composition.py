"""What several releases cost together: basic, optimal (Kairouz-Oh-Viswanath) and asymmetric composition.

Pure functions of losses; it must not keep a ledger, read a clock or refuse a release (the ledgers of devices and
aggregators do).
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction

from fleetcount_mechanisms.errors import MechanismError, require_fraction
from fleetcount_mechanisms.randomness import WIDE, exp_minus_bounds, float_up, near_decimal, near_log
from fleetcount_mechanisms.repeated import (
    LARGEST_EPSILON,
    checked_epsilon,
    optimal_loss_repeated,
    repeated_outcomes,
    require_delta,
    require_queries,
)

LARGEST_OUTCOMES = 20_000
INVERSE_DENOMINATOR = 10**12
PRECISION_BITS = 96
_LEAST = Decimal(1).scaleb(-600)


def basic_epsilon(epsilons: Iterable[Fraction]) -> Fraction:
    """Return the sum of the losses: the pure epsilon of all releases together, also of queries chosen adaptively.

    Raises:
        MechanismError: a loss not in (0, 700].
    """
    return sum((checked_epsilon(epsilon) for epsilon in epsilons), Fraction(0))


def optimal_epsilon(epsilons: Sequence[Fraction], delta: Fraction) -> float:
    """Return the smallest eps such that the composition of pure eps_i-DP releases is (eps, delta)-DP, rounded up.

    Valid for adaptive queries and exact for the worst mechanisms, whose i-th output separates two databases as a
    randomized response does. With P and Q the probabilities of an outcome under the two, delta(eps) = sum of max(0, P
    - e^eps Q) is a maximum over sets of outcomes, so e^eps = max over sets of (P(set) - delta) / Q(set), attained by
    the sets that hold the outcomes of largest P/Q. All of it is exact rational arithmetic on an upper bound of each
    e^eps_i (2^-96 apart).

    Source: Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", Theorems 3.3 and 3.5.

    Raises:
        MechanismError: an eps_i not in (0, 700], delta not in [0, 1), or so many different eps_i that there are more
            than 20,000 outcomes.
    """
    require_delta(delta)
    outcomes, total_weight = _outcomes(epsilons)
    if not outcomes:
        return 0.0
    slack = Fraction(delta) * total_weight
    best, first, second = Fraction(1), 0, 0
    for weight, other in outcomes:
        first, second = first + weight, second + other
        best = max(best, (first - slack) / second)
    return _log_up(best)


def optimal_epsilon_repeated(epsilon: Fraction, queries: int, delta: Fraction) -> float:
    """Return `optimal_epsilon` of `queries` releases of the same eps, rounded up.

    Raises:
        MechanismError: eps not in (0, 700], queries not in 1..10**6, or delta not in [0, 1).
    """
    return float_up(max(Fraction(0), optimal_loss_repeated(epsilon, queries, delta)))


def optimal_loss_approximate(epsilon: Fraction, delta_each: Fraction, copies: int, delta: Fraction) -> Fraction:
    """Return the optimal total eps of `copies` releases, each (eps, delta_each)-DP, to 1e-60; below 0 means 0.

    Each is a randomized response except with chance delta_each, so delta' = 1 - (1-delta)/(1-delta_each)**n is left.
    Source: Kairouz, Oh, Viswanath, Theorem 3.3.

    Raises:
        MechanismError: eps not in (0, 700], copies not in 1..10**6, a delta outside [0, 1), or delta below
            1 - (1-delta_each)**copies.
    """
    require_delta(delta_each)
    require_delta(delta)
    require_queries(copies)
    left = 1 - Fraction(1 - delta) / (1 - delta_each) ** copies
    if left < 0:
        raise MechanismError(f"delta is {delta}; it must be at least 1-(1-{delta_each})**{copies}, the delta of all")
    return optimal_loss_repeated(epsilon, copies, left)


def optimal_delta_repeated(epsilon: Fraction, copies: int, total: Fraction) -> Fraction:
    """Return the smallest delta of `copies` releases of one eps at a total eps, to a relative error below 1e-60.

    It is 0 from total = copies * eps on.

    Raises:
        MechanismError: eps not in (0, 700], copies not in 1..10**6, or a negative total.
    """
    if require_fraction("total epsilon", total) < 0:
        raise MechanismError(f"total epsilon is {total}; it must be at least 0")
    outcomes = repeated_outcomes(epsilon, copies)
    if total >= epsilon * copies:
        return Fraction(0)
    factor, excess = WIDE.exp(near_decimal(total)), Decimal(0)
    for weight, other in outcomes:
        more = WIDE.subtract(weight, WIDE.multiply(factor, other))
        if more <= 0:
            break
        excess = WIDE.add(excess, more)
    return Fraction(max(excess, _LEAST))


def optimal_epsilon_per_query(total: Fraction, queries: int, delta: Fraction) -> Fraction:
    """Return the largest eps of one query with which `queries` of them lose at most `total` at this delta.

    It is a multiple of 10**-12, rounded down, or the basic total / queries where that is larger.

    Raises:
        MechanismError: total not in (0, 700], queries below 1, or delta not in [0, 1).
    """
    checked_epsilon(total)
    require_queries(queries)
    require_delta(delta)
    share = total + 1 + Fraction(_log_up(1 / (1 - Fraction(delta))))
    low, high = 0, int(INVERSE_DENOMINATOR * min(share, Fraction(LARGEST_EPSILON)))
    while high - low > 1:
        middle = (low + high) // 2
        if optimal_epsilon_repeated(Fraction(middle, INVERSE_DENOMINATOR), queries, delta) <= total:
            low = middle
        else:
            high = middle
    return max(Fraction(low, INVERSE_DENOMINATOR), Fraction(total) / queries)


def _outcomes(epsilons: Sequence[Fraction]) -> tuple[list[tuple[int, int]], int]:
    """Return integer weights (under X, under X') of the outcomes, largest ratio first, and their common total."""
    groups = Counter(checked_epsilon(epsilon) for epsilon in epsilons)
    if math.prod(count + 1 for count in groups.values()) > LARGEST_OUTCOMES:
        raise MechanismError(
            f"{len(epsilons)} releases of {len(groups)} different eps give more than {LARGEST_OUTCOMES} outcomes"
        )
    outcomes, total = [(1, 1)], 1
    for epsilon, count in groups.items():
        rises = _binomial_weights(epsilon, count)
        outcomes = [(a * x, b * y) for (a, b), (x, y) in itertools.product(outcomes, rises)]
        total *= sum(weight for weight, _ in rises)
    outcomes.sort(key=functools.cmp_to_key(_larger_ratio_first))
    return (outcomes if epsilons else []), total


def _larger_ratio_first(one: tuple[int, int], two: tuple[int, int]) -> int:
    return two[0] * one[1] - one[0] * two[1]


def _binomial_weights(epsilon: Fraction, count: int) -> list[tuple[int, int]]:
    unit = 1 << PRECISION_BITS
    grown = math.ceil(_exponential_above(epsilon) * unit)
    powers = [grown ** (count - less) * unit**less for less in range(count + 1)]
    return [
        (math.comb(count, less) * powers[less], math.comb(count, less) * powers[count - less])
        for less in range(count + 1)
    ]


def _log_up(ratio: Fraction) -> float:
    return float_up(near_log(ratio))


def _exponential_above(exponent: Fraction) -> Fraction:
    """Return a rational in [e^exponent, e^exponent (1 + 2^-95)]."""
    bits = PRECISION_BITS + 2 * math.ceil(exponent)
    return Fraction(1 << bits, exp_minus_bounds(exponent, bits)[0])
