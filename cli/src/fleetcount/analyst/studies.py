"""A study in Python: a scenario file carried out, and its tables.

What `fleetcount simulate` writes stays in a directory; it must not keep a table in memory before it is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from fleetcount_protocol.errors import UsageError
from fleetcount_simulator.model import EngineName
from fleetcount_simulator.report.study import Tables
from fleetcount_simulator.scenario.file import read_scenario
from fleetcount_simulator.study.experiment import CaseSummary, StudySettings, run_study
from fleetcount_simulator.study.registries import STANDARD
from fleetcount_simulator.study.scale import ThisProcess, WorkerPool

from fleetcount.analyst.tables import Row, Table, html_table
from fleetcount.command.options import check_output_directory


def simulate(
    scenario: str | PathLike[str],
    *,
    engine: EngineName | None = None,
    runs: int | None = None,
    seed: int | None = None,
    workers: int = 1,
    output: str | PathLike[str] | None = None,
) -> "Study":
    """Carry out a scenario file and return its study; the tables go to `output`, else to NAME-study.

    An interrupted study goes on where it was when it is called again. `engine` is exact-law, per-device or network;
    `runs` and `seed` stand in place of the file's; `workers` are processes of this machine.

    Raises:
        ScenarioError: the file, with line and key; a case that cannot be made; an output of something else.
        UsageError: runs or workers out of range, or an output that cannot be written to.
    """
    for name, value, most in (("runs", runs, 1_000_000), ("workers", workers, 256)):
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"{name} is {value}, allowed: 1 to {most}")
    plan = read_scenario(Path(scenario), STANDARD.population, seed)
    target = Path(f"{plan.name}-study" if output is None else output)
    check_output_directory(target)
    runner = WorkerPool(workers) if workers > 1 else ThisProcess()
    settings = StudySettings(
        engine=engine or plan.engine, runs=runs or plan.runs, output=target, command=("fleetcount.simulate",)
    )
    summaries = run_study(plan, settings, STANDARD, runner, lambda _phase, _done, _total: None)
    return Study(summaries=tuple(summaries), directory=target)


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A finished study: `summaries` of its cases, and its tables, read from `directory` when they are asked for."""

    summaries: Sequence[CaseSummary] = field(repr=False)
    directory: Path

    @property
    def cases(self) -> Table:
        """One row per case: the varied keys, mechanism, devices, values."""
        return self._table("cases")

    @property
    def releases(self) -> Table:
        """A row a release: errors, coverage and widths over its cells, in devices."""
        return self._table("releases")

    @property
    def cells(self) -> Table:
        """A row a cell of a case at an epoch: truth, estimate and interval of the first run, coverage over all runs.

        Raises:
            UsageError: the scenario leaves this table out.
        """
        return self._table("cells", "; the scenario says keep_cells = false")

    @property
    def attackers(self) -> Table:
        """A row for each thing that an attacker achieved."""
        return self._table("attackers")

    @property
    def statement(self) -> Table:
        """A row an adversary of a case: what it could learn of one device, from one release and from all."""
        return self._table("statement")

    def report(self) -> Path:
        """Draw the report of the study and return the path of report.html.

        Raises:
            ScenarioError: its tables cannot be read.
            MachineError: the disk does not take it.
        """
        # Matplotlib is loaded where a report is drawn.
        from fleetcount_site.report import write_report

        return write_report(self.directory)

    def _table(self, name: str, why: str = "") -> Table:
        with Tables(self.directory) as tables:
            columns: dict[str, Any] = tables.columns(name) if tables.has(name) else {}
        if why and not any(columns.values()):
            raise UsageError(f"the study in {self.directory} has no rows of {name!r}{why}")
        return Table(columns=columns, title=name)

    def _repr_html_(self) -> str:
        rows: list[Row] = [
            (one.name, f"{one.releases}/{one.asked}", one.rmse, one.coverage, one.mean_width) for one in self.summaries
        ]
        head = ("case", "released", "error (devices)", "coverage", "width (devices)")
        return html_table(str(self.directory), head, rows[:20], hidden=len(rows) - 20)
