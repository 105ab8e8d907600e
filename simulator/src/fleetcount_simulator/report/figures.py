"""The figures of a study: their measures, titles and captions, or the reason why one is missing.

It chooses and labels; `study` computes the measures, and a page or `fleetcount_analysis.figures` draws them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetcount_analysis.figures.charts import (
    Chart,
    Curve,
    Item,
    Measure,
    Panel,
    Scale,
    Style,
    curve_panel,
    rank_panel,
    row_panel,
    scale_of,
    styles,
)
from fleetcount_analysis.figures.words import number

from fleetcount_simulator.report.arrangement import (
    MOST_PANELS,
    Dimension,
    Series,
    View,
    arranged,
    epsilon_dimension,
    main_dimension,
    row_names,
    varying,
)
from fleetcount_simulator.report.cell_figures import cell_chart
from fleetcount_simulator.report.question_figures import last_guesses, number_in, rules_chart, tracker_chart
from fleetcount_simulator.report.study import LEAST_INTERVALS, CaseResult, Study, Tables

MOST_ROWS: Final = 30
MOST_ATTACKER_ROWS: Final = 40
_MOST_NAME: Final = 26
"""Longer names of cases leave too little room for the dots: the values that differ replace them."""

FIGURES: Final = {
    "error": "Error",
    "coverage": "Coverage",
    "epsilon": "Error against epsilon",
    "map": "Truth and estimate",
    "attackers": "Attackers",
    "shift": "What lies can do",
    "bias": "Bias under drop-out",
    "epochs": "Over the epochs",
    "rules": "What a promise costs",
    "tracker": "Who sees all windows",
}
"""All figures by the names of their files, in the order of the page, with their short titles."""

_NO_CELLS: Final = "the table of cells was left out (metrics.keep_cells = false), or no first run was released"
_GUESSES: Final = ("guess_rate", "exposure")


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that a study does not have, and the reason."""

    name: str
    reason: str


def figure(name: str, study: Study, tables: Tables) -> Chart | Missing:
    """Return one of `FIGURES`, or the reason why it would be empty."""
    if not any(case.released for case in study.cases):
        return Missing(name, "nothing was released")
    if name == "map":
        return cell_chart(study, tables) or Missing(name, _NO_CELLS)
    makers: dict[str, Callable[[Study], Chart | str]] = {
        "error": _error,
        "coverage": _coverage,
        "epsilon": _epsilon,
        "attackers": _attackers,
        "shift": _shift,
        "bias": _bias,
        "epochs": _epochs,
        "rules": rules_chart,
        "tracker": tracker_chart,
    }
    made = makers[name](study)
    return Missing(name, made) if isinstance(made, str) else made


def coverage_band(level: float) -> tuple[float, float]:
    """Return the range expected of measured coverage: 94 to 97 % for 95 %, misses in the same proportion otherwise."""
    missed = 1 - level
    return 1 - 1.2 * missed, 1 - 0.6 * missed


def case_styles(study: Study) -> dict[str, Style]:
    """Return the style of every mechanism, the same in all figures with one mark per case."""
    names = list(dict.fromkeys(case.mechanism for case in study.cases))
    return dict(zip(names, styles(len(names)), strict=True))


# Lines along an axis.


def _error(study: Study) -> Chart | str:
    x = main_dimension(study)
    caption = (
        "How far a typical count is off: root mean square error in devices of a cell, against the devices counted. "
        "Upright lines are 95 % intervals over the runs; where there is none, one run cannot tell. "
    )
    if x is None:
        return _error_rows(study, caption)
    if x.key.endswith(".epsilon") and isinstance(_epsilon(study), Chart):
        return "nothing but epsilon varies, and the error against it is the figure of what privacy costs"
    label = "error in devices of a cell"
    panels, view = _lines_of(study, x, label, lambda case: case.error, log=True)
    return Chart(
        name="error",
        title=f"Error against {_lower(x.label)}",
        caption=caption + _beyond(view) + "It does not show what drop-outs add against the whole fleet.",
        panels=panels,
        key=_key(view),
    )


def _error_rows(study: Study, caption: str) -> Chart | str:
    if len(study.cases) < 2:
        return "there is one case, and its error is among the three numbers above"
    shown = study.cases[:MOST_ROWS]
    names, named_by = row_names(study, _MOST_NAME)
    items = [_item(study, case, case.error, names) for case in shown]
    x = scale_of(_ends(items), "error in devices of a cell", log=True, zero=True)
    more = f"The first {MOST_ROWS} of {len(study.cases)} cases. " if len(study.cases) > MOST_ROWS else ""
    return Chart(
        name="error",
        title="Error by case",
        caption=f"{caption}{more}Smaller is better.",
        panels=[
            row_panel(items, x, alt=f"Error of {len(items)} cases, from {_range(items)} devices", named_by=named_by)
        ],
        key=_mechanism_key(study),
    )


def _epsilon(study: Study) -> Chart | str:
    x = epsilon_dimension(study)
    if x is None:
        return "epsilon is the same in all cases, or not finite"
    panels, view = _lines_of(study, x, "error in devices of a cell", lambda case: case.error, log=True)
    if not any(len({x.of(case) for case in line.cases}) > 1 for _, series in view.panels for line in series):
        return "no mechanism was run with more than one epsilon"
    return Chart(
        name="epsilon",
        title="Error against epsilon: what privacy costs",
        caption="To the left more privacy, upwards more error. Epsilon is what one release may tell everybody about a "
        f"device; 95 % intervals over the runs. {_beyond(view)}"
        "It does not show what colluding aggregators see: read the privacy statement.",
        panels=panels,
        key=_key(view),
    )


def _bias(study: Study) -> Chart | str:
    faults = [dimension for dimension in varying(study) if dimension.key.startswith("faults.")]
    along = next((dimension for dimension in faults if dimension.numeric), None)
    if along is None:
        return "no share of faults was swept (a list for drop_out, loss or late makes this figure)"
    caption = (
        "Mean error in devices of a cell; 0 is unbiased, below 0 is counted too low. Left out of the agreed set is not "
        "an error against the devices counted, but it is one against the whole fleet. 95 % intervals over the runs. "
    )
    panels, view = _lines_of(
        study, along, "bias in devices, of devices counted", lambda case: case.bias, zero=True, most=4
    )
    fleet, _ = _lines_of(
        study, along, "bias in devices, of the whole fleet", lambda case: case.bias_fleet, zero=True, most=4
    )
    return Chart(
        name="bias",
        title=f"Bias against {_lower(along.label)}",
        caption=caption + _beyond(view) + "It does not show how much single releases scatter.",
        panels=[*panels, *fleet],
        key=_key(view),
    )


def _epochs(study: Study) -> Chart | str:
    if not study.epochs:
        return "every question was asked once"
    shown = [case for case in study.cases if case.index in study.epochs][:7]
    made = styles(len(shown))
    curves: list[Curve] = []
    whole: list[Curve] = []
    counted: list[Curve] = []
    for case, style in zip(shown, made, strict=True):
        rows = study.epochs[case.index]
        x = [float(row["epoch"]) for row in rows]
        names = [f"{case.name}, epoch {row['epoch']}" for row in rows]
        for name, kept in (("error", curves), ("error_fleet", whole)):
            errors: list[Measure] = [row.get(name, Measure(math.nan)) for row in rows]
            kept.append(Curve(x=x, y=errors, names=names, style=style))
        people = [Measure(row["participants"]) for row in rows]
        counted.append(Curve(x=x, y=people, names=names, style=style))
    x_axis = scale_of([place for curve in curves for place in curve.x], "epoch", whole=True)
    panels = [
        _epoch_panel(curves, x_axis, "error in devices of a cell"),
        _epoch_panel(whole, x_axis, "error of the whole fleet's count"),
        _epoch_panel(counted, x_axis, "devices counted"),
    ]
    more = f"The first {len(shown)} of {len(study.cases)} cases. " if len(study.cases) > len(shown) else ""
    together = f"Each dot is {study.epoch_step} epochs together. " if study.epoch_step > 1 else ""
    return Chart(
        name="epochs",
        title="The same question again and again",
        caption="Error of each epoch's release against the devices counted and against the whole fleet, and how many "
        "devices were in the agreed set; 95 % intervals over the runs. A gap is without a release. "
        f"{together}{more}It does not show what somebody learns who reads all releases: that is in the "
        "statement.",
        panels=panels,
        key=[(case.name, style) for case, style in zip(shown, made, strict=True)] if len(shown) > 1 else (),
    )


def _lines_of(
    study: Study,
    x: Dimension,
    label: str,
    measure: Callable[[CaseResult], Measure],
    *,
    log: bool = False,
    zero: bool = False,
    most: int = MOST_PANELS,
) -> tuple[list[Panel], View]:
    """Return panels that share their axes, so that they can be compared."""
    view = arranged(study, x, most)
    style = dict(zip(view.labels, _line_styles(view), strict=True))
    cases = [case for _, series in view.panels for line in series for case in line.cases]
    x_axis = scale_of([_at(x, case) for case in cases], x.label, log=True)
    values = [end for case in cases for end in measure(case).ends if not log or end > 0]
    y_axis = scale_of(values, label, log=log, zero=zero)
    panels: list[Panel] = []
    for title, series in view.panels:
        curves = [
            Curve(
                x=[_at(x, case) for case in line.cases],
                y=[measure(case) for case in line.cases],
                names=[case.name for case in line.cases],
                style=style.get(line.label, Style("s0")),
            )
            for line in series
        ]
        panels.append(
            curve_panel(
                curves, x_axis, y_axis, title=title, alt=_alt_text(title, label, x, series, measure), zero_line=zero
            )
        )
    return panels, view


def _epoch_panel(curves: Sequence[Curve], x: Scale, label: str) -> Panel:
    values = [end for curve in curves for measure in curve.y for end in measure.ends]
    y = scale_of(values, label, zero=True)
    alt = (
        f"{label} by {x.label}, from {number(min(values, default=math.nan))} to {number(max(values, default=math.nan))}"
    )
    return curve_panel(curves, x, y, alt=alt)


def _line_styles(view: View) -> list[Style]:
    return styles(len(view.labels), ordered=view.lines is not None and view.lines.numeric)


def _alt_text(
    title: str, label: str, x: Dimension, series: Sequence[Series], measure: Callable[[CaseResult], Measure]
) -> str:
    """Return the alternative text of a panel: where every line starts and ends."""
    said: list[str] = []
    for line in series[:8]:
        first, last = line.cases[0], line.cases[-1]
        name = f"{line.label}: " if line.label else ""
        said.append(
            f"{name}{number(measure(first).value)} at {number(_at(x, first))}, "
            f"{number(measure(last).value)} at {number(_at(x, last))}"
        )
    return f"{title + ': ' if title else ''}{label} against {x.label}. {'; '.join(said)}."


def _at(x: Dimension, case: CaseResult) -> float:
    value = x.of(case)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _lower(label: str) -> str:
    return label[:1].lower() + label[1:]


def _beyond(view: View) -> str:
    return f"{view.left_out} more panels would follow: see the tables. " if view.left_out else ""


def _key(view: View) -> Sequence[tuple[str, Style]]:
    return list(zip(view.labels, _line_styles(view), strict=True))


# One row, or one rank, per case.


def _coverage(study: Study) -> Chart | str:
    if not any(case.judged for case in study.cases):
        return f"fewer than {LEAST_INTERVALS} intervals a case do not show how often they hold the truth"
    levels = {case.level for case in study.cases}
    band = coverage_band(max(levels)) if len(levels) == 1 else None
    rule = max(levels) if len(levels) == 1 else None
    names, named_by = row_names(study, _MOST_NAME)
    items = [_item(study, case, case.coverage, names) for case in study.cases]
    inside = sum(
        1 for case in study.cases if band and case.coverage.known and band[0] <= case.coverage.value <= band[1]
    )
    alt = f"Coverage of {len(items)} cases; {inside} of them are inside the band"
    if len(items) > MOST_ROWS:
        panel = rank_panel(items, "intervals that hold the truth", alt=alt, band=band, rule=rule)
    else:
        x = scale_of([*_ends(items), *(band or ())], "intervals that hold the truth", as_percent=True)
        panel = row_panel(items, x, alt=alt, band=band, rule=rule, named_by=named_by)
    return Chart(
        name="coverage",
        title="Coverage: how often an interval holds the truth",
        caption="Each dot is a case, with a 95 % binomial interval over its releases and cells (wider where the cells "
        "of a release go wrong together). Dots should lie in the green band around the line, the level asked for; "
        "to the right of it, or above it, intervals are wider than needed, which is safe. "
        "Against the devices counted: it does not show what drop-outs do.",
        panels=[panel],
        key=_mechanism_key(study),
    )


def _item(study: Study, case: CaseResult, measure: Measure, names: Mapping[int, str]) -> Item:
    return Item(label=names[case.index], measure=measure, style=case_styles(study)[case.mechanism])


def _mechanism_key(study: Study) -> Sequence[tuple[str, Style]]:
    made = list(case_styles(study).items())
    return made if len(made) > 1 else ()


def _ends(items: Sequence[Item]) -> list[float]:
    return [end for item in items for end in item.measure.ends]


def _range(items: Sequence[Item]) -> str:
    values = [item.measure.value for item in items if item.measure.known]
    return f"{number(min(values))} to {number(max(values))}"


# Attackers.


def _attackers(study: Study) -> Chart | str:
    rows = [
        row
        for row in last_guesses(study)
        if str(row["measure"]).startswith(_GUESSES) and row.get("bound") is not None and row.get("measured") is not None
    ]
    if not rows:
        return "no attacker guesses in this scenario" if study.attackers else "the scenario has no attackers"
    worst = sorted(rows, key=lambda row: row["bound"] - row["measured"])[:MOST_ATTACKER_ROWS]
    shown = [row for row in rows if any(row is one for one in worst)]
    names, named_by = row_names(study, _MOST_NAME // 2)
    labels, same = _attacker_labels(shown, names if len(study.cases) > 1 else {})
    items = [
        Item(
            label=label,
            measure=_measured(row),
            style=Style("bad" if row.get("within") is False else "s0"),
            others=((float(row["bound"]), Style("s1", 2)),),
        )
        for row, label in zip(shown, labels, strict=True)
    ]
    more = f"The {len(shown)} closest to their bound of {len(rows)}. " if len(rows) > len(shown) else ""
    x = scale_of([0, 1, *_ends(items)], "right guesses", as_percent=True)
    return Chart(
        name="attackers",
        title="Attackers: right guesses against the promise",
        caption="Blue dot: how often the attacker guessed right, with its 95 % interval; orange diamond: the most that "
        f"is promised. A dot right of its diamond breaks the promise and is red. {more}{same}"
        "It shows the attackers of this scenario, not the best ones that could be: the diamond holds for all of them.",
        panels=[
            row_panel(
                items,
                x,
                alt=f"Guess rates of {len(items)} attacks against their bounds",
                named_by=named_by if same or not named_by else f"attacker · {named_by}",
            )
        ],
        key=[("measured", Style("s0")), ("promised at most", Style("s1", 2))],
    )


def _shift(study: Study) -> Chart | str:
    rows = [row for row in study.attackers if row["measure"] == "shift" and row.get("measured") is not None]
    rows = [row for row in rows if (row.get("bound") or 0) > 0]
    if not rows:
        return "no lying devices in this scenario" if study.attackers else "the scenario has no attackers"
    if len({row["bound"] for row in rows}) < 2:
        return "one number of lying devices: see the table of attackers"
    names = {case.index: case.name for case in study.cases}
    x = [float(row["bound"]) for row in rows]
    y = [_measured(row) for row in rows]
    curve = Curve(x=x, y=y, names=[_attacker_label(row, names) for row in rows], style=Style("s0"))
    ends = [end for measure in y for end in measure.ends]
    x_axis = scale_of(x, "shift that m lies can cause, m/p", log=True)
    floor = min(x) / 3
    y_axis = scale_of([max(end, floor) for end in [*ends, *x]], "shift measured, devices", log=True)
    span = sorted({min(x), max(x)})
    promised = Curve(x=span, y=[Measure(value) for value in span], names=["promised"] * len(span), style=Style("s1", 2))
    alt = f"Shift of {len(rows)} attacks, from {number(min(m.value for m in y))} to {number(max(m.value for m in y))}"
    return Chart(
        name="shift",
        title="What lying devices can do",
        caption="Each lie weighs 1/p devices, p the sampling rate: dots should lie on the orange line. 95 % intervals "
        "over the runs; what reaches below the axis is cut. It does not show whether the lie is noticed: see the alarm "
        "in the table of attackers.",
        panels=[curve_panel([promised, curve], x_axis, y_axis, alt=alt)],
        key=[("measured", Style("s0")), ("m/p", Style("s1", 2))],
    )


def _measured(row: Mapping[str, Any]) -> Measure:
    return Measure(*(number_in(row, name) for name in ("measured", "low", "high")))


def _attacker_labels(rows: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> tuple[list[str], str]:
    """Return one label per row, and the text that all labels share, removed from them to leave room for the rest."""
    labels = [_attacker_label(row, names) for row in rows]
    same = f"{rows[0]['attacker']} · "
    if len(rows) == 1 or not all(label.startswith(same) for label in labels):
        return labels, ""
    return [label.removeprefix(same) for label in labels], f"All rows: {rows[0]['attacker']}. "


def _attacker_label(row: Mapping[str, Any], names: Mapping[int, str]) -> str:
    case = names.get(int(row["case"]), "")
    what = str(row["measure"]).removeprefix("guess_rate").replace("_", " ").strip()
    return " · ".join(part for part in (str(row["attacker"]), what, case) if part)
