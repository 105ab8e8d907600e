"""The loss of ONE release with discrete Gaussian noise: epsilon at a fixed delta, from Renyi losses; callers round up.

It must not add up releases (`accounting` does), state a loss smaller than the truth or repeat a formula of `renyi`.
There is no pure epsilon.
"""

from collections.abc import Callable
from fractions import Fraction
from math import exp, lgamma, log, log1p
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerForm, Relation
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.moves import moves_rho
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_mechanisms.renyi import amplified, order_epsilon, zcdp_epsilon
from fleetcount_mechanisms.responses import RandomizedResponse
from fleetcount_mechanisms.sampled_gaussian import panel_gaussian_divergence, total_divergences

STATED_DELTA: Final = Fraction(1, 10**9)
"""The delta at which a single release's epsilon is stated."""
_LARGEST_ORDER: Final = 512
"""The sum of an order has as many terms as the order; above this one the amplified loss is the smaller bound."""
_TURNS: Final = 24


def gaussian_loss(design: Design, relation: Relation) -> tuple[Fraction, Fraction]:
    """Return (eps, delta) of the opened counts with one honest aggregator's noise, eps to an error below 1e-60.

    delta is `STATED_DELTA`, or 0 where the devices' own randomness alone promises as much. An answer is the truth with
    weight w and otherwise a draw that ignores it, so a loss of (eps, delta/w) of the truth's counts is one of
    (ln(1 + w(e**eps - 1)), delta) (`amplified`). Values that are sampled have the divergence of a unit as well.
    `relation` is ANY_BIT for one place of a vector, else ANY_VALUE.

    Raises:
        MechanismError: noise that is not Gaussian.
    """
    weight, moves = design.exposure, design.moves
    if design.form is AnswerForm.BITS:
        if relation is Relation.ANY_BIT:
            moves = (((design.noise, 1),),)
        elif design.moved_in_level > 1:
            weight = 1 - (1 - weight) ** 2
    losses = [(_amplified(moves_rho(moves), weight), STATED_DELTA)]
    if design.form is AnswerForm.TWO_ROUNDS:
        losses.append((_sampled_epsilon(design), STATED_DELTA))
    if design.device_randomizes and design.kind.relation is Relation.ANY_VALUE:
        losses.append((Fraction(cast("RandomizedResponse", design.answer).epsilon), Fraction(0)))
    return min(losses)


def _amplified(rho: Fraction, weight: Fraction) -> Fraction:
    if weight <= STATED_DELTA:
        return Fraction(0)
    loss = max(Fraction(0), zcdp_epsilon(rho, STATED_DELTA / weight))
    return loss if weight == 1 else amplified(weight, loss)


def sampled_divergence(design: Design, windows: int, order: int) -> Fraction:
    """Return the Renyi divergence of one unit of sampled answers under Gaussian noise, for any change (Theorem 3).

    Levels of one noise count as windows of one toss. With a total beside the cells it is the largest of the three
    pairs of answers, none of which is the worst at every order, and known for a coin a window.

    Raises:
        MechanismError: noise that is not Gaussian, or a total under a coin that holds for several windows.
    """
    variance = cast("GaussianNoise", design.noise).variance
    if (ratio := design.total_ratio) is None:
        numbers, cells = windows * design.levels.count, design.moved_in_level
        return panel_gaussian_divergence(design.exposure, numbers, variance, order, cells=cells)
    if windows > 1:
        raise MechanismError(f"a total is asked under a coin of {windows} windows, allowed: a coin a window")
    return max(total_divergences(design.exposure, variance, int(ratio), order))


def _inverse_variance(design: Design) -> Fraction:
    return sum((1 / cast("GaussianNoise", law).variance for law in design.laws), Fraction(0))


def _sampled_epsilon(design: Design) -> Fraction:
    """Return the least eps of one sampled answer at `STATED_DELTA`, at the order that floats find."""
    cells = design.moved_in_level
    log_delta, half = log(STATED_DELTA), float(_inverse_variance(design)) / 2
    drawn, left = log(design.exposure), log1p(-design.exposure)

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
    return max(Fraction(0), order_epsilon(sampled_divergence(design, 1, order), order, STATED_DELTA))


def _lowest(loss: Callable[[float], float], low: float, high: float) -> float:
    """Return about where a function that falls and then grows is lowest, by thirds.

    The bound holds at every order, so an inexact place makes it less tight and never wrong.
    """
    for _ in range(_TURNS):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) <= loss(high - third) else (low + third, high)
    return (low + high) / 2
