"""The first part of a report: the question and the fleet, the three numbers that matter, and the warnings.

Makes plain sentences from measures; it must not draw or write a page. A warning appears where a measurement differs
from the expected value by more than its error bars, never for the number alone.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, cast

from fleetcount_analysis.figures.charts import Measure, said
from fleetcount_analysis.figures.words import ends, loss, number, percent, short
from fleetcount_analysis.interval_words import level_text

from fleetcount_simulator.report.figures import coverage_band
from fleetcount_simulator.report.study import Z95, CaseResult, Study

_SURE: Final = 4.0
"""Standard errors from which a bias counts as real: chance gives as much in 6 of 100,000 cases."""
_LEAST_RUNS: Final = 10
_NAMED: Final = 3

_KINDS: Final = {
    "sampling": "Sampling Privacy (a sampled share answers truthfully, in two rounds)",
    "direct": "the truth in secret shares",
    "one-sided": "the truth in secret shares, with one-sided noise",
    "two-coin": "randomized yes or no by two coins",
    "warner": "Warner's randomized response",
    "mangat": "Mangat's randomized response",
    "k-ary": "a randomized value (k-ary response)",
    "mangat-vector": "one bit for each value (vector Mangat)",
    "asymmetric": "one bit for each value, wrong one way or both",
    "unary": "one bit for each value (optimized unary encoding)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One of the three numbers: its name, the number itself, and its meaning in words."""

    name: str
    number: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A remark for the reader; `severe` when a promise or an expectation is not kept."""

    severe: bool
    text: str


def lead(text: str) -> str:
    """Return the comment a scenario starts with, in which its author says what it is for."""
    comment: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("#").strip())
    return " ".join(comment)


# What was asked.


def introduction(study: Study) -> list[str]:
    """Return sentences about the question, the fleet, the mechanisms and the number of runs."""
    cases = study.cases
    if not cases:
        return []
    questions = list(dict.fromkeys(case.question for case in cases))
    asked = "; ".join(f"“{short(question, 160)}”" for question in questions[:_NAMED])
    values = range_text([float(case.values) for case in cases])
    devices = range_text([float(case.devices) for case in cases])
    kinds = list(dict.fromkeys(case.kind for case in cases))
    ways = "; ".join(_KINDS.get(kind, kind) for kind in kinds)
    aggregators = range_text([float(case.aggregators) for case in cases])
    runs, engine = int(study.record.get("runs", 0)), study.record.get("engine", "")
    tried = "once" if runs == 1 else f"{runs:,} times"
    levels = [level_text(Fraction(str(level))) for level in sorted({case.level for case in cases})]
    started = "One case, run" if len(cases) == 1 else f"{len(cases):,} cases, each run"
    return [
        f"{devices} devices were asked {asked}, with {values} possible {'answer' if values == '1' else 'answers'} "
        "and “none of them”.",
        f"They answered with: {ways}. {aggregators} aggregators added up shares of the answers; none of them sees one.",
        f"{started} {tried} with the {engine} engine, asking for {' or '.join(levels)} intervals.",
        *_circumstances(str(study.record.get("scenario", ""))),
    ]


def _circumstances(text: str) -> list[str]:
    """Return sentences about the scenario's faults, attackers and repetition."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return []
    made: list[str] = []
    for name, words in (
        ("faults", "What went wrong on purpose"),
        ("epochs", "Asked repeatedly"),
        ("schedule", "Asked as one question"),
    ):
        table = tables.get(name)
        if isinstance(table, dict):
            entries = cast("Mapping[str, Any]", table)
            plain = [f"{key.replace('_', ' ')} {_listed(entry)}" for key, entry in entries.items() if key != "outage"]
            made.append(f"{words}: {'; '.join(plain) or 'see the scenario'}.")
    attackers = tables.get("attacker")
    if isinstance(attackers, list):
        kinds = [str(cast("Mapping[str, Any]", one).get("kind", "")) for one in attackers]
        made.append(f"Attackers: {', '.join(kinds)}.")
    return made


def _listed(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_listed(entry) for entry in cast("list[object]", value))
    return {"True": "yes", "False": "no"}.get(str(value), str(value))


def range_text(values: Sequence[float]) -> str:
    """Return one number, or the smallest to the largest."""
    low, high = min(values), max(values)
    return _whole(low) if low == high else f"{_whole(low)} to {_whole(high)}"


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else number(value)


# The three numbers.


def headlines(study: Study) -> list[Headline]:
    """Return typical error, coverage and privacy; nothing for a study in which nothing was released."""
    released = [case for case in study.cases if case.released]
    if not released:
        return []
    return [_error_headline(released), _coverage_headline(released), _privacy_headline(study, released)]


def _error_headline(cases: Sequence[CaseResult]) -> Headline:
    best, worst = (choose(cases, key=lambda case: case.error.value) for choose in (min, max))
    if best is worst:
        relative = ""
        if best.mean_truth > 0:
            relative = f" A cell holds {number(best.mean_truth)} devices on average."
        interval = f" (95 % interval {ends(best.error.low, best.error.high)})" if best.error.bounded else ""
        return Headline(
            name="Typical error",
            number=f"{number(best.error.value)} devices",
            meaning=f"root mean square over cells and runs{interval}.{relative}",
        )
    return Headline(
        name="Typical error",
        number=f"{number(best.error.value)} to {number(worst.error.value)} devices",
        meaning=f"in a cell (root mean square): least in “{short(best.name, 60)}”, most in “{short(worst.name, 60)}”.",
    )


def _coverage_headline(cases: Sequence[CaseResult]) -> Headline:
    if len(cases) == 1:
        case = cases[0]
        if not case.judged:
            few = f"{case.released * case.values} intervals do not show how often they hold the truth; more --runs do."
            return Headline(name="Coverage", number="not known", meaning=few)
        low, high = coverage_band(case.level)
        return Headline(
            name="Coverage",
            number=percent(case.coverage.value),
            meaning=f"of the intervals hold the truth (95 % interval "
            f"{ends(case.coverage.low, case.coverage.high, share=True)}); it should be {ends(low, high, share=True)}.",
        )
    fitting = [case for case in cases if not _below(case) and not _above(case)]
    bands = {coverage_band(case.level) for case in cases}
    wanted = ends(*min(bands), share=True) if len(bands) == 1 else "the range of their level"
    worst = min(cases, key=lambda case: case.coverage.value)
    return Headline(
        name="Coverage",
        number=f"{len(fitting)} of {len(cases)} cases",
        meaning=f"are compatible with {wanted} of intervals holding the truth; the lowest measured is "
        f"{said(worst.coverage, share=True)}.",
    )


def _privacy_headline(study: Study, cases: Sequence[CaseResult]) -> Headline:
    finite = [case.epsilon for case in cases if case.epsilon is not None]
    if not finite:
        return Headline(
            name="Privacy",
            number="no finite epsilon",
            meaning="for what everybody sees: read the privacy statement.",
        )
    low, high = min(finite), max(finite)
    span = loss(low) if low == high else f"{loss(low)} to {loss(high)}"
    largest = max(case.delta for case in cases if case.epsilon is not None)
    with_delta = f", delta up to {loss(largest)}" if largest else ""
    totals = [case.total_epsilon for case in cases if case.total_epsilon is not None]
    most = max(case.answered for case in cases)
    together = f" All {most} releases together: at most {loss(max(totals))}." if most > 1 and totals else ""
    some = "" if len(finite) == len(cases) else f" {len(cases) - len(finite)} cases have no finite epsilon."
    return Headline(
        name="Privacy",
        number=f"epsilon {span}{with_delta}",
        meaning=f"what one release tells everybody about a device at most.{together}{some}",
    )


# Warnings.


def warnings_of(study: Study) -> list[Notice]:
    """Return the warnings, the severe ones first."""
    found = [*_unfinished(study), *_unreleased(study), *_attacked(study), *_uncovered(study), *_biased(study)]
    if study.cases and max(case.asked for case in study.cases) == 1:
        found.append(Notice(severe=False, text="One run: how much results differ between runs is not known."))
    return sorted(found, key=lambda warning: not warning.severe)


def _unfinished(study: Study) -> list[Notice]:
    if study.complete:
        return []
    text = "The study has not finished; the same command goes on with it."
    if study.cases:
        text = "The study is running again or was interrupted; these tables are from when it finished last."
    return [Notice(severe=True, text=text)]


def _unreleased(study: Study) -> list[Notice]:
    missing = [case for case in study.cases if case.released < case.asked]
    if not missing:
        return []
    lost, asked = sum(case.asked - case.released for case in missing), sum(case.asked for case in missing)
    text = (
        f"{lost:,} of {asked:,} releases did not happen (too few devices, or an aggregator away) {_in(study, missing)}."
    )
    return [Notice(severe=True, text=text)]


def _attacked(study: Study) -> list[Notice]:
    made: list[Notice] = []
    broken = [row for row in study.attackers if row.get("within") is False]
    if broken:
        who = ", ".join(dict.fromkeys(f"{row['attacker']} ({str(row['measure']).replace('_', ' ')})" for row in broken))
        made.append(Notice(severe=True, text=f"Attackers achieved more than is promised, beyond luck: {who}."))
    alarms = [row for row in study.attackers if row["measure"] == "alarm" and (row.get("low") or 0) > 0.01]
    if alarms:
        most = max(float(row["measured"]) for row in alarms)
        text = f"Lying devices rang the alarm in up to {percent(most)} of the releases: those would be looked into."
        made.append(Notice(severe=False, text=text))
    return made


def _uncovered(study: Study) -> list[Notice]:
    made: list[Notice] = []
    below = [case for case in study.cases if _below(case)]
    if below:
        text = f"Intervals hold the truth too seldom {_in(study, below, lambda case: said(case.coverage, share=True))}."
        made.append(Notice(severe=True, text=text))
    fleet = [case for case in study.cases if not _below(case) and _under(case.coverage_fleet, case.level)]
    if fleet:
        shown = _in(study, fleet, lambda case: said(case.coverage_fleet, share=True))
        text = f"Intervals speak of the devices counted; of the whole fleet they hold the truth too seldom {shown}."
        made.append(Notice(severe=False, text=text))
    above = [case for case in study.cases if _above(case)]
    if above:
        shown = _in(study, above, lambda case: said(case.coverage, share=True))
        text = f"Intervals are wider than needed, since counts are whole numbers; that is safe {shown}."
        made.append(Notice(severe=False, text=text))
    return made


def _biased(study: Study) -> list[Notice]:
    made: list[Notice] = []
    off = [case for case in study.cases if _believed(case.bias, case)]
    if off:
        text = f"Counts are biased against the devices counted {_in(study, off, lambda case: _devices(case.bias))}."
        made.append(Notice(severe=True, text=text))
    fleet = [case for case in study.cases if not _believed(case.bias, case) and _believed(case.bias_fleet, case)]
    if fleet:
        shown = _in(study, fleet, lambda case: _devices(case.bias_fleet))
        text = f"Counts miss devices of the whole fleet: bias in a cell {shown}."
        made.append(Notice(severe=False, text=text))
    twice = [case for case in study.cases if case.tallies.get("counted_twice", 0)]
    if twice:
        made.append(Notice(severe=True, text=f"Reports were counted twice {_in(study, twice)}."))
    return made


def _devices(measure: Measure) -> str:
    return f"{said(measure)} devices"


def _below(case: CaseResult) -> bool:
    return _under(case.coverage, case.level)


def _under(coverage: Measure, level: float) -> bool:
    return coverage.bounded and coverage.high < coverage_band(level)[0]


def _above(case: CaseResult) -> bool:
    return case.coverage.bounded and case.coverage.low > coverage_band(case.level)[1]


def _believed(bias: Measure, case: CaseResult) -> bool:
    """Return whether a bias is significant, and more than a twentieth of the error."""
    if not bias.bounded or case.released < _LEAST_RUNS:
        return False
    deviation = (bias.high - bias.low) / (2 * Z95)
    return abs(bias.value) > _SURE * deviation and abs(bias.value) > 0.05 * case.error.value


def _in(study: Study, cases: Sequence[CaseResult], what: Callable[[CaseResult], str] | None = None) -> str:
    """Return the names of the cases, each with the text `what` gives for it."""
    if len(study.cases) == 1:
        return "here" if what is None else f"here: {what(cases[0])}"
    named = [f"“{short(case.name, 60)}”" + (f" {what(case)}" if what is not None else "") for case in cases[:_NAMED]]
    more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    return f"in {len(cases)} of {len(study.cases)} cases: {'; '.join(named)}{more}"
