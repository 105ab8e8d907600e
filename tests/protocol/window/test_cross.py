"""A cross asks for several signals at once: a value for every combination of theirs, in one order and encoding."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.layout import text_bytes, uint
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import (
    Bins,
    Categories,
    Cross,
    Numbers,
    Part,
    Prefixes,
    SingleDomain,
    SquareGrid,
    parts_of,
)
from fleetcount_protocol.window.fields import Mode, level_words, shape_of
from fleetcount_protocol.window.window import decode_window
from fleetcount_protocol.window.window_json import window_to_json

from tests.support.protocol_samples import crossed, every_window, one_round_window

SPEEDS = Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
FUELS = Categories(names=("diesel", "petrol", "true"))
GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=2, rows=2)
BY_FUEL = crossed(SPEEDS, FUELS)
ALL = crossed(SPEEDS, GRID, FUELS)


@pytest.mark.parametrize("cross", [BY_FUEL, ALL])
def test_the_first_part_varies_slowest_and_every_combination_is_one_value(cross: Cross) -> None:
    combinations = list(product(*(range(1, size + 1) for size in cross.shape)))

    assert [cross.together(one) for one in combinations] == list(range(1, cross.values + 1))
    assert [cross.apart(value) for value in range(1, cross.values + 1)] == combinations


def test_a_value_is_none_where_any_part_is() -> None:
    for values in product(range(3), range(5), range(4)):
        assert (ALL.together(values) == 0) == (0 in values)


def test_labels_have_the_parts_own_names() -> None:
    assert [BY_FUEL.label(value) for value in (1, 2, 4)] == [
        "[0, 50) km/h x diesel",
        "[0, 50) km/h x petrol",
        "[50, ∞) km/h x diesel",
    ]
    assert ALL.label(ALL.values) == "[50, ∞) km/h x 1,1 x true"
    assert (BY_FUEL.margin_label(0, 2), BY_FUEL.margin_label(1, 3)) == ("[50, ∞) km/h x *", "* x true")
    margins = {ALL.margin_label(place, v) for place, size in enumerate(ALL.shape) for v in range(1, size + 1)}
    assert len(margins | {ALL.label(value) for value in range(1, ALL.values + 1)}) == sum(ALL.shape) + ALL.values


def part(domain: SingleDomain, signal: str = "Vehicle.A") -> Part:
    return Part(signal=signal, domain=domain)


@pytest.mark.parametrize(
    ("parts", "refusal"),
    [
        ((part(FUELS),), "has 1 parts, allowed: 2 or 3"),
        (tuple(part(FUELS, f"Vehicle.{one}") for one in "ABCD"), "has 4 parts, allowed: 2 or 3"),
        ((part(FUELS), part(SPEEDS, "vehicle.a")), "has the signal 'vehicle.a' twice"),
        ((part(FUELS), part(Prefixes(bits=2, cells=(1,)), "B")), "has a part of Prefixes, allowed: bins, categories"),
        ((part(FUELS), part(Prefixes(bits=2, cells=(1,), codes=Codes(form=CodeForm.DTC)), "B")), "a part of Prefixes"),
        ((part(FUELS), part(Numbers(low=Fraction(0), high=Fraction(1), values=2, unit=""), "B")), "a part of Numbers"),
        ((part(FUELS), part(BY_FUEL, "B")), "has a part of Cross"),  # type: ignore[arg-type]
        ((part(FUELS), part(Categories(names=("a", "*")), "B")), "has a category '\\*', allowed: names without"),
        ((part(FUELS), part(Categories(names=("4 x 4",)), "B")), "has a category '4 x 4', allowed: names without"),
        (
            tuple(part(Categories(names=tuple(map(str, range(64)))), name) for name in "AB"),
            "cross of 64 times 64 values gives 4096 values; a window has 1 to 4095",
        ),
    ],
)
def test_what_is_no_cross_is_refused_with_what_is_allowed(parts: tuple[Part, ...], refusal: str) -> None:
    with pytest.raises(QuestionError, match=refusal):
        Cross(parts=parts)


def test_every_domain_has_parts_to_read() -> None:
    assert parts_of("Vehicle.Speed", SPEEDS) == (part(SPEEDS, "Vehicle.Speed"),)
    assert [one.signal for one in every_window()["direct_cross"].parts] == [
        "Vehicle.Speed",
        "Vehicle.CurrentLocation",
        "Vehicle.Category",
    ]


def test_a_windows_signal_is_that_of_the_first_part() -> None:
    with pytest.raises(QuestionError, match=r"signal is 'Vehicle.Category', allowed: that of the first part"):
        one_round_window(Mode.DIRECT, signal="Vehicle.Category", domain=BY_FUEL)
    domain = Cross(parts=(part(SPEEDS, "Vehicle.Speed"), part(FUELS, "Vehicle Category")))
    with pytest.raises(QuestionError, match=r"signal is 'Vehicle Category', allowed"):
        one_round_window(Mode.DIRECT, signal="Vehicle.Speed", domain=domain)


def test_rules_of_a_part_are_those_of_its_domain_alone() -> None:
    control = Categories(names=("a", "b\n"))

    with pytest.raises(QuestionError, match="category"):
        one_round_window(Mode.DIRECT, signal="Vehicle.Speed", domain=crossed(SPEEDS, control))


def test_a_cross_has_one_spelling_on_the_wire() -> None:
    window = one_round_window(Mode.DIRECT, signal="Vehicle.Speed", domain=BY_FUEL)
    data, signal = window.canonical, text_bytes("Vehicle.Category")
    head = uint(9, 1) + uint(2, 1) + text_bytes("Vehicle.Speed") + uint(1, 1)
    fuels = signal + uint(2, 1)
    assert (data.count(head), data.count(fuels), decode_window(data)) == (1, 1, window)

    for kind in (0, 5, 7, 8, 9, 10, 255):
        with pytest.raises(DecodeError, match=f"crosses a domain of kind {kind}, allowed: 1, 2, 3, 4, 6"):
            decode_window(data.replace(fuels, signal + uint(kind, 1)))
    for count in (0, 1, 3, 4, 255):
        with pytest.raises(DecodeError):
            decode_window(data.replace(head, uint(9, 1) + uint(count, 1) + head[2:]))
    for other in ("Vehicle.Speed", "vehicle.speed", "Vehicle Speed", ""):
        with pytest.raises(DecodeError):
            decode_window(data.replace(signal, text_bytes(other)))


def test_a_window_for_people_says_every_part() -> None:
    shown = window_to_json(every_window()["direct_cross"])

    assert [one["signal"] for one in shown["parts"]] == ["Vehicle.Speed", "Vehicle.CurrentLocation", "Vehicle.Category"]
    assert shown["parts"][1]["frame"]["epsg"] == 25832
    assert shown["labels"][0] == " x ".join(one["labels"][0] for one in shown["parts"])
    assert "parts" not in window_to_json(every_window()["direct"])


def test_margins_are_named_by_their_signal_and_value() -> None:
    window = every_window()["direct_margins"]
    names = [window.label(cell) for cell in range(1, window.design.cell_count + 1)]

    assert isinstance(window.domain, Cross)
    assert names[: window.values] == [window.domain.label(value) for value in range(1, window.values + 1)]
    assert names[window.values :] == [
        "[0, 30.5) km/h x *",
        "[30.5, 50) km/h x *",
        "* x rot",
        "* x grün",
        "* x blå",
        "total",
    ]
    assert len(set(names)) == len(names)
    words = [level_words(window.domain, level) for level in window.release.coarser]
    assert words == ["the margin of Vehicle.Speed", "the margin of Vehicle.Category", "the total"]


def test_margins_are_of_tables_alone_all_of_them_in_order_and_of_two_values_each() -> None:
    window = every_window()["direct_margins"]
    one, two, total = window.release.coarser
    single = crossed(SPEEDS, Categories(names=("a",)))
    alike = replace(window.release, coarser=())

    for coarser in ((two, one, total), (one, total), (one, one, total), (one, two, two), (one, total, two)):
        with pytest.raises(QuestionError):
            replace(window, release=replace(window.release, coarser=coarser))
    with pytest.raises(QuestionError, match=r"allowed: 2 dimensions or more, of 2 values or more each"):
        replace(window, domain=single)
    assert replace(window, domain=single, release=alike).values == 2
    assert (shape_of(single), shape_of(FUELS)) == ((2, 1), None)
