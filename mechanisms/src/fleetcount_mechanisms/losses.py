"""The exact loss of published counts with noise, for one device, and the weakest noise for a target loss.

It must not state a loss smaller than the truth. Losses are for one device's record being replaced in a fixed public set
of participants; the formulas of Sampling Privacy are those of `loss_formulas`.
"""

from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Final, cast

from fleetcount_mechanisms.answers import (
    AnswerForm,
    AnswerLaw,
    BitVectorResponse,
    Relation,
    channel_of,
    kind_of,
)
from fleetcount_mechanisms.errors import InfeasibleTargetError, MechanismError, require_positive
from fleetcount_mechanisms.exponential import near_exp, near_log, rounded_up
from fleetcount_mechanisms.gaussian import LARGEST_VARIANCE, SMALLEST_VARIANCE
from fleetcount_mechanisms.gaussian_losses import gaussian_loss
from fleetcount_mechanisms.loss_formulas import NOISE_GRID, exact_release_epsilon, neighbours_of, noise_epsilon_for
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import KaryResponse, RandomizedResponse
from fleetcount_mechanisms.zooms import require_zooms

LARGEST_PLANNED_EPSILON: Final = 10
"""The weakest noise that is planned, and that a window takes: for a larger target it stays stronger than it asks
for.
"""
_RESPONSE_GRID: Final = 1000
_VARIANCE_GRID: Final = 100
_PLACES: Final = 5


PlannedNoise = TwoSidedNoise | OneSidedNoise | GaussianNoise


def noise_for(
    answer: AnswerLaw, epsilon: Fraction, law: type[PlannedNoise] = TwoSidedNoise, zooms: int = 1
) -> PlannedNoise:
    """Return the weakest noise with which the published counts of all zooms lose at most epsilon, rounded down.

    One-sided noise is charged as it is, once a zoom. A response is searched on multiples of 1/1000, the others solved
    on 10**-6. Gaussian noise, whose epsilon is at `gaussian_losses.STATED_DELTA`, is searched on variances in 1/100.

    Raises:
        MechanismError: a target not in (0, 100], or too small for the grid; zooms of answers that have none.
        InfeasibleTargetError: no noise on this response reaches the target.
    """
    target = require_positive("epsilon", epsilon)
    if law is OneSidedNoise:
        return OneSidedNoise(min(target / require_zooms(answer, zooms), Fraction(LARGEST_PLANNED_EPSILON)))
    if law is GaussianNoise:
        return _gaussian_for(answer, target, zooms)
    if kind_of(answer).form in (AnswerForm.TWO_ROUNDS, AnswerForm.TRUTH):
        needed = noise_epsilon_for(target, channel_of(answer)[0], neighbours_of(answer.values))
        return TwoSidedNoise(min(_shared(needed, zooms), Fraction(LARGEST_PLANNED_EPSILON)))
    require_zooms(answer, zooms)
    return TwoSidedNoise(_response_noise(answer, target))


def _shared(noise_epsilon: Fraction, zooms: int) -> Fraction:
    """Return the share of each zoom on the grid of `noise_epsilon_for`: numbers that move together are one (F1)."""
    share = Fraction(floor(noise_epsilon / zooms * NOISE_GRID), NOISE_GRID)
    if share <= 0:
        raise MechanismError(f"zooms is {zooms}, allowed: so few that each is left a noise epsilon of 1/{NOISE_GRID}")
    return share


def _gaussian_for(answer: AnswerLaw, target: Fraction, zooms: int) -> GaussianNoise:
    """Return the least variance on the grid whose loss is within the target, by bisection: the loss falls."""

    def within(steps: int) -> bool:
        epsilon, _ = stated_loss(answer, GaussianNoise(Fraction(steps, _VARIANCE_GRID)), zooms)
        return rounded_up(epsilon, _PLACES) <= target

    low, high = (int(one * _VARIANCE_GRID) for one in (SMALLEST_VARIANCE, LARGEST_VARIANCE))
    if not within(high):
        raise InfeasibleTargetError(f"epsilon is {target}, allowed: one that noise of variance 10**8 reaches")
    low -= 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) else (middle, high)
    return GaussianNoise(Fraction(high, _VARIANCE_GRID))


def _response_noise(answer: AnswerLaw, target: Fraction) -> Fraction:
    """Return the largest multiple of 1/1000 whose released loss is within the target, by bisection: the loss grows."""
    low, high = 0, LARGEST_PLANNED_EPSILON * _RESPONSE_GRID + 1
    while high - low > 1:
        middle = (low + high) // 2
        within = _rounded_loss(answer, Fraction(middle, _RESPONSE_GRID)) <= target
        low, high = (middle, high) if within else (low, middle)
    if low == 0:
        least = _rounded_loss(answer, Fraction(1, _RESPONSE_GRID))
        raise InfeasibleTargetError(
            f"epsilon is {target}, allowed: at least {least}, which the strongest noise on this response reaches"
        )
    return Fraction(low, _RESPONSE_GRID)


def _rounded_loss(answer: AnswerLaw, noise_epsilon: Fraction) -> Decimal:
    return rounded_up(released_loss(answer, noise_epsilon), _PLACES)


def released_loss(answer: AnswerLaw, noise_epsilon: Fraction, zooms: int = 1) -> Fraction:
    """Return the loss of the opened counts with one honest aggregator's two-sided noise, to an error below 1e-60.

    For any change of the truth, but of one bit where the truth is a vector of them. With zooms a change moves numbers
    of all of them at once, whose factors e**e1 multiply: the loss is that of one zoom with `zooms` times e1.

    Raises:
        MechanismError: a noise epsilon not in (0, 100], or zooms of answers that have none.
    """
    noise = require_zooms(answer, zooms) * TwoSidedNoise(noise_epsilon).epsilon
    form = kind_of(answer).form
    if form is AnswerForm.POSITION:
        # An answer that changes moves two outputs, a factor of e**(2 e1) between their release laws.
        pairs = _law_pairs(cast("RandomizedResponse", answer))
        return near_log(max(_mixture_loss(one, near_exp(2 * noise)) for one in pairs))
    if form is AnswerForm.BITS and kind_of(answer).multi_hot:
        return max(_bit_losses(answer, noise))
    if form is AnswerForm.BITS:
        return any_value_loss(answer, noise)
    return exact_release_epsilon(channel_of(answer)[0], noise, neighbours_of(answer.values))


def stated_loss(
    answer: AnswerLaw, noise: TwoSidedNoise | GaussianNoise, zooms: int = 1, *, any_value: bool = False
) -> tuple[Fraction, Fraction]:
    """Return what a statement says of the opened counts: (epsilon, delta), epsilon to an error below 1e-60.

    For any change of the truth; where the truth is a vector of bits, of one of them, or with `any_value` of a value
    that becomes another.
    """
    if isinstance(noise, GaussianNoise):
        one_bit = kind_of(answer).multi_hot and not any_value
        return gaussian_loss(answer, noise.variance, Relation.ANY_BIT if one_bit else Relation.ANY_VALUE, zooms)
    if any_value and kind_of(answer).form is AnswerForm.BITS:
        return any_value_loss(answer, noise.epsilon), Fraction(0)
    return released_loss(answer, noise.epsilon, zooms), Fraction(0)


def any_value_loss(answer: AnswerLaw, noise_epsilon: Fraction) -> Fraction:
    """Return the loss of the opened counts when one value, or none, becomes any other, to an error below 1e-60.

    A value that moves changes two bits of a vector, one each way. Bits and their noises are independent, so the largest
    ratio of both is the product of the largest of each. Sets of at most s values, one replaced by another, lose at most
    s times as much: s bits each way.

    Raises:
        MechanismError: a noise epsilon not in (0, 100].
    """
    if kind_of(answer).form is not AnswerForm.BITS:
        return released_loss(answer, noise_epsilon)
    losses = _bit_losses(answer, TwoSidedNoise(noise_epsilon).epsilon)
    return max(losses) if answer.values == 1 else sum(losses, Fraction(0))


def _bit_losses(answer: AnswerLaw, noise: Fraction) -> list[Fraction]:
    """Return the losses of one bit that changes: from 0 to 1, and from 1 to 0."""
    law = cast("BitVectorResponse", answer).bit_probability
    pairs = ([(law(bit, first), law(bit, 1 - first)) for bit in (0, 1)] for first in (0, 1))
    return [near_log(_mixture_loss(one, near_exp(noise))) for one in pairs]


def response_release_epsilon(answer: AnswerLaw, noise_epsilon: Fraction) -> Decimal:
    """Return the exact loss of the noised counts of all outputs of a response, rounded up to 5 places.

    Raises:
        MechanismError: a noise epsilon not in (0, 100].
    """
    return _rounded_loss(answer, noise_epsilon)


_Pairs = list[tuple[Fraction, Fraction]]


def _law_pairs(response: RandomizedResponse) -> list[_Pairs]:
    """Return, for pairs of truths that cover all up to symmetry, the outputs' probabilities under the two."""
    if isinstance(response, KaryResponse):
        keep, other = response.keep, response.other
        rest = other * (response.values - 1)
        return [[(keep, other), (other, keep), (rest, rest)]]
    truths = range(response.values + 1)
    return [
        [(response.probability(output, first), response.probability(output, second)) for output in truths]
        for first in truths
        for second in truths
        if first != second
    ]


def _mixture_loss(pairs: _Pairs, power: Fraction) -> Fraction:
    """Return the largest ratio of two mixtures of release laws that differ by factors 1..power between outputs.

    The release given an output has a density in {1, power} up to a constant, in every pattern over the outputs. The
    ratio of the mixtures is largest when the outputs with the largest ratio of probabilities have the factor `power`.
    """
    ordered = sorted(pairs, key=_ratio, reverse=True)
    largest, first, second = Fraction(1), Fraction(0), Fraction(0)
    for one, two in ordered:
        first, second = first + one, second + two
        largest = max(largest, (1 + (power - 1) * first) / (1 + (power - 1) * second))
    return largest


def _ratio(pair: tuple[Fraction, Fraction]) -> tuple[bool, Fraction]:
    # Outputs impossible under the second truth come first.
    return (True, pair[0]) if pair[1] == 0 else (False, pair[0] / pair[1])
