"""A question for several signals at the command line: created, explained, and refused by key."""

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from fleetcount.question.files import read_question
from fleetcount_mechanisms.statement import views_of
from fleetcount_protocol.question.question import Question
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


def asked_for(fleetcount: Callable, deployed: Path, text: str) -> tuple[Question, str]:
    """Return the question of a file, and what create said."""
    (deployed / "spec.toml").write_text(text)
    (deployed / "q.question").unlink(missing_ok=True)
    ran = fleetcount(
        "question", "create", "--spec", "spec.toml", "--output", f"{len(list(deployed.iterdir()))}.question"
    )
    assert ran.code == 0, ran.err
    made = re.findall(r"wrote (\S+\.question)", ran.out)[0]
    return read_question(deployed / made).question, " ".join(ran.out.split())


def test_a_cross_opens_its_margins_and_a_free_total_unless_it_is_told_not_to(
    fleetcount: Callable, deployed: Path
) -> None:
    one, said = asked_for(fleetcount, deployed, MOVING)
    none, _ = asked_for(fleetcount, deployed, MOVING.replace("[release]", "[release]\nmargins = false"))
    bare, _ = asked_for(fleetcount, deployed, MOVING.replace("[release]", "[release]\nmargins = false\ntotal = false"))
    shared, _ = asked_for(
        fleetcount,
        deployed,
        MOVING.replace("[release]", '[release]\nkind = "gaussian"\nshares = ["1/2", "1/4", "1/4"]'),
    )

    assert (one.design.levels.margins, one.design.levels.total) == ((2, 2), True)
    assert (none.design.levels.margins, none.design.levels.total) == ((), True)
    assert bare.design.levels.count == 1
    # Geometric noise adds up: the cells of a third of the budget have a third of the epsilon; the total is free.
    assert abs(float(one.design.noise.epsilon / bare.design.noise.epsilon) - 1 / 3) < 1e-5
    assert [float(law.epsilon / one.design.noise.epsilon) for law in one.design.coarser] == [1, 1, 3]
    losses = [max(view.epsilon for view in views_of(each.design) if view.epsilon) for each in (one, none, bare)]
    assert all(0 <= 10 - loss < Decimal("1e-4") for loss in losses)
    # A quarter of the budget has twice the variance of a half.
    assert [law.variance / shared.design.noise.variance for law in shared.design.coarser] == [2, 2, Fraction(1, 2)]
    assert "the margin of each signal has numbers of its own; the total of all cells has a number of its own" in said


SAMPLED = MOVING.replace('mode = "direct"', 'mode = "sampling"')


def test_under_a_coin_margins_are_sums_of_cells(fleetcount: Callable, deployed: Path) -> None:
    asked, _ = asked_for(fleetcount, deployed, SAMPLED)

    assert asked.design.levels.margins == ()


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
    ("[release]", "[release]\nzooms = 2", r"release\.zooms is 2: zooms are asked of Cross"),
    (
        "[release]",
        '[release]\nshares = ["1/2", "1/2"]',
        r"release\.shares has 2 shares, allowed: one for the cells and",
    ),
    ("[release]", '[release]\nmargins = "yes"', r"release\.margins is 'yes'; allowed is true or false"),
    (
        'mode = "direct"\n',
        'mode = "sampling"\n',
        r"release\.margins is true for answers that are not direct, allowed: .* a margin is the sum of its cells",
    ),
    (
        'mode = "direct"\n',
        'mode = "response"\n',
        r"release\.margins is true for answers that are not direct, allowed: .* a margin is the sum of its cells",
    ),
    (
        "[release]",
        '[release]\nkind = "one-sided"\nthresholds = [1, 1, 1, 1]',
        r"release\.margins is true for one-sided or exact counts",
    ),
    ('names = ["true", "false"]', 'names = ["true"]', r"release\.margins is true beside a signal with a single value"),
    (
        CROSS,
        CROSS[: CROSS.index("[[")].replace("cross", "categories") + 'names = ["a", "b"]\n',
        r"release\.margins is true",
    ),
]
ASKED = MOVING.replace("[release]", "[release]\nmargins = true").replace(
    "[[aggregators]]", "[mechanism]\n[[aggregators]]", 1
)


def test_a_wrong_cross_is_refused_in_one_line_by_file_key_and_value(fleetcount: Callable, deployed: Path) -> None:
    for old, new, said in WRONG:
        with case(new[:80]):
            text = MOVING if "margins" not in said or "margins =" in new else ASKED
            assert old in text
            text = text.replace(old, new)
            if "one signal" in new or 'kind = "categories"\nnames' in new:
                text = text.replace("[question]", "[question]\n" + SIGNAL)
            if "response" in new:
                text = text.replace("[mechanism]", '[mechanism]\nkind = "k-ary"\nepsilon_local = 1')
            (deployed / "spec.toml").write_text(text)

            ran = fleetcount(*CREATE)

            assert (ran.code, ran.out) == (2, "")
            assert re.match(rf"fleetcount question: spec\.toml(?: line [0-9]+)?: {said}", ran.error_line), (
                ran.error_line
            )
            assert sorted(path.name for path in deployed.iterdir()) == ["dep", "spec.toml"]
