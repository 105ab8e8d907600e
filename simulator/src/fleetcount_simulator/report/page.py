"""The page: one HTML file that needs no network and, but for a map to move in, no other file and no script.

Puts parts in the order of a reader who did not write the scenario. All text is escaped; the content security policy
allows this file's own style, by its digest, pictures inside it, files beside it where they draw a map, and nothing
from elsewhere. Where these files are missing the page shows pictures.
"""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from fleetcount_analysis.figures.panels import Chart, Panel, panel_figure
from fleetcount_analysis.figures.style import COLOURS, DARK
from fleetcount_analysis.figures.svg import page_svg

from fleetcount_simulator.report.conclusions import headlines, introduction, lead, warnings_of
from fleetcount_simulator.report.figures import Missing
from fleetcount_simulator.report.study import Study
from fleetcount_simulator.report.tables import attacker_table, case_table, clean, statement_table, tally_table

ASSETS = "assets"
"""The folder of the files that the page may load, beside it."""

_NAMES = {
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


def page(study: Study, figures: Sequence[Chart | Missing], loaded: Sequence[str] = ()) -> bytes:
    """Return report.html; `loaded` are names below `ASSETS` of what it loads for its map, in order."""
    title = str(study.record.get("title") or study.record.get("name") or "A study")
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    here = " 'self'" if loaded else ""
    scripts = "; script-src 'self'" if loaded else ""
    policy = f"default-src 'none'; style-src 'sha256-{digest}'{here}{scripts}; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'"
    parts = (
        _header(study, title),
        _numbers(study),
        _warnings(study),
        _figures(figures, live=bool(loaded)),
        _tables(study),
        _origin(study),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{clean(title)}</title>\n{_links(loaded)}<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    ).encode()


def _links(loaded: Sequence[str]) -> str:
    sheets = [f'<link rel="stylesheet" href="{ASSETS}/{name}">\n' for name in loaded if name.endswith(".css")]
    scripts = [f'<script defer src="{ASSETS}/{name}"></script>\n' for name in loaded if name.endswith(".js")]
    return "".join(sheets + scripts)


@lru_cache(maxsize=1)
def _style() -> str:
    """Return the style sheet: the colours of the roles by light and dark, then the rules."""
    light = "".join(f"--{role}:{colour};" for role, colour in COLOURS.items())
    dark = "".join(f"--{role}:{colour};" for role, colour in DARK.items())
    rules = files("fleetcount_simulator.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        f":root{{{light}--card:#f7f7f5;--street:#6d6d6d}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}--card:#1e2125;--street:#9a9a9a}}}}\n{rules}"
    )


def _header(study: Study, title: str) -> str:
    record = study.record
    about = lead(str(record.get("scenario", "")))
    told = "".join(f"<p>{clean(sentence)}</p>" for sentence in introduction(study))
    links = "".join(
        f'<a href="#{anchor}">{name}</a>'
        for anchor, name in (("figures", "Figures"), ("tables", "Tables"), ("origin", "Scenario and how to repeat it"))
    )
    return (
        f'<header><p class="meta">Simulation report · {clean(record.get("name", ""))}</p><h1>{clean(title)}</h1>'
        + (f'<p class="lead">{clean(about)}</p>' if about else "")
        + f'<nav aria-label="Parts of this page">{links}</nav></header>\n<main>\n'
        + (f"<section><h2>What was asked</h2>{told}</section>" if told else "")
    )


def _numbers(study: Study) -> str:
    made = headlines(study)
    if not made:
        said = "Nothing was released, so there is no result." if study.cases else "There are no results yet."
        return f"<section><h2>Three numbers</h2><p>{said}</p></section>"
    cards = "".join(
        f'<div><dt>{clean(one.name)}</dt><dd class="number">{clean(one.number)}</dd>'
        f'<dd class="meaning">{clean(one.meaning)}</dd></div>'
        for one in made
    )
    return f'<section><h2>Three numbers</h2><dl class="cards">{cards}</dl></section>'


def _warnings(study: Study) -> str:
    items = "".join(
        f"<li{' class=' + chr(34) + 'severe' + chr(34) if one.severe else ''}>"
        f"<strong>{'Warning:' if one.severe else 'Note:'}</strong>{clean(one.text)}</li>"
        for one in warnings_of(study)
    )
    if not items:
        items = (
            '<li class="fine"><strong>Nothing.</strong>All releases happened, coverage and bias are as they should be, '
            "and no attacker achieved more than is promised.</li>"
        )
    return f'<section><h2>What to look out for</h2><ul class="warnings">{items}</ul></section>'


def _figures(figures: Sequence[Chart | Missing], *, live: bool) -> str:
    shown = "".join(_figure(one, live=live and bool(one.numbers)) for one in figures if isinstance(one, Chart))
    missing = [one for one in figures if isinstance(one, Missing)]
    reasons: dict[str, list[str]] = {}
    for one in missing:
        reasons.setdefault(one.reason, []).append(_NAMES[one.name])
    told = "".join(f"<li>{clean(', '.join(names))}: {clean(reason)}.</li>" for reason, names in reasons.items())
    left_out = f'<div class="left-out"><h3>Figures left out</h3><ul>{told}</ul></div>' if told else ""
    body = f'<div class="figures">{shown}</div>' if shown else ""
    return f'<section id="figures"><h2>Figures</h2>{body}{left_out}</section>'


def _figure(chart: Chart, *, live: bool) -> str:
    key = f'<div class="key">{_panel(chart.key, f"{chart.name}-key")}</div>' if chart.key is not None else ""
    panels = "".join(f"<div>{_panel(panel, f'{chart.name}-{place}')}</div>" for place, panel in enumerate(chart.panels))
    own = _live(chart) if live else ""
    wide = ' class="wide"' if len(chart.panels) > 1 else ""
    links = " · ".join(f'<a href="figures/{chart.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png"))
    return (
        f'<figure{wide} id="figure-{chart.name}"><h3>{clean(chart.title)}</h3>{own}{key}'
        f'<div class="panels">{panels}</div>'
        f'<figcaption>{clean(chart.caption)} <span class="files">As a file: {links}.</span></figcaption></figure>'
    )


def _live(chart: Chart) -> str:
    """Return the place of a map that a script draws, hidden until it does, and its numbers: data, which never runs."""
    names = (("truth", "Truth"), ("estimate", "Estimate"), ("width", "Width of the interval"))
    layers = "".join(
        f'<button type="button" value="{name}" aria-pressed="false">{text}</button>' for name, text in names
    )
    numbers = chart.numbers.replace("<", "\\u003c")
    return (
        f'<div id="map-live" hidden><div id="map-layers" class="controls" role="group" aria-label="What the map shows">'
        f'{layers}</div><div id="map" class="map"></div><div id="map-scale"></div>'
        '<p id="map-told" aria-live="polite">Point at a cell, or click it, to read its numbers.</p></div>'
        f'<script type="application/json" id="map-data">{numbers}</script>'
    )


def _panel(panel: Panel, identity: str) -> str:
    return page_svg(panel_figure(panel), panel.alt, identity)


def _tables(study: Study) -> str:
    if not study.cases:
        return ""
    tables = (case_table(study), attacker_table(study), statement_table(study), tally_table(study))
    return (
        '<section id="tables"><h2>Tables</h2><p>Errors, biases and widths are in devices of a cell; in brackets 95 % '
        "intervals over the runs. Without “of the fleet”, a number is against the devices that were counted.</p>"
        + "".join(tables)
        + "</section>"
    )


def _origin(study: Study) -> str:
    record = study.record
    facts = "".join(
        f"<dt>{name}</dt><dd>{clean(value)}</dd>" for name, value in _facts(record) if value not in {"", "None"}
    )
    return (
        '<section id="origin"><h2>Scenario and how to repeat it</h2>'
        f'<dl class="facts">{facts}</dl>'
        f'<pre tabindex="0" role="region" aria-label="The scenario file">{_scenario_lines(record)}</pre>'
        "<p>Simulated: truths are known and coins come from the seed, unlike in a real deployment. The same scenario, "
        "seed and version give the same numbers, except with the network engine.</p></section>\n</main>"
    )


def _scenario_lines(record: Mapping[str, Any]) -> str:
    """Return the scenario's text line by line, escaped."""
    return "\n".join(clean(line.replace("\t", "    ")) for line in str(record.get("scenario", "")).splitlines())


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine = record.get("machine") or {}
    seconds = record.get("seconds")
    return [
        ("Command", shlex.join(["fleetcount", *map(str, record.get("command", ()))])),
        ("Scenario file", str(record.get("file"))),
        ("Seed", str(record.get("seed"))),
        ("Version", f"fleetcount {record.get('version')}"),
        ("Engine", str(record.get("engine"))),
        ("Started", str(record.get("started"))),
        ("Took", "" if seconds is None else f"{seconds:,.1f} s"),
        (
            "Machine",
            f"{machine.get('system')}, {machine.get('processor')}, {machine.get('cores')} cores, "
            f"Python {machine.get('python')}, NumPy {machine.get('numpy')}",
        ),
    ]
