"""The report of a study: report.html with its scripts in assets/, and figures/*.svg and *.png for other documents.

Its order is for readers who did not write the scenario. Figures are numbers in the page, drawn by its scripts; without
scripts, or without assets/, the page shows the pictures in figures/. Every file is written whole or not at all, and
every text is escaped here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fleetcount_analysis.figures.charts import Chart, Panel, Style, chart_figure
from fleetcount_analysis.figures.files import rendered
from fleetcount_analysis.figures.maps import MapPanel
from fleetcount_analysis.figures.words import printable
from fleetcount_protocol.errors import MachineError
from fleetcount_simulator.report import Report, read_report
from fleetcount_simulator.report.conclusions import Headline, Notice
from fleetcount_simulator.report.figures import FIGURES, Missing
from fleetcount_simulator.report.tables import BROKEN, ReportTable
from fleetcount_simulator.study.directory import StudyDirectory

from fleetcount_site.pages import ASSETS, LINE_SCRIPTS, MAP_SCRIPTS, assets, escaped, page, styles_of

_SCRIPTS: Final = (*MAP_SCRIPTS, LINE_SCRIPTS[0], "report.js")
_LICENCES: Final = ("vendor/leaflet/LICENSE", "vendor/uplot/LICENSE")
_FOLDER: Final = "figures"
_KINDS: Final = ("svg", "png")
_MOST_ROWS: Final = 1000
_SHAPES: Final = (
    '<circle cx="6" cy="6" r="4.4"/>',
    '<rect x="2" y="2" width="8" height="8"/>',
    '<path d="M6 0.8 11.2 6 6 11.2 0.8 6Z"/>',
    '<path d="M6 1.2 11 10.4H1Z"/>',
)
"""Shapes of marks in the key, equal to those of report.js and matplotlib."""


def write_report(directory: Path) -> Path:
    """Write the report of the study in a directory, finished or not, and return the path of report.html.

    Figures of an earlier report that have no data any more are removed.

    Raises:
        ScenarioError: the directory holds no study, or its tables cannot be read.
        MachineError: a file cannot be written.
    """
    report = read_report(directory)
    target = StudyDirectory(directory)
    charts = [one for one in report.figures if isinstance(one, Chart)]
    kept = {chart.name for chart in charts}
    scripts = _SCRIPTS if charts else ()
    try:
        (directory / _FOLDER).mkdir(exist_ok=True)
        for stale in [
            directory / _FOLDER / f"{name}.{kind}" for name in FIGURES if name not in kept for kind in _KINDS
        ]:
            stale.unlink(missing_ok=True)
        for name in (*styles_of(scripts), *scripts, *(_LICENCES if charts else ())):
            (directory / ASSETS / name).parent.mkdir(parents=True, exist_ok=True)
            target.write(Path(ASSETS) / name, assets()[name].read_bytes())
    except OSError as error:
        raise MachineError(f"the report cannot be written: {error.strerror or error}") from error
    for chart in charts:
        files = rendered(chart_figure(chart), title=chart.title, description=chart.caption)
        for kind, content in files.items():
            target.write(Path(_FOLDER) / f"{chart.name}.{kind}", content)
    text = page(printable(report.title), _body(report, charts), scripts=scripts)
    target.write("report.html", text.encode())
    return directory / "report.html"


def _clean(text: object) -> str:
    """Return a text for HTML: escaped, without control characters."""
    return escaped(printable(str(text)))


def _body(report: Report, charts: Sequence[Chart]) -> str:
    parts = {"figures": "Figures", "tables": "Tables", "origin": "Scenario and how to repeat it"}
    links = "".join(
        f'<a href="#{anchor}">{name}</a>' for anchor, name in parts.items() if report.tables or anchor != "tables"
    )
    asked = "".join(f"<p>{_clean(sentence)}</p>" for sentence in report.introduction)
    lead = f'<p class="lead">{_clean(report.lead)}</p>' if report.lead else ""
    return "\n".join(
        (
            f'<header><p class="soft">Simulation report · {_clean(report.name)}</p>'
            f"<h1>{_clean(report.title)}</h1>{lead}"
            f'<nav aria-label="Parts of this page">{links}</nav></header>',
            f"<section><h2>What was asked</h2>{asked}</section>" if asked else "",
            _headlines(report.headlines, report.has_cases),
            _notices(report.notices),
            _figures(report.figures, charts),
            _tables(report.tables),
            _origin(report.facts, report.scenario),
            _data(charts),
        )
    )


def _headlines(headlines: Sequence[Headline], has_cases: bool) -> str:
    cards = "".join(
        f'<div><dt>{_clean(one.name)}</dt><dd class="number">{_clean(one.number)}</dd>'
        f'<dd class="soft">{_clean(one.meaning)}</dd></div>'
        for one in headlines
    )
    none = "Nothing was released, so there is no result." if has_cases else "There are no results yet."
    shown = f'<dl class="cards">{cards}</dl>' if cards else f"<p>{none}</p>"
    return f"<section><h2>Three numbers</h2>{shown}</section>"


def _notices(notices: Sequence[Notice]) -> str:
    items = "".join(
        f'<li class="severe"><strong>Warning:</strong> {_clean(one.text)}</li>'
        if one.severe
        else f"<li><strong>Note:</strong> {_clean(one.text)}</li>"
        for one in notices
    )
    if not items:
        items = (
            '<li class="fine"><strong>Nothing.</strong> All releases happened, coverage and bias are as they should '
            "be, and no attacker achieved more than is promised.</li>"
        )
    return f'<section><h2>What to look out for</h2><ul class="notices">{items}</ul></section>'


# Figures.


def _figures(figures: Sequence[Chart | Missing], charts: Sequence[Chart]) -> str:
    reasons: dict[str, list[str]] = {}
    for one in figures:
        if isinstance(one, Missing):
            reasons.setdefault(one.reason, []).append(FIGURES[one.name])
    missing = "".join(f"<li>{_clean(', '.join(names))}: {_clean(why)}.</li>" for why, names in reasons.items())
    left_out = f'<div class="soft"><h3>Figures left out</h3><ul>{missing}</ul></div>' if missing else ""
    hint = (
        '<p class="soft">Point at a dot to read its numbers, or reach a figure with the Tab key and go from dot to dot '
        "with the arrow keys.</p>"
        f'<div class="figures">{"".join(map(_figure, charts))}</div>'
        if charts
        else ""
    )
    return f'<section id="figures"><h2>Figures</h2>{hint}{left_out}</section>'


def _figure(chart: Chart) -> str:
    files = " · ".join(f'<a href="{_FOLDER}/{chart.name}.{kind}">{kind.upper()}</a>' for kind in _KINDS)
    entries = "".join(f"<li>{_swatch(style)}{_clean(label)}</li>" for label, style in chart.key)
    key = f'<ul class="key">{entries}</ul>' if entries else ""
    maps = [panel for panel in chart.panels if isinstance(panel, MapPanel)]
    panels = "".join(
        _panel(panel, f"{chart.name}-{place}") for place, panel in enumerate(chart.panels) if isinstance(panel, Panel)
    )
    drawn = _map(maps) if maps else f'<div class="panels">{panels}</div>'
    alt = " ".join(panel.alt for panel in chart.panels)
    wide = ' class="wide"' if len(chart.panels) > 1 else ""
    return (
        f'<figure{wide} id="figure-{chart.name}"><h3>{_clean(chart.title)}</h3>'
        # Shown until the script has drawn the numbers, and in browsers without scripts.
        f'<img class="still" loading="lazy" src="{_FOLDER}/{chart.name}.svg" alt="{_clean(alt)}">'
        f'<div class="drawn" hidden>{key}{drawn}</div>'
        f'<figcaption>{_clean(chart.caption)} <span class="files">As a file: {files}.</span></figcaption></figure>'
    )


def _swatch(style: Style) -> str:
    # The attribute `fill`, because the content security policy allows no inline style.
    colour = style.colour if style.colour.startswith("#") else f"var(--{style.colour})"
    return f'<svg viewBox="0 0 12 12" aria-hidden="true" fill="{colour}">{_SHAPES[style.shape % len(_SHAPES)]}</svg>'


def _panel(panel: Panel, name: str) -> str:
    title = f"<h4>{_clean(panel.title)}</h4>" if panel.title else ""
    upright = f'<p class="axis">{_clean(panel.y.label)}</p>' if panel.y.label else ""
    return (
        f'<div class="panel">{title}{upright}'
        f'<div class="chart" id="{name}" role="img" tabindex="0" aria-label="{_clean(panel.alt)}"></div>'
        f'<p class="axis below">{_clean(panel.x.label)}</p>'
        f'<p class="told" id="{name}-told" aria-live="polite"></p></div>'
    )


def _map(panels: Sequence[MapPanel]) -> str:
    layers = "".join(
        f'<button type="button" value="{place}" aria-pressed="false">{_clean(panel.title)}</button>'
        for place, panel in enumerate(panels)
    )
    return (
        f'<div id="map-layers" class="controls" role="group" aria-label="What the map shows">{layers}</div>'
        '<div id="map" class="map"></div><div id="map-scale"></div>'
        '<p id="map-told" class="told" aria-live="polite">Point at a cell, or click it, to read its numbers.</p>'
    )


def _data(charts: Sequence[Chart]) -> str:
    """Return the numbers of all figures as JSON in the page, which never runs."""
    if not charts:
        return ""
    found: dict[str, Any] = {"panels": {}, "map": None}
    for chart in charts:
        maps = [panel for panel in chart.panels if isinstance(panel, MapPanel)]
        if maps:
            found["map"] = _map_data(maps)
        for place, panel in enumerate(chart.panels):
            if isinstance(panel, Panel):
                found["panels"][f"{chart.name}-{place}"] = asdict(panel)
    text = json.dumps(found, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="report-data">{text}</script>'


def _map_data(panels: Sequence[MapPanel]) -> Mapping[str, Any]:
    """Return outlines, texts and layers of a map; null for an unknown value."""
    outlines = panels[0].outlines
    return {
        "degrees": outlines.degrees,
        "lines": outlines.are_lines,
        "cells": [{"value": place, "ring": shape.tolist()} for place, shape in enumerate(outlines.shapes)],
        "texts": panels[0].texts,
        "layers": [
            {
                "top": panel.top,
                "unit": panel.unit,
                "values": [value if math.isfinite(value) else None for value in panel.values.tolist()],
                "hatched": None if panel.hatched is None else panel.hatched.tolist(),
            }
            for panel in panels
        ],
    }


# Tables, and the origin of the study.


def _tables(tables: Sequence[ReportTable]) -> str:
    if not tables:
        return ""
    return (
        '<section id="tables"><h2>Tables</h2><p>Errors, biases and widths are in devices of a cell; in brackets 95 % '
        "intervals over the runs. Without “of the fleet”, a number is against the devices that were counted.</p>"
        f"{''.join(map(_table, tables))}</section>"
    )


def _table(table: ReportTable) -> str:
    caption = _clean(table.caption)
    head = "".join(f'<th scope="col">{_clean(name)}</th>' for name in table.head)
    body = "".join(f"<tr>{_cells(row, table.texts)}</tr>" for row in table.rows[:_MOST_ROWS])
    more = ""
    if len(table.rows) > _MOST_ROWS:
        more = f"<p>The first {_MOST_ROWS:,} of {len(table.rows):,} rows; the table in the directory holds all.</p>"
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table>'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _cells(row: Sequence[str], texts: int) -> str:
    cells = [f'<th scope="row">{_clean(row[0])}</th>']
    for place, cell in enumerate(row[1:], start=1):
        kind = ' class="bad"' if cell == BROKEN else ' class="wide"' if place < texts else ""
        cells.append(f"<td{kind}>{_clean(cell)}</td>")
    return "".join(cells)


def _origin(facts: Mapping[str, str], scenario: str) -> str:
    told = "".join(f"<dt>{name}</dt><dd>{_clean(value)}</dd>" for name, value in facts.items())
    # Line by line, because `_clean` replaces control characters, which includes line ends.
    lines = "\n".join(_clean(line.replace("\t", "    ")) for line in scenario.splitlines())
    return (
        f'<section id="origin"><h2>Scenario and how to repeat it</h2><dl class="facts">{told}</dl>'
        f'<pre tabindex="0" role="region" aria-label="The scenario file">{lines}</pre>'
        "<p>Simulated: truths are known and coins come from the seed, unlike in a real deployment. The same scenario, "
        "seed and version give the same numbers, except with the network engine.</p></section>"
    )
