"""A reading is what its owner says: of a type, in a unit, exact, within its range; several truth values as one."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.config import load_settings
from fleetcount_client.shapes import AnySource, Shape, ShapedSource, SignalType, any_of
from fleetcount_client.signals import (
    Description,
    KnowingSource,
    Reading,
    SignalFault,
    SignalUnavailable,
    constant,
    fault_of,
    read_signal,
    unfit,
)
from fleetcount_client.units import SAME, Conversion, conversion
from fleetcount_protocol.window.domain import Bins, Categories
from fleetcount_protocol.window.signal import Kind, Single
from fleetcount_transport.toml_table import ConfigError

from tests.client.test_config import GOOD, write

__all__ = ["write"]

SPEED = "Vehicle.Speed"
KMH = Bins(edges=tuple(map(Fraction, range(0, 200, 10))), open_above=True, unit="km/h")
YES = Categories(names=("true",))
BOOLEAN, INTEGER, DECIMAL, TEXT = SignalType.BOOLEAN, SignalType.INTEGER, SignalType.DECIMAL, SignalType.TEXT


@pytest.mark.parametrize(
    ("said", "wanted", "value"),
    [
        (True, BOOLEAN, True),
        ("false", BOOLEAN, False),
        (1, BOOLEAN, True),
        (Decimal("0.0"), BOOLEAN, False),
        (2, BOOLEAN, None),
        ("yes", BOOLEAN, None),
        ("63", INTEGER, 63),
        ("63.0", INTEGER, 63),
        (63.5, INTEGER, None),
        (True, INTEGER, None),
        ("63.5", DECIMAL, Fraction("63.5")),
        ("1e999999", DECIMAL, None),
        ("sixty", DECIMAL, None),
        (3, TEXT, "3"),
        (True, TEXT, "true"),
        ("B", TEXT, "B"),
        (3.5, TEXT, None),
        (Decimal("1e4999"), TEXT, None),
        (frozenset({"B"}), TEXT, frozenset({"B"})),
        (frozenset({"63"}), INTEGER, None),
        ((1.0, 2.0), DECIMAL, None),
    ],
)
def test_a_reading_is_of_the_type_that_its_owner_says_or_at_fault(
    said: object, wanted: SignalType, value: object
) -> None:
    reading = Shape(type=wanted).read(Reading(value=said))  # type: ignore[arg-type]

    assert reading.value == value
    assert (f"not of type {wanted.value}" in reading.fault) is (value is None)


@pytest.mark.parametrize(
    ("said", "shape", "value"),
    [
        (Single(0.8333333134651184), Shape(factor=Fraction("3.6")), 3),
        (230, Shape(factor=Fraction("0.01")), Fraction("2.3")),
        (Decimal("273.15"), Shape(offset=Fraction("-273.15")), 0),
        (Decimal("4.16"), Shape(precision=Fraction("0.1")), Fraction("4.2")),
        (Decimal("4.25"), Shape(precision=Fraction("0.1")), Fraction("4.2")),
        (Decimal("250.996"), Shape(valid=(Fraction(0), Fraction("250.996"))), Fraction("250.996")),
        (Decimal("254.0"), Shape(valid=(Fraction(0), Fraction("250.996"))), None),
        (65535, Shape(factor=Fraction(1, 256), valid=(Fraction(0), Fraction("250.996"))), None),
        (-1, Shape(valid=(Fraction(0), Fraction(9))), None),
        ((1.0, 2.0), Shape(unit="m"), (1.0, 2.0)),
        ("B", Shape(unit="m", valid=(Fraction(0), Fraction(9))), "B"),
    ],
)
def test_factor_offset_precision_and_range_are_exact(said: object, shape: Shape, value: object) -> None:
    reading = shape.read(Reading(value=said))  # type: ignore[arg-type]

    assert (reading.value, reading.fault) == (value, "")
    assert ("not within valid" in reading.why_none) is (value is None)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(factor=Fraction("0.001")),
        Shape(offset=Fraction(5)),
        Shape(precision=Fraction(10)),
        Shape(valid=(Fraction(0), Fraction(9))),
    ],
)
def test_what_is_said_of_a_number_is_no_position_to_be_passed_on(shape: Shape) -> None:
    reading = shape.read(Reading(value=(1.0, 2.0)))

    assert (reading.value, "it is a position" in reading.fault) == (None, True)


def test_a_shape_whose_every_reading_is_the_offset_is_none() -> None:
    with pytest.raises(ConfigError, match=r"factor does not fit; allowed is a number other than 0"):
        Shape(factor=Fraction(0), offset=Fraction(5))


@pytest.mark.parametrize(
    ("here", "there", "way"),
    [
        ("m", "km", Conversion(Fraction(1, 1000))),
        ("m/s", "km/h", Conversion(Fraction(18, 5))),
        ("Celsius", "celsius", SAME),
        ("Celsius", "K", Conversion(offset=Fraction("273.15"))),
        ("Fahrenheit", "Celsius", Conversion(Fraction(5, 9), Fraction(-160, 9))),
        ("knots", "km/h", Conversion(Fraction("1.852"))),
        ("kmh", "m/s", Conversion(Fraction(5, 18))),
        ("psi", "Pa", Conversion(Fraction("4.4482216152605") / Fraction("0.0254") ** 2)),
        ("", "km", SAME),
        ("furlongs", "km", SAME),
        ("km", "kWh", None),
        ("bar", "percent", None),
    ],
)
def test_units_are_converted_exactly_or_never(here: str, there: str, way: Conversion | None) -> None:
    assert conversion(here, there) == way


@pytest.mark.parametrize(
    ("unit", "shape", "value", "fault"),
    [
        ("m", Shape(unit="km"), Fraction("12.5"), ""),
        ("km", Shape(unit="km"), 12500, ""),
        ("", Shape(unit="km"), 12500, ""),
        ("m", Shape(unit="km", factor=Fraction("0.001")), Fraction("12.5"), ""),
        ("km", Shape(unit="km", factor=Fraction("0.001")), None, "factor and offset do not make it 'km'"),
        ("furlongs", Shape(unit="km", factor=Fraction("0.201168")), Fraction("2514.6"), ""),
        ("km", Shape(unit="m", factor=Fraction("0.001")), None, "factor and offset do not make it 'm'"),
        ("kWh", Shape(unit="km"), None, "its source says 'kWh', which is never 'km'"),
    ],
)
def test_the_unit_that_a_source_says_is_converted_or_refused(
    unit: str, shape: Shape, value: object, fault: str
) -> None:
    reading, known = shape.read(Reading(value=12500, unit=unit)), shape.describe(Description(unit=unit))

    assert (reading.value, fault in reading.fault, bool(reading.fault)) == (value, True, bool(fault))
    assert known.wrong == reading.fault
    assert bool(fault) or reading.unit == known.unit == "km"


@pytest.mark.parametrize(
    ("said", "joined"),
    [
        ((False, False, True, False), True),
        ((False, None, True, None), True),
        ((False, False, False, False), False),
        ((False, None, False, False), None),
        ((None, None), None),
        (("true", 0), True),
    ],
)
async def test_any_of_several_is_true_if_one_is_and_false_only_if_all_are(
    said: tuple[object, ...], joined: bool | None
) -> None:
    source = ShapedSource(AnySource([constant(one) for one in said]), Shape())  # type: ignore[arg-type]

    reading = await source()

    assert (reading.value, reading.fault) == (joined, "")
    assert source.described().kind is Kind.TRUTH_VALUE


def test_any_of_something_else_than_truth_values_is_a_fault() -> None:
    assert "one is a number" in any_of([Reading(value=True), Reading(value=7)]).fault
    assert any_of([Reading(value=True), Reading(fault="it is a list")]).fault == "it is a list"


class Described(KnowingSource):
    def __init__(self, known: Description) -> None:
        self.known = known

    def described(self) -> Description:
        return self.known

    def __call__(self) -> None:
        return None


@pytest.mark.parametrize(
    ("known", "domain", "said"),
    [
        (Description(), KMH, ""),
        (Description(kind=Kind.NUMBER, unit="m/s", low=Fraction(0), high=Fraction(70)), KMH, ""),
        (Description(kind=Kind.TEXT), KMH, "it is a text, and the question asks for a number"),
        (Description(kind=Kind.TRUTH_VALUE), YES, ""),
        (Description(kind=Kind.TRUTH_VALUE), Categories(names=("worn",)), "none of the question's names is 'true'"),
        (Description(kind=Kind.NUMBER, unit="kWh"), KMH, "its unit is 'kWh', and the question's 'km/h'"),
        (Description(kind=Kind.NUMBER, unit="m/s", high=Fraction(-1)), KMH, "beyond all of the question's numbers"),
        (Description(wrong="it never answers"), YES, "it never answers"),
    ],
)
def test_a_signal_that_never_fits_a_question_is_known_before_it_is_read(
    known: Description, domain: Bins | Categories, said: str
) -> None:
    why = unfit({SPEED: ShapedSource(Described(known), Shape())}, SPEED, domain)

    assert said in why
    assert bool(why) is bool(said)


def test_what_is_known_of_a_source_is_known_of_its_readings() -> None:
    shape = Shape(unit="km", valid=(Fraction(0), Fraction(900)))
    metres = Description(kind=Kind.NUMBER, unit="m", low=Fraction(-5), high=Fraction(10_000))

    assert shape.describe(metres) == Description(kind=Kind.NUMBER, unit="km", low=Fraction(0), high=Fraction(10))
    assert "beyond valid" in shape.describe(Description(unit="km", low=Fraction(901))).wrong
    assert "never of type integer" in Shape(type=INTEGER).describe(Description(kind=Kind.TRUTH_VALUE)).wrong


@pytest.mark.parametrize(
    ("reading", "domain", "fault"),
    [
        (Reading(value="fast"), KMH, "it is a text"),
        (Reading(value=True), Categories(names=("worn",)), "it is a truth value"),
        (Reading(value=frozenset({"a"})), KMH, "it is a text"),
        (Reading(value=63, unit="kWh"), KMH, "its unit is 'kWh'"),
        (Reading(fault="it is a list"), KMH, "it is a list"),
        (Reading(value=63, unit="m/s"), KMH, ""),
        (Reading(value=-63), KMH, ""),
        (Reading(), KMH, ""),
    ],
)
def test_a_reading_that_a_question_can_never_hold_is_a_fault(
    reading: Reading, domain: Bins | Categories, fault: str
) -> None:
    said = fault_of(reading, domain)

    assert fault in said
    assert bool(said) is bool(fault)
    assert not any(value in said for value in ("fast", "63", "worn"))


async def test_a_source_says_why_it_has_no_value_and_what_is_at_fault() -> None:
    async def ask(error: Exception) -> Reading:
        def source() -> float:
            raise error

        return await read_signal({SPEED: source}, SPEED)

    assert await ask(SignalUnavailable("the tank is away")) == Reading(why_none="the tank is away")
    assert await ask(SignalFault("it is a list")) == Reading(fault="it is a list")
    assert await ask(KeyError("secret 63")) == Reading(why_none="reading it failed (KeyError)")
    assert "63" not in repr(Reading(value=63))


def test_the_configuration_says_what_readings_are(write: Callable[[str], Path], tmp_path: Path) -> None:
    rows = """file = "speed.txt"
type = "decimal"
unit = "km/h"
factor = "3.6"
offset = "-1"
precision = "0.01"
valid = ["0", "250.996"]"""
    source = load_settings(write(GOOD.replace('file = "speed.txt"', rows))).signals[SPEED]

    assert isinstance(source, ShapedSource)
    assert source._shape == Shape(
        type=DECIMAL,
        unit="km/h",
        factor=Fraction("3.6"),
        offset=Fraction(-1),
        precision=Fraction("0.01"),
        valid=(Fraction(0), Fraction("250.996")),
    )


async def test_several_files_or_members_are_joined_as_configured(write: Callable[[str], Path], tmp_path: Path) -> None:
    async def joined(rows: str) -> Reading:
        return await read_signal(load_settings(write(GOOD.replace('file = "speed.txt"', rows))).signals, SPEED)

    (tmp_path / "left").write_text("false")
    (tmp_path / "right").write_text("true")
    (tmp_path / "lines").write_text('{"left": true}\n{"left": false, "right": false}\n')

    assert (await joined('file = ["left", "right"]\nany = true')).value is True
    assert (await joined('lines = "lines"\nkey = ["left", "right"]\nany = true')).value is False


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('file = "a"\ntype = "bool"', r"type is 'bool'.*'boolean' or 'integer' or 'decimal' or 'text'"),
        ('file = "a"\nvalid = ["9", "0"]', r"valid is .*the lowest and the highest"),
        ('file = "a"\nvalid = "0"', r"valid is '0'"),
        ('file = "a"\nprecision = "0"', r"precision is '0'"),
        ('file = "a"\nfactor = "0.0"', r"factor is '0.0'; allowed is a number other than 0"),
        ('file = "a"\nany = true', r"any joins 2 or more sources, and there is one"),
        ('file = ["a", "b"]', r"file is .*a file name; with any = true 2 to 64"),
        ('lines = "a"\nkey = ["x", "y", "z"]', r"key is .*with any = true 2 to 64"),
        ('lines = "a"\nkey = ["x", "y"]\nunit = "m"', r"unit goes with one value, and there are two: a position"),
        ('lines = "a"\ntime = "t"\nfresh_s = "never"', r"fresh_s is 'never'.*or \"any\""),
        ('file = "a"\nunits = "m"', r"units is unknown.*'unit'"),
    ],
)
def test_a_wrong_line_about_readings_is_refused(write: Callable[[str], Path], rows: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(write(GOOD.replace('file = "speed.txt"', rows)))
