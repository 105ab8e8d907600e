"""The figures of a question: the noise that a promise costs by each rule, and the guesses of a tracker of all windows.

It chooses and labels; the tables `rules` and `attackers` hold the numbers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleetcount_analysis.figures.charts import Chart, Curve, Measure, Style, curve_panel, scale_of, styles
from fleetcount_analysis.figures.words import number

from fleetcount_simulator.report.study import Study

MOST_TRACKERS: Final = 6
_TRACKER: Final = "tracker"
_COIN: Final = ", coin a "
_KEY: Final = (("measured", Style("s0")), ("computed", Style("s2", 1)), ("promised at most", Style("s1", 2)))


def rules_chart(study: Study) -> Chart | str:
    """Return the figure of the noise that the first question's promise needs, rule by rule; or why there is none."""
    if not study.rules:
        return "no question has a promise of its own (schedule.epsilon)"
    names = list(dict.fromkeys(str(row["rule"]) for row in study.rules))
    style = dict(zip(names, styles(len(names)), strict=True))
    x = scale_of([float(row["windows"]) for row in study.rules], "windows of the question", log=True)
    y = scale_of([float(row["sd"]) for row in study.rules], "sd of an empty cell, in devices", log=True)
    panels = []
    for title, sampled in (("the truth, in shares", False), ("a sampling coin", True)):
        chosen = [name for name in names if (_COIN in name) is sampled]
        curves = [_rule(study, name, style[name]) for name in chosen]
        ends = "; ".join(f"{curve.names[-1]}: {number(curve.y[-1].value)}" for curve in curves)
        panels.append(curve_panel(curves, x, y, title=title, alt=f"{title}: {y.label} against windows. {ends}."))
    return Chart(
        name="rules",
        title="What one promise for all windows costs, rule by rule",
        caption="Standard deviation of an empty cell of one map when all windows together keep the promise of the "
        "first question. Adding losses up is what separate questions cost. A coin goes with Gaussian noise; it adds "
        "the scatter of who is sampled, which is not shown, and protects against all aggregators together, as the "
        "truth in shares does not.",
        panels=panels,
        key=[(name, style[name]) for name in names],
    )


def _rule(study: Study, name: str, style: Style) -> Curve:
    rows = [row for row in study.rules if row["rule"] == name]
    return Curve(
        x=[float(row["windows"]) for row in rows],
        y=[Measure(float(row["sd"])) for row in rows],
        names=[f"{name}, {row['windows']} windows" for row in rows],
        style=style,
    )


def _tracker_rows(study: Study) -> list[Mapping[str, Any]]:
    """Return the guess rates of trackers, after all windows and after fewer."""
    return [row for row in study.attackers if row["kind"] == _TRACKER and row["measure"] == "guess_rate"]


def last_guesses(study: Study) -> list[Mapping[str, Any]]:
    """Return the rows of all attackers, but of a tracker's guesses only those after all windows."""
    last: dict[tuple[int, str], int] = {}
    for row in _tracker_rows(study):
        place = int(row["case"]), str(row["attacker"])
        last[place] = max(last.get(place, 0), _windows(row))
    early = [row for row in _tracker_rows(study) if _windows(row) < last[int(row["case"]), str(row["attacker"])]]
    return [row for row in study.attackers if not any(row is one for one in early)]


def tracker_chart(study: Study) -> Chart | str:
    """Return the figure of a tracker's guess rate after more and more windows; or why there is none."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in _tracker_rows(study):
        groups.setdefault((int(row["case"]), str(row["attacker"])), []).append(row)
    shown = [(key, sorted(rows, key=_windows)) for key, rows in groups.items() if len(rows) > 1][:MOST_TRACKERS]
    if not shown:
        return "no tracker sees a question of several units (an attacker of kind 'tracker')"
    names = {case.index: case.name for case in study.cases}
    alone = len(study.cases) == 1
    every = [row for _, rows in shown for row in rows]
    x = scale_of([float(row["questions"]) for row in every], "windows seen in which the ways differ", log=True)
    y = scale_of([0.0, 1.0], "right guesses", as_percent=True)
    panels = []
    for (case, attacker), rows in shown:
        title = attacker if alone else f"{attacker}, {names[case]}"
        first, last = rows[0], rows[-1]
        alt = (
            f"{title}: {number(first['measured'])} after {first['questions']} windows, {number(last['measured'])} "
            f"after {last['questions']}; promised {number(last['bound'])}"
        )
        panels.append(curve_panel(_tracker(rows), x, y, title=title, alt=alt))
    more = f"The first {len(shown)} of {len(groups)}. " if len(groups) > len(shown) else ""
    return Chart(
        name="tracker",
        title="Who sees all windows: right guesses against the promise",
        caption="The tracker knows all other devices and all aggregators' noises but one, and guesses which of a few "
        "ways a device went. Blue: how often he is right, with 95 % intervals; green: the best possible, where there "
        "is a formula; orange: the most that the promise for so many windows allows. Guesses say little of a promise "
        f"with a large epsilon: the table of attackers holds `beyond_promise` against delta. {more}",
        panels=panels,
        key=_KEY if any(math.isfinite(number_in(row, "theory")) for row in every) else (_KEY[0], _KEY[2]),
    )


def _windows(row: Mapping[str, Any]) -> int:
    return int(row["questions"])


def _tracker(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    windows = [float(row["questions"]) for row in rows]
    made = [
        [Measure(number_in(row, "bound")) for row in rows],
        [Measure(number_in(row, "theory")) for row in rows],
        [Measure(*(number_in(row, name) for name in ("measured", "low", "high"))) for row in rows],
    ]
    return [
        Curve(x=windows, y=measures, names=[f"{name}, {at:g} windows" for at in windows], style=style)
        for measures, (name, style) in zip(made, reversed(_KEY), strict=True)
        if any(one.known for one in measures)
    ]


def number_in(row: Mapping[str, Any], name: str) -> float:
    """Return a number of a row, nan where it has none."""
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) else math.nan
