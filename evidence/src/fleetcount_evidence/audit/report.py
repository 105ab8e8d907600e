"""An audit as lines for people, rows for programs and one picture.

It shows the results of `run` and decides nothing. A proved bound is rounded down, a claim and a gap up.
"""

import json
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.figures import PALETTE, new_figure, save_figure
from fleetcount_analysis.interval_words import rounded

from fleetcount_evidence.audit.run import Audit, Line

_HEAD: Final = ("adversary", "loss", "claim", "lower bound for k = 2, 3, 5", "gap")

Row = dict[str, str | int | float | bool]


def audit_rows(audit: Audit) -> list[Row]:
    """Return one row for each line of a statement: design, claim, lower bound, gap, and the attacked pair of truths."""
    return [
        {
            "design": one.question.design.name,
            "release": one.question.label,
            "values": one.question.design.values,
            "aggregators": one.question.design.aggregators,
            "adversary": one.view.adversary,
            "neighbours": one.view.neighbours,
            "loss": "delta" if one.of_delta else "epsilon",
            "claim": one.claim,
            "lower_bound": float(rounded(one.bound, 6, ROUND_FLOOR)),
            "gap": float(rounded(one.gap, 6, ROUND_CEILING)),
            "truths": one.pair,
            "judged_on": one.trials,
            "broken": one.broken,
        }
        for one in audit.lines
    ]


def printed_lines(audit: Audit) -> Iterator[str]:
    """Yield the table: a heading for each release, then a line for each view with the bound for k = 2, 3 and 5."""
    for heading, group in groupby(audit.lines, key=_heading):
        yield heading
        views: dict[str, list[Line]] = {}
        for line in group:
            views.setdefault(line.view.adversary, []).append(line)
        yield "  {:<25} {:<8} {:>8}  {:<28} {:>8}".format(*_HEAD)
        yield from (_printed(slug, lines) for slug, lines in views.items())
    passed = sum(one.passed for one in audit.checks)
    yield f"noise and reading: {passed} of {len(audit.checks)} checks passed"
    yield (
        f"{len(audit.lines)} lines of statements, {audit.releases:,} releases in {audit.seconds:,.0f} s by "
        f"{audit.processes} processes: {audit.releases_a_second:,.0f} a second"
    )


def _heading(line: Line) -> str:
    return f"{line.question.label}, V = {line.question.design.values}"


def _printed(slug: str, lines: list[Line]) -> str:
    bounds = " ".join(f"{rounded(one.bound, 5, ROUND_FLOOR):8}" for one in lines)
    loss = "delta" if lines[0].of_delta else "epsilon"
    claim, gap = (rounded(one, 5, ROUND_CEILING) for one in (lines[0].claim, min(one.gap for one in lines)))
    broken = "  BROKEN" if any(one.broken for one in lines) else ""
    return f"  {slug:<25} {loss:<8} {claim:8}  {bounds:<28} {gap:8}{broken}"


def audit_record(audit: Audit) -> dict[str, Any]:
    """Return an audit for programs: every line with its bound, every check, and the failures as sentences."""
    return {
        "releases": audit.releases,
        "seconds": round(audit.seconds, 1),
        "processes": audit.processes,
        "releases_a_second": round(audit.releases_a_second),
        "failures": audit.failures,
        "lines": audit_rows(audit),
        "checks": [
            {"check": one.name, "p_value": one.p_value, "draws": one.draws, "passed": one.passed}
            for one in audit.checks
        ],
    }


def write_audit(audit: Audit, directory: Path) -> None:
    """Write audit.json, audit.csv, audit.svg and audit.png into a directory."""
    rows = audit_rows(audit)
    text = csv_table(list(rows[0]), (row.values() for row in rows))
    (directory / "audit.csv").write_text(text, encoding="utf-8", newline="")
    (directory / "audit.json").write_text(json.dumps(audit_record(audit), indent=1) + "\n", encoding="utf-8")
    _draw(audit, directory / "audit")


def _draw(audit: Audit, stem: Path) -> None:
    """Draw each line of a statement as a point: claimed loss on the x axis, proved loss on the y axis.

    A point above the diagonal is a broken claim.
    """
    figure, (axes,) = new_figure(7.2, 5.4)
    names = list(dict.fromkeys(one.question.design.name for one in audit.lines))
    for place, name in enumerate(names):
        mine = [one for one in audit.lines if one.question.design.name == name]
        marker, colour = "osD"[place // len(PALETTE)], PALETTE[place % len(PALETTE)]
        points = [one.claim for one in mine], [one.bound for one in mine]
        axes.plot(*points, linestyle="none", marker=marker, color=colour, alpha=0.75, label=name)
    largest = 1.05 * max(max(one.claim, one.bound) for one in audit.lines)
    axes.plot([0, largest], [0, largest], color="#222222", linewidth=1, label="claim = bound")
    axes.set(
        title=f"{len(audit.lines)} lines of statements attacked with {audit.releases:,} releases",
        xlabel="loss claimed (epsilon, or delta where no epsilon is finite)",
        ylabel="loss proved, at 99.9 %",
        xlim=(0, largest),
        ylim=(0, largest),
    )
    axes.legend(loc="upper left")
    save_figure(figure, stem)
