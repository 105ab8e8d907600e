"""Figures as SVG and PNG: as bytes, or in files."""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fleetcount_analysis.figures.style import in_style
from fleetcount_analysis.figures.words import printable


@in_style
def rendered(figure: Figure, *, title: str = "", description: str = "") -> dict[str, bytes]:
    """Return a figure's SVG and PNG files by their endings; title and description are in the SVG's metadata."""
    described: dict[str, Any] = {"Title": printable(title), "Description": printable(description), "Date": None}
    if (engine := figure.get_layout_engine()) is not None:
        # The layout is computed once for both files, because it takes as long as drawing; with "none" both would be
        # drawn twice.
        engine.execute(figure)
        figure.set_layout_engine(None)
    vectors, picture = io.BytesIO(), io.BytesIO()
    figure.savefig(vectors, format="svg", metadata=described)
    figure.savefig(picture, format="png", metadata={"Software": None})
    return {"svg": vectors.getvalue(), "png": picture.getvalue()}


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write STEM.svg and STEM.png, each atomically, and return both paths.

    Raises:
        OSError: a file cannot be written.
    """
    files = {stem.with_name(f"{stem.name}.{ending}"): content for ending, content in rendered(figure).items()}
    for target, content in files.items():
        part = target.with_name(f".{target.name}.part")
        try:
            part.write_bytes(content)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    svg, png = files
    return svg, png
