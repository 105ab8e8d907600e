"""From Renyi losses to (epsilon, delta) and back: one order, the best order of zCDP, and the simple form of it.

Every result is a fraction known to 1e-60; who prints it rounds up. It must not know which mechanism lost it. "F5" and
the like are the facts of docs/spec.md, "Losses". Sources: Canonne, Kamath, Steinke, "The discrete Gaussian for
differential privacy" (2020), Proposition 12; Bun, Steinke, "Concentrated differential privacy" (2016), Proposition 1.3.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_fraction, require_open_unit, require_positive
from fleetcount_mechanisms.exponential import near_exp, near_log, near_sqrt

_STEPS: Final = 100


def checked_order(order: Fraction | int) -> Fraction:
    """Return an order above 1.

    Raises:
        MechanismError: not exact, or not in (1, 10**9].
    """
    exact = require_fraction("order", order)
    if not 1 < exact <= 10**9:
        raise MechanismError(f"order is {order}, allowed: 1 < order <= {10**9}")
    return exact


def entry_price(order: Fraction | int, delta: Fraction) -> Fraction:
    """Return c_a(delta) = ln(1 - 1/a) - (ln delta + ln a)/(a - 1): a Renyi loss R is an epsilon of R + c_a (F5).

    Raises:
        MechanismError: an order not above 1, or delta not in (0, 1).
    """
    exact, small = checked_order(order), require_open_unit("delta", delta)
    return near_log(1 - 1 / exact) - near_log(small * exact) / (exact - 1)


def order_epsilon(loss: Fraction, order: Fraction | int, delta: Fraction) -> Fraction:
    """Return the epsilon at delta of a Renyi loss at one order (F5); it may be below 0, which means 0.

    Raises:
        MechanismError: as `entry_price`.
    """
    return loss + entry_price(order, delta)


def order_delta(loss: Fraction, order: Fraction | int, epsilon: Fraction) -> Fraction:
    """Return the delta at epsilon of a Renyi loss at one order: e**((a-1)(R-eps)) (1-1/a)**a/(a-1) (F5).

    Raises:
        MechanismError: an order not above 1.
    """
    exact = checked_order(order)
    exponent = (exact - 1) * (loss - epsilon) + exact * near_log(1 - 1 / exact) - near_log(exact - 1)
    return _exponential(exponent)


def _exponential(exponent: Fraction) -> Fraction:
    """Return e**exponent, or a number above it where it is below 1e-40,000: nobody prints so small a delta."""
    return near_exp(max(exponent, Fraction(-100_000)))


def zcdp_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    """Return the epsilon at delta of rho-zCDP: the least over real orders a of a rho + c_a(delta); never too small.

    Every order gives a bound that holds, so the best one is looked for in floats: rho (a-1)**2 + ln a = ln 1/delta.
    It may be below 0, which means 0.

    Raises:
        MechanismError: rho below 0, or delta not in (0, 1).
    """
    weight, small = float(_checked_rho(rho)), float(near_log(require_open_unit("delta", delta)))
    excess = _root(lambda above: weight * above * above + math.log1p(above) + small)
    order = 1 + Fraction(excess)
    return order_epsilon(rho * order, order, delta)


def zcdp_delta(rho: Fraction, epsilon: Fraction) -> Fraction:
    """Return the delta at epsilon of rho-zCDP: the least over real orders; never too small.

    The best order solves (2a - 1) rho - eps + ln(1 - 1/a) = 0.

    Raises:
        MechanismError: rho or epsilon below 0.
    """
    if require_fraction("epsilon", epsilon) < 0:
        raise MechanismError(f"epsilon is {epsilon}, allowed: epsilon >= 0")
    weight, whole = float(_checked_rho(rho)), float(epsilon)
    excess = _root(lambda above: (1 + 2 * above) * weight - whole - math.log1p(1 / above))
    order = 1 + Fraction(excess)
    return order_delta(rho * order, order, epsilon)


def zcdp_epsilon_simple(rho: Fraction, delta: Fraction) -> Fraction:
    """Return rho + 2 sqrt(rho ln 1/delta), the form of textbooks; `zcdp_epsilon` is smaller.

    Raises:
        MechanismError: rho below 0, or delta not in (0, 1).
    """
    return _checked_rho(rho) + 2 * near_sqrt(rho * near_log(1 / require_open_unit("delta", delta)))


def _root(rising: Callable[[float], float]) -> float:
    """Return about where a rising function of a - 1 vanishes, within (1e-9, 10**9), by bisection of the logarithm."""
    low, high = math.log(1e-9), math.log(1e9) - 1e-9
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(math.exp(middle)) > 0 else (middle, high)
    return math.exp(high)


def _checked_rho(rho: Fraction) -> Fraction:
    if require_fraction("rho", rho) != 0:
        require_positive("rho", rho)
    return rho
