"""The papers' figures: groups keep their names, kinds keep their colours, every entry of a matrix is written."""

import numpy as np
import pytest
from fleetcount_evidence.papers.drawing import Bars, Marks, MatrixPanel, bar_panels, colours, mark_panels, matrix_panels


@pytest.mark.parametrize("log_y", [False, True])
def test_groups_of_bars_keep_their_names(log_y: bool) -> None:
    bars = Bars(
        title="t",
        groups=["young", "costs $5 and $6"],
        series={"ours": [1, 2], "theirs": [3, 4]},
        colours=colours("ours", "theirs"),
        marks={"theirs": [3.5, 4.5]},
        log_y=log_y,
    )
    figure = bar_panels([bars, bars, bars], columns=2, title="Title")

    figure.canvas.draw()

    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["young", "costs $5 and $6"]
    assert [axis.get_visible() for axis in figure.axes] == [True, True, True, False]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "95th percentile of simulated errors",
        "ours",
        "theirs",
    ]


def test_every_kind_of_mark_is_in_the_legend_even_where_there_is_none() -> None:
    here = (np.array([1.0]), np.array([2.0]))

    figure = mark_panels([Marks(title="a", kinds={"safe": here}), Marks(title="b", kinds={"busy": here})], columns=2)

    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["safe", "busy"]
    assert [len(line.get_xdata()) for axis in figure.axes for line in axis.lines] == [1, 0, 0, 1]


def test_every_entry_of_a_matrix_is_written_so_that_it_can_be_read() -> None:
    panel = MatrixPanel(
        title="t",
        shades=np.array([[0.0, 1.0]]),
        texts=[["1/2", "2/3"]],
        x_label="answer",
        y_label="count",
        row_names=["0"],
    )

    (axis,) = matrix_panels([panel]).axes

    assert [(text.get_text(), text.get_color()) for text in axis.texts] == [("1/2", "black"), ("2/3", "white")]
