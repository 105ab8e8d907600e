"""The exact loss of published counts with noise, for one device, and the weakest noise for a target loss.

It must not state a loss smaller than the truth. Losses are for one device's record being replaced in a fixed public set
of participants.
"""

from decimal import Decimal
from enum import Enum
from fractions import Fraction
from math import expm1, log1p
from typing import Final, cast

from fleetcount_mechanisms.answers import (
    AnswerForm,
    AnswerLaw,
    BitVectorResponse,
    Relation,
    channel_of,
    kind_of,
)
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import (
    MechanismError,
    require_at_least,
    require_fraction,
)
from fleetcount_mechanisms.gaussian_losses import gaussian_loss
from fleetcount_mechanisms.moves import moves_pure
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import float_up, near_exp, near_log, rounded_up
from fleetcount_mechanisms.response_laws import BinaryLaw
from fleetcount_mechanisms.responses import KaryResponse, RandomizedResponse
from fleetcount_mechanisms.sampling import SamplingDie

# The formulas of privacy loss: one message, two linked messages, exact differences, noised releases, inverses.
#
# Exact values are rounded to the safe side (noise parameters down); plain floats are for display. [SP] is Joy and
# Gerla, section 4; p is the sampling rate, e1 the epsilon of each aggregator's geometric noise.

NOISE_GRID: Final = 10**6
"""A planned noise epsilon is a multiple of 1/NOISE_GRID."""


class Neighbours(Enum):
    """Which change of one device's truth the loss is for."""

    ONE_CELL = "one-cell"
    TWO_CELL = "two-cell"


def neighbours_of(values: int) -> Neighbours:
    """Return the neighbours a count of V values must answer for: one-cell when V = 1, two-cell above.

    Raises:
        MechanismError: V below 1.
    """
    return Neighbours.ONE_CELL if require_at_least("values", values, 1) == 1 else Neighbours.TWO_CELL


# One message, one pair of messages, the exact difference: the first table of losses.


def message_epsilon_of_face(face_probability: float, sampling_rate: float) -> float:
    """Return ln(1 + p/pi_v), the loss of one round-two message that says v ([SP] Equation 29).

    Raises:
        MechanismError: a probability outside (0, 1), or a sum above 1.
    """
    if min(face_probability, sampling_rate) <= 0 or face_probability + sampling_rate > 1 + 1e-12:
        raise MechanismError(
            f"face probability {face_probability} with sampling rate {sampling_rate}, allowed: both > 0, sum <= 1"
        )
    return log1p(sampling_rate / face_probability)


def message_epsilon_binary(no_probability: float, sampling_rate: float) -> tuple[float, float]:
    """Return the losses of a round-two No and a round-two Yes ([SP] Equations 21 and 25); the message costs the larger.

    Raises:
        MechanismError: probabilities that leave nothing for Yes.
    """
    return (
        message_epsilon_of_face(no_probability, sampling_rate),
        message_epsilon_of_face(1 - no_probability - sampling_rate, sampling_rate),
    )


def message_epsilon(die: SamplingDie) -> float:
    """Return the exact loss of one round-two message alone, max over v of ln(1 + p/pi_v), rounded up to a float.

    A round-one message alone loses nothing: its law is the same for every truth.
    """
    return float_up(exact_message_epsilon(die))


def exact_message_epsilon(die: SamplingDie) -> Fraction:
    """Return the loss of one round-two message alone to an error below 1e-60, not yet rounded."""
    return near_log(1 + die.sampling_rate / die.smallest_face_probability)


def linked_delta(die: SamplingDie) -> Fraction:
    """Return the least delta of both rounds of one device seen together, for every finite epsilon: p.

    With probability p the pair shows (0, truth), otherwise it is independent of the truth.
    """
    return die.sampling_rate


def exposure(sampling_rate: Fraction, queries: int) -> Fraction:
    """Return 1 - (1-p)**Q: the chance that of Q answers with fresh coins at least one shows all aggregators the truth.

    Raises:
        MechanismError: p not in (0, 1], or Q below 0.
    """
    return 1 - (1 - checked_rate(sampling_rate)) ** require_at_least("queries", queries, 0)


# The noised release: every aggregator adds full-strength geometric noise to the difference.


def checked_rate(sampling_rate: object) -> Fraction:
    """Return an exact sampling rate; raises MechanismError for one that is not, or not in (0, 1]."""
    rate = require_fraction("sampling rate", sampling_rate)
    if not 0 < rate <= 1:
        raise MechanismError(f"sampling rate is {rate}, allowed: 0 < sampling rate <= 1")
    return rate


def checked_floats(sampling_rate: Fraction | float, epsilon: Fraction | float) -> tuple[float, float]:
    """Return a sampling rate and a loss; raises MechanismError for p not in (0, 1] or a loss not in (0, 100]."""
    rate, loss = float(sampling_rate), float(epsilon)
    if not 0 < rate <= 1:
        raise MechanismError(f"sampling rate is {rate}, allowed: 0 < sampling rate <= 1")
    if not 0 < loss <= 100:
        raise MechanismError(f"epsilon is {loss}, allowed: 0 < epsilon <= 100")
    return rate, loss


def release_epsilon_one_cell(sampling_rate: Fraction | float, noise_epsilon: Fraction | float) -> float:
    """Return eps' = ln(1 + p (e**e1 - 1)), the loss of the noised release for one-cell neighbours; for display.

    Raises:
        MechanismError: p not in (0, 1], or e1 not in (0, 100].
    """
    rate, noise = checked_floats(sampling_rate, noise_epsilon)
    return log1p(rate * expm1(noise))


def release_epsilon_two_cell(sampling_rate: Fraction | float, noise_epsilon: Fraction | float) -> float:
    """Return eps' = ln[(1 + p (e**e1 - 1))/(1 - p (1 - e**-e1))], the loss for two-cell neighbours; for display.

    Raises:
        MechanismError: p not in (0, 1], or e1 not in (0, 100].
    """
    rate, noise = checked_floats(sampling_rate, noise_epsilon)
    if rate == 1:
        return 2 * noise
    return log1p(rate * expm1(noise)) - log1p(rate * expm1(-noise))


def exact_release_epsilon(rate: Fraction, noise: Fraction, neighbours: Neighbours) -> Fraction:
    """Return eps' of the noised release to an error below 1e-60, not yet rounded; p = 1 stands for direct mode."""
    if rate == 1:
        return noise if neighbours is Neighbours.ONE_CELL else 2 * noise
    more = 1 + rate * (near_exp(noise) - 1)
    less = 1 if neighbours is Neighbours.ONE_CELL else 1 - rate * (1 - near_exp(-noise))
    return near_log(more / less)


_PLACES: Final = 5


def _rounded_loss(answer: AnswerLaw, noise_epsilon: Fraction) -> Decimal:
    return rounded_up(released_loss(answer, noise_epsilon), _PLACES)


def released_loss(answer: AnswerLaw, noise_epsilon: Fraction) -> Fraction:
    """Return the loss of the opened cells with one honest aggregator's two-sided noise, to an error below 1e-60.

    For any change of the truth; of one bit if the truth is a vector of bits.

    Raises:
        MechanismError: a noise epsilon not in (0, 100].
    """
    noise = TwoSidedNoise(noise_epsilon).epsilon
    form = kind_of(answer).form
    if form is AnswerForm.POSITION:
        # An answer that changes moves two outputs, a factor of e**(2 e1) between their release laws.
        pairs = _law_pairs(cast("RandomizedResponse", answer))
        return near_log(max(_mixture_loss(one, near_exp(2 * noise)) for one in pairs))
    if form is AnswerForm.BITS and kind_of(answer).multi_hot:
        return max(_bit_losses(_counted_laws(answer)[0][0], noise))
    if form is AnswerForm.BITS:
        return any_value_loss(answer, noise)
    return exact_release_epsilon(channel_of(answer)[0], noise, neighbours_of(answer.values))


def stated_loss(design: Design, *, any_value: bool = False) -> tuple[Fraction, Fraction]:
    """Return the (epsilon, delta) that a statement gives for the opened counts, epsilon to an error below 1e-60.

    For any change of the truth. If the truth is a vector of bits: for a change of one bit, or with `any_value` for one
    value that becomes another. With levels a change moves numbers of all of them at once, whose factors multiply: the
    loss of sampled answers is that of one number with the sum of their epsilons.

    Raises:
        MechanismError: as `gaussian_loss` and `released_loss`.
    """
    answer, noise = design.answer, design.noise
    if isinstance(noise, GaussianNoise):
        one_bit = design.kind.multi_hot and not any_value
        return gaussian_loss(design, Relation.ANY_BIT if one_bit else Relation.ANY_VALUE)
    if not isinstance(noise, TwoSidedNoise):
        raise MechanismError(f"noise is {noise.name!r}, allowed: two-sided geometric, discrete Gaussian")
    if any_value and design.form is AnswerForm.BITS:
        return any_value_loss(answer, noise.epsilon), Fraction(0)
    if design.form is AnswerForm.TRUTH:
        return cast("Fraction", moves_pure(design.moves)), Fraction(0)
    if design.form is AnswerForm.TWO_ROUNDS:
        together = sum((cast("TwoSidedNoise", law).epsilon for law in design.laws), Fraction(0))
        return exact_release_epsilon(design.exposure, together, neighbours_of(answer.values)), Fraction(0)
    return released_loss(answer, noise.epsilon), Fraction(0)


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
    noise, counted = TwoSidedNoise(noise_epsilon).epsilon, _counted_laws(answer)
    losses = [(_bit_losses(law, noise), often) for law, often in counted]
    moved = [
        one[0] + two[1]
        for place, (one, often) in enumerate(losses)
        for other, (two, _) in enumerate(losses)
        if place != other or often > 1
    ]
    return max((*moved, *(loss for both, _ in losses for loss in both)))


def _counted_laws(answer: AnswerLaw) -> tuple[tuple[BinaryLaw, int], ...]:
    return cast("BitVectorResponse", answer).counted_laws


def _bit_losses(law: BinaryLaw, noise: Fraction) -> tuple[Fraction, Fraction]:
    """Return the losses of one bit that is 0 against 1, and of one that is 1 against 0."""
    pairs = ([(law.probability(bit, one), law.probability(bit, 1 - one)) for bit in (0, 1)] for one in (0, 1))
    gained, lost = (near_log(_mixture_loss(one, near_exp(noise))) for one in pairs)
    return gained, lost


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
