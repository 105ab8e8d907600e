"""A question for a number at the command line: created, explained, and refused by key."""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.question.files import read_question
from fleetcount_protocol.window.domain import Numbers, Outside

from tests.cli.test_question_files import CREATE, SAMPLED, SPEC
from tests.support.cases import case

GRID = SPEC[SPEC.index("[domain]") : SPEC.index("[schedule]")]
NUMBER = """[domain]
kind = "number"
low = "-0.5"
high = 130
points = 4
unit = "km/h"
outside = "none"
"""
SPEEDS = SPEC.replace(GRID, NUMBER).replace("windows = 720", "windows = 2")


@pytest.fixture
def deployed(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    return tmp_path


def test_a_number_is_asked_at_points_and_create_says_what_becomes_of_a_reading(
    fleetcount: Callable, deployed: Path
) -> None:
    (deployed / "spec.toml").write_text(SPEEDS)
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    asked = read_question(deployed / "q.question").question
    assert asked.domain == Numbers(
        low=Fraction("-0.5"), high=Fraction(130), values=4, unit="km/h", outside=Outside.NONE
    )
    assert (
        "a reading between two of the 4 points from -0.5 km/h to 130 km/h is rounded by its device to one of them at"
        " random, right on average; one beyond an end is none of the values (domain.outside)"
    ) in ran.out
    # (V-1)^3 S / 4 devices for 4 points and the variance S of a cell, to one digit.
    (said,) = re.findall(r"4 points are best for a mean over about ([0-9,]+) devices \(domain.points\)", ran.out)
    variance = 2 * float(asked.design.noise.draw_variance)
    assert float(said.replace(",", "")) == float(f"{27 * variance / 4:.1g}")


def test_points_and_outside_have_defaults(fleetcount: Callable, deployed: Path) -> None:
    short = SPEEDS.replace("points = 4\n", "").replace('outside = "none"\n', "").replace('unit = "km/h"\n', "")
    (deployed / "spec.toml").write_text(short)
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    domain = read_question(deployed / "q.question").question.domain
    assert domain == Numbers(low=Fraction("-0.5"), high=Fraction(130), values=5, unit="", outside=Outside.CLAMP)
    assert "one beyond an end is that end" in ran.out


def test_sampling_makes_the_same_points_best_for_more_devices(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SAMPLED.replace(GRID, NUMBER).replace("windows = 720", "windows = 2"))
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    variance = 2 * float(read_question(deployed / "q.question").question.design.noise.draw_variance)
    (said,) = re.findall(r"4 points are best for a mean over about ([0-9,]+) devices", ran.out)
    assert float(said.replace(",", "")) == float(f"{27 * variance / (4 * 0.5):.1g}")


WRONG = [
    ("high = 130", 'high = "-0.5"', r"domain\.low is '-0\.5': low is -1/2, allowed: below high = -1/2"),
    ("high = 130", "high = -3", r"domain\.low is '-0\.5': low is -1/2, allowed: below high = -3"),
    ("high = 130", "high = nan", r"domain\.high is .*; allowed is an exact number"),
    ("high = 130", "high = inf", r"domain\.high is .*; allowed is an exact number"),
    ("high = 130", 'high = "fast"', r"domain\.high is 'fast'; allowed is an exact number"),
    ("high = 130", "high = 130.5", r'domain\.high is 130\.5; allowed is an exact number, whole or as text: "12\.5"'),
    ("high = 130", "high = true", r"domain\.high is true; allowed is an exact number"),
    ("high = 130", "high = 9223372036854775808", r"domain\.high is .*: high has a term beyond 2\*\*63 - 1"),
    ('low = "-0.5"', 'low = "1/9223372036854775808"', r"domain\.low is .*: low has a term beyond 2\*\*63 - 1"),
    ('low = "-0.5"\n', "", r"domain\.low is missing"),
    ("points = 4", "points = 1", r"domain\.points is 1; allowed is a whole number from 2 to 4095"),
    ("points = 4", "points = 4096", r"domain\.points is 4096; allowed is a whole number from 2 to 4095"),
    ("points = 4", "points = 4.5", r"domain\.points is 4\.5; allowed is a whole number"),
    ('"none"', '"drop"', r"domain\.outside is 'drop'; allowed is 'clamp' or 'none'"),
    ('"none"', '"nome"', r"domain\.outside is 'nome'; allowed is 'clamp' or 'none'; did you mean 'none'\?"),
    ("points = 4", 'edges = ["0", "1"]', r"domain\.edges"),
    ('kind = "number"', 'kind = "numbers"', r"domain\.kind is 'numbers'; .*did you mean 'number'\?"),
]


def test_a_wrong_number_is_refused_in_one_line_by_file_key_and_value(fleetcount: Callable, deployed: Path) -> None:
    for old, new, said in WRONG:
        with case(new):
            assert old in SPEEDS
            (deployed / "spec.toml").write_text(SPEEDS.replace(old, new))

            ran = fleetcount(*CREATE)

            assert (ran.code, ran.out) == (2, "")
            assert re.match(rf"fleetcount question: spec\.toml line [0-9]+: {said}", ran.error_line), ran.error_line
            assert sorted(path.name for path in deployed.iterdir()) == ["dep", "spec.toml"]
