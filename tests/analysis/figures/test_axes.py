"""Pictures drawn into an analyst's own axes: what is written on them can be read."""

from itertools import pairwise

import pytest
from fleetcount_analysis.figures.axes import draw_places
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

SQUARES = [[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for y in range(8) for x in range(9)]


@pytest.mark.parametrize("size", [(6.4, 4.8), (3.2, 2.4)])
@pytest.mark.parametrize("top", [1, 40, 130, 21_000, 1_234_567])
def test_labels_of_a_maps_scale_stand_apart_and_none_is_above_its_end(top: int, size: tuple[float, float]) -> None:
    figure = Figure(figsize=size)
    canvas = FigureCanvasAgg(figure)
    counts = [top * value / 71 for value in range(72)]

    draw_places(figure.subplots(), SQUARES, estimate=counts, unit="devices", degrees=False)

    canvas.draw()
    bar = figure.axes[1].yaxis
    boxes = [label.get_window_extent() for label in bar.get_ticklabels()]
    assert len(boxes) >= 2
    assert all(below.y1 < above.y0 for below, above in pairwise(boxes))
    assert max(bar.get_ticklocs()) <= top
    assert bar.get_offset_text().get_text() == ""
