"""Numbers asked at equally spaced points are rounded by the device, exactly right on average."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import product

import pytest
from fleetcount_client.signals import misfit
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.layout import fraction_bytes, text_bytes, uint
from fleetcount_protocol.window.domain import MAX_VALUES, Bins, Numbers, Outside, value_of
from fleetcount_protocol.window.signal import Kind, Signal, Single
from fleetcount_protocol.window.window import decode_window
from fleetcount_protocol.window.window_json import window_to_json

from tests.support.protocol_samples import every_window, sampling_window

SPEEDS = Numbers(low=Fraction(0), high=Fraction(130), values=5, unit="km/h")
STRICT = replace(SPEEDS, outside=Outside.NONE)
TENTHS = Numbers(low=Fraction("-0.2"), high=Fraction("0.4"), values=7, unit="")
NO_NUMBERS = (None, True, "40", math.nan, math.inf, -math.inf, (1.0, 2.0), Decimal("nan"), Decimal("1e999999999"))


@dataclass(kw_only=True)
class Counted:
    """A source whose every draw is one whole number; it keeps the sizes of what was asked for."""

    number: int
    asked: list[int] = field(default_factory=list[int])

    def random_bytes(self, count: int, /) -> bytes:
        self.asked.append(count)
        return self.number.to_bytes(count, "little")


def law(domain: Numbers, signal: Signal) -> dict[int, Fraction]:
    """Return the exact probability of every value: over all remainders of the draw, each of which is as likely.

    Seven times over, so that a draw of another number of remainders has another law.
    """
    draws = 7 * domain.place_of(signal).denominator
    counts = Counter(value_of(domain, signal, Counted(number=number)) for number in range(draws))
    return {value: Fraction(count, draws) for value, count in counts.items()}


def mean(domain: Numbers, signal: Signal) -> Fraction:
    return sum((chance * domain.points[value - 1] for value, chance in law(domain, signal).items()), Fraction(0))


@pytest.mark.parametrize(
    ("signal", "number"),
    [
        (0, "0"),
        (130.0, "130"),
        (32.5, "32.5"),
        (0.1, "0.1"),
        (2.3, "2.3"),
        (Single(2.299999952316284), "2.3"),
        (Decimal("64.9"), "64.9"),
        (Fraction(1, 3), "1/3"),
        (129.99, "129.99"),
        (97, "97"),
    ],
)
def test_a_reading_between_two_points_becomes_one_of_them_and_is_right_on_average(signal: Signal, number: str) -> None:
    found = law(SPEEDS, signal)
    points = [SPEEDS.points[value - 1] for value in found]

    assert mean(SPEEDS, signal) == Fraction(number)
    assert max(points) - min(points) in (0, Fraction(130, 4))
    assert min(points) <= Fraction(number) <= max(points)


def test_a_point_is_itself_whatever_is_drawn() -> None:
    for value, point in enumerate(TENTHS.points, start=1):
        assert law(TENTHS, float(point)) == {value: 1}  # 0.3 is three tenths, whatever its double is.
    assert TENTHS.points == tuple(Fraction(tenths, 10) for tenths in range(-2, 5))


def test_the_chance_of_the_upper_point_is_the_way_to_it() -> None:
    assert law(SPEEDS, 40) == {2: Fraction(10, 13), 3: Fraction(3, 13)}  # 40 is 7.5 of 32.5 above the second point.
    assert law(TENTHS, -0.13) == {1: Fraction(3, 10), 2: Fraction(7, 10)}


def test_a_number_outside_is_the_nearer_end_or_none_of_them() -> None:
    beyond = (-0.001, 130.001, -1e300, 10**400, Decimal("-1e4999"))

    assert [law(SPEEDS, one) for one in beyond] == [{1: 1}, {5: 1}, {1: 1}, {5: 1}, {1: 1}]
    assert [law(STRICT, one) for one in beyond] == [{0: 1}] * 5
    assert [law(STRICT, one) for one in (0, 130.0)] == [{1: 1}, {5: 1}]


@pytest.mark.parametrize("signal", NO_NUMBERS)
def test_what_is_no_number_is_none_of_them(signal: Signal) -> None:
    assert law(SPEEDS, signal) == law(STRICT, signal) == {0: 1}


def test_every_reading_takes_one_draw_of_one_size() -> None:
    for signal in (*NO_NUMBERS, 0, 130, 32.5, 40.123456, -7, 1000):
        source = Counted(number=0)
        value_of(SPEEDS, signal, source)
        assert source.asked == [8]


def test_roundings_of_a_real_stream_have_the_exact_chance() -> None:
    source, draws = SeededRandom(7), 20_000
    ups = sum(value_of(SPEEDS, 40, source) == 3 for _ in range(draws))

    assert abs(ups - draws * 3 / 13) < 6 * math.sqrt(draws * 30 / 169)


def test_a_rounding_loses_nothing_more_and_two_points_as_much() -> None:
    """By the exact law of an answer to a reading: a mixture of those to the values, of k-ary response and a die."""
    die = SamplingDie.uniform(Fraction(1, 4), SPEEDS.values)
    kary = KaryResponse(Fraction(1, 2), SPEEDS.values)
    outputs = list(product(range(SPEEDS.values + 1), repeat=2))
    chances = (
        lambda truth: [kary.probability(output, truth) for output in range(SPEEDS.values + 1)],
        lambda truth: [die.pair_probability(one, two, truth) for one, two in outputs],
    )
    roundings = [law(SPEEDS, one) for one in (None, -5, 7, 32.5, 40, 65, 97, 130, 1000)]
    for of in chances:
        values = [of(value) for value in range(SPEEDS.values + 1)]
        mixed = [
            [sum(chance * values[value][place] for value, chance in one.items()) for place in range(len(values[0]))]
            for one in roundings
        ]
        assert all(sum(row) == 1 for row in mixed)
        # The loss at every delta is the largest sum of what one law has above a multiple of another.
        for factor in (1, Fraction(3, 2), 2, 5, 40):
            assert excess(mixed, factor) == excess(values, factor)


def excess(laws: Sequence[Sequence[Fraction | int]], factor: Fraction | int) -> Fraction | int:
    pairs = product(laws, repeat=2)
    return max(sum(max(one - factor * two, 0) for one, two in zip(*pair, strict=True)) for pair in pairs)


def test_other_domains_draw_nothing() -> None:
    source = Counted(number=0)

    assert value_of(Bins(edges=(Fraction(0),), open_above=True, unit=""), 40, source) == 1
    assert source.asked == []


def test_points_have_labels_and_numbers_alone_fit() -> None:
    assert [SPEEDS.label(value) for value in (1, 2, 5)] == ["0 km/h", "32.5 km/h", "130 km/h"]
    assert replace(SPEEDS, high=Fraction(1), values=4, unit="").label(2) == "1/3"
    assert {kind for kind in Kind if not misfit(SPEEDS, kind)} == {Kind.NUMBER}


def test_numbers_that_are_never_a_value_are_known_by_their_range() -> None:
    ranges = [(None, None), (None, Fraction(-1)), (Fraction(131), None), (Fraction(130), None), (None, Fraction(0))]

    assert [STRICT.beyond(low, high) for low, high in ranges] == [False, True, True, False, False]
    assert not any(SPEEDS.beyond(low, high) for low, high in ranges)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"values": 1}, "points are 1, allowed: 2 to 4095"),
        ({"values": MAX_VALUES + 1}, "points are 4096"),
        ({"values": True}, "points are True"),
        ({"values": 5.0}, "points are 5.0"),
        ({"high": Fraction(0)}, "low is 0, allowed: below high = 0"),
        ({"low": Fraction(131)}, "low is 131"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(QuestionError, match=why):
        replace(SPEEDS, **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"low": 0.5}, "low is 0.5, allowed: an exact Fraction"),
        ({"high": 130}, "high is 130"),
        ({"high": Fraction(2**63)}, "2\\*\\*63"),
        ({"unit": "a\0"}, "unit"),
    ],
)
def test_a_window_holds_exact_numbers_alone(changes: dict[str, object], why: str) -> None:
    with pytest.raises(QuestionError, match=why):
        sampling_window(domain=replace(SPEEDS, **changes), mechanism=SamplingDie.uniform(Fraction(1, 4), 5))


def domain_bytes(low: str, high: str, points: int, outside: int, unit: str) -> bytes:
    ends = fraction_bytes(Fraction(low)) + fraction_bytes(Fraction(high))
    return uint(7, 1) + ends + uint(points, 2) + uint(outside, 1) + text_bytes(unit)


GOOD = domain_bytes("0", "61/2", 3, 1, "km/h")


def test_numbers_have_one_encoding() -> None:
    window = every_window()["direct_numbers"]
    strict = replace(window, domain=replace(window.domain, outside=Outside.NONE))

    assert window.canonical.count(GOOD) == 1
    assert strict.canonical == window.canonical.replace(GOOD, domain_bytes("0", "61/2", 3, 2, "km/h"))
    assert decode_window(strict.canonical) == strict
    assert [window_to_json(one)["outside"] for one in (window, strict)] == ["clamp", "none"]
    assert window_to_json(window)["labels"] == ["0 km/h", "15.25 km/h", "30.5 km/h"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (domain_bytes("61/2", "0", 3, 1, "km/h"), "low is 61/2, allowed: below high = 0"),
        (domain_bytes("61/2", "61/2", 3, 1, "km/h"), "low is 61/2, allowed: below high = 61/2"),
        (domain_bytes("0", "61/2", 1, 1, "km/h"), "1"),
        (domain_bytes("0", "61/2", 0, 1, "km/h"), "0"),
        (domain_bytes("0", "61/2", 4096, 1, "km/h"), "4096"),
        (domain_bytes("0", "61/2", 3, 0, "km/h"), "0"),
        (domain_bytes("0", "61/2", 3, 3, "km/h"), "3"),
        (domain_bytes("0", "61/2", 3, 1, " km/h"), "not allowed"),
        (GOOD.replace(fraction_bytes(Fraction(61, 2)), uint(122, 8) + uint(4, 8)), "lowest terms|canonical|reduced"),
        (uint(255, 1) + GOOD[1:], "255"),
    ],
)
def test_every_other_text_of_numbers_is_refused(bad: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_window(every_window()["direct_numbers"].canonical.replace(GOOD, bad))
