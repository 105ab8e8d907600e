"""The loss of one release of counts with noise, for one device: of what one changed answer moves, and of the answer.

It must not state a loss smaller than the truth, nor add up releases (`accounting` does). Losses are for one device's
record being replaced in a fixed public set of participants.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from math import exp, lgamma, log, log1p
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, BitVectorResponse, Relation, channel_of, kind_of
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.levels import Move
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.randomness import WIDE, near_decimal, near_exp, near_log
from fleetcount_mechanisms.renyi import (
    amplified,
    best_order,
    checked_order,
    checked_rate,
    gaussian_rho,
    order_epsilon,
    pure_divergence,
    zcdp_epsilon,
)
from fleetcount_mechanisms.repeated import LARGEST_COPIES, optimal_loss_repeated
from fleetcount_mechanisms.response_laws import BinaryLaw
from fleetcount_mechanisms.responses import KaryResponse, RandomizedResponse
from fleetcount_mechanisms.sampled_gaussian import panel_gaussian_divergence, total_divergences
from fleetcount_mechanisms.sampling import SamplingDie

# What one changed answer moves of the opened numbers, and what that costs without a sampling coin.
#
# A move is the noises of the numbers that change together, each with the whole number by which it changes; their losses
# add up, and the worst move is charged. It is the price of the rows of levels, in closed form.


def move_rho(move: Move) -> Fraction:
    """Return the zCDP of a move under Gaussian noise, sum of d_i**2/(2 s_i) (docs/spec.md, F4).

    Raises:
        MechanismError: another law.
    """
    return sum((amount**2 * gaussian_rho(1, 1, _gaussian(law).variance) for law, amount in move), Fraction(0))


def move_pure(move: Move) -> Fraction | None:
    """Return the pure epsilon of a move, sum of d_i e_i, None for Gaussian noise.

    Raises:
        MechanismError: a law of noise that is not two-sided.
    """
    if isinstance(move[0][0], GaussianNoise):
        return None
    return sum((amount * _geometric(law) for law, amount in move), Fraction(0))


def move_divergence(move: Move, order: Fraction | int) -> Fraction:
    """Return the Renyi divergence of a move (docs/spec.md, F1 and F4).

    Gaussian: exact at integer orders, an upper bound at others. Geometric: exact for numbers that move by 1; one that
    moves by d is charged as randomized response of d e_i, an upper bound for every pair of laws with that pure loss.

    Raises:
        MechanismError: a law of noise that is not two-sided, or an order not above 1.
    """
    if isinstance(move[0][0], GaussianNoise):
        return order * move_rho(move)
    known = {(law, amount): pure_divergence(amount * _geometric(law), order) for law, amount in set(move)}
    return sum((known[moved] for moved in move), Fraction(0))


def moves_rho(moves: Sequence[Move]) -> Fraction:
    """Return the zCDP of the worst move under Gaussian noise."""
    return max(map(move_rho, moves))


def moves_pure(moves: Sequence[Move]) -> Fraction | None:
    """Return the pure epsilon of the worst move, None for Gaussian noise."""
    found = [pure for pure in map(move_pure, moves) if pure is not None]
    return max(found, default=None)


def moves_divergence(moves: Sequence[Move], order: Fraction | int) -> Fraction:
    """Return the Renyi divergence of the worst move."""
    return max(move_divergence(move, order) for move in moves)


def moves_loss(moves: Sequence[Move], answers: int, delta: Fraction) -> Fraction:
    """Return the epsilon at delta of so many answers that all change, each by the worst move.

    The best zCDP conversion for Gaussian noise. Exact for geometric noise of one parameter on numbers that move by 1
    (Kairouz, Oh, Viswanath), up to a million, else the least pure or Renyi bound.

    Raises:
        MechanismError: a law of noise that is not two-sided, answers below 1, or delta not in (0, 1).
    """
    require_at_least("answers", answers, 1)
    if isinstance(moves[0][0][0], GaussianNoise):
        return max(Fraction(0), zcdp_epsilon(answers * moves_rho(moves), delta))
    first = moves[0]
    if len(moves) == 1 and set(first) == {(first[0][0], 1)} and len(first) * answers <= LARGEST_COPIES:
        return max(Fraction(0), optimal_loss_repeated(_geometric(first[0][0]), len(first) * answers, delta))
    # Some answers may change by one move and others by another, so that the worst is taken at every order.
    pure = answers * cast("Fraction", moves_pure(moves))
    return max(Fraction(0), min(pure, best_order(lambda order: answers * moves_divergence(moves, order), delta)[1]))


def _gaussian(law: NoiseLaw) -> GaussianNoise:
    if not isinstance(law, GaussianNoise):
        raise MechanismError(f"noise is {law.name!r}, allowed: discrete Gaussian")
    return law


def _geometric(law: NoiseLaw) -> Fraction:
    if not isinstance(law, TwoSidedNoise):
        raise MechanismError(f"noise is {law.name!r}, allowed: two-sided geometric, discrete Gaussian")
    return law.epsilon


# The loss of one release with discrete Gaussian noise: epsilon at a fixed delta, from Renyi losses; callers round up.

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


def exact_release_epsilon(rate: Fraction, noise: Fraction, neighbours: Neighbours) -> Fraction:
    """Return eps' of the noised release to an error below 1e-60, not yet rounded; p = 1 stands for direct mode."""
    if rate == 1:
        return noise if neighbours is Neighbours.ONE_CELL else 2 * noise
    more = 1 + rate * (near_exp(noise) - 1)
    less = 1 if neighbours is Neighbours.ONE_CELL else 1 - rate * (1 - near_exp(-noise))
    return near_log(more / less)


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
    noise = TwoSidedNoise(noise_epsilon).epsilon
    return _largest_move([(_bit_losses(law, noise), often) for law, often in _counted_laws(answer)])


def answer_divergence(answer: AnswerLaw, order: Fraction | int) -> Fraction:
    """Return the Renyi divergence of one answer that a device randomizes, for any change of the truth (F3).

    It is that of the law itself, to an error below 1e-60: of many values far below that of randomized response of the
    same loss, of two the same. The bits of a vector are independent, so that those of a value that moves add up.

    Raises:
        MechanismError: an order not above 1.
    """
    if kind_of(answer).form is AnswerForm.POSITION:
        return max(_law_divergence(pairs, order) for pairs in _law_pairs(cast("RandomizedResponse", answer)))
    bits = [
        ((_law_divergence(one, order), _law_divergence(two, order)), often)
        for (one, two), often in ((_bit_pairs(law), often) for law, often in _counted_laws(answer))
    ]
    return _largest_move(bits)


def _law_divergence(pairs: "_Pairs", order: Fraction | int) -> Fraction:
    exact, moment = checked_order(order), Decimal(0)
    for one, two in pairs:
        if one:  # What is possible under this law alone has no finite loss, and divides by 0 here.
            power = WIDE.power(near_decimal(one / two), near_decimal(exact))
            moment = WIDE.add(moment, WIDE.multiply(near_decimal(two), power))
    return Fraction(WIDE.ln(moment)) / (exact - 1)


def _largest_move(losses: "list[tuple[tuple[Fraction, Fraction], int]]") -> Fraction:
    """Return the largest of a bit that becomes 1 and another that becomes 0, or of one alone; and how often each is."""
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
    gained, lost = (near_log(_mixture_loss(one, near_exp(noise))) for one in _bit_pairs(law))
    return gained, lost


def _bit_pairs(law: BinaryLaw) -> "tuple[_Pairs, _Pairs]":
    no, yes = ([(law.probability(bit, one), law.probability(bit, 1 - one)) for bit in (0, 1)] for one in (0, 1))
    return no, yes


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
