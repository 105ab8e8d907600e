"""A reading is exactly what its text says, and the question's value follows from that alone."""

import json
import math
import struct
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_client.signals import misfit
from fleetcount_protocol.window.domain import Bins, Categories, H3Cells, Prefixes, SquareGrid, ValueDomain
from fleetcount_protocol.window.signal import Kind, Single, converted, decimal_text, exact, kind_of, name_of
from hypothesis import given
from hypothesis import strategies as st

TENTHS = [Fraction(n, 10) for n in range(1, 1001)]
BINS = Bins(edges=tuple(TENTHS), open_above=True, unit="bar")
GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(1, 10), columns=20, rows=20)
CELLS = H3Cells(resolution=9, cells=(0x891EA6D6533FFFF,))
YES_NO = Categories(names=("true", "false"))
GEARS = Categories(names=("-1", "0", "1", "2"))
NAMES = Categories(names=("électrique", "Row1.Left"))


def float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def test_a_reading_on_an_edge_is_in_the_bin_above_it_however_it_was_read() -> None:
    for tenth in range(1, 1001):
        text = f"{tenth // 10}.{tenth % 10}"
        exactly = json.loads(text, parse_float=Decimal)
        readings = (json.loads(text), exactly, Single(float32(float(text))), np.float32(text), Fraction(text))
        assert [BINS.value_of(one) for one in readings] == [tenth] * 5, text


@pytest.mark.parametrize("sent", [lambda number: Single(float32(number)), float])
def test_whole_kilometres_an_hour_sent_as_metres_a_second_stand_on_their_edges(sent: Callable[[float], float]) -> None:
    factor, zero = Fraction("3.6"), Fraction(0)

    assert [converted(sent(speed / 3.6), factor, zero) for speed in range(190)] == list(range(190))


def test_kelvins_and_kilopascals_are_exact_in_celsius_and_bar() -> None:
    kelvins = [Single(float32(273.15 + tenth / 10)) for tenth in range(-400, 400)]

    assert [converted(one, Fraction(1), Fraction("-273.15")) for one in kelvins] == [
        Fraction(tenth, 10) for tenth in range(-400, 400)
    ]
    assert [converted(kpa, Fraction("0.01"), Fraction(0)) for kpa in (10, 230)] == [Fraction("0.1"), Fraction("2.3")]
    assert converted(Decimal("0.8333333"), Fraction("3.6"), Fraction(0)) == Fraction("2.99999988")
    assert converted(0.0, Fraction("3.6"), Fraction(1)) == 1
    assert converted("63", Fraction(2), Fraction(1)) is None


@given(st.floats(-1e12, 1e12), st.fractions(Fraction(1, 1000), 1000, max_denominator=1000), st.integers(-500, 500))
def test_a_conversion_stays_within_what_rounds_to_the_number(number: float, factor: Fraction, offset: int) -> None:
    said = converted(number, factor, Fraction(offset))

    assert said is not None
    assert abs((said - offset) / factor - Fraction(number)) <= Fraction(math.ulp(number))  # One step.


def test_a_position_on_a_border_is_in_the_square_beyond_it() -> None:
    assert [GRID.value_of((x / 10, 0)) for x in range(20)] == [1 + x for x in range(20)]
    assert GRID.value_of((0.3, 0.6)) == 1 + 3 + 6 * 20


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_its_shortest_decimal(number: float) -> None:
    assert exact(number) == Fraction(repr(number))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_single_float_is_its_own_shortest_decimal(number: float) -> None:
    assert exact(Single(number)) == Fraction(str(np.float32(number)))


def test_a_single_float_below_the_normal_ones_has_as_few_digits_as_tell_it_apart() -> None:
    assert exact(Single(-6.566484603826093e-41)) == Fraction("-6.5665e-41")
    assert exact(Single(2.0**-149)) == Fraction("1e-45")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (True, None),
        ("63", None),
        (float("nan"), None),
        (float("inf"), None),
        (Decimal("NaN"), None),
        (Decimal("1e999999999"), None),
        (Decimal("1e-999999999"), None),
        (Decimal("0e-999999999"), Fraction(0)),
        (Decimal("1e999"), Fraction(10**999)),
        (np.int16(-4), Fraction(-4)),
        (1j, None),
        (None, None),
    ],
)
def test_what_is_no_number_is_none(number: object, said: Fraction | None) -> None:
    assert exact(number) == said


@pytest.mark.parametrize(
    ("domain", "reading", "value"),
    [
        (YES_NO, True, 1),
        (YES_NO, False, 2),
        (YES_NO, "true", 1),
        (YES_NO, 1, 0),
        (GEARS, 1, 3),
        (GEARS, -1, 1),
        (GEARS, 1.0, 3),
        (GEARS, Decimal("2.0"), 4),
        (GEARS, True, 0),
        (GEARS, 1.5, 0),
        (NAMES, "électrique", 1),
        (NAMES, unicodedata.normalize("NFD", "électrique"), 1),
        (NAMES, "Row1.Left", 2),
        (NAMES, "row1.left", 0),
    ],
)
def test_truth_values_whole_numbers_and_names_are_categories(domain: Categories, reading: object, value: int) -> None:
    assert domain.value_of(reading) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("domain", "kinds"),
    [
        (BINS, {Kind.NUMBER}),
        (Prefixes(bits=3, cells=(0, 5)), {Kind.NUMBER}),
        (GRID, {Kind.POSITION}),
        (CELLS, {Kind.TEXT}),
        (YES_NO, {Kind.TEXT, Kind.TRUTH_VALUE}),
        (Categories(names=("true",)), {Kind.TEXT, Kind.TRUTH_VALUE}),
        (GEARS, {Kind.TEXT, Kind.NUMBER}),
        (NAMES, {Kind.TEXT}),
        (Categories(names=("01", "1.5")), {Kind.TEXT}),
    ],
)
def test_a_reading_that_a_question_can_never_hold_is_known_by_its_kind(domain: ValueDomain, kinds: set[Kind]) -> None:
    assert {kind for kind in Kind if not misfit(domain, kind)} == kinds
    assert all(kind in kinds or kind.value in misfit(domain, kind) for kind in Kind)


SIGNALS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text(max_size=3)
    | st.tuples(st.floats(), st.floats()) | st.sampled_from(["true", "1", "électrique", "891ea6d6533ffff"])
)  # fmt: skip


@given(SIGNALS, st.sampled_from([BINS, GRID, CELLS, YES_NO, GEARS, NAMES]))
def test_what_is_a_value_of_a_question_is_of_a_kind_that_fits(reading: object, domain: ValueDomain) -> None:
    kind = kind_of(reading)

    assert domain.value_of(reading) == 0 or (kind is not None and misfit(domain, kind) == "")  # type: ignore[arg-type]


def test_kinds_of_what_a_program_may_hand_over() -> None:
    readings = [
        None,
        float("nan"),
        True,
        1,
        Decimal("1.5"),
        np.float32(1),
        "x",
        (1.0, 2.0),
        (float("nan"), None),
        ("44.5", "11.3"),
        (1, True),
        (1, 2, 3),
        [1],
        {"value": 1},
    ]

    kinds = [kind_of(one) for one in readings]

    other, number = Kind.OTHER, Kind.NUMBER
    assert kinds == [
        None,
        None,
        Kind.TRUTH_VALUE,
        number,
        number,
        number,
        Kind.TEXT,
        Kind.POSITION,
        Kind.POSITION,
        other,
        other,
        other,
        other,
        other,
    ]


def test_a_fraction_is_written_as_people_write_it() -> None:
    written = ("1500", "1/3", "-0.05", "0", "12.4", f"0.{27 * '0'}1", f"1/{10**29}")
    assert [decimal_text(Fraction(one)) for one in written] == list(written)
    assert [name_of(one) for one in (Decimal("1e3"), 0.5, (1, 2), None)] == ["1000", None, None, None]
    assert name_of(10**199) == f"1{'0' * 199}"
    assert [name_of(one) for one in (10**200, -(10**5000), Decimal("1e4999"))] == [None] * 3
