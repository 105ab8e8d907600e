"""Seconds a figure of a report, each beside a plain matplotlib figure of the same data and size, as SVG and PNG.

The study is a real one of 100 scenarios with faults, attackers and two epochs, and one more for a map of 5,000 cells
and more. What is timed of ours is all that a figure takes: asking the tables, laying out, writing both files; of the
plain one, drawing with matplotlib's own settings and saving. A quick run draws each once, and not those of many panels.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fleetcount_analysis.figures.charts import chart_figure
from fleetcount_analysis.figures.files import rendered
from fleetcount_simulator.report.figures import FIGURES, Missing, figure
from fleetcount_simulator.report.study import Study, Tables, read_study
from fleetcount_simulator.scenario.file import parse_scenario
from fleetcount_simulator.study.experiment import StudySettings, run_study
from fleetcount_simulator.study.registries import STANDARD
from fleetcount_simulator.study.scale import ThisProcess
from fleetcount_site.report import write_report
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from rows import NOT_QUICK, Row, best_s, quick, report, smoke

MOST_PANELS = 3 if quick() and not smoke() else 100
RUNS = 2 if smoke() else 5 if quick() else 20
DEVICES = "[1_000, 10_000]" if smoke() else "[1_000, 3_000, 10_000, 30_000, 100_000]"
EPSILONS = '["1/2", 2]' if smoke() else '["1/4", "1/2", 1, 2, 4]'
LIARS = "[10]" if smoke() else "[10, 1000]"
GAMES = 100 if smoke() else 1_000
SIZE_M = 500 if smoke() else 27

SWEEP = f"""
name = "sweep"
seed = 1

[population]
kind = "city"
devices = {DEVICES}
values = 40
shape = "zipf"

[question]
cells = "none"

[[mechanism]]
kind = "sampling"
sampling_rate = "1/4"
epsilon = {EPSILONS}

[faults]
drop_out = [0, "1/50"]

[epochs]
count = 2

[[attacker]]
kind = "liars"
devices = {LIARS}
strategy = "one-cell"
value = 1

[[attacker]]
kind = "known-others"
games = {GAMES}
"""

PLACES = f"""
name = "places"
seed = 1

[population]
kind = "bologna"
start_s = 2400

[question]
cells = "square"
size_m = {SIZE_M}

[[mechanism]]
kind = "sampling"
sampling_rate = "1/4"
epsilon = 1
"""


def studied(text: str, output: Path) -> Path:
    """Run a scenario and return its directory."""
    scenario = parse_scenario(text, "bench.toml", output.parent, STANDARD.population)
    settings = StudySettings(engine="exact-law", runs=RUNS, output=output)
    run_study(scenario, settings, STANDARD, ThisProcess(), lambda phase, done, total: None)
    return output


def plain_figure(drawn: Figure, folder: Path) -> Callable[[], None]:
    """Return what draws the lines and cells of a figure with matplotlib's own settings, and writes its two files."""
    panels = [axes for axes in drawn.axes if (axes.lines or axes.collections) and axes.get_label() != "<colorbar>"]

    def made() -> None:
        plain = Figure(figsize=drawn.get_size_inches(), layout="constrained")
        FigureCanvasAgg(plain)
        for axes, one in zip(panels, plain.subplots(1, len(panels), squeeze=False)[0], strict=True):
            for line in axes.lines:
                one.plot(line.get_xdata(), line.get_ydata(), marker=line.get_marker())
            for cells in axes.collections:
                shapes = [path.vertices for path in cells.get_paths()]
                kind = LineCollection if isinstance(cells, LineCollection) else PolyCollection
                one.add_collection(kind(shapes, array=range(len(shapes)), rasterized=cells.get_rasterized()))
            one.set(title="title", xscale=axes.get_xscale(), yscale=axes.get_yscale())
        plain.savefig(folder / "plain.svg")
        plain.savefig(folder / "plain.png", dpi=144)

    return made


def least_s(operation: Callable[[], object], seconds: float) -> float:
    """Return the least of the runs that fit into `seconds`; in a quick run, which draws once, the time of one."""
    if not quick():
        return best_s(operation, seconds)
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def figure_row(name: str, study: Study, tables: Tables, folder: Path) -> Row:
    """Return one figure beside a plain one."""
    what = f"report: figure {name}, {len(study.cases)} scenarios"
    chart = figure(name, study, tables)
    if isinstance(chart, Missing):
        return Row(path=what, ours=None, unit="s", note=chart.reason)
    if len(chart.panels) > MOST_PANELS:
        why = f"{NOT_QUICK}many panels take long, and report.html has them too"
        return Row(path=what, ours=None, unit="s", note=why)
    cells = study.cases[0].values

    def ours() -> None:
        made = figure(name, study, tables)
        assert not isinstance(made, Missing)
        for ending, content in rendered(chart_figure(made)).items():
            (folder / f"ours.{ending}").write_bytes(content)

    plain = plain_figure(chart_figure(chart), folder)
    if not quick():
        ours()
        plain()
    # Taken in turn, so that a busy moment of the machine meets both.
    times = [(least_s(ours, 0.2), least_s(plain, 0.2)) for _ in range(1 if quick() else 4)]
    mine, other = min(one for one, _ in times), min(two for _, two in times)
    return Row(
        path=what if len(study.cases) > 1 else f"report: figure {name}, {cells:,} cells in three panels",
        ours=mine,
        unit="s",
        peer="plain matplotlib figure of the same data",
        peer_value=other,
        ratio=mine / other,
        larger_is_better=False,
        note=f"{len(chart.panels)} panels, SVG and PNG{'; one run' if quick() else ''}",
    )


def report_row(directory: Path) -> Row:
    """Return the whole report: reading, all figures, the page."""
    seconds = least_s(lambda: write_report(directory), 1.0)
    size = (directory / "report.html").stat().st_size
    return Row(
        path="report: report.html and all figures, 100 scenarios",
        ours=seconds,
        unit="s",
        note=f"{size:,} bytes",
    )


def main() -> None:
    """Print a row for every figure, then one for the whole report."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sweep, places = studied(SWEEP, folder / "sweep"), studied(PLACES, folder / "places")
        for directory, names in ((sweep, list(FIGURES)[: 2 if smoke() else None]), (places, ("map",))):
            with Tables(directory) as tables:
                study = read_study(directory, tables)
                if quick() and not smoke() and directory is sweep:
                    figure_row("coverage", study, tables, folder)  # What only the first figure of a process takes.
                for name in names:
                    report(figure_row(name, study, tables, folder))
        report(report_row(sweep))


if __name__ == "__main__":
    main()
