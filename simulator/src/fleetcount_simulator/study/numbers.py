"""What releases of a number show, its mean or its quantiles with their intervals, beside those of the fleet.

It reads the opened numbers by the public design, as an analyst does; the fleet's stand beside them and are not read.
Intervals take long, those of a mean a tenth of a second to seconds each, so that only a case's first releases have
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from fleetcount_analysis import answers
from fleetcount_analysis.answers.averages import Counts
from fleetcount_analysis.reading import Reading
from fleetcount_protocol.window.domain import Numbers
from numpy.typing import NDArray

from fleetcount_simulator.model import Case, CaseOutcome
from fleetcount_simulator.rounding import Rounding, mean_of, rounding_of

Floats = NDArray[np.float64]

QUANTILES: Final = tuple(Fraction(q) for q in ("0.1", "0.25", "0.5", "0.75", "0.9"))
MOST_RELEASES: Final = {"mean": 20, "quantiles": 200}
"""How many releases of a case have intervals, run by run and each run epoch by epoch."""
NUMBERS: Final = ("run", "epoch", "q", "fleet", "estimate", "low", "high")
"""Columns of a number that a release shows: q is not a number of a mean. All but run and epoch are in its unit."""


def mean_numbers(case: Case, outcome: CaseOutcome, reading: Reading, epoch: int) -> tuple[Floats, float] | None:
    """Return the estimate of the mean number in every run, (runs,), and the mean of the fleet's readings.

    Where the weighted sum is opened it is read with it, else from the cells alone; not a number of nobody. None of
    other questions.
    """
    known = mean_of(case.population, epoch)
    if known is None:
        return None
    points, fleet = known
    cells = reading.estimates
    if case.mechanism.show == "mean":
        cells = np.array([Counts.of(case.design, row).cells for row in outcome.outputs])
    devices = cells.sum(axis=1)
    return np.asarray(cells @ points / np.where(devices > 0, devices, np.nan), dtype=np.float64), fleet


def shown_numbers(case: Case, outcome: CaseOutcome, epoch: int, runs: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Return the columns `NUMBERS` of what an epoch's releases show, those of a case's first ones; else without rows.

    `fleet` is that of all readings as devices take them: those beyond the ends are the ends, or no values. Where nobody
    has a value there is nothing to compare with, and no row.
    """
    domain, rounding = case.population.question.domain, rounding_of(case.population.question)
    rows = list[tuple[float, ...]]()
    if case.mechanism.show is not None and isinstance(domain, Numbers) and rounding is not None:
        held = case.population.histogram(epoch)
        most = 0 if np.isnan(rounding.taken_mean(held)) else MOST_RELEASES[case.mechanism.show]
        for place, run in enumerate(runs):
            if outcome.released[place] and run * case.epochs.count + epoch < most:
                shown = _shown(case, domain, rounding, outcome.outputs[place].tolist(), held)
                rows += [(run, epoch, *row) for row in shown]
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), len(NUMBERS)).T
    return {
        name: column.astype(np.int64) if name in {"run", "epoch"} else column
        for name, column in zip(NUMBERS, columns, strict=True)
    }


def _shown(
    case: Case, domain: Numbers, rounding: Rounding, opened: Sequence[int], held: NDArray[np.int64]
) -> list[tuple[float, ...]]:
    """Return (q, of the fleet, estimate, low, high) of every number that a release shows."""
    points = domain.points
    if case.mechanism.show == "mean":
        found = answers.mean(case.design, opened, points, case.level, rounded=True)
        estimate = np.nan if found.estimate is None else found.estimate
        return [(np.nan, rounding.taken_mean(held), estimate, found.low, found.high)]
    rows = list[tuple[float, ...]]()
    for q in QUANTILES:
        one = answers.quantile(case.design, opened, q, case.level)
        low, high = one.between(points)
        estimate = float(points[one.value - 1])
        rows.append((float(q), rounding.taken_quantile(held, q), estimate, float(low), float(high)))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSummary:
    """A number that a case's releases show, in its unit: of the fleet, of the first release, and of all of them.

    `fleet`, `estimate`, `low` and `high` are of the first release with intervals; `holding` of `intervals` hold the
    number of the fleet. `error` is the root mean square of the estimates' errors. Not a number where no device is seen.
    """

    what: str
    unit: str
    fleet: float
    estimate: float
    low: float
    high: float
    error: float
    holding: int
    intervals: int


def number_name(q: float) -> str:
    """Return what a number is, for people: the mean where q is not a number."""
    return "mean" if np.isnan(q) else "median" if q == 0.5 else f"quantile {q:g}"


def number_summaries(case: Case, columns: Mapping[str, NDArray[Any]]) -> tuple[NumberSummary, ...]:
    """Return a summary of every number that is shown, from the columns of `shown_numbers` in the order of its runs."""
    domain, found = case.population.question.domain, list[NumberSummary]()
    names = [number_name(q) for q in columns["q"].tolist()]
    for what in dict.fromkeys(names):
        chosen = [place for place, name in enumerate(names) if name == what]
        fleet, estimate, low, high = (columns[name][chosen] for name in ("fleet", "estimate", "low", "high"))
        seen = (estimate - fleet)[~np.isnan(estimate)]
        found.append(
            NumberSummary(
                what=what,
                unit=domain.unit if isinstance(domain, Numbers) else "",
                fleet=float(fleet[0]),
                estimate=float(estimate[0]),
                low=float(low[0]),
                high=float(high[0]),
                error=float(np.sqrt(np.mean(seen**2))) if seen.size else float("nan"),
                holding=int(((low <= fleet) & (fleet <= high)).sum()),
                intervals=len(chosen),
            )
        )
    return tuple(found)
