"""What all aggregators together learn of one device over units of a sampling coin: two sums, and the law behind them.

With probability p a unit they see every answer of it. No noise and no ledger of epsilons helps. It must not know a
time. All results are exact fractions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_fraction
from fleetcount_mechanisms.renyi import checked_rate

RARE: Final = Fraction(1, 10**9)
_MOST_STATES: Final = 2_000_000
MOST_UNITS: Final = 20_000
"""Units of a question of which `quantile` is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The two sums that ledgers add: `chance`, p for each unit, and `answers`, p times its answers.

    `chance` bounds the chance that any answer is seen; `answers` is the expected number of answers seen.
    """

    chance: Fraction
    answers: Fraction

    def __add__(self, other: "Exposure") -> "Exposure":
        """Return both together."""
        return Exposure(chance=self.chance + other.chance, answers=self.answers + other.answers)


def exposure_of(rate: Fraction, windows: int) -> Exposure:
    """Return the two sums of one unit of `windows` answers.

    Raises:
        MechanismError: p not in (0, 1], or windows below 1.
    """
    return Exposure(chance=checked_rate(rate), answers=checked_rate(rate) * require_at_least("windows", windows, 1))


def chance_of_any(rate: Fraction, units: int) -> Fraction:
    """Return 1 - (1-p)**U: at least one answer is seen.

    Raises:
        MechanismError: p not in (0, 1], or units below 1.
    """
    return 1 - (1 - checked_rate(rate)) ** require_at_least("units", units, 1)


def chance_of_all(rate: Fraction, units: int) -> Fraction:
    """Return p**U: every answer is seen; raises as `chance_of_any`."""
    return Fraction(checked_rate(rate) ** require_at_least("units", units, 1))


def expected_answers(rate: Fraction, units: Sequence[int]) -> Fraction:
    """Return p times the number of answers: expected to be seen, whatever the coin.

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
