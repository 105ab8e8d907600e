"""Golden numbers of what analysts ask for: means, quantiles, tables, sets, codes, and what protects one direction.

Each function takes what a row of `tests/golden/answers.json` has and asks the functions by which releases are planned,
charged and read. It must not contain an expected number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, cast

import numpy as np
from fleetcount_analysis.answers import averages
from fleetcount_analysis.answers.drill_down import find_chance, smallest_found
from fleetcount_analysis.answers.half_widths import Coins, combined, width_with
from fleetcount_analysis.answers.noises import Parts, variance_of
from fleetcount_analysis.answers.weighted_sums import values_join
from fleetcount_analysis.errors import AnalysisError
from fleetcount_analysis.reading import read
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import require_at_least
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.losses import moves_pure, moves_rho
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread
from fleetcount_mechanisms.planning import mean_sd, spread_for_mean
from fleetcount_mechanisms.protection import flips_protecting
from fleetcount_mechanisms.responses import AsymmetricVector

from fleetcount_evidence.golden.rows import Fields, MalformedGoldenError, shown

_AGGREGATORS: Final = 2
_UNIT: Final = Fraction(1000)
"""A variance at which that of the discrete Gaussian is its parameter to 800 digits."""
_MOST_POINTS: Final = 64
_MOST_VALUES: Final = 4095
"""A question has no more values; a file that asks for a billion would fill the memory."""


def _choice(value: object, of: str, allowed: Sequence[str]) -> str:
    """Return a text of a row.

    Raises:
        MalformedGoldenError: it is none of those allowed.
    """
    if value not in allowed:
        raise MalformedGoldenError(f"{of} is {shown(value)}; it must be one of {', '.join(allowed)}")
    return str(value)


def _values(values: int, least: int = 1) -> int:
    """Return V.

    Raises:
        AnalysisError: it is below `least` or above 4,095.
    """
    if not least <= values <= _MOST_VALUES:
        raise AnalysisError(f"V is {values}, allowed: {least} to {_MOST_VALUES}")
    return values


# Numbers.


def _cells(values: int, variance: Fraction, *, total: bool = False) -> Design:
    """Return direct counts whose numbers have this variance of all noise, with a free total where one is asked for."""
    answer, noise = Truth(_values(values, 2)), GaussianNoise(variance / _AGGREGATORS)
    spread = Spread(levels=Levels(values))
    return (spread.with_total_for(answer, GaussianNoise) if total else spread).design(answer, noise, _AGGREGATORS)


def _noise_of(design: Design, weights: Sequence[float]) -> Parts:
    """Return the noises in a weighted sum of the counts of the values, by least squares."""
    join = values_join(design)
    return combined([(join.weights(np.array(weights, dtype=np.float64)), 1)], join.laws)


def _places(values: int, mean: Fraction) -> list[float]:
    return [float(Fraction(value, values - 1) - mean) for value in range(values)]


def mean_noise(values: int, mean: Fraction, total: object) -> float:
    """Return c(mu), the variance of the noise in the sum of (g_v - mu) Y_v in that of one opened number.

    Raises:
        MalformedGoldenError: `total` is neither "free" nor "no".
    """
    design = _cells(values, _UNIT, total=_choice(total, "total", ("free", "no")) == "free")
    return variance_of(_noise_of(design, _places(values, mean))) / float(_UNIT)


def mean_error(values: int, devices: int, variance: Fraction, weighted: object) -> float:
    """Return the sd to expect of the mean of numbers from 0 to 1, at the middle, without or with a weighted sum.

    `variance` is that of a number that had all of the budget: without a weighted sum that of the cells.

    Raises:
        MalformedGoldenError: `weighted` is neither "yes" nor "no".
    """
    if _choice(weighted, "weighted", ("yes", "no")) == "no":
        return mean_sd(_cells(values, variance), devices)
    spread, noise = spread_for_mean(_values(values, 2), GaussianNoise), GaussianNoise(variance / _AGGREGATORS)
    own = replace(noise, variance=noise.variance / spread.cells_share(GaussianNoise))
    return mean_sd(spread.design(Truth(values), own, _AGGREGATORS), devices)


def best_points(devices: int, variance: Fraction) -> int:
    """Return the number of points, 2 to 64, at which the mean of so many numbers errs the least."""
    return min(range(2, _MOST_POINTS + 1), key=lambda values: mean_sd(_cells(values, variance), devices))


def mean_width(values: int, devices: int, variance: Fraction, least: Fraction, most: Fraction) -> int:
    """Return 1 if the half width of T(1/2) at 95 %, devices rounding to V points, is from `least` to `most`, else 0."""
    design = _cells(values, variance)
    step = 1 / (values - 1)
    parts = _noise_of(design, _places(values, Fraction(1, 2)))
    coins = Coins(variance=devices * step**2 / 4, deviation=step / 2, largest=step)
    return int(least <= width_with(parts, Fraction(95, 100), coins) <= most)


def quantile_variance(values: int, value: int, q: Fraction, total: object) -> float:
    """Return the variance of F(v) - qN in that of one opened number.

    Raises:
        MalformedGoldenError: `total` is neither "free" nor "no".
    """
    design = _cells(values, _UNIT, total=_choice(total, "total", ("free", "no")) == "free")
    return averages.value_test(design, 1, value, q, Fraction(95, 100), 0).spread ** 2 / float(_UNIT)


def quantile_end(opened: Sequence[object], variance: Fraction, q: Fraction, of: object) -> int:
    """Return the "first" or the "last" value that may be the q-quantile at 95 %, or the "value" that it most likely is.

    `opened` are the counts of the values and their total, which has as much noise as a cell.

    Raises:
        MalformedGoldenError: another number than these, or something else than whole numbers.
    """
    numbers = Fields(where="quantile_end, opened", fields={str(place): one for place, one in enumerate(opened)})
    counts = [numbers.whole(name) for name in numbers.fields]
    design = _cells(len(counts) - 1, variance, total=True)
    found = averages.quantile(design, counts, q, Fraction(95, 100))
    return int(getattr(found, _choice(of, "of", ("first", "last", "value"))))


# Tables and sets.


def table_variance(rows: int, columns: int, of: object) -> float:
    """Return the variance of a number of a table in that of one number that had all of the budget.

    The cells and both margins have a third of it each, and the total is free: a cell, a value of the "row" signal or
    of the "column" signal, or the total, as they are read.

    Raises:
        MalformedGoldenError: another number than these.
    """
    values = _values(rows * columns, 4)
    answer, spread = Truth(values), Spread.of_shares(Levels(values, margins=(rows, columns)))
    design = spread.with_total_for(answer, GaussianNoise).design(answer, GaussianNoise(_UNIT), _AGGREGATORS)
    place = {"cell": (0, 0), "row": (0, slice(None)), "column": (slice(None), 0), "total": (slice(None), slice(None))}
    wanted = np.zeros((rows, columns))
    wanted[cast("Any", place[_choice(of, "of", tuple(place))])] = 1
    whole = float(_UNIT) * _AGGREGATORS * float(spread.cells_share(GaussianNoise))
    return variance_of(_noise_of(design, wanted.ravel().tolist())) / whole


def set_price(values: int, most: int, noise: Fraction, law: object, holders: object) -> Fraction:
    """Return the loss of any change of a set of at most m of V values.

    It is the zCDP of "gaussian" noise of variance s, and the epsilon of "geometric" noise of epsilon s.
    With `holders` "free" the number of devices that have any value is opened too, with the least noise that is free.

    Raises:
        MalformedGoldenError: another law, or `holders` is neither "free" nor "no".
    """
    answer, gaussian = Truth(_values(values), most), _choice(law, "law", ("gaussian", "geometric")) == "gaussian"
    drawn = GaussianNoise(noise) if gaussian else TwoSidedNoise(noise)
    spread = Spread(levels=Levels(values, most=most))
    if _choice(holders, "holders", ("free", "no")) == "free":
        spread = spread.with_total_for(answer, type(drawn))
    moves = spread.design(answer, drawn, _AGGREGATORS).moves
    return moves_rho(moves) if gaussian else cast("Fraction", moves_pure(moves))


def holders_noise(values: int, most: int) -> Fraction:
    """Return how many times the noise of a cell the number of holders of any value has, where it is free."""
    return Spread(levels=Levels(_values(values), most=most)).free_total(GaussianNoise)


# Codes.


def _walk(noise_epsilon: Fraction) -> Design:
    return Design(answer=Truth(2), noise=TwoSidedNoise(noise_epsilon), values=2, aggregators=_AGGREGATORS)


def code_found(noise_epsilon: Fraction, threshold: int, steps: int, vehicles: int) -> float:
    """Return the chance that a walk finds a code that so many vehicles tell."""
    return find_chance(_walk(noise_epsilon), threshold, steps, vehicles)


def code_seen(noise_epsilon: Fraction, threshold: int, steps: int, chance: Fraction) -> int:
    """Return the least number of vehicles that tell a code which a walk finds with this chance."""
    return smallest_found(_walk(noise_epsilon), threshold, steps, chance)


def walk_price(noise_epsilon: Fraction, steps: int) -> Fraction:
    """Return the epsilon of a walk of so many steps, each of which tells the same code."""
    require_at_least("steps", steps, 1)
    return steps * cast("Fraction", moves_pure(_walk(noise_epsilon).moves))


# One direction.


def one_sided_end(count: int, epsilon: Fraction, noises: int, level: Fraction, direction: object, of: object) -> int:
    """Return the "low" or the "high" end of a released count under one-sided noise of a direction.

    Raises:
        MalformedGoldenError: another direction or end.
    """
    side = _choice(direction, "direction", ("up", "down"))
    noise = OneSidedNoise(epsilon, "up" if side == "up" else "down")
    found = read(Design(answer=Truth(1), noise=noise, values=1, aggregators=noises), [count], level)
    return int(getattr(found, _choice(of, "of", ("low", "high")))[0])


def _protected(epsilon: Fraction, values: int, protects: object) -> AsymmetricVector:
    """Return the answer that hides each value behind others, as a policy names them by number."""
    if not isinstance(protects, Mapping):
        raise MalformedGoldenError(f"protects is {shown(protects)}; it must be an object of lists of values")
    named = Fields.of(protects, "protects")
    policy = {int(name): named.integers(name) for name in named.fields if name.isdecimal() and len(name) <= 4}
    if len(policy) != len(named.fields):
        raise MalformedGoldenError(f"protects is {shown(protects)}; its names must be values")
    return AsymmetricVector.from_epsilon(epsilon, flips_protecting(_values(values), policy))


def protected_flip(epsilon: Fraction, values: int, protects: object) -> Fraction:
    """Return the chance of a wrong bit of a value that a policy protects in one direction.

    Raises:
        MalformedGoldenError: `protects` is no object of lists of values.
        MechanismError: no order of the values.
    """
    return _protected(epsilon, values, protects).flip


def protected_sd(epsilon: Fraction, values: int, protects: object, value: int, count: int, devices: int) -> float:
    """Return the sd of the estimate of a value that so many of all devices have, before noise of aggregators.

    Raises:
        MalformedGoldenError, MechanismError: as `protected_flip`.
    """
    law = _protected(epsilon, values, protects)
    if not 1 <= value <= values:
        raise MalformedGoldenError(f"value is {value}; it must be 1 to {values}")
    return law.standard_deviation(count, devices, value)
