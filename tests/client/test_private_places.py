"""What is private is answered as "none", its edge included; everything else as it is."""

import struct
import unicodedata
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.config import load_settings
from fleetcount_client.policy import JoinRule
from fleetcount_client.private_places import Circle, Polygon, PrivatePlaces, PrivateSignal
from fleetcount_client.signals import Said
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.signal import Single
from fleetcount_transport.toml_table import ConfigError

from tests.client.deployment import SIGNAL, Deployment
from tests.client.test_process import write_device

HOME = Circle(x=Fraction(10), y=Fraction(20), radius=Fraction(5))
YARD = Polygon(
    corners=(
        (Fraction(0), Fraction(0)),
        (Fraction(4), Fraction(0)),
        (Fraction(4), Fraction(4)),
        (Fraction(2), Fraction(1)),
        (Fraction(0), Fraction(4)),
    )
)
PLACES = PrivatePlaces(
    {"p": PrivateSignal(areas=(HOME, YARD), values=frozenset({"8928308280fffff", 5, True, 36.6, "é"}))}
)


READINGS: list[tuple[Said, bool]] = [
    ((10.0, 20.0), True),
    ((15.0, 20.0), True),
    ((15.0001, 20.0), False),
    ((13.0, 24.0), True),
    ((1.0, 0.5), True),
    ((2.0, 1.0), True),
    ((2.0, 1.5), False),
    ((0.5, 2.0), True),
    ((3.5, 2.0), True),
    ((4.0, 2.0), True),
    ((4.5, 2.0), False),
    ((-1.0, 0.0), False),
    ((float("nan"), 0.0), False),
    ((float("inf"), 0.0), False),
    ("8928308280fffff", True),
    ("8928308281fffff", False),
    (5, True),
    (5.0, True),
    (5.5, False),
    (Decimal(5), True),
    ("5", True),
    ("true", True),
    (36.6, True),
    (Single(36.599998474121094), True),
    (Fraction("36.6"), True),
    (36.599998474121094, False),
    (unicodedata.normalize("NFD", "é"), True),
    ((Decimal(15), Fraction(20)), True),
    (True, True),
    (1, False),
    (None, False),
]


def test_a_reading_is_hidden_inside_and_shown_outside() -> None:
    for reading, hidden in READINGS:
        assert PLACES.shown("p", reading) is (None if hidden else reading), reading
        assert PLACES.shown("another", reading) is reading


def test_of_a_set_only_the_private_members_are_hidden() -> None:
    assert PLACES.shown("p", frozenset({"a", "8928308280fffff"})) == frozenset({"a"})
    assert PLACES.shown("p", frozenset({(10.0, 20.0), (99.0, 99.0)})) == frozenset({(99.0, 99.0)})


def test_every_tenth_that_is_private_is_hidden_whatever_it_was_sent_as() -> None:
    for tenth in range(1000):
        text = f"{tenth / 10}"
        hidden = PrivateSignal(values=frozenset({float(text)}))
        single = Single(struct.unpack("<f", struct.pack("<f", float(text)))[0])
        assert all(hidden.hides(one) for one in (float(text), Decimal(text), Fraction(text), single)), text
        assert not hidden.hides(Decimal(text) + Decimal("0.01"))


def test_a_place_without_an_inside_is_refused() -> None:
    with pytest.raises(UsageError, match="radius"):
        Circle(x=Fraction(0), y=Fraction(0), radius=Fraction(0))
    with pytest.raises(UsageError, match="2 corners"):
        Polygon(corners=((Fraction(0), Fraction(0)), (Fraction(1), Fraction(1))))


def test_a_place_that_is_gone_around_twice_is_private_and_one_with_exchanged_corners_is_refused() -> None:
    square = tuple((Fraction(x), Fraction(y)) for x, y in ((0, 0), (4, 0), (4, 4), (0, 4)))
    twice = Polygon(corners=square * 2)
    a, b, c, d = square

    assert twice.holds((Fraction(2), Fraction(1)))
    assert not twice.holds((Fraction(5), Fraction(1)))
    with pytest.raises(UsageError, match="in an order in which lines do not cross, as at 2, 2"):
        Polygon(corners=(a, c, b, d))


def test_a_private_place_in_degrees_reaches_across_180_of_longitude() -> None:
    circles = (("179.9999", "0.001"), ("-179.9999", "0.001"), ("180.0001", "0.001"), ("179.9995", "0.0005"))
    for centre, radius in circles:
        places = (
            Circle(x=Fraction(centre), y=Fraction("-16.8"), radius=Fraction(radius)),
            Polygon(
                corners=tuple(
                    (Fraction(centre) + east * Fraction(radius), Fraction("-16.8") + north * Fraction(radius))
                    for east, north in ((-1, -1), (1, -1), (1, 1), (-1, 1))
                )
            ),
        )
        for place in places:
            hidden = PrivateSignal(areas=(place,))
            assert all(hidden.hides((x, -16.8)) for x in (179.9999, 180.0, -180.0)), place
            assert hidden.hides((-179.9999, -16.8)) == (radius == "0.001"), place
            assert not any(hidden.hides((x, -16.8)) for x in (179.99, -179.99, 0.0, -179.9999 + 180)), place


def test_a_longitude_that_counts_to_360_is_hidden_as_the_same_one_to_the_west() -> None:
    """Receivers and libraries count from -180 or from 0; who wrote the area need not know which."""
    corners = ((Fraction(x), Fraction(y)) for x, y in ((-11, 44), (-9, 44), (-9, 46), (-11, 46)))
    for area in (Circle(x=Fraction(-10), y=Fraction(45), radius=Fraction(1)), Polygon(corners=tuple(corners))):
        hidden = PrivateSignal(areas=(area,))
        assert all(hidden.hides((x, 45.0)) for x in (350.0, -10.0, 349.5)), area
        assert not any(hidden.hides((x, 45.0)) for x in (10.0, 190.0, 352.0, 710.0)), area


def test_a_private_place_in_metres_is_in_one_place() -> None:
    metres = PrivateSignal(areas=(Circle(x=Fraction(179), y=Fraction(89), radius=Fraction(50)),))

    assert metres.hides((200, 89))
    assert not metres.hides((-160, 89))
    assert not PrivateSignal(areas=(HOME,)).hides((370, 20))


CIRCLE = 'circles = [{ x = "10", y = 20, radius = "5" }]'
CORNERS = 'polygons = [{ corners = [["0", "0"], [4, 0], ["4", "4.5"]] }]'


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (f'[private."Vehicle.Speed"]\n{CIRCLE}', "is no signal of policy.signals"),
        (f'[private."{SIGNAL}"]\ncircle = 1', "did you mean 'circles'"),
        (f'[private."{SIGNAL}"]\ncircles = [{{ x = "10", y = 20 }}]', "radius is missing"),
        (f'[private."{SIGNAL}"]\npolygons = [{{ corners = [["0", "0"], [4, 0]] }}]', "three or more pairs"),
        (f'[private."{SIGNAL}"]\npolygons = [{{ corners = [["0", "0"], [4, 0], ["x", 1]] }}]', "three or more pairs"),
        (
            f'[private."{SIGNAL}"]\npolygons = [{{ corners = [[0, 0], [4, 4], [4, 0], [0, 4]] }}]',
            r"polygons\[0\]\.corners is .*; allowed is corners in an order in which lines do not cross, as at 2, 2",
        ),
        (
            f'[private."{SIGNAL}"]\npolygons = [{{ corners = [["179.9", 0], ["-179.9", 0], [-179, 1], [179, 1]] }}]',
            r"polygons\[0\]\.corners is .*; allowed is lines over at most 180 of x, not as from 179.9 to -179.9",
        ),
        (f'[private."{SIGNAL}"]\nvalues = [[1]]', "a list of numbers, texts"),
        (f'[private."{SIGNAL}"]\nvalues = ["a", nan]', "a list of numbers, texts"),
        ('[questions]\njoin = "never"', "'ask' or 'auto'"),
    ],
)
def test_a_wrong_line_about_what_is_private_is_refused_by_name(tmp_path: Path, rows: str, said: str) -> None:
    config = write_device(Deployment(), tmp_path / "d", CertificateAuthority.create("test"), policy=rows)

    with pytest.raises(ConfigError, match=said):
        load_settings(config)


def test_the_configuration_says_what_is_private_and_how_question_are_joined(tmp_path: Path) -> None:
    rows = f'[private."{SIGNAL}"]\n{CIRCLE}\n{CORNERS}\nvalues = ["A", 3]\n[questions]\njoin = "auto"'
    config = write_device(Deployment(), tmp_path / "d", CertificateAuthority.create("test"), policy=rows)

    settings = load_settings(config)

    assert settings.join is JoinRule.AUTO
    assert settings.private is not None
    assert [settings.private.shown(SIGNAL, one) for one in ("A", "B", 3, (12.0, 20.0), (3.0, 1.0), (0.0, 9.0))] == [
        None,
        "B",
        None,
        None,
        None,
        (0.0, 9.0),
    ]
