"""What many releases of one loss cost together at best: of optimal composition (`composition`) what a device needs."""

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_fraction
from fleetcount_mechanisms.randomness import WIDE, near_decimal

LARGEST_COPIES = 1_000_000
LARGEST_EPSILON = 700


def optimal_loss_repeated(epsilon: Fraction, copies: int, delta: Fraction) -> Fraction:
    """Return the optimal total eps of `copies` releases of one eps to an error below 1e-60; a result below 0 means 0.

    Source: as `composition.optimal_epsilon`, summed from the largest ratio on with 80 digits. The ratios fall, so after
    the first set that is worse than the one before all later sets are worse too.

    Raises:
        MechanismError: eps not in (0, 700], copies not in 1..10**6, or delta outside [0, 1).
    """
    require_delta(delta)
    outcomes = repeated_outcomes(epsilon, copies)
    if delta == 0:
        return epsilon * copies
    slack, best = near_decimal(delta), Decimal(0)
    first = second = Decimal(0)
    for weight, other in outcomes:
        first, second = WIDE.add(first, weight), WIDE.add(second, other)
        reached = WIDE.divide(WIDE.subtract(first, slack), second)
        if 0 < reached < best:
            break
        best = max(best, reached)
    return Fraction(WIDE.ln(best))


def repeated_outcomes(epsilon: Fraction, copies: int) -> Iterator[tuple[Decimal, Decimal]]:
    """Yield (under X, under X') of outcomes of equal randomized responses, largest ratio first."""
    exact = checked_epsilon(epsilon)
    require_queries(copies)
    if copies > LARGEST_COPIES:
        raise MechanismError(f"queries is {copies}; it must be at most {LARGEST_COPIES}")
    power = WIDE.exp(near_decimal(exact))
    return _falling_outcomes(power, copies)


def _falling_outcomes(power: Decimal, copies: int) -> Iterator[tuple[Decimal, Decimal]]:
    lower = WIDE.power(WIDE.divide(Decimal(1), WIDE.add(Decimal(1), power)), copies)
    weight, other = WIDE.multiply(lower, WIDE.power(power, copies)), lower
    for down in range(copies + 1):
        yield weight, other
        ways = WIDE.divide(Decimal(copies - down), Decimal(down + 1))
        weight, other = (
            WIDE.divide(WIDE.multiply(weight, ways), power),
            WIDE.multiply(WIDE.multiply(other, ways), power),
        )


def checked_epsilon(epsilon: Fraction) -> Fraction:
    """Return an epsilon that is in (0, 700]; raises MechanismError for another."""
    exact = require_fraction("epsilon", epsilon)
    if not 0 < exact <= LARGEST_EPSILON:
        raise MechanismError(f"epsilon is {epsilon}; it must be in (0, {LARGEST_EPSILON}]")
    return exact


def require_delta(delta: Fraction) -> None:
    """Refuse a delta outside [0, 1) with MechanismError."""
    if not 0 <= require_fraction("delta", delta) < 1:
        raise MechanismError(f"delta is {delta}; it must be in [0, 1)")


def require_queries(queries: int) -> None:
    """Refuse fewer than one query with MechanismError."""
    require_at_least("queries", queries, 1)
