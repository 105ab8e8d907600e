"""Words of figures: numbers with three digits, texts cut to their room, letters the font lacks, scales that hold."""

import math

import pytest
from fleetcount_analysis.figures.scales import scale_of
from fleetcount_analysis.figures.style import COLOURS, DARK
from fleetcount_analysis.figures.words import drawable, fitted, number, percent, text_width, wrapped
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1234.4, "1,234"),
        (12_345.0, "12.3k"),
        (999_700.0, "1M"),
        (2.5e9, "2.5bn"),
        (-3.14159, "−3.14"),
        (0.00001, "1e−5"),
        (math.nan, "–"),
    ],
)
def test_numbers_are_said_with_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_shares_are_said_in_percent() -> None:
    assert [percent(share) for share in (0.95, 0.945, -0.1, math.nan)] == ["95 %", "94.5 %", "−10 %", "–"]


def test_texts_are_cut_to_the_room_they_have() -> None:
    for text in ("w" * 200, "i" * 200, "道路" * 50, "Short"):
        assert text_width(fitted(text, 120)) <= 120
    assert fitted("Short", 120) == "Short"
    assert fitted("i" * 200, 120).endswith("…")
    assert text_width(fitted("i" * 200, 120)) > 110


@pytest.mark.parametrize("bold", [False, True])
@pytest.mark.parametrize("text", ["Width of the 95 % interval", "iiiilll", "WMWM…", "é—ß", "[U+9053]"])
def test_a_width_is_what_is_drawn(text: str, bold: bool) -> None:
    font = FontProperties(family="DejaVu Sans", size=13, weight="bold" if bold else "normal")
    drawn, _, _ = RendererAgg(1000, 100, 72).get_text_width_height_descent(text, font, ismath=False)

    # Hinting rounds every letter to whole pixels.
    assert abs(text_width(text, 13, bold=bold) - drawn) <= 0.5 * len(text) + 1


def test_letters_that_the_font_lacks_are_named() -> None:
    assert drawable("a道\U0001f697\u0007é") == "a[U+9053][U+1F697] é"


def test_a_long_title_goes_on_in_the_next_line() -> None:
    lines = wrapped("a title of many words " * 8 + "w" * 100, 200)

    assert len(lines) > 3
    assert all(text_width(line) <= 200 for line in lines)
    assert " ".join(lines[:-1]).split() == ("a title of many words " * 8).split()
    assert lines[-1].endswith("…")
    assert wrapped("", 200) == []


@pytest.mark.parametrize("values", [[5.0], [0.0], [-2.0, 3.0], [1e-9, 1e9], [3.0, 3.0], [math.nan], [1e12, 1e12 + 1]])
@pytest.mark.parametrize("log", [False, True])
def test_scales_hold_their_values_and_have_ticks(values: list[float], log: bool) -> None:
    scale = scale_of(values, "x", log=log)

    assert all(-1e-9 <= scale.share(value) <= 1 + 1e-9 for value in values if math.isfinite(value))
    assert 1 <= len(scale.ticks) <= 12
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)


def test_a_scale_keeps_zero_whole_numbers_and_its_ends() -> None:
    assert scale_of([3, 9], "x", zero=True).low == 0
    assert all(tick == round(tick) for tick in scale_of([1, 3], "x", whole=True).ticks)
    assert scale_of([1, 2], "x", log=True).log is False
    assert [scale_of([0, 10], "x", zero=True).clipped(value) for value in (-5, 5, 500)] == [0, 5, 10.6]


@pytest.mark.parametrize("length", [40.0, 150.0, 380.0])
def test_words_under_an_axis_never_touch(length: float) -> None:
    scale = scale_of([1_000, 900_000], "x", log=True)
    free = -math.inf

    for tick, word in zip(scale.ticks, scale.words(length), strict=True):
        if word:
            half = text_width(word, 12) / 2
            assert scale.share(tick) * length - half >= free
            free = scale.share(tick) * length + half


def test_every_colour_has_its_twin_for_the_dark() -> None:
    assert set(DARK) == set(COLOURS)
    assert all(DARK[role] != COLOURS[role] for role in COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS), "a colour on paper must say its role"
