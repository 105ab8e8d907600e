"""The loss of a question for one answer, one day and all answers: the least proven epsilon at a delta.

Only this module chooses among bounds. Fractions have an error below 1e-60. It must not word anything
(`question_statement`). "Theorem" and "F" are those of docs/spec.md, "Losses".
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import comb, erfc, sqrt
from typing import Final

from fleetcount_mechanisms.accounting.charges import truth_weight, unit_divergence, unit_pure, units_divergence
from fleetcount_mechanisms.accounting.vectors import ScheduleShape, gaussian_unit_epsilon, geometric_unit_epsilon
from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError, require_open_unit
from fleetcount_mechanisms.levels import Move
from fleetcount_mechanisms.losses import move_divergence, moves_divergence, moves_loss
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import fraction_up, near_exp, near_log
from fleetcount_mechanisms.renyi import amplified, best_order, panel_pure_epsilon
from fleetcount_mechanisms.repeated import LARGEST_COPIES, LARGEST_EPSILON, optimal_loss_repeated
from fleetcount_mechanisms.sampled_gaussian import sum_law_factor

_NOTHING: Final = Fraction(0)
_TERM_GRID: Final = 10**60
_Sizes = Counter[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionLosses:
    """Epsilons at one delta, for a change of one answer, of all answers of one UTC day, of all answers."""

    one_answer: Fraction
    one_day: Fraction
    whole_question: Fraction


@lru_cache(maxsize=64)
def question_losses(design: Design, shape: ScheduleShape, delta: Fraction) -> QuestionLosses:
    """Return the losses of one device over the whole question, against the public and all aggregators but one.

    Raises:
        MechanismError: delta not in (0, 1), or a design without a finite loss.
    """
    days = [_overlap_loss(design, day, delta) for day in set(_overlaps(shape))]
    answers = [_overlap_loss(design, answer, delta) for answer in set(_overlaps(shape.answers))]
    return QuestionLosses(
        one_answer=max(answers), one_day=max(days), whole_question=units_loss(design, Counter(shape.units), delta)
    )


_Overlap = tuple[tuple[int, int, int], ...]
"""The units that overlap one day, as (size of the unit, its windows in that day, number of such units)."""


def _overlaps(shape: ScheduleShape) -> Iterator[_Overlap]:
    """Yield the overlap of each day with the units, in order."""
    ends = [0]
    for size in shape.units:
        ends.append(ends[-1] + size)
    unit = start = 0
    units = list(pairwise(ends))
    for day in shape.days:
        touched, end = Counter[tuple[int, int]](), start + day
        while start < end:
            first, beyond = units[unit]
            stop = min(end, beyond)
            touched[beyond - first, stop - start] += 1
            start = stop
            unit += stop == beyond
        yield tuple(sorted((size, part, count) for (size, part), count in touched.items()))


def day_units(shape: ScheduleShape) -> tuple[tuple[int, ...], ...]:
    """Return for each UTC day the sizes of the units of the coin that overlap it."""
    return tuple(tuple(size for size, _, count in overlap for _ in range(count)) for overlap in _overlaps(shape))


def _overlap_loss(design: Design, overlap: _Overlap, delta: Fraction) -> Fraction:
    whole = Counter[int]({size: count for size, part, count in overlap if size == part})
    if len(whole) == len(overlap):
        return units_loss(design, whole, delta)
    if len(overlap) == 1 and overlap[0][2] == 1:
        return part_loss(design, overlap[0][0], overlap[0][1], delta)
    # A day's boundary cuts units. Two bounds hold: the loss of all these units in full, and that of the day's answers
    # without a coin.
    touched = Counter[int]()
    for size, _, count in overlap:
        touched[size] += count
    together = sum(part * count for _, part, count in overlap)
    return min(units_loss(design, touched, delta), _loss_without_coin(design, together, delta, tosses=touched.total()))


def part_loss(design: Design, unit: int, changed: int, delta: Fraction) -> Fraction:
    """Return the loss for a change of `changed` of the `unit` answers that share one toss of the coin.

    The coin improves delta only, by the factor p: the unit's other answers reveal the coin.

    Raises:
        MechanismError: changed not in 1..unit, delta not in (0, 1), or a design without a finite loss.
    """
    if not 1 <= changed <= unit:
        raise MechanismError(f"changed windows is {changed}, allowed: 1..{unit}, those of the unit")
    if design.form is not AnswerForm.TWO_ROUNDS:
        return units_loss(design, Counter({1: changed}), delta)
    found = [units_loss(design, Counter({unit: 1}), delta)]
    if changed < unit:
        found.append(_loss_without_coin(design, changed, delta))
        if isinstance(design.noise, TwoSidedNoise):
            numbers, moved = (count * design.levels.count for count in (unit, changed))
            epsilon, cells = design.noise.epsilon, design.moved_in_level
            found.append(panel_pure_epsilon(design.exposure, numbers, moved, epsilon, cells))
    return min(found)


def _loss_without_coin(design: Design, answers: int, delta: Fraction, *, tosses: int = 1) -> Fraction:
    """Return the loss of `answers` answers as if all were in the sample.

    Delta is divided by the chance that at least one of the `tosses` that they share samples the device.
    """
    relaxed = delta / (1 - (1 - design.exposure) ** tosses)
    if relaxed >= 1:
        return _NOTHING
    return moves_loss(design.moves, answers, relaxed)


def units_loss(design: Design, sizes: _Sizes, delta: Fraction) -> Fraction:
    """Return the loss for any change of all answers of whole units; `sizes` counts the units of each size.

    Without a sampling coin the answers of a unit are independent.

    Raises:
        MechanismError: no unit, delta not in (0, 1), or a design without a finite loss.
    """
    require_open_unit("delta", delta)
    if not sizes or min(sizes) < 1 or min(sizes.values()) < 1:
        raise MechanismError("there is no unit, allowed: one or more, each of at least one window")
    if design.charge_relation.one_way:
        total = sum(((unit_pure(design, size) or 0) * count for size, count in sizes.items()), _NOTHING)
        return max(_NOTHING, total + near_log(1 - delta))
    if design.form is AnswerForm.TWO_ROUNDS:
        return max(_NOTHING, min(_panel_bounds(design, sizes, delta)))
    answers = sum(size * count for size, count in sizes.items())
    return max(_NOTHING, min(_answer_bounds(design, answers, delta)))


def _answer_bounds(design: Design, answers: int, delta: Fraction) -> Iterator[Fraction]:
    alone = unit_pure(design, 1)
    if design.noised:
        yield moves_loss(design.moves, answers, delta)
    if not design.device_randomizes:
        return
    if alone is not None:
        yield _pure_copies(alone, answers, delta)
    yield best_order(lambda order: answers * unit_divergence(design, 1, order), delta)[1]
    if design.noised and answers == 1:
        yield _amplified(design, 1, delta)


def _amplified(design: Design, answers: int, delta: Fraction) -> Fraction:
    """Return the loss of the truths at delta/w, amplified by w, the chance that the answers depend on them."""
    weight = truth_weight(design)
    if delta >= weight:
        return _NOTHING
    direct = moves_loss(design.moves, answers, delta / weight)
    return amplified(weight, direct)


def _panel_bounds(design: Design, sizes: _Sizes, delta: Fraction) -> Iterator[Fraction]:
    pures = {size: unit_pure(design, size) for size in sizes}
    if len(sizes) == 1 and (alone := pures[min(sizes)]) is not None:
        yield _pure_copies(alone, sizes[min(sizes)], delta)
    known = [pure * sizes[size] for size, pure in pures.items() if pure is not None]
    if len(known) == len(sizes):
        yield sum(known, _NOTHING)
    if sizes.total() == 1:
        yield _amplified(design, min(sizes), delta)
    windows = min(sizes) * design.levels.count
    if sizes.total() == 1 and isinstance(design.noise, TwoSidedNoise):
        yield geometric_unit_epsilon(design.exposure, windows, design.noise.epsilon, delta, sum(known, _NOTHING))
        return
    _, order_bound = best_order(lambda order: units_divergence(design, sizes, order), delta)
    yield order_bound
    if sizes.total() == 1 and isinstance(design.noise, GaussianNoise) and not design.levels.total:
        yield gaussian_unit_epsilon(design.exposure, windows, design.noise.variance, delta, order_bound)


def _pure_copies(alone: Fraction, copies: int, delta: Fraction) -> Fraction:
    exact = alone <= LARGEST_EPSILON and copies <= LARGEST_COPIES
    return optimal_loss_repeated(alone, copies, delta) if exact else alone * copies


# How often the odds move more than an epsilon says. A delta is no bound on that: it says how much such cases weigh.

_SOME_ORDERS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def larger_chance(design: Design, shape: ScheduleShape, one_answer: Fraction, whole_question: Fraction) -> Fraction:
    """Return a bound on the chance that the odds of one answer, or of all, move by more than a factor of e**epsilon.

    The chance is that of what a device with the one truth makes readers see. Direct answers: the tail of the moved
    numbers' noise, for geometric noise exactly. Else e**((a-1)(D_a - epsilon)) at the best of some orders (Markov),
    with D_a of a part of a unit at most that without a coin.

    Raises:
        MechanismError: a design without a finite loss.
    """
    return max(
        _chance_above(design, Counter({1: shape.levels}), one_answer, fresh=max(shape.units) == 1),
        _chance_above(design, Counter(shape.units), whole_question),
    )


def _chance_above(design: Design, sizes: _Sizes, epsilon: Fraction, *, fresh: bool = True) -> Fraction:
    windows = sum(size * count for size, count in sizes.items())
    pures = [unit_pure(design, size) for size in sizes]
    known = [pure * count for pure, count in zip(pures, sizes.values(), strict=True) if pure is not None]
    if fresh and len(known) == len(pures) and sum(known) <= epsilon:
        return _NOTHING
    if not design.device_randomizes and design.form is not AnswerForm.TWO_ROUNDS:
        return max(_moved_chance(move, windows, epsilon) for move in design.moves)

    if fresh:
        return _markov(lambda order: units_divergence(design, sizes, order), epsilon)
    return _markov(lambda order: windows * moves_divergence(design.moves, order), epsilon)


def _markov(loss: Callable[[int], Fraction], epsilon: Fraction) -> Fraction:
    """Return e**((a-1)(D_a - epsilon)) at the best of some orders, at most 1."""
    exponents = ((order - 1) * (loss(order) - epsilon) for order in _SOME_ORDERS)
    return near_exp(max(Fraction(-100_000), min(_NOTHING, *exponents)))


def _moved_chance(move: Move, windows: int, epsilon: Fraction) -> Fraction:
    """Return a bound on the chance that the numbers of a move lose more than epsilon together, over so many windows."""
    noise, moved = move[0][0], windows * len(move)
    if set(move) != {(noise, 1)}:
        return _markov(lambda order: windows * move_divergence(move, order), epsilon)
    if isinstance(noise, TwoSidedNoise):
        # Each loses e1 with chance 1/(1+e**-e1), else -e1 (F1).
        up = 1 / (1 + near_exp(-noise.epsilon))
        least = int((epsilon / noise.epsilon + moved) / 2) + 1
        weight = Fraction(comb(moved, least)) if least <= moved else _NOTHING
        total = term = weight * up**least * (1 - up) ** (moved - least)
        for ups in range(least, moved):
            term = fraction_up(term * (moved - ups) / (ups + 1) * up / (1 - up), _TERM_GRID)
            total += term
        return total
    if not isinstance(noise, GaussianNoise):
        raise MechanismError(f"noise is {noise.name!r}, allowed: two-sided geometric, discrete Gaussian")
    # The loss is (2S + m)/(2s), S the sum of m draws; e**(-x**2/(2ms)) is convex behind its deviation, so that each of
    # its values is below the integral around it.
    factor, wide = sum_law_factor(moved, noise.variance), moved * noise.variance
    least = int(epsilon * noise.variance - Fraction(moved, 2)) + 1
    reach = (least - 0.5) / sqrt(wide)
    if factor is None or reach < 1:
        return Fraction(1)
    return Fraction(min(1.0, float(factor) * erfc(reach / sqrt(2)) / 2 * (1 + 1e-9)))
