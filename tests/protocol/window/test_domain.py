"""A signal becomes a value 0..V, whatever a program hands over."""

import timeit
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.domain import MAX_VALUES, Bins, Categories, H3Cells, Prefixes, SquareGrid
from fleetcount_protocol.window.frame import MAX_OFFSET_BYTES, Frame
from hypothesis import given
from hypothesis import strategies as st

SPEEDS = Bins(edges=(Fraction(0), Fraction(30), Fraction(50)), open_above=True, unit="km/h")
GRID = SquareGrid(x0=Fraction(-10), y0=Fraction(5), size=Fraction(5, 2), columns=3, rows=2)
CELLS = H3Cells(resolution=9, cells=(0x891EA6D6533FFFF, 0x891EA6D6537FFFF))
COLOURS = Categories(names=("red", "blue"))
PLACES = Prefixes(bits=3, cells=(0, 5, 7))
STRANGE = [None, True, "nan", float("nan"), float("inf"), -float("inf"), (1.0,), (1.0, 2.0, 3.0), (None, 1), ("1", "2")]


@pytest.mark.parametrize(
    ("signal", "value"),
    [(-0.001, 0), (0, 1), (29.999, 1), (30, 2), (49, 2), (50, 3), (1e300, 3), (10**400, 3), (-(10**400), 0)],
)
def test_bins_are_half_open(signal: float, value: int) -> None:
    assert SPEEDS.value_of(signal) == value


def test_last_edge_closes_the_last_bin_unless_open_above() -> None:
    closed = Bins(edges=(Fraction(0), Fraction(30)), open_above=False, unit="")

    assert [closed.value_of(signal) for signal in (0, 29, 30, 31)] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("position", "value"),
    [((-10.0, 5.0), 1), ((-2.6, 5.0), 3), ((-2.5, 5.0), 0), ((-10.0, 7.5), 4), ((-10.0, 9.99), 4), ((0.0, 10.0), 0)],
)
def test_grid_counts_columns_then_rows(position: tuple[float, float], value: int) -> None:
    assert GRID.value_of(position) == value


@pytest.mark.parametrize("domain", [SPEEDS, GRID, CELLS, COLOURS, PLACES])
@pytest.mark.parametrize("signal", STRANGE)
def test_anything_unreadable_is_none_of_them(domain: Bins, signal: object) -> None:
    assert domain.value_of(signal) == 0  # type: ignore[arg-type]  # The point: a program may hand over anything.


@given(st.floats(allow_nan=True) | st.integers() | st.text() | st.booleans() | st.tuples(st.floats(), st.floats()))
def test_every_signal_has_a_value_in_range(signal: float) -> None:
    for domain in (SPEEDS, GRID, CELLS, COLOURS, PLACES):
        assert 0 <= domain.value_of(signal) <= domain.values


@given(st.integers(1, 6))
def test_a_point_of_every_square_is_in_that_square(value: int) -> None:
    column, row = (int(part) for part in GRID.label(value).split(","))
    corner = (float(GRID.x0 + column * GRID.size), float(GRID.y0 + row * GRID.size))

    assert GRID.value_of(corner) == value


def test_labels_are_for_people() -> None:
    assert [SPEEDS.label(value) for value in (1, 3)] == ["[0, 30) km/h", "[50, ∞) km/h"]
    volts = Bins(edges=(Fraction("-0.5"), Fraction("12.4"), Fraction("40/3")), open_above=True, unit="V")
    assert [volts.label(value) for value in (1, 2, 3)] == ["[-0.5, 12.4) V", "[12.4, 40/3) V", "[40/3, ∞) V"]
    assert COLOURS.label(2) == "blue"
    assert CELLS.label(1) == "891ea6d6533ffff"


def test_h3_cell_is_found_by_its_one_spelling_only() -> None:
    assert CELLS.value_of("891ea6d6537ffff") == 2
    for spelling in ("891EA6D6537FFFF", "0x891ea6d6537ffff", " 891ea6d6537ffff", "0891ea6d6537ffff"):
        assert CELLS.value_of(spelling) == 0


@pytest.mark.parametrize(
    "cell",
    [
        0x881EA6D653FFFFF,  # Its parent, of resolution 8.
        0x891EA6D6533FFFE,  # A digit below the resolution that is not 7.
        0x991EA6D6533FFFF,  # A bit above the mode.
        0x1191EA6D6533FFFF,  # A directed edge.
        0x89FEA6D6533FFFF,  # No such base cell.
        0x890800000403FFF,  # Digits where 7 must stand.
        0,
        2**64 - 1,
    ],
)
def test_h3_refuses_what_is_no_cell_of_the_resolution(cell: int) -> None:
    with pytest.raises(QuestionError, match="not an H3 cell of resolution 9"):
        H3Cells(resolution=9, cells=(cell,))


def test_h3_accepts_a_pentagon_and_refuses_its_missing_child() -> None:
    def cell(digit: int) -> int:
        return 1 << 59 | 1 << 52 | 4 << 45 | digit << 42 | (1 << 42) - 1

    assert H3Cells(resolution=1, cells=(cell(0), cell(2))).values == 2
    with pytest.raises(QuestionError, match="not an H3 cell"):
        H3Cells(resolution=1, cells=(cell(1),))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bins(edges=(), open_above=False, unit=""),
        lambda: Bins(edges=(Fraction(1),), open_above=False, unit=""),
        lambda: Bins(edges=(Fraction(1), Fraction(1)), open_above=True, unit=""),
        lambda: Bins(edges=tuple(map(Fraction, range(MAX_VALUES + 2))), open_above=False, unit=""),
        lambda: Categories(names=()),
        lambda: Categories(names=("a", "a")),
        lambda: Categories(names=tuple(map(str, range(MAX_VALUES + 1)))),
        lambda: SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(0), columns=1, rows=1),
        lambda: SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(1), columns=0, rows=1),
        lambda: SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(1), columns=64, rows=64),
        lambda: H3Cells(resolution=16, cells=(0x891EA6D6533FFFF,)),
        lambda: H3Cells(resolution=9, cells=(0x891EA6D6537FFFF, 0x891EA6D6533FFFF)),
        lambda: H3Cells(resolution=9, cells=(0x891EA6D6537FFFF, 0x891EA6D6537FFFF)),
        lambda: H3Cells(resolution=9, cells=()),
    ],
)
def test_impossible_domains_are_refused(make: object) -> None:
    with pytest.raises(QuestionError):
        make()  # type: ignore[operator]  # Each parameter is a function without arguments.


def _cells(count: int) -> tuple[int, ...]:
    """Return `count` cells of resolution 5 below base cell 0, ascending."""
    made: list[int] = []
    for number in range(count):
        digits = [number // 7**place % 7 for place in (4, 3, 2, 1, 0)] + [7] * 10
        cell = 0x08 << 56 | 5 << 52
        for place, digit in enumerate(digits):
            cell |= digit << 3 * (14 - place)
        made.append(cell)
    return tuple(made)


@pytest.mark.parametrize("kind", ["categories", "cells"])
def test_the_value_of_a_signal_in_the_largest_domain_is_looked_up_not_searched_for(kind: str) -> None:
    """4,095 names: a search takes 4,000 times longer for the last one than for the first."""
    names = tuple(f"{cell:x}" for cell in _cells(MAX_VALUES))
    domain = Categories(names=names) if kind == "categories" else H3Cells(resolution=5, cells=_cells(MAX_VALUES))

    assert [domain.value_of(name) for name in names] == list(range(1, MAX_VALUES + 1))
    fastest = min(timeit.repeat(lambda: domain.value_of(names[-1]), number=200, repeat=9))
    assert fastest < 0.004, "20 us each; a search takes 40 us and more"


@pytest.mark.parametrize(
    "spelling", ["{:X}", "0x{:x}", " {:x}", "0{:x}", "{:x}\n", "{:_x}", "-{:x}", "+{:x}", "\uff18{:x}"]
)
def test_only_one_spelling_of_a_cell_is_the_cell(spelling: str) -> None:
    domain = H3Cells(resolution=5, cells=_cells(10))

    assert domain.value_of(spelling.format(domain.cells[3])) == 0
    assert domain.value_of("") == domain.value_of("zz") == domain.value_of("f" * 17) == domain.value_of("f" * 16) == 0


def test_equal_categories_are_equal_and_show_their_names_only() -> None:
    one, two = Categories(names=("a", "b")), Categories(names=("a", "b"))

    assert (one, hash(one), repr(one)) == (two, hash(two), "Categories(names=('a', 'b'))")
    assert replace(one, names=("b", "a")).value_of("b") == 1


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 1),
        (2**29 - 1, 1),
        (2**29, 0),
        (5 * 2**29, 2),
        (6 * 2**29 - 1, 2),
        (2**32 - 1, 3),
        (2**32, 0),
        (-1, 0),
        (0.5, 0),
        (7.0 * 2**29, 3),
        ("0", 0),
    ],
)
def test_places_are_found_by_their_prefix(place: float, value: int) -> None:
    assert PLACES.value_of(place) == value


@given(st.integers(0, 2**32 - 1), st.integers(1, 32))
def test_a_place_is_in_its_own_prefix(place: int, bits: int) -> None:
    own = place >> 32 - bits
    cells = tuple(sorted({0, own, (1 << bits) - 1}))
    domain = Prefixes(bits=bits, cells=cells)

    assert domain.value_of(place) == 1 + cells.index(own)
    first, _, shown = domain.label(1 + cells.index(own)).partition("/")
    assert int(shown) == bits
    assert int(first) <= place < int(first) + 2 ** (32 - bits)


@pytest.mark.parametrize(
    ("bits", "cells", "why"),
    [
        (0, (0,), "prefixes of 0 bits, allowed: 1 to 32"),
        (33, (0,), "prefixes of 33 bits"),
        (True, (0,), "prefixes of True bits"),
        (3, (), "prefixes gives 0 values"),
        (12, tuple(range(4096)), "prefixes gives 4096 values"),
        (3, (1, 1), "ascending and distinct"),
        (3, (2, 1), "ascending and distinct"),
        (3, (8,), "prefixes are 8 to 8, allowed: 0 to below 2\\*\\*3"),
        (3, (-1, 2), "prefixes are -1 to 2"),
        (3, (1.0,), "whole numbers"),
    ],
)
def test_prefixes_are_ascending_numbers_of_their_bits(bits: int, cells: tuple[int, ...], why: str) -> None:
    with pytest.raises(QuestionError, match=why):
        Prefixes(bits=bits, cells=cells)


@pytest.mark.parametrize("epsg", [0, 1023, 32768, 65536, -25832, True, 25832.0, "25832", None])
def test_a_frame_names_a_code_of_the_register(epsg: Any) -> None:
    with pytest.raises(QuestionError, match=r"EPSG code is .* allowed: a whole number from 1024 to 32767"):
        Frame(epsg=epsg, offset_x="0", offset_y="0")


BAD_OFFSETS = [
    "", "-", "+1", "-0", "0.0", "-0.0", "00", "01", "1.", ".5", "1.50", "1.0", "1e3", "123456789", "0.0000001", " 1",
    "1 ", "1\n", "1,5", "٣", "１", "nan", "inf", "--1", "1.2.3", "0x1", "1/2", 1, 1.5, None, Fraction(1),
]  # fmt: skip


@pytest.mark.parametrize("axis", ["offset_x", "offset_y"])
@pytest.mark.parametrize("offset", BAD_OFFSETS)
def test_an_offset_has_one_spelling(axis: str, offset: Any) -> None:
    with pytest.raises(QuestionError, match=f"{axis} of the frame is"):
        Frame(**{"epsg": 25832, "offset_x": "0", "offset_y": "0", axis: offset})


@given(st.integers(-(10**14) + 1, 10**14 - 1))
def test_every_offset_to_a_millionth_has_exactly_one_spelling(millionths: int) -> None:
    whole, rest = divmod(abs(millionths), 10**6)
    text = f"{'-' if millionths < 0 else ''}{whole}{f'.{rest:06}'.rstrip('0').rstrip('.')}"

    frame = Frame(epsg=3857, offset_x=text, offset_y="0")

    assert Fraction(frame.offset_x) * 10**6 == millionths
    assert len(text) <= MAX_OFFSET_BYTES
    for other in (f"+{text}", f"0{text}", f"{text}0" if "." in text else f"{text}.0", f"{text} "):
        with pytest.raises(QuestionError):
            Frame(epsg=3857, offset_x="0", offset_y=other)


def test_larger_squares_lie_where_the_small_ones_do() -> None:
    frame = Frame(epsg=25832, offset_x="-683195.58", offset_y="-4928877.56")

    assert replace(GRID, columns=4, frame=frame).coarser(2).frame == frame
    assert replace(GRID, frame=frame) != GRID
