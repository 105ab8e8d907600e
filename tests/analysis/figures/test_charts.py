"""Charts of panels: what is drawn where, inside its frame, with intervals, titles and true letters, as SVG and PNG."""

import io
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from fleetcount_analysis.figures.charts import (
    Curve,
    Item,
    Measure,
    Style,
    key_panel,
    line_panel,
    rank_panel,
    row_panel,
    styles,
)
from fleetcount_analysis.figures.maps import Outlines, map_panel
from fleetcount_analysis.figures.panels import Chart, Panel, chart_figure, panel_figure
from fleetcount_analysis.figures.scales import Scale, scale_of
from fleetcount_analysis.figures.style import COLOURS
from fleetcount_analysis.figures.svg import page_svg, rendered
from matplotlib.figure import Figure
from matplotlib.image import imread

X = scale_of([1, 1000], "x", log=True)
Y = scale_of([0, 10], "y", zero=True)
ROWS = [
    Item(label="kept", measure=Measure(4, 3, 5), others=((6.0, Style("s1", 2)),)),
    Item(label="alone", measure=Measure(9)),
    Item(label="lost", measure=Measure(math.nan)),
]


def curve(*measures: Measure, style: Style = Style("s0")) -> Curve:  # noqa: B008
    x = [10.0**place for place in range(len(measures))]
    return Curve(x=x, y=measures, names=[f"n{place}" for place in range(len(measures))], style=style)


def svg(panel: Panel) -> ElementTree.Element:
    return ElementTree.fromstring(page_svg(panel_figure(panel), panel.alt, "one"))


def words(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter("text")]


def titles(root: ElementTree.Element) -> list[str]:
    return [title.text or "" for mark in root.iter("use") for title in mark.iter("title")]


def drawn_lines(panel: Panel) -> list[tuple[list[float], list[float]]]:
    (axes,) = panel_figure(panel).axes
    return [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in axes.lines]


# What a panel shows.


def test_a_dot_says_its_numbers_and_stands_behind_its_interval() -> None:
    panel = line_panel([curve(Measure(2, 1, 3), Measure(4))], X, Y, title="t", alt="told")

    assert titles(svg(panel)) == ["n0: 2 (1 to 3)", "n1: 4"]
    assert drawn_lines(panel) == [([1, 1], [1, 3]), ([1, 10], [2, 4]), ([1, 10], [2, 4])]


def test_what_is_not_known_is_not_drawn_and_what_lies_outside_is_held_at_the_edge() -> None:
    panel = line_panel([curve(Measure(math.nan), Measure(5, -50, 50))], X, Y, title="", alt="")

    assert drawn_lines(panel) == [([10, 10], [Y.low, Y.high]), ([10], [5])]


def test_a_row_has_its_label_dot_interval_and_further_marks() -> None:
    panel = row_panel(ROWS, Y, alt="rows", band=(3, 5), line=4)
    root = svg(panel)

    assert titles(root) == ["kept: 4 (3 to 5)", "alone: 9"]
    assert {"kept", "alone", "lost", "nothing released", "y"} <= set(words(root))
    (axes,) = panel_figure(panel).axes
    assert ([3.0, 5.0], [0.5, 0.5]) in drawn_lines(panel)
    assert ([6.0], [0.5]) in drawn_lines(panel)
    assert [patch.get_facecolor()[:3] for patch in axes.patches] == [
        tuple(int(COLOURS["band"][place : place + 2], 16) / 255 for place in (1, 3, 5))
    ]


def test_labels_stand_beside_their_rows() -> None:
    figure = panel_figure(row_panel(ROWS, Y, alt="rows"))
    (axes,) = figure.axes
    heights = {text.get_text(): text.get_window_extent().y0 for text in figure.texts}

    for place, label in enumerate(("kept", "alone", "lost")):
        middle = axes.transData.transform((5, place + 0.5))[1]
        assert abs(heights[label] + 4 - middle) < 4


def test_ranks_go_from_the_lowest_to_the_highest_and_leave_out_what_is_unknown() -> None:
    shares = [0.99, 0.90, math.nan, 0.95]
    items = [Item(label=f"c{share}", measure=Measure(share, share - 0.01, share + 0.01)) for share in shares]
    panel = rank_panel(items, "held", alt="", band=(0.94, 0.97), line=0.95)

    assert titles(svg(panel)) == [
        "c0.9: 90 % (89 % to 91 %)",
        "c0.95: 95 % (94 % to 96 %)",
        "c0.99: 99 % (98 % to 100 %)",
    ]
    assert drawn_lines(panel)[-1] == ([1, 2, 3], [0.9, 0.95, 0.99])


def test_a_key_shows_every_style_in_its_colour() -> None:
    shown = styles(5)
    root = svg(key_panel([(f"question {place}", style) for place, style in enumerate(shown)]))

    assert words(root) == [f"question {place}" for place in range(5)]
    assert [mark.get("fill") for mark in root.iter("use")] == [f"var(--s{place})" for place in range(5)]


def test_styles_differ_and_ordered_ones_go_from_blue_to_orange() -> None:
    assert len({(style.colour, style.shape) for style in styles(7)}) == 7
    assert [style.colour for style in styles(5, ordered=True)][::4] == ["#3a7bd5", "#e0872a"]


# Maps.


def test_a_map_writes_numbers_where_they_fit_in_the_colour_that_can_be_read() -> None:
    values = np.array([0.0, 100.0, math.nan, -3.0])
    figure = panel_figure(map_panel(Outlines.grid(2, 2), values, title="T", top=100, colours="viridis", unit="cars"))
    seen = {text.get_text(): text.get_color() for text in figure.texts}

    assert seen["0"] == "#595959"  # The foot of the scale; the cell's own 0 comes before it and is white.
    assert next(text.get_color() for text in figure.texts if text.get_text() == "0") == "#ffffff"
    assert seen["100"] == "#000000"
    assert seen["−3"] == "#ffffff"
    assert seen["100 cars"] == "#595959"


def test_a_cell_is_drawn_at_its_column_and_row_in_its_colour() -> None:
    figure = panel_figure(
        map_panel(Outlines.grid(3, 2), np.array([0, 1, 2, 3, 4, 8.0]), title="", top=8, colours="viridis", unit="")
    )
    picture = pixels(figure)
    (cells, *_) = figure.axes
    for value, (column, row) in enumerate((column, row) for row in (0, 1) for column in (0, 1, 2)):
        x, y = cells.transData.transform(((column + 0.2) * 298 / 3 + 1, (1.8 - row) * 298 / 3))
        wanted = cells.collections[0].get_facecolor()[value][:3]
        assert np.allclose(picture[-round(2 * y), round(2 * x), :3], wanted, atol=0.01), value


def test_outlines_keep_north_up_and_the_width_of_degrees() -> None:
    square = Outlines.of(["POLYGON((0 60, 1 60, 1 61, 0 61, 0 60))"], "deg")
    metres = Outlines.of(["POLYGON((0 0, 1 0, 1 1, 0 1, 0 0))"], "m")

    wide, tall = np.ptp(square.shapes[0], axis=0)
    assert wide / tall == pytest.approx(math.cos(math.radians(60.5)))
    assert metres.shapes[0][0, 1] > metres.shapes[0][2, 1]
    assert np.ptp(metres.shapes[0], axis=0).tolist() == [298, 298]


def test_an_outline_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outline 'POINT\(1 1\)' is no polygon and no line"):
        Outlines.of(["POINT(1 1)"], "m")


@pytest.mark.parametrize(("side", "pictures"), [(22, 0), (23, 1)])
def test_a_map_of_many_cells_is_a_picture(side: int, pictures: int) -> None:
    values = np.arange(side * side, dtype=float)
    panel = map_panel(Outlines.grid(side, side), values, title="", top=1, colours="viridis", unit="")

    assert len(list(svg(panel).iter("image"))) == pictures + 1  # The scale is one.


# Files and pages.


def pixels(figure: Figure) -> np.ndarray:
    return np.asarray(imread(io.BytesIO(rendered(figure)["png"])))


def chart(count: int, title: str = "A title") -> Chart:
    panels = [row_panel(ROWS, Y, alt="rows") for _ in range(count)]
    return Chart(name="n", title=title, caption="", panels=panels, key=key_panel([("a", Style("s0"))]))


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (4, 2, 2), (7, 3, 3)])
def test_panels_stand_in_rows_of_at_most_three(count: int, columns: int, rows: int) -> None:
    wide, high = chart_figure(chart(count)).get_size_inches() * 72

    assert wide == pytest.approx(28 + 440 * columns + 22 * (columns - 1))
    assert high > rows * (3 * 22 + 52)


def test_nothing_is_drawn_outside_the_picture() -> None:
    odd = Chart(
        name="odd",
        title="A title that is far longer than one panel is wide and goes on and on, " * 2,
        caption="",
        panels=[
            row_panel(
                [Item(label="w" * 90, measure=Measure(1e9)), Item(label="道路" * 30, measure=Measure(1))], Y, alt=""
            ),
            line_panel([curve(Measure(2), Measure(4))], X, Y, title="long " * 40, alt=""),
            map_panel(
                Outlines.grid(2, 1), np.array([1, 2.0]), title="wide " * 40, top=2, colours="viridis", unit="cars"
            ),
        ],
        key=key_panel([("k" * 90, Style("s0")), ("short", Style("s1"))]),
    )
    figure = chart_figure(odd)
    wide, high = figure.get_size_inches() * 72

    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= wide + 1, text.get_text()
        assert box.y0 >= 0, text.get_text()
        assert box.y1 <= high, text.get_text()


@pytest.mark.parametrize("last", [0.9, 0.97, 1.0])
def test_the_word_of_the_last_tick_stands_in_a_panel_alone(last: float) -> None:
    x = Scale(low=0, high=1, log=False, label="share", ticks=(last,), said=lambda value: f"100,000,000 {value}")
    figure = panel_figure(row_panel(ROWS, x, alt="rows"))
    [word] = [text for text in figure.texts if text.get_text() == x.said(last)]

    assert word.get_window_extent().x1 <= figure.get_size_inches()[0] * 72 + 1
    tick = figure.axes[0].transData.transform((last, 0))[0]
    assert tick == pytest.approx((word.get_window_extent().x0 + word.get_window_extent().x1) / 2, abs=1)


def test_labels_do_not_run_into_the_plot() -> None:
    figure = panel_figure(row_panel([Item(label="W" * 90, measure=Measure(5))], Y, alt=""))
    label = next(text for text in figure.texts if text.get_text().startswith("W"))

    assert label.get_window_extent().x1 < figure.axes[0].get_window_extent().x0


@pytest.mark.parametrize(
    "label", ["道路 \U0001f697", "costs $5 and $x_1$", r"$\frac{1}{2}$ 100 % _^{}", "<b>&\"'", "مرحبا"]
)
def test_every_label_is_drawn_as_it_is_written(label: str) -> None:
    panel = row_panel([Item(label=label, measure=Measure(5))], Y, alt=label)
    root = svg(panel)

    assert label in words(root)
    assert titles(root) == [f"{label}: 5"]
    assert root.find("title").text == label  # type: ignore[union-attr] # it is the first element
    assert not any(text.get_parse_math() for text in panel_figure(panel).texts)


def test_a_page_gets_roles_for_colours_and_neither_styles_nor_fonts() -> None:
    text = page_svg(panel_figure(line_panel([curve(Measure(2, 1, 3), Measure(4))], X, Y, title="t", alt="")), "", "one")

    assert "var(--s0)" in text
    assert "var(--grid)" in text
    assert not any(word in text for word in ("style", "font-family", "#ffffff", "metadata", "xlink", "#0072b2"))


def test_names_of_two_figures_of_a_page_do_not_meet() -> None:
    panel = row_panel(ROWS, Y, alt="rows")
    roots = [ElementTree.fromstring(page_svg(panel_figure(panel), "rows", name)) for name in ("one", "two")]
    names = [element.get("id") for root in roots for element in root.iter() if element.get("id")]
    pointed = {mark.get("href", "")[1:] for root in roots for mark in root.iter("use")}

    assert len(names) == len(set(names))
    assert pointed <= set(names)


def test_a_file_says_what_it_shows_and_has_the_colours_of_paper() -> None:
    files = rendered(chart_figure(chart(1)), title="A <title>", description="A & caption")
    root = ElementTree.fromstring(files["svg"])
    name = "{http://www.w3.org/2000/svg}"

    assert [root[0].text, root[1].text] == ["A <title>", "A & caption"]
    assert [root[0].tag, root[1].tag] == [f"{name}title", f"{name}desc"]
    assert COLOURS["s0"].encode() in files["svg"]
    assert b"var(" not in files["svg"]
    assert [mark.find(f"{name}title").text for mark in root.iter(f"{name}use") if len(mark)] == [  # type: ignore[union-attr]
        "kept: 4 (3 to 5)",
        "alone: 9",
    ]


def test_a_picture_has_two_pixels_for_one_and_is_white_at_its_edge() -> None:
    figure = chart_figure(chart(1))
    wide, high = figure.get_size_inches() * 72
    picture = pixels(figure)

    assert picture.shape[:2] == pytest.approx((2 * high, 2 * wide), abs=1)
    assert np.all(picture[:5] == 1)
    assert picture.std() > 0.05


def test_the_same_chart_gives_the_same_bytes() -> None:
    assert rendered(chart_figure(chart(2))) == rendered(chart_figure(chart(2)))
