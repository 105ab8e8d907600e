"""What the demo leaves behind: release.json, comparison.csv, and a picture as SVG and PNG.

Writes into a directory it is given; the caller makes it appear whole or not at all.
"""

import csv
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_protocol.release import ReleaseRecord, decimal_text, record_to_json
from fleetcount_protocol.window.domain import Frame, SquareGrid

__all__ = ["comparison_csv", "covered", "draw", "drawn", "title_of", "write_outputs"]

_DRAWING: Final = {"matplotlib": "matplotlib", "PIL": "Pillow"}
"""What pictures need beyond the demo itself, by the name under which it is loaded."""


def comparison_csv(record: ReleaseRecord, truths: Sequence[int]) -> str:
    """Return cell,truth,estimate,low,high for every cell, in the window's order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", "truth", "estimate", "low", "high"])
    for cell, truth in zip(record.cells, truths, strict=True):
        writer.writerow([cell.label, truth, decimal_text(cell.estimate), cell.low, cell.high])
    return text.getvalue()


def covered(record: ReleaseRecord, truths: Sequence[int]) -> int:
    """Return how many truths lie inside their interval."""
    return sum(cell.low <= truth <= cell.high for cell, truth in zip(record.cells, truths, strict=True))


def drawn(names: Sequence[str], drawing: Callable[[], object]) -> list[str]:
    """Draw; return the names of the pictures, none where a package is missing, which is said."""
    try:
        drawing()
    except ModuleNotFoundError as error:
        if error.name not in _DRAWING:
            raise
        missing = f"needs the package {_DRAWING[error.name]}, which comes with fleetcount[analysis]"
        click.echo(f"not drawn: {', '.join(names)}; {missing}", err=True)
        return []
    return list(names)


def write_outputs(
    directory: Path, question: str, record: ReleaseRecord, signatures: Sequence[bytes], truths: Sequence[int]
) -> list[str]:
    """Write all files of a demo into an empty directory; return their names.

    `question` is what the picture says was asked.
    """
    (directory / "release.json").write_text(record_to_json(record, signatures), encoding="utf-8")
    (directory / "comparison.csv").write_text(comparison_csv(record, truths), encoding="utf-8")
    picture = partial(draw, directory / "map", title_of(question, record), record, truths)
    return ["release.json", "comparison.csv", *drawn(["map.svg", "map.png"], picture)]


def draw(stem: Path, title: str, record: ReleaseRecord, truths: Sequence[int], scale: float = 1.0) -> None:
    """Draw a record beside the truth as SVG and PNG; colours of a map go up to `scale` at least."""
    # Matplotlib takes a second to load: after the work, not before it.
    from fleetcount_analysis.figures import GridGeometry, bars_with_intervals, count_map, save_figure

    estimate = [float(cell.estimate) for cell in record.cells]
    low = [float(cell.low) for cell in record.cells]
    high = [float(cell.high) for cell in record.cells]
    truth = [float(one) for one in truths]
    domain = record.window.domain
    if isinstance(domain, SquareGrid):
        size, columns, rows = float(domain.size), domain.columns, domain.rows
        geometry = GridGeometry(size=size, columns=columns, rows=rows, **_streets_of(domain))
        level = float(100 * record.window.release.level)
        figure = count_map(
            geometry, estimate=estimate, low=low, high=high, truth=truth, title=title, level_percent=level, scale=scale
        )
    else:
        labels = [cell.label for cell in record.cells]
        figure = bars_with_intervals(
            labels, estimate=estimate, low=low, high=high, truth=truth, title=title, unit="vehicles"
        )
    save_figure(figure, stem)


def _streets_of(grid: SquareGrid) -> dict[str, Any]:
    """Return the streets of a grid in Bologna and whose they are, of any other nothing."""
    from fleetcount_data.streets import BOLOGNA_EPSG, BOLOGNA_OFFSET, bologna_streets

    if grid.frame != Frame(epsg=BOLOGNA_EPSG, offset_x=BOLOGNA_OFFSET[0], offset_y=BOLOGNA_OFFSET[1]):
        return {}
    x0, y0 = float(grid.x0), float(grid.y0)
    lines = [[(x - x0, y - y0) for x, y in street.line] for street in bologna_streets()]
    return {"streets": lines, "source": "streets: SUMO's Bologna scenario, EPL-2.0"}


def title_of(question: str, record: ReleaseRecord) -> str:
    """Return the question with the number of aggregators and the loss of one release."""
    epsilon = next((view.epsilon for view in record.statement if view.epsilon is not None), None)
    loss = f", epsilon {epsilon.normalize():f}" if epsilon is not None else ""
    return f"{question} ({len(record.window.aggregators)} aggregators{loss})"
