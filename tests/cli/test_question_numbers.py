"""A question for a number at the command line: created, explained, and refused by key."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from fleetcount.question.files import read_question
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.losses import move_rho
from fleetcount_mechanisms.planning import mean_sd
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


def test_a_number_is_asked_at_points_and_create_says_what_becomes_of_a_reading(
    fleetcount: Callable, deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployed / "spec.toml").write_text(SPEEDS)
    many = tuple(range(200, 1000, 100))
    monkeypatch.setattr("fleetcount.question.create.MEAN_OF", many)
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
    assert asked.design.levels == Levels(4, (4, 1), weighted=True, total=True)
    price, rows = asked.design.moves[0], dict.fromkeys(asked.design.laws)
    parts = [move_rho(tuple(one for one in price if one[0] == law)) / move_rho(price) for law in rows]
    assert parts[:2] == [Fraction(1, 32), Fraction(31, 32)]
    found = re.findall(r"([0-9.]+) km/h of ([0-9,]+) devices", ran.out)
    assert len(found) == len(many)
    for said, devices in zip((said for said, _ in found), many, strict=True):
        error = 1.96 * 130.5 * mean_sd(asked.design, devices)
        assert error <= float(said) <= error * 1.001, "at most"


def test_points_and_zooms_of_halves_are_asked_where_quantiles_are_wanted(fleetcount: Callable, deployed: Path) -> None:
    asked = SPEEDS.replace("points = 4\n", "").replace("[release]\n", '[release]\nshow = "quantiles"\n')
    (deployed / "spec.toml").write_text(asked)
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    design = read_question(deployed / "q.question").question.design
    assert design.levels == Levels(64, (64, 1), (1, 2, 4, 8, 16, 32), total=True)
    falling = [float(one.draw_variance / two.draw_variance) for one, two in pairwise(design.laws[:-1])]
    assert falling == pytest.approx([0.7] * 5, rel=0.01)
    assert "are best for a mean over" not in ran.out


@pytest.mark.parametrize(
    ("points", "zooms", "sides"),
    [
        (5, "zooms = 1\nshow = 'quantiles'\n", (1,)),
        (12, "", (1, 2, 4)),
        (16, "zooms = [1, 8]\n", (1, 8)),
        (16, "", (1, 2, 4, 8)),
    ],
)
def test_zooms_are_as_many_as_points_allow_or_as_are_given(
    fleetcount: Callable, deployed: Path, points: int, zooms: str, sides: tuple[int, ...]
) -> None:
    asked = SPEEDS.replace("points = 4\n", f"points = {points}\n")
    # Zooms alone say that quantiles are wanted.
    (deployed / "spec.toml").write_text(asked.replace("[release]\n", "[release]\n" + (zooms or 'show = "quantiles"\n')))
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    assert read_question(deployed / "q.question").question.release.sides == sides
    for side in sides[1:]:
        assert f"{side} points together sd " in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("points", "near"), [(2, "4"), (3, "4"), (5, "4 or 6"), (33, "32 or 34"), (4095, "4094")], ids=str
)
def test_points_that_have_no_zooms_of_halves_are_refused_with_the_nearest_that_have(
    fleetcount: Callable, deployed: Path, points: int, near: str
) -> None:
    asked = SPEEDS.replace("points = 4\n", f"points = {points}\n")
    (deployed / "spec.toml").write_text(asked.replace("[release]\n", '[release]\nshow = "quantiles"\n'))

    ran = fleetcount(*CREATE)

    assert (ran.code, ran.out) == (2, "")
    said = f"quantiles are asked of {points} points, whose halves are no zooms, allowed: {near}; with zooms = 1 they"
    assert f"release.show is 'quantiles': {said}" in ran.error_line


def test_one_zoom_alone_says_nothing_of_what_a_number_is_read_for(fleetcount: Callable, deployed: Path) -> None:
    asked = SPEEDS.replace("points = 4\n", "").replace("[release]\n", "[release]\nzooms = 1\n")
    (deployed / "spec.toml").write_text(asked)
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    question = read_question(deployed / "q.question").question
    assert (question.domain.values, question.release.weighted) == (33, True)


def test_a_yes_no_scale_and_geometric_noise_have_a_mean_too(fleetcount: Callable, deployed: Path) -> None:
    asked = SPEEDS.replace("points = 4\n", "points = 2\n").replace("windows = 2", "windows = 1")
    (deployed / "spec.toml").write_text(asked.replace('delta = "1e-9"\n', 'shares = ["1/4", "3/4"]\n'))
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    design = read_question(deployed / "q.question").question.design
    assert [law.epsilon for law in design.laws] == [Fraction(5, 4), Fraction(15, 4), Fraction(5)]
    assert "by a factor of e^10 at most" in ran.out


def test_points_and_outside_have_defaults(fleetcount: Callable, deployed: Path) -> None:
    short = SPEEDS.replace("points = 4\n", "").replace('outside = "none"\n', "").replace('unit = "km/h"\n', "")
    (deployed / "spec.toml").write_text(short)
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    domain = read_question(deployed / "q.question").question.domain
    assert domain == Numbers(low=Fraction("-0.5"), high=Fraction(130), values=33, unit="", outside=Outside.CLAMP)
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
    ("[release]", '[release]\nshow = "median"', r"release\.show is 'median'; allowed is 'mean' or 'quantiles'"),
    (
        "[release]",
        '[release]\nshow = "mean"\nzooms = 2',
        r"release\.show is 'mean' beside zooms, allowed: show = 'quantiles', or no zooms",
    ),
    (
        "[release]",
        '[release]\nshow = "mean"\ntotal = false',
        r"release\.show is 'mean' without the total, by which the sum is divided, allowed: total = true",
    ),
    (
        "[release]",
        '[release]\nshares = ["1/2", "1/4", "1/4"]',
        r"release\.shares has 3 shares, allowed: one for the cells and the weighted sum",
    ),
    (
        "[release]",
        '[release]\nshow = "quantiles"\nshares = ["1/2", "1/4", "1/4"]',
        r"release\.shares has 3 shares, allowed: one for each of the 2 zooms",
    ),
    ("[release]", "[release]\nzooms = [1, 4]", r"release\.zooms is \[1, 4\]: 4 values together are asked of 4 values"),
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


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (SAMPLED.replace(GRID, NUMBER), "of answers that are not direct, allowed: [question] mode = 'direct'; what"),
        (SPEC, "of answers that are no numbers, allowed: [domain] kind = 'number'"),
    ],
    ids=["coin", "grid"],
)
@pytest.mark.parametrize("show", ["mean", "quantiles"])
def test_what_has_no_mean_of_its_own_is_refused_with_the_reason(
    fleetcount: Callable, deployed: Path, spec: str, said: str, show: str
) -> None:
    asked = spec.replace("windows = 720", "windows = 2").replace("[release]", f'[release]\nshow = "{show}"')
    (deployed / "spec.toml").write_text(asked)

    ran = fleetcount(*CREATE)

    assert (ran.code, ran.out) == (2, "")
    assert f"release.show is '{show}' {said}" in ran.error_line


def test_a_promise_that_the_weighted_sum_cannot_keep_names_the_points(fleetcount: Callable, deployed: Path) -> None:
    asked = SPEEDS.replace("points = 4", "points = 4095").replace('epsilon = "10"', 'epsilon = "1"')
    (deployed / "spec.toml").write_text(asked)

    ran = fleetcount(*CREATE)

    assert (ran.code, ran.out) == (2, "")
    assert "fewer domain.points need less noise" in ran.error_line
