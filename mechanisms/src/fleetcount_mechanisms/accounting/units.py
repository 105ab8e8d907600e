"""The (epsilon, delta) of one unit of a panel coin, better than any Renyi order says: exact, or by joint convexity.

For one unit only: over many units `renyi` is better. It must not know a design. Fractions are known to 1e-60 and never
too small. Sources: docs/privacy.md, "A question", Theorems 2 and 4; Balle, Barthe, Gaboardi, "Privacy amplification by
subsampling" (2018), Theorem 2.
"""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.conversion import zcdp_delta
from fleetcount_mechanisms.errors import MechanismError, require_fraction
from fleetcount_mechanisms.exponential import WIDE, near_decimal, near_exp, near_log
from fleetcount_mechanisms.renyi import checked_rate, gaussian_rho, unit_law

_GRID: Final = 1 << 40


def gaussian_unit_delta(rate: Fraction, windows: int, variance: Fraction, epsilon: Fraction) -> Fraction:
    """Return the delta at epsilon of a unit of `windows` answers under N_Z(0, s), any of which change (Theorem 4).

    p [(1-b) d(m/(2s)) + b d(m/s)] at e, where e**epsilon = 1 + p (e**e - 1), b = e**(epsilon-e), d = `zcdp_delta`.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, a variance not above 0, or epsilon below 0.
    """
    exact = checked_rate(rate)
    if require_fraction("epsilon", epsilon) < 0:
        raise MechanismError(f"epsilon is {epsilon}, allowed: epsilon >= 0")
    inner = max(Fraction(0), near_log(1 + (near_exp(epsilon) - 1) / exact))
    share = near_exp(epsilon - inner)
    one, both = (zcdp_delta(gaussian_rho(cells, windows, variance), inner) for cells in (1, 2))
    return exact * ((1 - share) * one + share * both)


def geometric_unit_delta(rate: Fraction, windows: int, noise: Fraction, epsilon: Fraction) -> Fraction:
    """Return the exact delta at epsilon of a unit of `windows` answers under geometric noise, all of them changed.

    The sum over the outputs of both sets of cells of what P_a has above e**epsilon P_b (Theorem 2: both are mixtures
    with independent ratios under no answer). Exact for V > 1; for V = 1 never too small.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, e1 not above 0, or epsilon below 0.
    """
    if require_fraction("epsilon", epsilon) < 0:
        raise MechanismError(f"epsilon is {epsilon}, allowed: epsilon >= 0")
    return _excess(unit_law(rate, windows, noise), WIDE.exp(near_decimal(epsilon)))


def _excess(law: list[tuple[Decimal, Decimal]], power: Decimal) -> Fraction:
    total = weight_below = ratio_below = Decimal(0)
    below = 0
    for weight, ratio in law:
        # Ratios rise, so what lies below ratio/e**epsilon only grows.
        while below < len(law) and WIDE.multiply(power, law[below][1]) < ratio:
            mass, other = law[below]
            weight_below = WIDE.add(weight_below, mass)
            ratio_below = WIDE.add(ratio_below, WIDE.multiply(mass, other))
            below += 1
        more = WIDE.subtract(WIDE.multiply(ratio, weight_below), WIDE.multiply(power, ratio_below))
        total = WIDE.add(total, WIDE.multiply(weight, more))
    return Fraction(total)


def gaussian_unit_epsilon(
    rate: Fraction, windows: int, variance: Fraction, delta: Fraction, largest: Fraction
) -> Fraction:
    """Return the least epsilon, to 2**-40 and never too small, at which `gaussian_unit_delta` is at most delta.

    `largest` is an epsilon known to hold.

    Raises:
        MechanismError: as `gaussian_unit_delta`.
    """
    return _least(lambda epsilon: gaussian_unit_delta(rate, windows, variance, epsilon) <= delta, largest)


def geometric_unit_epsilon(
    rate: Fraction, windows: int, noise: Fraction, delta: Fraction, largest: Fraction
) -> Fraction:
    """Return the least epsilon, to 2**-40 and never too small, at which `geometric_unit_delta` is at most delta.

    `largest` is an epsilon known to hold.

    Raises:
        MechanismError: as `geometric_unit_delta`.
    """
    law = unit_law(rate, windows, noise)
    return _least(lambda epsilon: _excess(law, WIDE.exp(near_decimal(epsilon))) <= delta, largest)


def _least(holds: Callable[[Fraction], bool], largest: Fraction) -> Fraction:
    low, high = -1, int(largest * _GRID) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(Fraction(middle, _GRID)) else (middle, high)
    return Fraction(high, _GRID)
