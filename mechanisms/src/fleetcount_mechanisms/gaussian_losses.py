"""The loss of ONE release with discrete Gaussian noise: epsilon at a fixed delta, from Renyi losses; callers round up.

It must not add up releases (`accounting` does), state a loss smaller than the truth or repeat a formula of `renyi`.
There is no pure epsilon; the cells of `gaussian_rho` are the opened numbers that a change moves by 1.
"""

from collections.abc import Callable
from fractions import Fraction
from math import exp, lgamma, log, log1p
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Relation, channel_of, kind_of, require_zooms
from fleetcount_mechanisms.gaussian import require_variance
from fleetcount_mechanisms.renyi import amplified, gaussian_rho, order_epsilon, panel_gaussian_divergence, zcdp_epsilon
from fleetcount_mechanisms.responses import RandomizedResponse

STATED_DELTA: Final = Fraction(1, 10**9)
"""The delta at which a single release's epsilon is stated."""
_LARGEST_ORDER: Final = 512
"""The sum of an order has as many terms as the order; above this one the amplified loss is the smaller bound."""
_TURNS: Final = 24


def gaussian_loss(
    answer: AnswerLaw, variance: Fraction, relation: Relation, zooms: int = 1
) -> tuple[Fraction, Fraction]:
    """Return (eps, delta) of the opened counts with one honest aggregator's noise, eps to an error below 1e-60.

    delta is `STATED_DELTA`, or 0 where the devices' own randomness alone promises as much. An answer is the truth with
    weight w and otherwise a draw that ignores it, so a loss of (eps, delta/w) of the truth's counts is one of
    (ln(1 + w(e**eps - 1)), delta) (`amplified`). Values that are sampled have `panel_gaussian_divergence` as well.
    `relation` is ANY_BIT for one place of a vector, else ANY_VALUE. Each of `zooms` counts as a release of its own.

    Raises:
        MechanismError: a variance outside its range, or more than one zoom of answers that devices randomize.
    """
    kind, (hit, miss) = kind_of(answer), channel_of(answer)
    weight, one_cell = hit - miss, answer.values == 1
    if kind.form is AnswerForm.BITS:
        one_cell = one_cell or relation is Relation.ANY_BIT
        weight = weight if one_cell else 1 - (1 - weight) ** 2
    elif kind.form is AnswerForm.POSITION:
        one_cell = False
    rho = gaussian_rho(1 if one_cell else 2, require_zooms(answer, zooms), require_variance(variance))
    losses = [(_amplified(rho, weight), STATED_DELTA)]
    if kind.form is AnswerForm.TWO_ROUNDS:
        losses.append((_sampled_epsilon(weight, variance, zooms, 1 if one_cell else 2), STATED_DELTA))
    if kind.form in (AnswerForm.POSITION, AnswerForm.BITS) and kind.relation is Relation.ANY_VALUE:
        losses.append((Fraction(cast("RandomizedResponse", answer).epsilon), Fraction(0)))
    return min(losses)


def _amplified(rho: Fraction, weight: Fraction) -> Fraction:
    if weight <= STATED_DELTA:
        return Fraction(0)
    loss = max(Fraction(0), zcdp_epsilon(rho, STATED_DELTA / weight))
    return loss if weight == 1 else amplified(weight, loss)


def _sampled_epsilon(rate: Fraction, variance: Fraction, zooms: int, cells: int) -> Fraction:
    """Return the least eps of one sampled answer at `STATED_DELTA`, at the order that floats find."""
    log_delta, half = log(STATED_DELTA), float(zooms / (2 * variance))
    drawn, left = log(rate), log1p(-rate)

    def loss(real_order: float) -> float:
        order = round(real_order)
        top = lgamma(order + 1)
        logs = [
            top - lgamma(i + 1) - lgamma(order - i + 1) + i * drawn + (order - i) * left + i * (i - 1) * half
            for i in range(order + 1)
        ]
        largest = max(logs)
        added = (largest + log(sum(exp(one - largest) for one in logs))) / (order - 1)
        renyi = added + min(added, -left) * (cells - 1)
        return renyi + log1p(-1 / order) - (log_delta + log(order)) / (order - 1)

    order = round(_lowest(loss, 2.0, float(_LARGEST_ORDER)))
    renyi = panel_gaussian_divergence(rate, zooms, variance, order, cells=cells)
    return max(Fraction(0), order_epsilon(renyi, order, STATED_DELTA))


def _lowest(loss: Callable[[float], float], low: float, high: float) -> float:
    """Return about where a function that falls and then grows is lowest, by thirds.

    The bound holds at every order, so an inexact place makes it less tight and never wrong.
    """
    for _ in range(_TURNS):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) <= loss(high - third) else (low + third, high)
    return (low + high) / 2
