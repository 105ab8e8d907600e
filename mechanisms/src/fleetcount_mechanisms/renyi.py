"""Renyi divergences of one step of each kind: answers of a pure epsilon, geometric and Gaussian noise, panel units.

Units under Gaussian noise have a module of their own, `sampled_gaussian`. Every result is a fraction with an error
below 1e-60; code that adds or prints it rounds up. It must not know a design (`charges`) or which mechanism a loss came
from. An order a is above 1. "F3", "F5" and "Theorem 3" are those of docs/spec.md, "Losses". Sources of the conversions:
Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy" (2020), Proposition 12; Bun, Steinke,
"Concentrated differential privacy" (2016), Proposition 1.3.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import (
    MechanismError,
    require_at_least,
    require_fraction,
    require_open_unit,
    require_positive,
)
from fleetcount_mechanisms.randomness import WIDE, near_decimal, near_exp, near_log, near_sqrt

# From Renyi losses to (epsilon, delta) and back: one order, the best order of zCDP, and the simple form of it.

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
    """Return the epsilon at delta of a Renyi loss at one order (F5); a result below 0 stands for 0.

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
    # An upper bound: e**-100,000 is far below every printed delta, and a smaller exponent would only take longer.
    return near_exp(max(exponent, Fraction(-100_000)))


LARGEST_ORDER: Final = 4096


def best_order(loss: Callable[[int], Fraction], delta: Fraction) -> tuple[int, Fraction]:
    """Return the integer order of 2..4096 whose epsilon at delta is least, and that epsilon, for a Renyi loss by order.

    Each order's epsilon holds, and (a-1) times it is convex in a: what the search misses costs and is never unsound.

    Raises:
        MechanismError: delta not in (0, 1).
    """
    known: dict[int, Fraction] = {}

    def at(order: int) -> Fraction:
        if order not in known:
            known[order] = order_epsilon(loss(order), order, delta)
        return known[order]

    reach = 2
    while reach < LARGEST_ORDER and at(2 * reach) < at(reach):
        reach *= 2
    low, high = max(2, reach // 2), min(2 * reach, LARGEST_ORDER)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) <= at(middle + 1) else (middle + 1, high)
    at(low)
    best = min(known, key=lambda order: (known[order], order))
    return best, known[best]


def zcdp_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    """Return the epsilon at delta of rho-zCDP: the least over real orders a of a rho + c_a(delta); never too small.

    The bound holds at every order, so floats are enough to find the best one: rho (a-1)**2 + ln a = ln 1/delta. A
    result below 0 stands for 0.

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


_ONE: Final = Decimal(1)
_MOST_WINDOWS: Final = 100_000


def pure_rho(epsilon: Fraction) -> Fraction:
    """Return eps tanh(eps/2), the zCDP of a pure eps-DP step (F3); it is tight and below the usual eps**2/2.

    Raises:
        MechanismError: epsilon not above 0.
    """
    power = WIDE.exp(near_decimal(require_positive("epsilon", epsilon)))
    return epsilon * Fraction(WIDE.divide(WIDE.subtract(power, _ONE), WIDE.add(power, _ONE)))


def pure_divergence(epsilon: Fraction, order: Fraction | int) -> Fraction:
    """Return the largest divergence of a pure eps-DP step, that of randomized response RR(eps) (F3).

    It is also that of one cell of geometric noise with e1 = eps moved by one, which is RR(e1) (F1).

    Raises:
        MechanismError: epsilon below 0, or an order not above 1.
    """
    return bounded_divergence(epsilon, epsilon, order)


def bounded_divergence(up: Fraction, down: Fraction | None, order: Fraction | int) -> Fraction:
    """Return the largest D_a(P||Q) with P <= e**up Q and Q <= e**down P; with `down` None only the first bound holds.

    The a-th power is convex, so the worst ratio takes its two ends only, with the weights that make its mean 1. With
    both ends equal the result is F3; with one bound it is `up`: one-sided losses have no square-root gain.

    Raises:
        MechanismError: a bound below 0, or an order not above 1.
    """
    exact = checked_order(order)
    if min(require_fraction("epsilon", up), up if down is None else require_fraction("epsilon", down)) < 0:
        raise MechanismError(f"epsilon is {min(up, down or up)}, allowed: epsilon >= 0")
    if down is None or up == 0 or down == 0:
        return up if down is None else Fraction(0)
    high, low = WIDE.exp(near_decimal(up)), WIDE.exp(near_decimal(-down))
    rare = WIDE.multiply(WIDE.subtract(_ONE, low), WIDE.exp(near_decimal(exact * up)))
    often = WIDE.multiply(WIDE.subtract(high, _ONE), WIDE.exp(near_decimal(-exact * down)))
    moment = WIDE.divide(WIDE.add(rare, often), WIDE.subtract(high, low))
    return Fraction(WIDE.ln(moment)) / (exact - 1)


def gaussian_rho(cells: int, windows: int, variance: Fraction) -> Fraction:
    """Return cells windows/(2s), the zCDP of counts under N_Z(0, s) if in each window `cells` counts move by 1 (F4).

    Raises:
        MechanismError: cells or windows below 1, or a variance not above 0.
    """
    moved = require_at_least("cells", cells, 1) * require_at_least("windows", windows, 1)
    return moved / (2 * require_positive("variance", variance))


def gaussian_divergence(cells: int, windows: int, variance: Fraction, order: Fraction | int) -> Fraction:
    """Return a cells windows/(2s) (F4), exact at integer orders.

    Raises:
        MechanismError: an order not above 1, cells or windows below 1, or a variance not above 0.
    """
    return checked_order(order) * gaussian_rho(cells, windows, variance)


def checked_rate(rate: Fraction) -> Fraction:
    """Return a sampling rate.

    Raises:
        MechanismError: not exact, or not in (0, 1].
    """
    exact = require_fraction("sampling rate", rate)
    if not 0 < exact <= 1:
        raise MechanismError(f"sampling rate is {rate}, allowed: 0 < sampling rate <= 1")
    return exact


def checked_unit(rate: Fraction, windows: int) -> Fraction:
    """Return the sampling rate of a unit of windows that share one toss.

    Raises:
        MechanismError: as `checked_rate`, or not 1 to 100,000 windows.
    """
    exact = checked_rate(rate)
    if require_at_least("windows", windows, 1) > _MOST_WINDOWS:
        raise MechanismError(f"windows is {windows}, allowed: 1..{_MOST_WINDOWS} in one unit")
    return exact


def panel_geometric_divergence(
    rate: Fraction, windows: int, noise: Fraction, order: Fraction | int, *, cells: int = 2
) -> Fraction:
    """Return the divergence of one unit under geometric noise e1, for any change of its answers (Theorem 3).

    [ln E x**a + ln E x**(1-a)]/(a-1), x = 1-p+p e**(j e1), j = 2B - m, B binomial(m, 1/(1+e**e1)); of a unit of one
    window of one cell the larger part alone, as in `panel_gaussian_divergence`.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, e1 not above 0, an order not above 1, or cells not 1, 2.
    """
    exact, power = checked_order(order), near_decimal(checked_order(order))
    alone = added_or_removed(cells, windows)
    inverse = WIDE.subtract(_ONE, power)
    added = removed = Decimal(0)
    for weight, ratio in unit_law(rate, windows, noise):
        added = WIDE.add(added, WIDE.multiply(weight, WIDE.power(ratio, power)))
        removed = WIDE.add(removed, WIDE.multiply(weight, WIDE.power(ratio, inverse)))
    parts = Fraction(WIDE.ln(added)), Fraction(WIDE.ln(removed))
    return (max(parts) if alone else sum(parts, Fraction(0))) / (exact - 1)


def added_or_removed(cells: int, windows: int) -> bool:
    """Return whether a change adds a unit's answers or removes them, never both: one window of one cell.

    Raises:
        MechanismError: cells not 1, 2.
    """
    if cells not in (1, 2):
        raise MechanismError(f"cells is {cells}, allowed: 1, 2")
    return cells == 1 and windows == 1


def unit_law(rate: Fraction, windows: int, noise: Fraction) -> list[tuple[Decimal, Decimal]]:
    """Return (chance without the device, likelihood ratio with it) of a unit's outputs in the cells of its answers.

    Largest ratio last; geometric noise makes each window's factor e**e1 with chance 1/(1+e**e1), else e**-e1 (F1).

    Raises:
        MechanismError: as `panel_geometric_divergence`.
    """
    p = near_decimal(checked_unit(rate, windows))
    power = WIDE.exp(near_decimal(require_positive("noise epsilon", noise)))
    squared, rest = WIDE.multiply(power, power), WIDE.subtract(_ONE, p)
    weight = WIDE.power(WIDE.divide(power, WIDE.add(_ONE, power)), windows)
    factor, law = WIDE.power(power, -windows), list[tuple[Decimal, Decimal]]()
    for up in range(windows + 1):
        law.append((weight, WIDE.add(rest, WIDE.multiply(p, factor))))
        more = WIDE.divide(Decimal(windows - up), WIDE.multiply(Decimal(up + 1), power))
        weight, factor = WIDE.multiply(weight, more), WIDE.multiply(factor, squared)
    return law


def amplified(rate: Fraction, loss: Fraction) -> Fraction:
    """Return ln(1 + p (e**loss - 1)), the epsilon at delta of a step that happens with probability p only.

    `loss` is the epsilon of the step itself at delta/p. Source: Balle, Barthe, Gaboardi, "Privacy amplification by
    subsampling" (2018), Theorem 2.

    Raises:
        MechanismError: p not in (0, 1].
    """
    return Fraction(WIDE.ln(_mixed(checked_rate(rate), loss)))


def panel_linear_divergence(rate: Fraction, direct: Fraction, order: Fraction | int) -> Fraction:
    """Return ln(1 - p + p e**((a-1) D))/(a-1), where D is the divergence of order a without a coin (joint convexity).

    Sound for any change of any number of the unit's answers.

    Raises:
        MechanismError: p not in (0, 1], or an order not above 1.
    """
    exact, share = checked_order(order), checked_unit(rate, 1)
    return amplified(share, (exact - 1) * direct) / (exact - 1)


def panel_pure_epsilon(rate: Fraction, windows: int, changed: int, noise: Fraction, cells: int) -> Fraction:
    """Return the pure epsilon of a unit of which `changed` answers change, under geometric noise e1 (Theorem 2).

    ln[(1-p+p e**(m e1))/(1-p+p e**(low e1))], low = m - 2d where an answer that changes moves two cells, m - d where
    it moves one. For few changes it is near the loss without a coin: the unit's other answers reveal the coin.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, changed not in 1..windows, e1 not above 0, or cells not 1, 2.
    """
    exact, epsilon = checked_unit(rate, windows), require_positive("noise epsilon", noise)
    if not 1 <= changed <= windows:
        raise MechanismError(f"changed windows is {changed}, allowed: 1..{windows}, those of the unit")
    if cells not in (1, 2):
        raise MechanismError(f"cells is {cells}, allowed: 1, 2")
    exponents = windows * epsilon, (windows - cells * changed) * epsilon
    high, low = (_mixed(exact, exponent) for exponent in exponents)
    return Fraction(WIDE.ln(WIDE.divide(high, low)))


def _mixed(rate: Fraction, exponent: Fraction) -> Decimal:
    """Return 1 - p + p e**exponent."""
    grown = WIDE.exp(near_decimal(exponent))
    return WIDE.add(near_decimal(1 - rate), WIDE.multiply(near_decimal(rate), grown))
