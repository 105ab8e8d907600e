"""Renyi divergences of one unit of sampled answers under Gaussian noise: alone, and beside a total of all cells.

A unit's windows share one toss of the sampling coin: with probability p all its answers are in the sample, else none.
Every result is a fraction with an error below 1e-60; code that adds or prints it rounds up. It must not know a design.
"Theorem 3" is that of docs/spec.md, "Losses".
"""

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, repeat
from operator import mul
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_open_unit, require_positive
from fleetcount_mechanisms.randomness import WIDE, near_decimal, near_log, near_sqrt
from fleetcount_mechanisms.renyi import (
    LARGEST_ORDER,
    added_or_removed,
    checked_rate,
    checked_unit,
    gaussian_divergence,
)

_ONE: Final = Decimal(1)
_CERTAIN: Final = 140
"""e**-140 is below 1e-60: what a sum leaves out is bounded by so much, and added."""
_LARGEST_REMOVED: Final = 64


def panel_gaussian_divergence(
    rate: Fraction, windows: int, variance: Fraction, order: int, *, cells: int = 2
) -> Fraction:
    """Return the divergence of one unit under N_Z(0, s), for any change of its answers (Theorem 3).

    With two cells an answer is added in half of them and removed in the other half: the sum of both parts, of which the
    second is the least of `panel_removed`, the first part and -ln(1-p), since M_0 <= P/(1-p) everywhere. A unit of one
    window of one cell is added or removed, never both: the first part, which is the larger one. So are several windows
    of one cell if no question and no truth depends on an output within the unit, which nobody can promise: they are
    charged as two cells.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, a variance not above 0, an order that is not an integer in
            2..4096, or cells not 1, 2.
    """
    added = panel_added(rate, windows, variance, order)
    if added_or_removed(cells, windows):
        return added
    if rate == 1:
        return 2 * added
    # Its sum grows with the order, and at large ones the other two bounds are as good.
    removed = panel_removed(rate, windows, variance, order) if order <= _LARGEST_REMOVED else None
    return added + min(added, -near_log(1 - rate), *(() if removed is None else (removed,)))


@lru_cache(maxsize=256)
def panel_added(rate: Fraction, windows: int, variance: Fraction, order: int) -> Fraction:
    """Return D_a(P||M_0) of a unit under N_Z(0, s): 1/(a-1) ln sum of C(a,i) (1-p)**(a-i) p**i e**(i(i-1)m/(2s)).

    P is the law of the noised numbers with the device's m answers in one cell each, M_0 without the device. Exact.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, a variance not above 0, or an order that is not an integer in
            2..4096.
    """
    exact = checked_unit(rate, windows)
    if require_at_least("order", order, 2) > LARGEST_ORDER:
        raise MechanismError(f"order is {order}, allowed: 2..{LARGEST_ORDER}")
    p = near_decimal(exact)
    step = WIDE.exp(near_decimal(windows / require_positive("variance", variance)))
    # The term of i + 1 is that of i times (a-i)/(i+1) p/(1-p) step**i; with p = 1 the last is the only one.
    if exact == 1:
        return gaussian_divergence(1, windows, variance, order)
    odds, growth = near_decimal(exact / (1 - exact)), _ONE
    term = total = WIDE.power(WIDE.subtract(_ONE, p), order)
    for i in range(order):
        factor = WIDE.multiply(WIDE.divide(Decimal(order - i), Decimal(i + 1)), odds)
        term = WIDE.multiply(term, WIDE.multiply(factor, growth))
        growth = WIDE.multiply(growth, step)
        total = WIDE.add(total, term)
    return Fraction(WIDE.ln(total)) / (order - 1)


@lru_cache(maxsize=256)
def panel_removed(rate: Fraction, windows: int, variance: Fraction, order: int) -> Fraction | None:
    """Return D_a(M_0||P) of a unit under N_Z(0, s): 1/(a-1) ln E (1-p+p e**((2S-m)/(2s)))**(1-a), never too small.

    S is the sum of m draws: N_Z(0, m s) but for a factor that `sum_law_factor` bounds; None where it has no bound
    (many windows with noise below 1). The lattice is summed in steps of g: for h analytic in a strip of half width b
    the sums over gZ and over Z differ from the integral by 2M/(e**(2 pi b/g) - 1) at most, M the largest integral of
    |h| along the strip's edges (Trefethen, Weideman, "The exponentially convergent trapezoidal rule", 2014, Theorem
    5.1). Within b = pi s/2 the base is never smaller than 1-p. Truncation and both differences are added.

    Raises:
        MechanismError: p not in (0, 1), windows below 1, a variance not above 0, or an order that is not an integer in
            2..4096.
    """
    exact = require_open_unit("sampling rate", checked_unit(rate, windows))
    if require_at_least("order", order, 2) > LARGEST_ORDER:
        raise MechanismError(f"order is {order}, allowed: 2..{LARGEST_ORDER}")
    factor = sum_law_factor(windows, require_positive("variance", variance))
    if factor is None:
        return None
    moment = _inverse_moment(exact, windows, variance, order)
    return max(Fraction(0), Fraction(WIDE.ln(WIDE.multiply(moment, factor)))) / (order - 1)


def _inverse_moment(rate: Fraction, windows: int, variance: Fraction, order: int) -> Decimal:
    """Return E (1-p+p e**((2S-m)/(2s)))**(1-a) for S of N_Z(0, m s), never too small."""
    wide = windows * variance
    # What is left out may be worth (1-p)**(1-a) times its weight.
    largest = WIDE.power(near_decimal(1 - rate), 1 - order)
    digits = _digits(rate, order)
    spread, strip = math.sqrt(wide), _strip(windows, variance)
    step = _step(rate, windows, variance, order)
    reach = (int(spread * math.sqrt(2 * digits)) // step + 1) * step
    total, mass = _lattice_sums(rate, windows, variance, order, step, reach)
    gauss = WIDE.multiply(near_decimal(near_sqrt(wide)), _ROOT_TWO_PI)
    tail = WIDE.multiply(gauss, WIDE.multiply(largest, _exp(-Fraction(reach**2) / (2 * wide))))
    if step == 1:
        return WIDE.divide(WIDE.add(total, tail), mass)
    edge = WIDE.multiply(gauss, WIDE.multiply(largest, _exp(Fraction(strip) ** 2 / (2 * wide))))
    rest = WIDE.subtract(_exp(2 * _BELOW_PI * Fraction(strip) / step), _ONE)
    differ = WIDE.divide(WIDE.multiply(edge, Decimal(4)), rest)
    return WIDE.divide(WIDE.add(WIDE.add(WIDE.multiply(total, Decimal(step)), tail), differ), gauss)


def _digits(rate: Fraction, order: int) -> float:
    return _CERTAIN + (order - 1) * -math.log1p(-float(rate))


def _strip(windows: int, variance: Fraction) -> float:
    """Return the half width of the strip in which the base is at least 1-p: below pi s/2."""
    return min(1.5 * float(variance), math.sqrt(windows * variance))


def _step(rate: Fraction, windows: int, variance: Fraction, order: int) -> int:
    """Return the step of the lattice with which nothing is left out that counts."""
    return max(1, int(2 * 3.1 * _strip(windows, variance) / _digits(rate, order)))


_BELOW_PI: Final = Fraction(3141592653, 10**9)
_ROOT_TWO_PI: Final = Decimal("2.50662827463100050241576528481104525300698674060993831662992357634229365460784198")


def _exp(exponent: Fraction) -> Decimal:
    # Below e**-100,000 it is the bound that is returned: it is far below everything it is added to.
    return WIDE.exp(near_decimal(max(exponent, Fraction(-100_000))))


def sum_law_factor(windows: int, variance: Fraction) -> Decimal | None:
    """Return a bound on P[S = x]/N_Z(0, m s)[x] over all x for the sum S of m draws, None if there is none.

    The sums over the cosets of A_(m-1) are (1 +- eta) times their mean, eta = sum over the nonzero points y of the dual
    lattice of e**(-2 pi**2 s |y|**2) (Poisson summation). Such a point comes from a z in Z^m with |sum z| <= m/2, so
    that |y|**2 = |z|**2 - (sum z)**2/m >= sum of (z_i**2 - |z_i|/2), and eta <= (1 + 2 q/(1 - q))**m - 1 with q =
    e**(-pi**2 s).
    """
    if windows == 1:
        return _ONE
    q = _exp(-(_BELOW_PI**2) * variance)
    ratio = WIDE.divide(WIDE.multiply(q, Decimal(2)), WIDE.subtract(_ONE, q))
    eta = WIDE.subtract(WIDE.power(WIDE.add(_ONE, ratio), windows), _ONE)
    return WIDE.divide(WIDE.add(_ONE, eta), WIDE.subtract(_ONE, eta)) if eta < _ONE else None


def _lattice_sums(
    rate: Fraction, windows: int, variance: Fraction, order: int, step: int, reach: int
) -> tuple[Decimal, Decimal]:
    """Return the sums of e**(-S**2/(2ms)) h(S) and of e**(-S**2/(2ms)) over the multiples S of step up to reach."""
    p, rest = near_decimal(rate), near_decimal(1 - rate)
    grow, middle = _exp(Fraction(step) / variance), _exp(-Fraction(windows) / (2 * variance))
    fall = _exp(-Fraction(step**2) / (windows * variance))

    with localcontext(WIDE):  # Operators in place of the context's methods take a third of the time.
        mass, total = _ONE, (rest + p * middle) ** (1 - order)
        up = down = middle
        # The weight of S + step is that of S times e**(-(2 S step + step**2)/(2ms)).
        weight, factor = _ONE, _exp(-Fraction(step**2) / (2 * windows * variance))
        for _ in range(reach // step):
            weight *= factor
            factor *= fall
            up *= grow
            down /= grow
            total += weight * ((rest + p * up) ** (1 - order) + (rest + p * down) ** (1 - order))
            mass += weight + weight
    return total, mass


# A total beside the cells, noised anew with N_Z(0, c s): under a coin no pair of answers is the worst at every order.


@lru_cache(maxsize=256)
def total_divergences(
    rate: Fraction, variance: Fraction, ratio: int, order: int
) -> tuple[Fraction, Fraction, Fraction]:
    """Return D_a of one window of V >= 2 cells under N_Z(0, s) and their total under N_Z(0, c s), for its three pairs.

    (P_a||P_b), (P_a||M_0), (M_0||P_a): a value replaced by another, by none, and none by it. The log-ratio is ln r =
    (z - 1/2)/s + (t - 1/2)/(c s), with variance v = 1/s + 1/(c s); tilting by r**i moves the lattice, so that the first
    is 1/(a-1) ln sum of C(a,i) (1-p)**(a-i) p**i e**(i(i-1)v/2) E (1-p+p r e**(i/(c s)))**(1-a), the second the sum
    without E, the third E at i = 0. W = c z + t is N_Z(0, c(c+1)s) times a factor that repeats every c + 1. Never too
    small; exact but where the lattice is summed in steps, to a factor of 1 + 4 e**(-2 pi**2 s/(c+1)). Above order 64
    the first is the second and -ln(1-p), which bounds what removing loses at every order.

    Raises:
        MechanismError: p not in (0, 1), a variance not above 0, a ratio below 1, or an order that is not an integer in
            2..4096.
    """
    exact = require_open_unit("sampling rate", checked_rate(rate))
    wide = require_at_least("ratio", ratio, 1) * require_positive("variance", variance)
    windows = ratio + 1
    added = panel_added(exact, windows, wide, order)
    if order > _LARGEST_REMOVED:
        cap = -near_log(1 - exact)
        return added + cap, added, min(added, cap)
    p, growth, ratio_step = near_decimal(exact), _ONE, _exp(Fraction(windows) / wide)
    odds, term = near_decimal(exact / (1 - exact)), WIDE.power(WIDE.subtract(_ONE, p), order)
    terms = [term]
    for i in range(order):
        factor = WIDE.multiply(WIDE.divide(Decimal(order - i), Decimal(i + 1)), odds)
        term = WIDE.multiply(term, WIDE.multiply(factor, growth))
        growth = WIDE.multiply(growth, ratio_step)
        terms.append(term)
    moments = _total_moments(exact, variance, windows, order, terms)
    pair, third = (max(Fraction(0), Fraction(WIDE.ln(one))) / (order - 1) for one in moments)
    return pair, added, third


def _total_moments(
    rate: Fraction, variance: Fraction, windows: int, order: int, terms: list[Decimal]
) -> tuple[Decimal, Decimal]:
    """Return sum of terms[i] E h(W + i), and E h(W), h(y) = (1-p+p e**((2y-m)/(2cs)))**(1-a), never too small.

    h is the same function for every i, so that it is worked out once at each y of a lattice of step g, and the weights
    of W = y - i vary. The bounds are those of `_inverse_moment`, which hold for a lattice moved by any i.
    """
    wide = (windows - 1) * variance
    spread, step = windows * wide, _step(rate, windows, wide, order)
    reach = int(math.sqrt(spread * 2 * _digits(rate, order))) + 1
    last = (reach + order) // step + 1
    powers = _inverse_powers(rate, windows, wide, order, step, last)
    gauss = WIDE.multiply(near_decimal(near_sqrt(spread)), _ROOT_TWO_PI)
    bound = WIDE.multiply(gauss, WIDE.power(near_decimal(1 - rate), 1 - order))
    beyond = WIDE.multiply(bound, _exp(-Fraction(reach**2) / (2 * spread)))
    if step == 1:
        cosets = [_coset_weight(variance, windows, min(place, windows - place)) for place in range(windows)]
        weights = [
            WIDE.multiply(weight, cosets[place % windows])
            for place, weight in enumerate(_gaussian_weights(spread, last + order))
        ]
        both, removed = _at_every_point(powers, terms, weights)
        beyond = WIDE.multiply(beyond, max(cosets))
        mass = WIDE.subtract(WIDE.multiply(_total(weights), Decimal(2)), weights[0])
    else:
        both, removed = _at_few_points(powers, terms, spread, step, last)
        strip = Fraction(_strip(windows, wide))
        rest = WIDE.subtract(_exp(2 * _BELOW_PI * strip / step), _ONE)
        edge = WIDE.multiply(bound, _exp(strip**2 / (2 * spread)))
        beyond = WIDE.add(beyond, WIDE.divide(WIDE.multiply(edge, Decimal(4)), rest))
        # The cosets' weights are (1 +- eta) times their mean, eta <= 2 q/(1 - q), by Poisson summation.
        q = _exp(-2 * _BELOW_PI**2 * variance / windows)
        eta = WIDE.divide(WIDE.multiply(q, Decimal(2)), WIDE.subtract(_ONE, q))
        mass = WIDE.multiply(gauss, WIDE.divide(WIDE.subtract(_ONE, eta), WIDE.add(_ONE, eta)))
    scale = Decimal(step)
    whole = _total(terms)

    def moment(total: Decimal, share: Decimal) -> Decimal:
        return WIDE.divide(WIDE.add(WIDE.multiply(total, scale), WIDE.multiply(beyond, share)), mass)

    return moment(both, whole), moment(removed, _ONE)


def _at_every_point(
    powers: Iterable[tuple[int, Decimal]], terms: list[Decimal], weights: list[Decimal]
) -> tuple[Decimal, Decimal]:
    """Return the sums over y of h(y) sum of terms[i] w(y - i), and of h(y) w(y); `weights` are w(0), w(1), ..."""
    below, around, order = terms[::-1], weights[:0:-1] + weights, len(terms) - 1
    both = removed = Decimal(0)
    with localcontext(WIDE):  # Operators in place of the context's methods take a third of the time.
        for y, value in powers:
            middle = len(weights) - 1 + y
            both += value * sum(map(mul, below, around[middle - order : middle + 1]))
            removed += value * weights[abs(y)]
    return both, removed


def _at_few_points(
    powers: Iterable[tuple[int, Decimal]], terms: list[Decimal], spread: Fraction, step: int, last: int
) -> tuple[Decimal, Decimal]:
    """Return the same for w(x) = e**(-x**2/(2 spread)): w(y - i) is w(y) w(i) e**(i y/spread), so none is between."""
    own = [
        WIDE.multiply(term, weight) for term, weight in zip(terms, _gaussian_weights(spread, len(terms)), strict=False)
    ]
    order, weights = len(terms) - 1, _gaussian_weights(spread / step**2, last)
    grow, ratio = _exp(step / spread), _exp(-last * step / spread)
    both = removed = Decimal(0)
    with localcontext(WIDE):
        for y, value in powers:
            here = value * weights[abs(y) // step]
            both += here * sum(map(mul, own, accumulate(repeat(ratio, order), mul, initial=_ONE)))
            removed += here
            ratio *= grow
    return both, removed


def _total(parts: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for one in parts:
        total = WIDE.add(total, one)
    return total


def _gaussian_weights(spread: Fraction, most: int) -> list[Decimal]:
    """Return e**(-x**2/(2 spread)) of x = 0..most."""
    factor, fall = _exp(-1 / (2 * spread)), _exp(-1 / spread)
    weights = [_ONE]
    for _ in range(most):
        weights.append(WIDE.multiply(weights[-1], factor))
        factor = WIDE.multiply(factor, fall)
    return weights


def _inverse_powers(
    rate: Fraction, windows: int, wide: Fraction, order: int, step: int, last: int
) -> Iterator[tuple[int, Decimal]]:
    """Yield y and (1-p+p e**((2y-m)/(2cs)))**(1-a) of the multiples y of step up to `last` times it."""
    p, rest = near_decimal(rate), near_decimal(1 - rate)
    grow, ratio = _exp(Fraction(step) / wide), _exp(Fraction(-2 * last * step - windows) / (2 * wide))
    for place in range(-last, last + 1):
        base = WIDE.add(rest, WIDE.multiply(p, ratio))
        yield place * step, WIDE.power(WIDE.divide(_ONE, base), order - 1)
        ratio = WIDE.multiply(ratio, grow)


@lru_cache(maxsize=256)
def _coset_weight(variance: Fraction, windows: int, place: int) -> Decimal:
    """Return the sum over z of e**(-(c+1)(z - w/(c+1))**2/(2s)), by which the law of W = w differs from N_Z."""
    reach = int(math.sqrt(2 * _CERTAIN * float(variance) / windows)) + 2
    total = Decimal(0)
    for z in range(-reach, reach + 1):
        apart = z - Fraction(place, windows)
        total = WIDE.add(total, _exp(-windows * apart**2 / (2 * variance)))
    return total
