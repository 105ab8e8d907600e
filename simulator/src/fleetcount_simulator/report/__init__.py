"""The content of a study's report: sentences, figures and tables, from the tables in its output directory.

It reads the files of `fleetcount simulate` and changes none. `fleetcount_site.report` makes the page.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetcount_analysis.figures.charts import Chart

from fleetcount_simulator.report.conclusions import Headline, Notice, headlines, introduction, lead, warnings_of
from fleetcount_simulator.report.figures import FIGURES, Missing, figure
from fleetcount_simulator.report.study import Tables, read_study
from fleetcount_simulator.report.tables import ReportTable, report_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report from top to bottom; all texts are plain. `facts` are the facts needed to repeat the study, by name."""

    name: str
    title: str
    lead: str
    introduction: Sequence[str]
    has_cases: bool
    headlines: Sequence[Headline]
    notices: Sequence[Notice]
    figures: Sequence[Chart | Missing] = field(repr=False)
    tables: Sequence[ReportTable] = field(repr=False)
    facts: Mapping[str, str]
    scenario: str = field(repr=False)


def read_report(directory: Path) -> Report:
    """Return the report of the study in a directory, finished or not.

    Raises:
        ScenarioError: the directory holds no study, or its tables cannot be read.
    """
    with Tables(directory) as tables:
        study = read_study(directory, tables)
        figures = [figure(name, study, tables) for name in FIGURES]
    record = study.record
    scenario = str(record.get("scenario", ""))
    return Report(
        name=str(record.get("name", "")),
        title=str(record.get("title") or record.get("name") or "A study"),
        lead=lead(scenario),
        introduction=introduction(study),
        has_cases=bool(study.cases),
        headlines=headlines(study),
        notices=warnings_of(study),
        figures=figures,
        tables=report_tables(study),
        facts=_facts(record),
        scenario=scenario,
    )


def _facts(record: Mapping[str, Any]) -> Mapping[str, str]:
    machine = record.get("machine") or {}
    seconds = record.get("seconds")
    facts = {
        "Command": shlex.join(["fleetcount", *map(str, record.get("command", ()))]),
        "Scenario file": str(record.get("file")),
        "Seed": str(record.get("seed")),
        "Version": f"fleetcount {record.get('version')}",
        "Engine": str(record.get("engine")),
        "Started": str(record.get("started")),
        "Took": "" if seconds is None else f"{seconds:,.1f} s",
        "Machine": f"{machine.get('system')}, {machine.get('processor')}, {machine.get('cores')} cores, "
        f"Python {machine.get('python')}, NumPy {machine.get('numpy')}",
    }
    return {name: value for name, value in facts.items() if value not in {"", "None"}}
