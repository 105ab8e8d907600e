"""Charts as values, and as matplotlib draws them: what lies where, inside its frame, with true letters."""

import io
import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from fleetcount_analysis.figures.charts import (
    Chart,
    Curve,
    Item,
    Measure,
    Panel,
    Style,
    chart_figure,
    curve_panel,
    rank_panel,
    row_panel,
    scale_of,
    styles,
)
from fleetcount_analysis.figures.files import rendered, save_figure
from fleetcount_analysis.figures.maps import MapPanel, Outlines, readable_on
from fleetcount_analysis.figures.style import COLOURS
from matplotlib.figure import Figure
from matplotlib.image import imread

X = scale_of([1, 1000], "x", log=True)
Y = scale_of([0, 10], "y", zero=True)
ROWS = [
    Item(label="kept", measure=Measure(4, 3, 5), others=((6.0, Style("s1", 2)),)),
    Item(label="alone", measure=Measure(9)),
    Item(label="lost", measure=Measure(math.nan)),
]


def curve(*measures: Measure) -> Curve:
    x = [10.0**place for place in range(len(measures))]
    return Curve(x=x, y=measures, names=[f"n{place}" for place in range(len(measures))], style=Style("s0"))


def figure_of(*panels: Panel | MapPanel, title: str = "A title") -> Figure:
    made: list = list(panels)
    return chart_figure(Chart(name="n", title=title, caption="", panels=made, key=[("a", Style("s0"))]))


def texts(panel: Panel) -> list[str]:
    return [mark.text for mark in panel.marks if mark.text]


def drawn_lines(panel: Panel) -> list[tuple[list[float], list[float]]]:
    axes = figure_of(panel).axes[0]
    return [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in axes.lines]


def words(figure: Figure) -> list[str]:
    """Return all texts that are drawn, those of axes too."""
    figure.canvas.draw()
    shown = [text for text in figure.findobj(lambda one: hasattr(one, "get_text")) if text.get_visible()]
    return [text.get_text() for text in shown if text.get_text()]


# What a panel shows.


def test_a_dot_says_its_numbers_and_stands_before_its_interval() -> None:
    panel = curve_panel([curve(Measure(2, 1, 3), Measure(4))], X, Y, title="t", alt="told")

    assert texts(panel) == ["n0: 2 (1 to 3)", "n1: 4"]
    assert drawn_lines(panel) == [([1, 10], [2, 4]), ([1, 1], [1, 3]), ([1, 10], [2, 4])]


def test_what_is_not_known_is_not_drawn_and_what_lies_outside_is_held_at_the_edge() -> None:
    panel = curve_panel([curve(Measure(math.nan), Measure(5, -50, 50))], X, Y, alt="")

    [mark] = panel.marks
    assert (mark.x, mark.y, mark.bar) == (10, 5, ((10, Y.low), (10, Y.high)))


def test_no_line_runs_across_a_gap() -> None:
    panel = curve_panel([curve(*map(Measure, (1, 2, math.nan, 4)))], X, Y, alt="")

    assert [path for _, path in panel.paths] == [[(1, 1), (10, 2)], [(1000, 4)]]


def test_a_row_has_its_label_dot_interval_and_further_marks() -> None:
    panel = row_panel(ROWS, Y, alt="rows", band=(3, 5), rule=4)
    figure = figure_of(panel)
    axes = figure.axes[0]

    assert texts(panel) == ["kept: 4 (3 to 5)", "alone: 9"]
    assert {"kept", "alone", "lost", " nothing released", "y"} <= set(words(figure))
    assert ([3.0, 5.0], [0.5, 0.5]) in drawn_lines(panel)
    assert ([6.0], [0.5]) in drawn_lines(panel)
    assert [patch.get_facecolor()[:3] for patch in axes.patches] == [
        tuple(int(COLOURS["within"][place : place + 2], 16) / 255 for place in (1, 3, 5))
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["kept", "alone", "lost"]
    assert axes.get_ylim() == (3, 0)


def test_ranks_go_from_the_lowest_to_the_highest_and_leave_out_what_is_unknown() -> None:
    shares = [0.99, 0.90, math.nan, 0.95]
    items = [Item(label=f"c{share}", measure=Measure(share, share - 0.01, share + 0.01)) for share in shares]
    panel = rank_panel(items, "held", alt="", band=(0.94, 0.97), rule=0.95)

    assert texts(panel) == ["c0.9: 90 % (89 % to 91 %)", "c0.95: 95 % (94 % to 96 %)", "c0.99: 99 % (98 % to 100 %)"]
    assert [(mark.x, mark.y) for mark in panel.marks] == [(1, 0.9), (2, 0.95), (3, 0.99)]


def test_styles_differ_and_ordered_ones_go_from_blue_to_orange() -> None:
    assert len({(style.colour, style.shape) for style in styles(7)}) == 7
    assert [style.colour for style in styles(5, ordered=True)][::4] == ["#3a7bd5", "#e0872a"]


def test_a_key_shows_every_style_in_its_colour() -> None:
    key = [(f"group {place}", style) for place, style in enumerate(styles(5))]
    figure = chart_figure(Chart(name="n", title="", caption="", panels=[row_panel(ROWS, Y, alt="")], key=key))

    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [label for label, _ in key]
    assert [handle.get_color() for handle in legend.legend_handles] == [style.paint for _, style in key]


# Scales.


@pytest.mark.parametrize("values", [[5.0], [0.0], [-2.0, 3.0], [1e-9, 1e9], [3.0, 3.0], [math.nan], [1e12, 1e12 + 1]])
@pytest.mark.parametrize("log", [False, True])
def test_scales_hold_their_values(values: list[float], log: bool) -> None:
    scale = scale_of(values, "x", log=log)

    assert all(scale.low <= value <= scale.high for value in values if math.isfinite(value))
    assert scale.low < scale.high


def test_a_scale_keeps_zero_and_its_ends() -> None:
    assert scale_of([3, 9], "x", zero=True).low == 0
    assert scale_of([1, 2], "x", log=True).log is False
    assert [scale_of([0, 10], "x", zero=True).clipped(value) for value in (-5, 5, 500)] == [0, 5, 10.6]


@pytest.mark.parametrize("low", [0.037, 3, 10, 812.5])
def test_a_logarithmic_scale_begins_at_one_digit(low: float) -> None:
    digit = f"{scale_of([low, 1e5], 'x', log=True).low:e}".partition("e")[0]

    assert digit.rstrip("0").rstrip(".") in "123456789"


@pytest.mark.parametrize("ends", [(1, 10_000), (3, 90), (1000, 100_000), (1e-7, 1e9), (20, 70)])
def test_words_under_an_axis_never_touch(ends: tuple[float, float]) -> None:
    figure = figure_of(curve_panel([], scale_of(ends, "x", log=True), scale_of(ends, "y", log=True), alt=""))
    figure.canvas.draw()
    axes = figure.axes[0]

    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


# Maps.


def map_of(outlines: Outlines, values: list[float], **changes: object) -> MapPanel:
    plain: dict = {"title": "T", "outlines": outlines, "values": np.array(values, dtype=float), "top": 100.0}
    return MapPanel(**plain | changes)


def test_a_map_writes_numbers_where_they_fit_in_the_colour_that_can_be_read() -> None:
    figure = figure_of(map_of(Outlines.grid(2, 2), [0.0, 100.0, math.nan, -3.0], unit="cars"))
    seen = {text.get_text(): text.get_color() for text in figure.axes[0].texts}

    assert seen == {"0": "#ffffff", "100": "#000000", "−3": "#ffffff"}
    assert "cars" in words(figure)


def test_a_cell_is_drawn_at_its_column_and_row_in_its_colour() -> None:
    figure = figure_of(map_of(Outlines.grid(3, 2), [0, 1, 2, 3, 4, 8.0], top=8.0))
    picture = pixels(figure)
    axes = figure.axes[0]
    for value, (column, row) in enumerate((column, row) for row in (0, 1) for column in (0, 1, 2)):
        x, y = axes.transData.transform((column + 0.2, row + 0.2))
        wanted = axes.collections[0].get_facecolor()[value][:3]
        assert np.allclose(picture[-round(2 * y), round(2 * x), :3], wanted, atol=0.01), value


def test_outlines_keep_north_up_and_the_width_of_degrees() -> None:
    square = Outlines.of(["POLYGON((0 60, 1 60, 1 61, 0 61, 0 60))"], "deg")
    metres = Outlines.of(["POLYGON((0 0, 1 0, 1 1, 0 1, 0 0))"], "m")

    assert 1 / square.aspect == pytest.approx(math.cos(math.radians(60.5)))
    assert (metres.aspect, metres.shapes[0].tolist()) == (1, [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]])
    axes = figure_of(map_of(square, [1.0])).axes[0]
    assert axes.get_aspect() == square.aspect
    assert axes.get_ylim()[0] < axes.get_ylim()[1]


def test_an_outline_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outline 'POINT\(1 1\)' is neither a polygon nor a line"):
        Outlines.of(["POINT(1 1)"], "m")


@pytest.mark.parametrize(("side", "is_picture"), [(22, False), (23, True)])
def test_a_map_of_many_cells_is_a_picture(side: int, is_picture: bool) -> None:
    figure = figure_of(map_of(Outlines.grid(side, side), [float(value) for value in range(side * side)]))

    assert figure.axes[0].collections[0].get_rasterized() is is_picture
    assert figure.axes[0].texts[:0] == []


@pytest.mark.parametrize("role", [role for role in COLOURS if role.startswith("s") and role != "soft"])
def test_black_or_white_can_be_read_on_every_colour(role: str) -> None:
    channels = [int(COLOURS[role][place : place + 2], 16) / 255 for place in (1, 3, 5)]
    bright = sum(
        weight * (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4)
        for weight, p in zip((0.2126, 0.7152, 0.0722), channels, strict=True)
    )
    contrast = (bright + 0.05) / 0.05 if readable_on(channels) == "#000000" else 1.05 / (bright + 0.05)

    assert contrast >= 4.5


# Files.


def pixels(figure: Figure) -> np.ndarray:
    return np.asarray(imread(io.BytesIO(rendered(figure)["png"])))


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (4, 2, 2), (7, 3, 3)])
def test_panels_stand_in_rows_of_at_most_three(count: int, columns: int, rows: int) -> None:
    figure = figure_of(*[row_panel(ROWS, Y, alt="rows") for _ in range(count)])
    figure.canvas.draw()
    shown = [axes.get_position() for axes in figure.axes if axes.get_visible()]

    assert len(shown) == count
    assert len({round(place.x1, 2) for place in shown}) == columns
    assert len({round(place.y0, 2) for place in shown}) == rows


LONG = [Item(label="W" * 90, measure=Measure(1e9)), Item(label="道路" * 30, measure=Measure(1))]


@pytest.mark.parametrize(
    "panel",
    [
        row_panel(LONG, Y, alt="", named_by="w" * 90),
        curve_panel([curve(Measure(2), Measure(4))], X, Y, title="long " * 40, alt=""),
        MapPanel(title="wide " * 40, outlines=Outlines.grid(2, 1), values=np.array([1, 2.0]), top=2),
    ],
)
def test_nothing_is_drawn_outside_the_picture(panel: Panel | MapPanel) -> None:
    title = "A title that is far longer than one panel is wide and goes on and on, " * 3
    shown: list = [panel]
    key = [("k" * 90, Style("s0")), ("short", Style("s1"))]
    figure = chart_figure(Chart(name="odd", title=title, caption="", panels=shown, key=key))
    figure.canvas.draw()
    wide, high = figure.get_size_inches() * 72

    [suptitle] = [one for one in figure.texts if one.get_text().startswith("A title")]
    for one in (suptitle, *figure.axes, *figure.legends):
        box = one.get_tightbbox()
        assert box is not None
        assert (box.x0 >= 0, box.x1 <= wide + 1, box.y0 >= 0, box.y1 <= high + 1) == (True,) * 4, one


def test_labels_do_not_run_into_the_plot() -> None:
    figure = figure_of(row_panel(LONG, Y, alt=""))
    figure.canvas.draw()
    rows = figure.axes[0]

    assert all(label.get_window_extent().x1 < rows.get_window_extent().x0 for label in rows.get_yticklabels())
    assert rows.get_window_extent().width > 100


@pytest.mark.parametrize("label", ["costs $5 and $x_1$", r"$\frac{1}{2}$ 100 % _^{}", "<b>&\"'", "مرحبا"])
def test_every_label_is_drawn_as_it_is_written(label: str) -> None:
    panel = row_panel([Item(label=label, measure=Measure(5))], Y, alt=label)
    figure = figure_of(panel)
    root = ElementTree.fromstring(rendered(figure)["svg"])

    assert texts(panel) == [f"{label}: 5"]
    assert label in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert not any(text.get_parse_math() for text in figure.axes[0].get_yticklabels())


def test_a_letter_that_the_font_lacks_is_named() -> None:
    panel = row_panel([Item(label="道\u0007", measure=Measure(5))], Y, alt="")

    assert panel.rows == ["道 "]
    assert "[U+9053] " in words(figure_of(panel))


def test_a_file_says_what_it_shows() -> None:
    figure = figure_of(row_panel(ROWS, Y, alt=""))
    files = rendered(figure, title="A <title>", description="A & caption")
    told = ["".join(one.itertext()).strip() for one in ElementTree.fromstring(files["svg"]).iter()]

    assert "A <title>" in told
    assert "A & caption" in told
    assert COLOURS["s0"].encode() in files["svg"]


def test_a_figure_is_drawn_once_for_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    figure, draw, drawings = figure_of(row_panel(ROWS, Y, alt="")), Figure.draw, list[Figure]()
    monkeypatch.setattr(Figure, "draw", lambda one, renderer: (drawings.append(one), draw(one, renderer)))

    assert set(rendered(figure)) == {"svg", "png"}
    assert drawings == [figure, figure]


def test_a_picture_has_two_pixels_for_one_and_is_white_at_its_edge() -> None:
    figure = figure_of(row_panel(ROWS, Y, alt=""))
    wide, high = figure.get_size_inches() * 72
    picture = pixels(figure)

    assert picture.shape[:2] == pytest.approx((2 * high, 2 * wide), abs=1)
    assert np.all(picture[:5] == 1)
    assert picture.std() > 0.05


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        save_figure(figure_of(row_panel(ROWS, Y, alt="")), tmp_path / "absent" / "name")

    assert list(tmp_path.iterdir()) == []
