"""Several categories of one vehicle at once, from a specification to the table of a release."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.question.files import read_question
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_protocol.window.domain import Categories

from tests.cli.test_question_files import CREATE, SPEC

GRID = SPEC[SPEC.index("[domain]") : SPEC.index("[schedule]")]
NAMES = '["P0301", "P0420", "U0100", "B1000", "C0035"]'
SETS = SPEC.replace(GRID, f'[domain]\nkind = "categories"\nnames = {NAMES}\nat_once = 2\n')


@pytest.fixture
def deployed(deployed: Path) -> Path:
    (deployed / "spec.toml").write_text(SETS)
    return deployed


def test_a_question_of_sets_has_noise_for_all_that_a_set_moves_and_a_free_number_of_holders(
    fleetcount: Callable, deployed: Path
) -> None:
    created = fleetcount(*CREATE)
    assert created.code == 0, created.err
    sets = read_question(deployed / "q.question").question
    (deployed / "spec.toml").write_text(SETS.replace("at_once = 2\n", ""))
    assert fleetcount(*CREATE[:-1], "one.question").code == 0
    one = read_question(deployed / "one.question").question

    assert isinstance(sets.domain, Categories)
    assert (sets.domain.most, one.domain) == (2, Categories(names=sets.domain.names))
    assert isinstance(sets.design.noise, GaussianNoise)
    assert isinstance(one.design.noise, GaussianNoise)
    # Four of five numbers move, where one value that becomes another moves two; steps of 1/1024 apart.
    assert abs(sets.design.noise.variance / one.design.noise.variance - 2) < Fraction(1, 100)
    assert sets.design.coarser[0].draw_variance == pytest.approx(sets.design.noise.draw_variance / 2, rel=1e-3)
    said = " ".join(created.out.split())
    assert "a vehicle tells up to 2 categories at once; one that has more tells 2 of them, drawn anew each time" in said
    assert "the number of vehicles that told any has a number of its own" in said


@pytest.mark.parametrize(
    ("at_once", "name"), [(1, "total"), (1, "all cells together"), (2, "told any"), (2, "vehicles that told any")]
)
def test_no_total_is_opened_beside_a_category_that_is_called_as_it_is_printed(
    fleetcount: Callable, deployed: Path, at_once: int, name: str
) -> None:
    text = SETS.replace("at_once = 2", f"at_once = {at_once}").replace("C0035", name)
    (deployed / "spec.toml").write_text(text)

    assert fleetcount(*CREATE).code == 0
    assert not read_question(deployed / "q.question").question.design.levels.total
    (deployed / "spec.toml").write_text(text.replace("[release]", "[release]\ntotal = true"))
    refused = fleetcount(*CREATE[:-1], "asked.question")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert f"release.total is true beside a category of its name, '{name}', allowed: other names" in refused.error_line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("at_once = 2", "at_once = 6"), "domain.at_once is 6: a device has up to 6 categories, allowed: 1 to 5"),
        (("at_once = 2", "at_once = 0"), "domain.at_once is 0"),
        (("at_once = 2", 'at_once = "two"'), "domain.at_once"),
        (('mode = "direct"', 'mode = "sampling"'), "domain.at_once is 2; allowed is 1 outside direct mode"),
        (("at_once = 2", "at_once = 5\n[release]\ntotal = true"), "it would have a price of its own"),
        (("[release]", '[release]\nkind = "one-sided"'), "one-sided noise is on sets of values"),
        (("[release]", "[release]\nzooms = 2"), "release.zooms"),
    ],
)
def test_sets_that_cannot_be_are_refused_by_key(
    fleetcount: Callable, deployed: Path, change: tuple[str, str], said: str
) -> None:
    text = SETS.replace(*change)
    if text.count("[release]") > 1:
        text = text.replace("total = true\n", "").replace("[release]\n[schedule]", "[schedule]")
        text = text.replace("at_once = 5\n[release]\n", "at_once = 5\n").replace("[release]", "[release]\ntotal = true")
    if 'mode = "sampling"' in text:
        text = text.replace("[release]", '[mechanism]\nsampling_rate = "1/4"\n[release]')
    (deployed / "spec.toml").write_text(text)

    refused = fleetcount(*CREATE)

    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert said in refused.error_line
    assert not (deployed / "q.question").exists()
