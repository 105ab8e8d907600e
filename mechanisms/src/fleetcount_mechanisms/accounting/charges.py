"""The loss of a design's answers: divergences, pure losses, and the vectors that ledgers add.

The formulas are those of `renyi`; this module chooses them by the kind of design. It must not know a limit or a time.
Losses are for any value, or none, of one device replaced by any other, against the public and all aggregators but one;
where `Design.charge_relation` is one way, for that change only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final, cast

from fleetcount_mechanisms.accounting.vectors import LossBudget, LossVector, checked_orders
from fleetcount_mechanisms.answers import AnswerForm, Relation
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_fraction
from fleetcount_mechanisms.losses import (
    answer_divergence,
    any_value_loss,
    moves_divergence,
    moves_pure,
    released_loss,
    sampled_divergence,
)
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.renyi import (
    best_order,
    checked_rate,
    panel_geometric_divergence,
    panel_linear_divergence,
    panel_pure_epsilon,
    pure_divergence,
)

# What all aggregators together learn of one device over units of a sampling coin: two sums, and the law behind them.
#
# With probability p they see all answers of a unit; noise and ledgers of epsilons do not change that. All results are
# exact fractions.

RARE: Final = Fraction(1, 10**9)
_MOST_STATES: Final = 2_000_000
MOST_UNITS: Final = 20_000
"""The largest number of units for which `quantile` is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The two sums that ledgers add: `chance`, p for each unit, and `answers`, p times its answers.

    `chance` bounds the chance that any answer is seen; `answers` is the expected number of answers seen.
    """

    chance: Fraction
    answers: Fraction

    def __add__(self, other: "Exposure") -> "Exposure":
        """Return the exposure of both."""
        return Exposure(chance=self.chance + other.chance, answers=self.answers + other.answers)


def exposure_of(rate: Fraction, windows: int) -> Exposure:
    """Return the two sums of one unit of `windows` answers.

    Raises:
        MechanismError: p not in (0, 1], or windows below 1.
    """
    return Exposure(chance=checked_rate(rate), answers=checked_rate(rate) * require_at_least("windows", windows, 1))


def chance_of_any(rate: Fraction, units: int) -> Fraction:
    """Return 1 - (1-p)**U, the chance that at least one answer is seen.

    Raises:
        MechanismError: p not in (0, 1], or units below 1.
    """
    return 1 - (1 - checked_rate(rate)) ** require_at_least("units", units, 1)


def chance_of_all(rate: Fraction, units: int) -> Fraction:
    """Return p**U, the chance that every answer is seen.

    Raises:
        MechanismError: p not in (0, 1], or units below 1.
    """
    return Fraction(checked_rate(rate) ** require_at_least("units", units, 1))


def expected_answers(rate: Fraction, units: Sequence[int]) -> Fraction:
    """Return the expected number of answers seen, p times their number; `units` are the answers of each unit.

    Raises:
        MechanismError: p not in (0, 1].
    """
    return checked_rate(rate) * sum(units)


def quantile(rate: Fraction, units: Sequence[int], rare: Fraction = RARE) -> int:
    """Return the smallest number of answers that is exceeded with probability at most `rare`, exactly.

    `units` are the answers of each unit.

    Raises:
        MechanismError: p not in (0, 1], no unit, a unit without an answer, rare not in [0, 1), more than 20,000
            units, or so many sizes of units that there are more than two million sums.
    """
    exact = checked_rate(rate)
    if not 0 <= require_fraction("rare", rare) < 1:
        raise MechanismError(f"rare is {rare}, allowed: 0 <= rare < 1")
    if not units or min(units) < 1:
        raise MechanismError(f"units are {tuple(units[:5])}, allowed: one or more, each of at least one answer")
    law = _seen(exact, Counter(units))
    beyond, allowed = 0, rare * exact.denominator ** len(units)
    for answers in sorted(law, reverse=True):
        beyond += law[answers]
        if beyond > allowed:
            return answers
    return 0


def _seen(rate: Fraction, sizes: Counter[int]) -> dict[int, int]:
    """Return the law of the answers seen, in integers of 1/denominator**units."""
    if sizes.total() > MOST_UNITS or prod(count + 1 for count in sizes.values()) > _MOST_STATES:
        raise MechanismError(
            f"{sizes.total()} units have {len(sizes)} sizes, allowed: {MOST_UNITS} units, and not many sizes"
        )
    law = {0: 1}
    for size, count in sizes.items():
        added, chances = dict[int, int](), _binomial(rate, count)
        for answers, weight in law.items():
            for seen, chance in enumerate(chances):
                total = answers + seen * size
                added[total] = added.get(total, 0) + weight * chance
        law = added
    return law


def _binomial(rate: Fraction, count: int) -> list[int]:
    hit, miss = rate.numerator, rate.denominator - rate.numerator
    if miss == 0:
        return [0] * count + [hit**count]
    weight, chances = miss**count, list[int]()
    for seen in range(count + 1):
        chances.append(weight)
        weight = weight * (count - seen) * hit // ((seen + 1) * miss)
    return chances


_MOST_WINDOWS: Final = 100_000


def window_loss(design: Design, orders: tuple[int, ...], windows: int = 1) -> LossVector:
    """Return the loss of `windows` answers, each with coins of its own.

    Raises:
        MechanismError: orders that do not grow within 2..4096, windows not in 1..100,000, or a design without a finite
            loss: exact sums of Sampling Privacy, which are (epsilon, delta) with delta = p.
    """
    if design.form is AnswerForm.TWO_ROUNDS:
        return unit_loss(design, orders, 1).times(_checked_windows(windows))
    return unit_loss(design, orders, windows)


def unit_loss(design: Design, orders: tuple[int, ...], windows: int) -> LossVector:
    """Return the loss of one unit: `windows` answers that share one toss of the sampling coin.

    Without a sampling coin it is the loss of `windows` answers.

    Raises:
        MechanismError: as `window_loss`.
    """
    at = [unit_divergence(design, windows, order) for order in checked_orders(orders)]
    return LossVector.of(orders, at, unit_pure(design, windows))


def truth_weight(design: Design) -> Fraction:
    """Return the chance that an answer depends on the truth: p, 1 for the truth itself, P - Q of a response.

    In a vector two bits change: the chance that at least one of them depends on the truth.
    """
    if design.form is AnswerForm.BITS and design.moved_in_level == 2:
        return 1 - (1 - design.exposure) ** 2
    return design.exposure


def unit_divergence(design: Design, windows: int, order: int) -> Fraction:
    """Return the Renyi divergence of one unit of answers at an integer order, to an error below 1e-60.

    Raises:
        MechanismError: as `window_loss`.
    """
    _checked_windows(windows)
    _require_finite(design)
    if _one_way(design):
        return windows * _one_way_loss(design)
    if design.form is not AnswerForm.TWO_ROUNDS:
        return windows * min(_answer_divergences(design, order))
    direct, pure = windows * moves_divergence(design.moves, order), unit_pure(design, windows)
    if isinstance(design.noise, GaussianNoise):
        panel = sampled_divergence(design, windows, order)
    else:
        numbers, cells = windows * design.levels.count, design.moved_in_level
        panel = panel_geometric_divergence(design.exposure, numbers, _geometric(design.noise), order, cells=cells)
    pure_bound = () if pure is None else (pure_divergence(pure, order),)
    return min(panel, panel_linear_divergence(design.exposure, direct, order), *pure_bound)


def units_divergence(design: Design, sizes: Mapping[int, int], order: int) -> Fraction:
    """Return the Renyi divergence of whole units at an integer order; `sizes` counts the units of each size.

    Raises:
        MechanismError: as `window_loss`.
    """
    return sum((unit_divergence(design, size, order) * count for size, count in sizes.items()), Fraction(0))


def units_vector(design: Design, orders: tuple[int, ...], sizes: Mapping[int, int]) -> LossVector:
    """Return the loss of whole units as a ledger adds it up, each rounded up; `sizes` counts the units of each size.

    Raises:
        MechanismError: as `window_loss`.
    """
    units = (unit_loss(design, orders, size).times(count) for size, count in sizes.items())
    return sum(units, LossVector.nothing(orders))


def budget_for(design: Design, periods: Sequence[Mapping[int, int]], epsilon: Fraction, delta: Fraction) -> LossBudget:
    """Return the budget of the one order at which these answers lose the least epsilon at delta.

    Each of `periods` counts the units of each size that one period may hold; the fullest decides. An order is chosen
    for what is asked, before anything is answered: choosing it afterwards would break the proof.

    Raises:
        MechanismError: no period, epsilon not in (0, 700], delta not in (0, 1), or a design without a finite loss.
    """
    order, _ = best_order(lambda one: max(units_divergence(design, sizes, one) for sizes in periods), delta)
    return LossBudget(epsilon=epsilon, delta=delta, orders=(order,))


def ledger_budget(
    design: Design, ways: Iterable[Sequence[Mapping[int, int]]], epsilon: Fraction, delta: Fraction
) -> LossBudget:
    """Return the budget at whose order an empty ledger counts what it is asked.

    It is that of direct answers, unless these answers keep the promise at the order that suits them and not at that
    one. `ways` are what a period may hold, as `periods` of `budget_for`, the most first: with questions that follow,
    then without; the first that keeps the promise decides.

    Raises:
        MechanismError: as `budget_for`.
    """
    usual = LossBudget.for_promise(epsilon, delta)
    if not isinstance(design.noise, GaussianNoise):
        return usual
    for periods in ways:
        if _takes(usual, design, periods):
            return usual
        best = budget_for(design, periods, epsilon, delta)
        if _takes(best, design, periods):
            return best
    return usual


def _takes(budget: LossBudget, design: Design, periods: Sequence[Mapping[int, int]]) -> bool:
    return all(budget.fits(units_vector(design, budget.orders, sizes)) for sizes in periods)


def unit_pure(design: Design, windows: int) -> Fraction | None:
    """Return the pure epsilon of one unit of answers to an error below 1e-60, None if no finite one exists.

    Raises:
        MechanismError: as `window_loss`.
    """
    _checked_windows(windows)
    _require_finite(design)
    if _one_way(design):
        return windows * _one_way_loss(design)
    if design.form is AnswerForm.TWO_ROUNDS:
        if isinstance(design.noise, GaussianNoise):
            return None
        numbers, epsilon = windows * design.levels.count, _geometric(design.noise)
        return panel_pure_epsilon(design.exposure, numbers, numbers, epsilon, design.moved_in_level)
    alone = _answer_pure(design)
    return None if alone is None else windows * alone


def _checked_windows(windows: int) -> int:
    if require_at_least("windows", windows, 1) > _MOST_WINDOWS:
        raise MechanismError(f"windows is {windows}, allowed: 1..{_MOST_WINDOWS}")
    return windows


def _require_finite(design: Design) -> None:
    if design.form is AnswerForm.TWO_ROUNDS and not design.noised:
        raise MechanismError(
            f"exact sums of answers sampled at {design.exposure} have no finite epsilon, allowed: noise on them"
        )


def _geometric(noise: NoiseLaw) -> Fraction:
    if not isinstance(noise, TwoSidedNoise):
        raise MechanismError(f"noise is {noise.name!r}, allowed: two-sided geometric, discrete Gaussian")
    return noise.epsilon


def _one_way(design: Design) -> bool:
    return design.charge_relation.one_way


def _one_way_loss(design: Design) -> Fraction:
    if isinstance(design.noise, OneSidedNoise):
        return sum((cast("OneSidedNoise", law).epsilon for law in design.laws), Fraction(0))
    return Fraction(design.local_epsilon or 0)


def _local(design: Design) -> Fraction | None:
    """Return the local loss of one answer for any change, which holds for every noise on the counts."""
    if not design.device_randomizes or design.kind.relation is not Relation.ANY_VALUE:
        return None
    return Fraction(design.local_epsilon or 0)


def _answer_pure(design: Design) -> Fraction | None:
    if isinstance(design.noise, GaussianNoise | NoNoise):
        return _local(design)
    if design.device_randomizes:
        return any_value_loss(design.answer, _geometric(design.noise))
    return moves_pure(design.moves)


def _answer_divergences(design: Design, order: int) -> list[Fraction]:
    """Return upper bounds of one answer's divergence; the caller takes the least."""
    local, pure = _local(design), _answer_pure(design)
    found = [answer_divergence(design.answer, order)] if local is not None else []
    if pure is not None and pure != local:
        found.append(pure_divergence(pure, order))
    if design.noised:
        direct = moves_divergence(design.moves, order)
        found.append(panel_linear_divergence(truth_weight(design), direct, order))
    if design.kind.multi_hot and isinstance(design.noise, TwoSidedNoise):
        # A value that moves changes two places, each of which loses at most this much (docs/privacy.md).
        places = 1 if design.values == 1 else 2
        found.append(places * pure_divergence(released_loss(design.answer, design.noise.epsilon), order))
    return found
