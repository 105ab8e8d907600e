"""Pictures of releases, plans and lines: their words, every shape checked, many categories cut."""

from pathlib import Path
from typing import Any

import pytest
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.figures.files import save_figure
from fleetcount_analysis.figures.lines import Line, LinePanel, line_panels, plan_plot
from fleetcount_analysis.figures.releases import GridGeometry, bars_with_intervals, count_map
from fleetcount_analysis.figures.style import PALETTE
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

GRID = GridGeometry(size=250, columns=3, rows=2)


def words(figure: Figure) -> list[str]:
    """Return all texts of a figure, those of axes too; a title in several lines is one."""
    figure.canvas.draw()
    found = figure.findobj(lambda one: hasattr(one, "get_text"))
    return [text.get_text().replace("\n", " ") for text in found if text.get_text()]


def lines(label: str = "ours", **changes: Any) -> Figure:
    panel: dict[str, Any] = {
        "title": "t",
        "lines": [Line(x=[1, 2, 3], y=[1, 20, 300], low=[0.5, 10, 150], high=[2, 40, 600], label=label)],
        "colours": {label: PALETTE[0]},
        "x_label": "x",
        "y_label": "y",
    }
    return line_panels([LinePanel(**panel | changes)], columns=1)


def test_a_map_has_three_panels_and_two_files(tmp_path: Path) -> None:
    figure = count_map(
        GRID, estimate=[1, 2, 3, 4, 5, -6], low=[0] * 6, high=[9, 8, 7, 6, 5, 4], truth=[1, 2, 3, 4, 5, 0]
    )
    save_figure(figure, tmp_path / "one")

    titles = {"Estimate", "Width of the 95 % interval", "Truth (known only in a simulation)"}
    assert titles <= set(words(figure))
    assert "(north up, side of a square 250 m)" in words(figure)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "one.svg"]


def test_a_map_names_its_cells_by_column_and_row_as_tables_do() -> None:
    figure = count_map(GRID, estimate=[1] * 6, low=[0] * 6, high=[2] * 6)

    figure.canvas.draw()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x, from the west (cells are x,y)", "y, from the south")
    wide = count_map(GridGeometry(size=1, columns=60, rows=2), estimate=[1] * 120, low=[0] * 120, high=[2] * 120)
    assert len(wide.axes[0].get_xticks()) <= 16


def test_an_interval_without_width_far_below_zero_is_hatched_with_the_reason_and_has_no_number() -> None:
    numbers = {"estimate": [-16, 0, 3, 4, 5, 6], "low": [0, 0, 3, 0, 0, 0], "high": [0, 0, 3, 9, 9, 9]}
    width = count_map(GRID, **numbers).axes[1]

    (marked,) = [one for one in width.collections if one.get_hatch()]
    assert [path.vertices[:4].tolist() for path in marked.get_paths()] == [[[0, 0], [1, 0], [1, 1], [0, 1]]]
    # An interval that is exact, without noise, is not hatched.
    assert [text.get_text() for text in width.texts] == ["0", "0", "9", "9", "9"]
    figure = count_map(GRID, **numbers)
    assert "vehicles (hatched: 0, below noise)" in words(figure)
    assert not any(one.get_hatch() for one in figure.axes[0].collections)


def test_a_map_without_truth_has_two_panels() -> None:
    figure = count_map(GRID, estimate=[1] * 6, low=[0] * 6, high=[2] * 6, title="Where?")

    assert not any("Truth" in word for word in words(figure))
    assert "Where? (north up, side of a square 250 m)" in words(figure)
    figure = count_map(GRID, estimate=[1] * 6, low=[0] * 6, high=[2] * 6, title="Where? (epsilon 1)")
    assert "Where? (epsilon 1; north up, side of a square 250 m)" in words(figure)


def test_a_number_is_written_in_every_cell_of_a_small_map_only() -> None:
    many = GridGeometry(size=100, columns=21, rows=20)

    small = count_map(GRID, estimate=[-40, 2, 3, 4, 5, 61], low=[0] * 6, high=[9] * 6)
    large = count_map(many, estimate=[7] * 420, low=[0] * 420, high=[2] * 420)

    assert [text.get_text() for text in small.axes[0].texts] == ["−40", "2", "3", "4", "5", "61"]
    assert [text.get_text() for axes in large.axes[:2] for text in axes.texts] == []


def test_bars_show_the_largest_of_many_categories() -> None:
    figure = bars_with_intervals(
        [f"c{i}" for i in range(50)], estimate=list(range(50)), low=[0] * 50, high=[60] * 50, title="Answers"
    )

    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == 40
    assert labels[0] == "c49"
    assert "c3" not in labels
    assert "Answers (the 40 largest of 50)" in words(figure)


def test_the_truth_of_a_row_is_shown_and_named_only_where_it_is_known() -> None:
    known = bars_with_intervals(["a", "b"], estimate=[1, 2], low=[0, 1], high=[2, 3], truth=[1, 3])
    unknown = bars_with_intervals(["a", "b"], estimate=[1, 2], low=[0, 1], high=[2, 3])

    assert "truth (simulation only)" in words(known)
    assert "truth (simulation only)" not in words(unknown)


def test_lines_carry_their_labels_and_bands() -> None:
    figure = lines()

    (axis,) = figure.axes
    legend = axis.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["ours"]
    assert len(axis.collections) == 1


def test_a_logarithmic_axis_says_numbers_and_a_dollar_sign_is_one() -> None:
    figure = lines("costs $5 and $x_1$", log_y=True)

    figure.canvas.draw()

    ticks = {text.get_text() for text in figure.axes[0].get_yticklabels()}
    assert {"1", "10", "100"} <= ticks
    assert not any("$" in tick for tick in ticks)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_parse_math() is False


def test_a_plan_names_the_smallest_count_that_is_seen() -> None:
    seen = plan_plot([1, 10, 100], sampling=[1, 3, 9], noise=[4, 4, 4], both=[4.1, 5, 9.8], smallest_count_seen=17)
    unseen = plan_plot([1, 10], sampling=[1, 3], noise=[4, 4], both=[4.1, 5], smallest_count_seen=None)

    assert [text.get_text() for text in seen.axes[1].texts] == ["17: the smallest count\ntold apart from 0"]
    assert list(unseen.axes[1].texts) == []


def test_a_plan_tells_the_causes_of_the_error_apart() -> None:
    figure = plan_plot([1, 10], sampling=[1, 3], noise=[4, 4], both=[4.1, 5], smallest_count_seen=None, title="Plan")

    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "half the 95 % interval",
        "the sampling alone",
        "the aggregators' noise alone",
    ]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 3


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="3 by 2"):
        count_map(GRID, estimate=[1, 2, 3], low=[0] * 6, high=[1] * 6)
    with pytest.raises(ShapeError, match="3 by 2"):
        count_map(GRID, estimate=[1] * 6, low=[0] * 6, high=[1] * 6, truth=[1] * 7)
    with pytest.raises(ShapeError, match="2 labels"):
        bars_with_intervals(["a", "b"], estimate=[1], low=[0], high=[1])
    with pytest.raises(ShapeError, match="1 counts"):
        plan_plot([1], sampling=[1, 2], noise=[1], both=[1], smallest_count_seen=None)
    with pytest.raises(RangeError, match="grid"):
        GridGeometry(size=0, columns=1, rows=1)


def test_a_map_over_streets_draws_them_on_every_panel_and_says_whose_they_are() -> None:
    streets = [[(0.0, 0.0), (750.0, 500.0)], [(10.0, 20.0), (30.0, 40.0), (50.0, 60.0)]]
    over = GridGeometry(size=250, columns=3, rows=2, streets=streets, source="streets: ours")

    with_streets = count_map(over, estimate=[1] * 6, low=[0] * 6, high=[2] * 6, truth=[1] * 6, title="Where?")
    without = count_map(GRID, estimate=[1] * 6, low=[0] * 6, high=[2] * 6, truth=[1] * 6)

    def drawn(figure: Figure) -> list[LineCollection]:
        return [one for axes in figure.axes[:3] for one in axes.collections if isinstance(one, LineCollection)]

    assert [len(one.get_segments()) for one in drawn(with_streets)] == [2, 2, 2]
    assert drawn(without) == []
    # In sides of a square, as the cells are drawn.
    assert drawn(with_streets)[0].get_segments()[0].tolist() == [[0, 0], [3, 2]]
    with_streets.canvas.draw()
    # Behind each number, over the streets, its cell's colour.
    for text, colour in zip(
        with_streets.axes[0].texts, with_streets.axes[0].collections[0].get_facecolor(), strict=True
    ):
        behind = text.get_bbox_patch()
        assert behind is not None
        assert behind.get_facecolor() == tuple(colour)
        assert text.get_zorder() > drawn(with_streets)[0].get_zorder()
    assert all(text.get_bbox_patch() is None for text in without.axes[0].texts)
    assert "Where? (north up, side of a square 250 m; streets: ours)" in words(with_streets)
