"""The report of a study: report.html and figures/*.svg and *.png, from the tables in its output directory.

Reads what `fleetcount simulate` has written and changes none of it. Every file appears whole or not at all.
"""

from collections.abc import Mapping
from pathlib import Path

from fleetcount_analysis.figures.panels import Chart, chart_figure
from fleetcount_analysis.figures.svg import rendered
from fleetcount_protocol.errors import MachineError

from fleetcount_simulator.report.figures import FIGURES, Missing, figure
from fleetcount_simulator.report.page import ASSETS, page
from fleetcount_simulator.report.study import Tables, read_study
from fleetcount_simulator.study.directory import StudyDirectory

__all__ = ["write"]


def write(directory: Path, browser: Mapping[str, Path] | None = None) -> Path:
    """Write the report of the study in a directory, finished or not, and return the path of report.html.

    Figures of an earlier report that have no data any more are removed. `browser` are style sheets and scripts by name,
    in the order of loading, by which a map is drawn in the page itself (`fleetcount_site.pages.report_files`); they are
    put into the directory's folder assets/. Without them, or without a map, the page has pictures only.

    Raises:
        ScenarioError: the directory holds no study, or its tables cannot be read.
        MachineError: the disk does not take it.
    """
    target = StudyDirectory(directory)
    with Tables(directory) as tables:
        study = read_study(directory, tables)
        made = [figure(name, study, tables) for name in FIGURES]
    try:
        (directory / "figures").mkdir(exist_ok=True)
        for one in made:
            if isinstance(one, Missing):
                for kind in ("svg", "png"):
                    (directory / "figures" / f"{one.name}.{kind}").unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(f"figures cannot be written: {error.strerror or error}") from error
    for one in made:
        if not isinstance(one, Missing):
            for ending, content in rendered(chart_figure(one), title=one.title, description=one.caption).items():
                target.write(Path("figures") / f"{one.name}.{ending}", content)
    loaded = dict(browser or {}) if any(isinstance(one, Chart) and one.numbers for one in made) else {}
    for name, path in loaded.items():
        _copy(target, Path(ASSETS) / name, path)
    target.write("report.html", page(study, made, tuple(loaded)))
    return directory / "report.html"


def _copy(target: StudyDirectory, name: Path, source: Path) -> None:
    try:
        content = source.read_bytes()
        (target.path / name).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{name} cannot be written: {error.strerror or error}") from error
    target.write(name, content)
