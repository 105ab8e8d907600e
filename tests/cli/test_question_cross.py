"""A question for several signals at the command line: created, explained, and refused by key."""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.question.files import read_question
from fleetcount_protocol.window.domain import Bins, Categories, Cross, H3Cells, Part, SquareGrid

from tests.cli.test_question_files import CREATE, SPEC
from tests.support.cases import case

GRID = SPEC[SPEC.index("[domain]") : SPEC.index("[schedule]")]
CROSS = """[domain]
kind = "cross"
[[domain.of]]
signal = "Vehicle.Speed"
kind = "bins"
edges = ["0", "50", "100"]
unit = "km/h"
[[domain.of]]
signal = "Vehicle.IsMoving"
kind = "categories"
names = ["true", "false"]
"""
PLACES = """[[domain.of]]
signal = "Vehicle.CurrentLocation"
kind = "grid"
x0 = 0
y0 = 0
size = 250
columns = 3
rows = 2
"""
SIGNAL = 'signal = "Vehicle.CurrentLocation"\n'
MOVING = (
    SPEC.replace(GRID, CROSS)
    .replace(SIGNAL, "")
    .replace('every = "1 h"\nwindows = 720\n', "")
    .replace('delta = "1e-9"\n', "")
)
SPEEDS = Part(
    signal="Vehicle.Speed", domain=Bins(edges=(Fraction(0), Fraction(50), Fraction(100)), open_above=False, unit="km/h")
)
TRUTHS = Part(signal="Vehicle.IsMoving", domain=Categories(names=("true", "false")))


@pytest.fixture
def deployed(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    return tmp_path


def test_a_cross_is_asked_and_create_says_what_becomes_of_readings(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(MOVING)
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    asked = read_question(deployed / "q.question").question
    assert (asked.signal, asked.domain) == ("Vehicle.Speed", Cross(parts=(SPEEDS, TRUTHS)))
    assert "asks Vehicle.Speed x Vehicle.IsMoving in 4 values" in ran.out
    assert "a vehicle is counted where all of its 2 signals have a value" in ran.out
    assert "a reading of Vehicle.Speed of 100 km/h or more is in no bin" in ran.out
    assert "(signals)" not in ran.out  # A device that allows both takes part or refuses it for its price.


def test_a_part_is_read_as_the_same_values_alone(fleetcount: Callable, deployed: Path) -> None:
    h3 = '[[domain.of]]\nsignal = "Vehicle.Cell"\nkind = "h3"\nresolution = 9\ncells = ["891ea6d6533ffff"]\n'
    (deployed / "spec.toml").write_text(MOVING.replace("[schedule]", PLACES + "[schedule]"))
    assert fleetcount(*CREATE).code == 0
    domain = read_question(deployed / "q.question").question.domain

    assert isinstance(domain, Cross)
    grid = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=3, rows=2)
    assert domain.parts[2] == Part(signal="Vehicle.CurrentLocation", domain=grid)
    assert domain.shape == (2, 2, 6)
    (deployed / "spec.toml").write_text(MOVING.replace("[schedule]", h3 + "[schedule]"))
    assert fleetcount("question", "create", "--spec", "spec.toml", "--output", "h.question").code == 0
    domain = read_question(deployed / "h.question").question.domain
    assert isinstance(domain, Cross)
    assert domain.parts[2].domain == H3Cells(resolution=9, cells=(0x891EA6D6533FFFF,))


MANY = ", ".join(f'"{number}"' for number in range(2048))
WRONG = [
    ('names = ["true", "false"]', f"names = [{MANY}]", r"domain\.of cannot be asked: cross of 2 times 2048 values"),
    (CROSS[CROSS.rindex("[[") :], "", r"domain\.of is .*; allowed is 2 to 3 tables, one for each signal"),
    (CROSS, CROSS + PLACES + PLACES, r"domain\.of is .*; allowed is 2 to 3 tables"),
    (
        '"Vehicle.IsMoving"',
        '"vehicle.speed"',
        r"domain\.of cannot be asked: cross has the signal 'vehicle\.speed' twice",
    ),
    ('signal = "Vehicle.IsMoving"\n', "", r"domain\.of\[1\]\.signal is missing; allowed is a VSS path"),
    ('"Vehicle.IsMoving"', '"Vehicle Moving"', r"domain\.of\[1\]\.signal is 'Vehicle Moving': signal is 'Vehicle Mov"),
    ('kind = "categories"', 'kind = "number"', r"domain\.of\[1\]\.kind is 'number'; allowed is 'bins' or 'categories'"),
    ('kind = "categories"', 'kind = "cross"', r"domain\.of\[1\]\.kind is 'cross'; allowed is 'bins' or 'categories'"),
    ('kind = "categories"', 'kind = "prefixes"', r"domain\.of\[1\]\.kind is 'prefixes'; allowed is 'bins'"),
    ('names = ["true", "false"]', 'names = ["true", "*"]', r"domain\.of cannot be asked: cross has a category '\*'"),
    ('names = ["true", "false"]', 'names = ["a", "a"]', r"domain\.of\[1\]\.kind is 'categories': category names must"),
    ('unit = "km/h"\n', 'unit = "km/h"\ncolumns = 3\n', r"domain\.of\[0\]\.columns is unknown"),
    ('"50", "100"', '"50", "10"', r"domain\.of\[0\]\.kind is 'bins': bin edges must be strictly increasing"),
    (
        'mode = "direct"\n',
        'mode = "direct"\n' + SIGNAL,
        r"question\.signal is given, and a cross has a signal for each",
    ),
    ('kind = "cross"', 'kind = "cross"\ncolumns = 2', r"domain\.columns is unknown"),
]


def test_a_wrong_cross_is_refused_in_one_line_by_file_key_and_value(fleetcount: Callable, deployed: Path) -> None:
    for old, new, said in WRONG:
        with case(new[:80]):
            assert old in MOVING
            (deployed / "spec.toml").write_text(MOVING.replace(old, new))

            ran = fleetcount(*CREATE)

            assert (ran.code, ran.out) == (2, "")
            assert re.match(rf"fleetcount question: spec\.toml(?: line [0-9]+)?: {said}", ran.error_line), (
                ran.error_line
            )
            assert sorted(path.name for path in deployed.iterdir()) == ["dep", "spec.toml"]
