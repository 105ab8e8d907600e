"""The figure of one release cell by cell: maps where the values have places, bars with intervals where they have none.

It reads one case at one epoch from the tables, the one with most devices in its cells.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from fleetcount_analysis.figures.charts import Chart, Item, Measure, Style, row_panel, scale_of
from fleetcount_analysis.figures.maps import MapPanel, Outlines, width_panel
from fleetcount_analysis.figures.words import ends, number
from fleetcount_analysis.interval_words import BELOW_NOISE
from numpy.typing import NDArray

from fleetcount_simulator.report.study import CaseResult, Study, Tables

MOST_BARS: Final = 30

_CELLS: Final = """
    SELECT value, label, truth, estimate, low, high FROM {cells} WHERE "case" = ? AND epoch = ? ORDER BY value
"""
_FULLEST: Final = """
    SELECT epoch FROM {cells} WHERE "case" = ? GROUP BY epoch
    HAVING count(*) FILTER (WHERE NOT isnan(estimate)) > 0 ORDER BY sum(truth) DESC, epoch LIMIT 1
"""


def cell_chart(study: Study, tables: Tables) -> Chart | None:
    """Return the cells of the first case whose first run was released; None when no cells were kept."""
    for case in study.cases:
        epoch = tables.rows(_FULLEST, [case.index]) if case.released else []
        if epoch:
            shown = int(epoch[0]["epoch"])
            cells = tables.rows(_CELLS, [case.index, shown])
            which = _which(study, case, shown)
            return _maps(case, cells, tables, which) or _bars(case, cells, which)
    return None


def _which(study: Study, case: CaseResult, epoch: int) -> str:
    """Return the words that name the release of the figure."""
    parts = ["The first run"]
    if len(study.cases) > 1:
        parts.append(f"of case {case.index} ({case.name})")
    if study.epochs:
        parts.append(f"at epoch {epoch}, the one with most devices in the cells")
    return " ".join(parts) + ". "


def _column(cells: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([math.nan if row[name] is None else row[name] for row in cells], dtype=np.float64)


def _maps(case: CaseResult, cells: Sequence[Mapping[str, Any]], tables: Tables, which: str) -> Chart | None:
    if case.places is None or not tables.has("places"):
        return None
    places = tables.rows("SELECT unit, label, outline FROM {places} WHERE places = ? ORDER BY value", [case.places])
    if len(places) != len(cells):
        return None
    outlines = Outlines.of([row["outline"] for row in places], places[0]["unit"])
    truth, estimate = _column(cells, "truth"), _column(cells, "estimate")
    shared = max(1.0, float(np.nanmax(truth)), float(np.nanmax(estimate)))
    texts = [_text(str(place["label"]), cell) for place, cell in zip(places, cells, strict=True)]
    same: dict[str, Any] = {"outlines": outlines, "texts": texts}
    return Chart(
        name="map",
        title="Truth, estimate and how wide the interval is",
        caption=f"{which}Truth and estimate have one colour scale, so equal colours are equal numbers; an estimate "
        "below 0 is drawn as 0. Only a simulation knows the truth. It does not show how other runs would look.",
        panels=[
            MapPanel(title="Truth", values=truth, top=shared, **same),
            MapPanel(title="Estimate", values=estimate, top=shared, **same),
            width_panel(estimates=estimate, low=_column(cells, "low"), high=_column(cells, "high"), **same),
        ],
    )


def _text(label: str, cell: Mapping[str, Any]) -> str:
    """Return the text of a cell: its label, truth, estimate and interval."""
    truth, estimate, low, high = (_plain(cell[name]) for name in ("truth", "estimate", "low", "high"))
    if not math.isfinite(estimate):
        return f"{label}: truth {number(truth)}, nothing released"
    # No count explains an estimate far below 0: "0 to 0" would read as an exact count.
    below = estimate < 0 and low == high == 0
    interval = BELOW_NOISE if below else ends(low, high)
    return f"{label}: truth {number(truth)}, estimate {number(estimate)}, interval {interval}"


def _bars(case: CaseResult, cells: Sequence[Mapping[str, Any]], which: str) -> Chart:
    largest = sorted(cells, key=lambda row: -row["truth"])[:MOST_BARS]
    shown = sorted(largest, key=lambda row: row["value"]) if len(cells) <= MOST_BARS else largest
    items = [
        Item(
            label=str(row["label"]),
            measure=Measure(_plain(row["estimate"]), _plain(row["low"]), _plain(row["high"])),
            others=((float(row["truth"]), Style("s1", 2)),),
        )
        for row in shown
    ]
    drawn = [end for row in shown for name in ("truth", "low", "high") if math.isfinite(end := _plain(row[name]))]
    more = f"The {MOST_BARS} largest of {len(cells)} values. " if len(cells) > MOST_BARS else ""
    return Chart(
        name="map",
        title="Truth and estimate, value by value",
        caption=f"{which}{more}Blue: estimate and its interval; orange diamond: the truth, which only a simulation "
        "knows. An interval should hold its diamond about as often as the level says. It does not show how other runs "
        "would look.",
        panels=[
            row_panel(
                items,
                scale_of(drawn, "devices", zero=True),
                alt=f"Estimates of {len(items)} values with intervals and truths",
            )
        ],
        key=[("estimate, interval", Style("s0")), ("truth", Style("s1", 2))],
    )


def _plain(value: float | None) -> float:
    return math.nan if value is None else float(value)
