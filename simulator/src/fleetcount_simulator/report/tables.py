"""The tables of a report: cases, tallies of faults, attackers, privacy statement.

Formats numbers as texts; it must not write a page.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING
from typing import Any, Final

from fleetcount_analysis.figures.charts import Measure, said
from fleetcount_analysis.figures.words import ends, loss, number, percent

from fleetcount_simulator.report.study import CaseResult, Study, share_measure

_MEASURES: Final = {
    "guess_rate": "right guesses",
    "guess_rate_ledger": "right guesses, held by the ledger",
    "guess_rate_tracked": "right guesses along the way",
    "guess_rate_of_place": "right guesses of the place",
    "exposure": "truth seen for certain",
    "shift": "shift of a count, devices",
    "alarm": "alarm rang",
    "shift_at_alarm": "shift until the alarm, devices",
    "error_of_average": "error of the average, devices",
    "posterior": "belief in the truth",
    "refused": "refused",
}
_SHARES: Final = ("guess_rate", "exposure", "alarm", "posterior", "refused")


BROKEN: Final = "BROKEN"
"""The text of the last column of the attackers where a promise was not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table: the first column names the row, the first `texts` columns are running text."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1


def report_tables(study: Study) -> list[ReportTable]:
    """Return all tables that have rows."""
    made = (case_table(study), number_table(study), attacker_table(study), statement_table(study), tally_table(study))
    return [table for table in made if table.rows]


def case_table(study: Study) -> ReportTable:
    """Return a row for every case, with error bars."""
    head = (
        *(
            "case",
            "devices",
            "released",
            "error (devices)",
            "bias against the fleet",
            "coverage",
            "coverage of the fleet",
        ),
        *("width", "epsilon of a release", "epsilon in all"),
    )
    return ReportTable(caption="Cases", head=head, rows=[_case_row(case) for case in study.cases])


def _case_row(case: CaseResult) -> list[str]:
    return [
        case.name,
        f"{case.devices:,}",
        f"{case.released:,} of {case.asked:,}",
        said(case.error),
        said(case.bias_fleet),
        said(case.coverage, share=True),
        said(case.coverage_fleet, share=True),
        number(case.width),
        _loss(case.epsilon, case.delta),
        _loss(case.total_epsilon, case.total_delta),
    ]


def number_table(study: Study) -> ReportTable:
    """Return a row for every number that a case's releases show, beside that of the fleet."""
    names = {case.index: case.name for case in study.cases}
    head = (
        *("case", "number", "of the fleet", "mean estimate", "error", "first release", "its interval"),
        *("mean width", "intervals", "holding the fleet's"),
    )
    rows = [_number_row(row, names) for row in study.numbers]
    return ReportTable(caption="Numbers beside those of the fleet", head=head, rows=rows, texts=2)


def _number_row(row: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    def said_of(name: str) -> str:
        return number(_plain(row[name]))

    return [
        names.get(int(row["case"]), str(row["case"])),
        str(row["what"]),
        f"{said_of('fleet')} {row['unit']}".rstrip(),
        said_of("mean_estimate"),
        said_of("error"),
        said_of("estimate"),
        ends(_plain(row["low"]), _plain(row["high"])),
        said_of("width"),
        f"{row['intervals']:,}",
        said(share_measure(row["holding"] / row["intervals"], None, row["intervals"], 1), share=True),
    ]


def _loss(epsilon: float | None, delta: float) -> str:
    return "none finite" if epsilon is None else loss(epsilon, delta)


def tally_table(study: Study) -> ReportTable:
    """Return the tallies of faults and attackers, as means per release."""
    names = list(dict.fromkeys(name for case in study.cases for name in case.tallies))
    rows = [
        [case.name, *(number(case.tallies.get(name, 0) / max(1, case.asked)) for name in names)]
        for case in study.cases
        if names
    ]
    heads = ("case", *(name.replace("_", " ") for name in names))
    return ReportTable(caption="Reports on their way, mean of a release", head=heads, rows=rows)


def attacker_table(study: Study) -> ReportTable:
    """Return a row for every measurement of an attacker."""
    names = {case.index: case.name for case in study.cases}
    head = ("attacker", "case", "measure", "target", "tries", "measured", "computed", "promised at most", "promise")
    return ReportTable(caption="Attackers", head=head, rows=[_attacker_row(row, names) for row in study.attackers])


def _attacker_row(row: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    measure = str(row["measure"])
    share = measure.startswith(_SHARES)
    form = percent if share else number
    measured = Measure(_plain(row.get("measured")), _plain(row.get("low")), _plain(row.get("high")))
    epoch = "" if row.get("epoch") is None else f", epoch {row['epoch']}"
    asked = "" if row.get("questions") in {None, 1} else f", {row['questions']} questions"
    return [
        str(row["attacker"]),
        names.get(int(row["case"]), str(row["case"])),
        _MEASURES.get(measure, measure.replace("_", " ")),
        f"{row.get('target') or ''}{epoch}{asked}",
        f"{row.get('trials') or 0:,}",
        said(measured, share=share),
        form(_plain(row.get("theory"))),
        form(_plain(row.get("bound")), ROUND_CEILING),
        {True: "kept", False: BROKEN}.get(row.get("within"), "none"),  # type: ignore[arg-type] # None is no key
    ]


def statement_table(study: Study) -> ReportTable:
    """Return a row for each kind of adversary, with what it could learn; cases of equal statements share a row."""
    names = {case.index: case.name for case in study.cases}
    groups: dict[tuple[Any, ...], list[str]] = {}
    columns = ("audience", "text", "epsilon", "delta", "releases", "total_epsilon", "total_delta")
    for row in study.statements:
        groups.setdefault(tuple(row[name] for name in columns), []).append(names.get(int(row["case"]), ""))
    rows = [
        [
            str(audience),
            str(text),
            _loss(epsilon, 0),
            loss(delta),
            _loss(total, 0) + (f" ({releases} releases)" if total is not None and releases != 1 else ""),
            loss(total_delta),
            _cases(cases, len(study.cases)),
        ]
        for (audience, text, epsilon, delta, releases, total, total_delta), cases in groups.items()
    ]
    head = ("who", "what it could learn of one device", "epsilon", "delta", "epsilon in all", "delta in all", "cases")
    return ReportTable(caption="Privacy statement", head=head, rows=rows, texts=2)


def _cases(names: Sequence[str], all_cases: int) -> str:
    if len(names) == all_cases:
        return "all"
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _plain(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
