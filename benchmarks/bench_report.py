"""Every figure of a report, each beside an empty matplotlib figure saved the same way: as many pixels, SVG and PNG.

The study is a real one of 100 scenarios with faults, attackers and two epochs, and one more for a map of 5,000 cells
and more. What is timed of ours is all that a figure takes: asking the tables, laying out, writing both files.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from fleetcount_simulator import report as study_report
from fleetcount_simulator.report.figures import FIGURES, Missing, figure
from fleetcount_simulator.report.layout import SCALE, placed
from fleetcount_simulator.report.png import chart_png
from fleetcount_simulator.report.scene import Chart
from fleetcount_simulator.report.study import Study, Tables, read_study
from fleetcount_simulator.report.svg import chart_file
from fleetcount_simulator.scenario.file import parse_scenario
from fleetcount_simulator.study.experiment import StudySettings, run_study
from fleetcount_simulator.study.making import STANDARD
from fleetcount_simulator.study.scale import ThisProcess
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rows import Row, best_s, quick, report, smoke

MUST, AIM = 5.0, 2.0
RUNS = 2 if smoke() else 5 if quick() else 20
PIXELS_AN_INCH = 96

SWEEP = """
name = "sweep"
seed = 1

[population]
kind = "city"
devices = [1_000, 3_000, 10_000, 30_000, 100_000]
values = 40
shape = "zipf"

[question]
cells = "none"

[[mechanism]]
kind = "sampling"
sampling_rate = "1/4"
epsilon = ["1/4", "1/2", 1, 2, 4]

[faults]
drop_out = [0, "1/50"]

[epochs]
count = 2

[[attacker]]
kind = "liars"
devices = [10, 1000]
strategy = "one-cell"
value = 1

[[attacker]]
kind = "known-others"
games = 1000
"""

PLACES = """
name = "places"
seed = 1

[population]
kind = "bologna"
start_s = 2400

[question]
cells = "square"
size_m = 27

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


def saved(chart: Chart, folder: Path) -> None:
    """Write a figure's two files."""
    (folder / "ours.svg").write_bytes(chart_file(chart))
    (folder / "ours.png").write_bytes(chart_png(chart))


def empty_figure(width: float, height: float, folder: Path) -> Callable[[], None]:
    """Return what makes an empty figure with one pair of axes, of so many pixels, and writes its two files."""

    def made() -> None:
        plain = Figure(figsize=(width / PIXELS_AN_INCH, height / PIXELS_AN_INCH))
        FigureCanvasAgg(plain)
        plain.add_subplot()
        plain.savefig(folder / "empty.svg")
        plain.savefig(folder / "empty.png", dpi=SCALE * PIXELS_AN_INCH)

    return made


def figure_row(name: str, study: Study, tables: Tables, folder: Path) -> Row:
    """Return one figure beside an empty one."""
    what = f"report: figure {name}, {len(study.cases)} scenarios"
    chart = figure(name, study, tables)
    if isinstance(chart, Missing):
        return Row(path=what, ours=None, unit="ms", note=chart.reason)
    cells = study.cases[0].values

    def ours() -> None:
        made = figure(name, study, tables)
        if isinstance(made, Chart):
            saved(made, folder)

    layout = placed(chart)
    ours()
    empty = empty_figure(layout.width, layout.height, folder)
    empty()
    # Taken in turn, so that a busy moment of the machine meets both.
    times = [(best_s(ours, 0.2), best_s(empty, 0.2)) for _ in range(1 if quick() else 4)]
    mine, plain = min(one for one, _ in times), min(other for _, other in times)
    return Row(
        path=what if len(study.cases) > 1 else f"report: figure {name}, {cells:,} cells in three panels",
        ours=mine * 1000,
        unit="ms",
        peer="empty matplotlib figure",
        peer_value=plain * 1000,
        ratio=mine / plain,
        must=MUST,
        aim=AIM,
        larger_is_better=False,
        note=f"{len(chart.panels)} panels, {round(layout.width * SCALE)} x {round(layout.height * SCALE)} pixels",
    )


def report_row(directory: Path) -> Row:
    """Return the whole report: reading, all figures, the page."""
    seconds = best_s(lambda: study_report.write(directory), 1.0)
    size = (directory / "report.html").stat().st_size
    return Row(
        path="report: report.html and all figures, 100 scenarios",
        ours=seconds * 1000,
        unit="ms",
        note=f"{size:,} bytes",
    )


def main() -> None:
    """Print a row for every figure, then one for the whole report."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sweep, places = studied(SWEEP, folder / "sweep"), studied(PLACES, folder / "places")
        for directory, names in ((sweep, FIGURES), (places, ("map",))):
            with Tables(directory) as tables:
                study = read_study(directory, tables)
                for name in names:
                    report(figure_row(name, study, tables, folder))
        report(report_row(sweep))


if __name__ == "__main__":
    main()
