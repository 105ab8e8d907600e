"""Figures: the same bytes at every run, every shape checked, many categories cut to the largest."""

from pathlib import Path

import pytest
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.figures import (
    GridGeometry,
    Line,
    bars_with_intervals,
    count_map,
    line_figure,
    plan_plot,
    save_figure,
)

GRID = GridGeometry(x0=0, y0=0, size=250, columns=3, rows=2)


def test_a_map_has_three_panels_and_the_same_bytes_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        figure = count_map(
            GRID, estimate=[1, 2, 3, 4, 5, -6], low=[0] * 6, high=[9, 8, 7, 6, 5, 4], truth=[1, 2, 3, 4, 5, 0]
        )
        save_figure(figure, tmp_path / name)

    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")]
    assert titles == ["Estimate", "Width of the 95 % interval", "Truth (known only in a simulation)"]
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "one.svg", "two.png", "two.svg"]


def test_a_cell_is_drawn_at_its_column_and_row() -> None:
    assert GRID.image([1, 2, 3, 4, 5, 6]).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_bars_show_the_largest_of_many_categories() -> None:
    figure = bars_with_intervals(
        [f"c{i}" for i in range(50)], estimate=list(range(50)), low=[0] * 50, high=[60] * 50, title="Answers"
    )

    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(labels) == 40
    assert labels[0] == "c49"
    assert "c3" not in labels


def test_lines_carry_their_labels() -> None:
    figure = line_figure(
        [Line(x=[1, 2], y=[1, 2], low=[0, 1], high=[2, 3], label="ours")], title="t", x_label="x", y_label="y"
    )

    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["ours"]


def test_a_plan_names_the_smallest_count_that_is_seen() -> None:
    seen = plan_plot([1, 10, 100], sampling=[1, 3, 9], noise=[4, 4, 4], both=[4.1, 5, 9.8], smallest_count_seen=17)
    unseen = plan_plot([1, 10], sampling=[1, 3], noise=[4, 4], both=[4.1, 5], smallest_count_seen=None)

    assert [text.get_text() for text in seen.axes[1].texts] == ["17: the smallest count\ntold apart from 0"]
    assert list(unseen.axes[1].texts) == []


def test_a_number_is_written_in_every_cell_of_a_small_map_only() -> None:
    many = GridGeometry(x0=0, y0=0, size=100, columns=21, rows=20)

    small = count_map(GRID, estimate=[-0.4, 2, 3, 4, 5, 6], low=[0] * 6, high=[9] * 6)
    large = count_map(many, estimate=[1] * 420, low=[0] * 420, high=[2] * 420)

    assert [text.get_text() for text in small.axes[0].texts] == ["0", "2", "3", "4", "5", "6"]
    assert len(large.axes[0].texts) == 0


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    figure = line_figure([Line(x=[1], y=[1], label="ours")], title="t", x_label="x", y_label="y")

    with pytest.raises(OSError, match="absent"):
        save_figure(figure, tmp_path / "absent" / "name")

    assert list(tmp_path.iterdir()) == []


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="3 by 2"):
        GRID.image([1, 2, 3])
    with pytest.raises(ShapeError, match="2 labels"):
        bars_with_intervals(["a", "b"], estimate=[1], low=[0], high=[1])
    with pytest.raises(ShapeError, match="1 counts"):
        plan_plot([1], sampling=[1, 2], noise=[1], both=[1], smallest_count_seen=None)
    with pytest.raises(RangeError, match="grid"):
        GridGeometry(x0=0, y0=0, size=0, columns=1, rows=1)
