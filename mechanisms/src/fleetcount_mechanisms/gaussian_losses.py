"""The loss of ONE release with discrete Gaussian noise: epsilon at a fixed delta, from Renyi losses, rounded by others.

It must not add up releases (`accounting` does) and must not state one smaller than the truth. There is no pure epsilon.
s is the noise's `variance`, cells the number of opened numbers that a change moves by 1 each, so a change costs
a cells/(2s) at Renyi order a (Canonne, Kamath, Steinke 2020, Theorem 4: CKS below).
"""

from collections.abc import Callable
from fractions import Fraction
from math import comb, exp, lgamma, log, log1p
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Relation, channel_of, kind_of
from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_open_unit, require_positive
from fleetcount_mechanisms.exponential import near_exp, near_log
from fleetcount_mechanisms.gaussian import require_variance
from fleetcount_mechanisms.responses import RandomizedResponse

__all__ = [
    "STATED_DELTA",
    "gaussian_loss",
    "gaussian_rho",
    "order_epsilon",
    "sampled_renyi",
    "zcdp_epsilon",
]

STATED_DELTA: Final = Fraction(1, 10**9)
"""The delta at which a single release's epsilon is stated."""
_LARGEST_ORDER: Final = 512
"""A sum has as many terms; above this order the amplified loss is the smaller one."""
_ORDER_GRID: Final = 10**6
_TURNS: Final = 90


def gaussian_rho(cells: int, variance: Fraction) -> Fraction:
    """Return rho = cells/(2s): the loss at order a is at most a rho, with equality at whole a.

    Raises:
        MechanismError: fewer than 1 cell, or a variance outside its range.
    """
    return Fraction(require_at_least("cells", cells, 1)) / (2 * require_variance(variance))


def order_epsilon(renyi: Fraction, order: Fraction, delta: Fraction) -> Fraction:
    """Return eps = R + ln(1 - 1/a) - (ln delta + ln a)/(a - 1), to an error below 1e-60; never below 0.

    A loss of R at Renyi order a is one of (eps, delta) (CKS Proposition 12; Asoodeh et al. 2020, Lemma 1).

    Raises:
        MechanismError: a negative R, an order not above 1, or delta not in (0, 1).
    """
    delta = require_open_unit("delta", delta)
    if order <= 1 or renyi < 0:
        raise MechanismError(f"order is {order} with a loss of {renyi}, allowed: order > 1 and loss >= 0")
    found = renyi + near_log(1 - 1 / Fraction(order)) - near_log(delta * order) / (order - 1)
    return max(found, Fraction(0))


def zcdp_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    """Return the least (eps, delta) that a loss of a rho at every order a proves, exact at the order that is chosen.

    The order is found with floats; any order gives a true bound (`order_epsilon`).

    Raises:
        MechanismError: rho not above 0, or delta not in (0, 1).
    """
    rate, log_delta = float(require_positive("rho", rho)), log(require_open_unit("delta", delta))

    def loss(log_above: float) -> float:
        above = exp(log_above)
        return (1 + above) * rate - log1p(1 / above) - (log_delta + log1p(above)) / above

    above = Fraction(max(1, round(exp(_lowest(loss, -12.0, 30.0)) * _ORDER_GRID)), _ORDER_GRID)
    return order_epsilon((1 + above) * rho, 1 + above, delta)


def sampled_renyi(order: int, sampling_rate: Fraction, variance: Fraction) -> Fraction:
    """Return 2/(a-1) ln sum over i of C(a,i) (1-p)**(a-i) p**i e**(i(i-1)/(2s)), to an error below 1e-60.

    The loss at order a when a sampled value is replaced by another: adding one and removing one, each no more than
    half of it. Proof: docs/privacy.md; the continuous case is Mironov, Talwar, Zhang 2019, section 3.3.

    Raises:
        MechanismError: an order below 2, p not in (0, 1), or a variance outside its range.
    """
    require_at_least("order", order, 2)
    rate, half = require_open_unit("sampling rate", sampling_rate), 1 / (2 * require_variance(variance))
    # Powers by logarithms: those of a fraction with long terms would have terms a thousand times as long.
    drawn, left = near_log(rate), near_log(1 - rate)
    total = sum(
        (comb(order, i) * near_exp(i * drawn + (order - i) * left + i * (i - 1) * half) for i in range(order + 1)),
        Fraction(0),
    )
    return 2 * near_log(total) / (order - 1)


def gaussian_loss(answer: AnswerLaw, variance: Fraction, relation: Relation) -> tuple[Fraction, Fraction]:
    """Return (eps, delta) of the opened counts with one honest aggregator's noise, eps to an error below 1e-60.

    delta is `STATED_DELTA`, or 0 where the devices' own randomness alone promises as much. An answer is the truth with
    weight w and otherwise a draw that ignores it, so a loss of (eps, delta/w) of the truth's counts is one of
    (ln(1 + w(e**eps - 1)), delta) (Balle, Barthe, Gaboardi 2018, Theorem 2). Two values that are sampled have
    `sampled_renyi` as well. `relation` is ANY_BIT for one place of a vector, else ANY_VALUE.

    Raises:
        MechanismError: a variance outside its range.
    """
    kind, (hit, miss) = kind_of(answer), channel_of(answer)
    weight, one_cell = hit - miss, answer.values == 1
    if kind.form is AnswerForm.BITS:
        one_cell = one_cell or relation is Relation.ANY_BIT
        weight = weight if one_cell else 1 - (1 - weight) ** 2
    elif kind.form is AnswerForm.POSITION:
        one_cell = False
    losses = [(_amplified(gaussian_rho(1 if one_cell else 2, variance), weight), STATED_DELTA)]
    if kind.form is AnswerForm.TWO_ROUNDS and not one_cell:
        losses.append((_sampled_epsilon(weight, variance), STATED_DELTA))
    if kind.form in (AnswerForm.POSITION, AnswerForm.BITS) and kind.relation is Relation.ANY_VALUE:
        losses.append((Fraction(cast("RandomizedResponse", answer).epsilon), Fraction(0)))
    return min(losses)


def _amplified(rho: Fraction, weight: Fraction) -> Fraction:
    if weight <= STATED_DELTA:
        return Fraction(0)
    loss = zcdp_epsilon(rho, STATED_DELTA / weight)
    return loss if weight == 1 else near_log(1 + weight * (near_exp(loss) - 1))


def _sampled_epsilon(rate: Fraction, variance: Fraction) -> Fraction:
    """Return the least eps of `sampled_renyi` at `STATED_DELTA`, at the order that floats find."""
    log_delta, half = log(STATED_DELTA), float(1 / (2 * variance))
    drawn, left = log(rate), log1p(-rate)

    def loss(real_order: float) -> float:
        order = round(real_order)
        top = lgamma(order + 1)
        logs = [
            top - lgamma(i + 1) - lgamma(order - i + 1) + i * drawn + (order - i) * left + i * (i - 1) * half
            for i in range(order + 1)
        ]
        largest = max(logs)
        renyi = 2 * (largest + log(sum(exp(one - largest) for one in logs))) / (order - 1)
        return renyi + log1p(-1 / order) - (log_delta + log(order)) / (order - 1)

    order = round(_lowest(loss, 2.0, float(_LARGEST_ORDER), turns=24))
    return order_epsilon(sampled_renyi(order, rate, variance), Fraction(order), STATED_DELTA)


def _lowest(loss: Callable[[float], float], low: float, high: float, turns: int = _TURNS) -> float:
    """Return where a function that falls and then grows is lowest, by thirds; a wrong place costs tightness alone."""
    for _ in range(turns):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) <= loss(high - third) else (low + third, high)
    return (low + high) / 2
