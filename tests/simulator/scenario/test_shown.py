"""A scenario asks for the mean or the quantiles of a number: its levels, its noise, and what is refused in one line."""

from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_mechanisms.accounting.question_losses import question_losses
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.statement import epsilon_of
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case
from fleetcount_simulator.populations import build
from fleetcount_simulator.scenario.file import parse_scenario
from fleetcount_simulator.study.statements import statement_of

SPEEDS = """
name = "speeds"
seed = 1

[population]
kind = "bologna"
start_s = 2400
devices = 50

[question]
cells = "number"
low_kmh = 0
high_kmh = 120
points = 9

[[mechanism]]
kind = "direct"
"""


def asked(lines: str, mechanism: str = "direct", **changes: str) -> Case:
    """Return the first case of the scenario with these lines in its mechanism, and other lines of other keys."""
    text = SPEEDS.replace('"direct"', f'"{mechanism}"')
    for key, line in changes.items():
        old = next(one for one in text.splitlines() if one.startswith(f"{key} ="))
        text = text.replace(old, line)
    return parse_scenario(text + lines, "speeds.toml", Path.cwd(), build).case(0)


def test_a_mean_opens_the_weighted_sum_and_the_total_with_their_part_of_the_budget() -> None:
    case = asked('show = "mean"\nnoise_variance = 1000')

    design = case.design
    assert (design.levels.weighted, design.levels.total, design.levels.sides) == (True, True, (1,))
    cells, weighted, _ = design.laws
    # 31/32 of the budget, of a number that moves by 2 * 8 where two cells move by 1.
    assert weighted.draw_variance / cells.draw_variance == pytest.approx(16**2 / 2 / 31)


def test_quantiles_open_zooms_of_halves_or_those_that_are_asked_for() -> None:
    halves = asked('show = "quantiles"\nnoise_epsilon = 1', points="points = 16").design
    two = asked('show = "quantiles"\nnoise_epsilon = 1\nzooms = 2', points="points = 16").design

    assert (halves.levels.sides, halves.levels.total) == ((1, 2, 4, 8), True)
    assert (two.levels.sides, two.levels.total) == ((1, 2), True)
    assert float((halves.laws[0].epsilon or 0) / (halves.laws[1].epsilon or 1)) == pytest.approx(1 / 0.7, rel=0.01)


@pytest.mark.parametrize("show", ["mean", "quantiles"])
def test_the_noise_of_all_levels_together_keeps_the_epsilon_of_a_release(show: str) -> None:
    case = asked(f'show = "{show}"\nepsilon = "1/2"', points="points = 8")

    lost = epsilon_of(case.design)
    assert lost is not None
    assert 0.499 < lost <= 0.5
    assert statement_of(case)[0].epsilon == lost


@pytest.mark.parametrize(("noise", "law"), [("gaussian", GaussianNoise), ("geometric", TwoSidedNoise)])
@pytest.mark.parametrize("show", ["mean", "quantiles"])
def test_the_noise_of_all_levels_together_keeps_the_promise_of_a_question(show: str, noise: str, law: type) -> None:
    schedule = "\n[schedule]\nwindows = 3\nevery_s = 60\nstart_s = 2400\nepsilon = 4\n"

    case = asked(f'show = "{show}"\nnoise = "{noise}"\n{schedule}', points="points = 8")

    question = case.epochs.question
    assert question is not None
    assert isinstance(case.design.noise, law)
    whole = question_losses(case.design, question.shape, question.delta).whole_question
    assert Fraction(38, 10) < whole <= 4


def test_what_a_number_is_asked_for_is_an_axis() -> None:
    text = SPEEDS.replace("points = 9", "points = 10") + 'epsilon = 1\nshow = ["mean", "quantiles"]'

    scenario = parse_scenario(text, "speeds.toml", Path.cwd(), build)

    assert [scenario.case(place).design.levels.weighted for place in (0, 1)] == [True, False]
    assert scenario.axes == ("mechanism.show",)


@pytest.mark.parametrize(
    ("lines", "changes", "said"),
    [
        ('show = "median"\nepsilon = 1', {}, r"mechanism\[0\]\.show is 'median'; allowed is 'mean' or 'quantiles'"),
        ("show = true\nepsilon = 1", {}, r"mechanism\[0\]\.show is true"),
        (
            'show = "mean"\nepsilon = 1',
            {"cells": 'cells = "none"', "low_kmh": "", "high_kmh": "", "points": ""},
            r"mechanism\[0\]\.show is 'mean' of answers that are no numbers, allowed: question\.cells = 'number'",
        ),
        (
            'show = "quantiles"\nepsilon = 1',
            {"mechanism": "sampling"},
            r"show is 'quantiles' of answers that are not direct, allowed: kind = 'direct'",
        ),
        (
            'show = "mean"\nepsilon_local = 1',
            {"mechanism": "k-ary"},
            r"show is 'mean' of answers that are not direct, allowed: kind = 'direct'",
        ),
        (
            'show = "mean"\nepsilon = 1',
            {"mechanism": "one-sided"},
            r"show is 'mean' of one-sided counts, allowed: kind = 'direct'",
        ),
        ('show = "mean"\nepsilon = 1\nzooms = 2', {}, r"show is 'mean' beside zooms, allowed: show = 'quantiles'"),
        (
            'show = "quantiles"\nepsilon = 1',
            {},
            r"show is 'quantiles' of 9 points: .* whose halves are no zooms, allowed: 8 or 10",
        ),
        (
            'show = "quantiles"\nepsilon = 1\nzooms = 2',
            {},
            r"show is 'quantiles' of 9 points: 2 values together are asked of 9 values in order",
        ),
        ('show = "mean"\nnoise_sd = 2\nmargins = true', {}, r"margins and show are both given"),
        (
            'show = "mean"\nnoise_sd = 5000',
            {"points": "points = 4095"},
            r"show is 'mean' of 4095 points: noise variance is .*; fewer question\.points, or more epsilon, need less",
        ),
        ('show = "mean"\nnoise_epsilon = "none"', {}, r"noise_epsilon is 'none'; allowed is a number"),
        ('show = "mean"\nepsilon = nan', {}, r"mechanism\[0\]\.epsilon is .*NaN"),
        ('show = "mean"\nepsilon = 1', {"low_kmh": "low_kmh = nan"}, r"question\.low_kmh is .*NaN"),
        ('show = "mean"\nepsilon = 1', {"low_kmh": "low_kmh = 120"}, r"question\.low_kmh is 120; allowed is a number"),
        ('show = "mean"\nepsilon = 1', {"points": "points = 5000"}, r"question\.points is 5000; allowed.* 2 to 4095"),
    ],
    ids=[
        *("another-word", "no-word", "no-number", "coin", "response", "one-sided", "zooms", "no-halves", "odd-zooms"),
        *("margins", "points", "no-noise", "epsilon-nan", "low-nan", "low-is-high", "too-many-points"),
    ],
)  # fmt: skip
def test_what_a_number_cannot_show_is_refused_in_one_line_by_file_key_and_value(
    lines: str, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(ScenarioError, match=rf"^speeds\.toml line \d+: .*{said}") as refused:
        asked(lines, **changes)

    assert "\n" not in str(refused.value)


def test_attackers_who_read_cells_are_refused() -> None:
    liars = '\n[[attacker]]\nkind = "liars"\ndevices = 3\nstrategy = "one-cell"\nvalue = 2\n'

    with pytest.raises(ScenarioError, match="show is 'mean', allowed with no attackers, who read cells alone"):
        _ = asked(f'show = "mean"\nepsilon = 1\n{liars}').design
