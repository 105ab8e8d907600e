"""What a record tells is Bayes' rule of the stated model, of its largest cell, for noise of either kind."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers import shares
from fleetcount_analysis.answers.disclosure import OpenedWindow, most_told, smallest_refused
from fleetcount_analysis.answers.metering import RatioAnswer, meter
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.errors import AnalysisError
from fleetcount_mechanisms.answers import answer_named
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import KaryResponse
from scipy import special, stats

from tests.analysis.answers.samples import direct, sampling

HALF = TwoSidedNoise(Fraction(1, 2))
UP = OneSidedNoise(Fraction(1, 2))


def mass(noise: NoiseLaw, seen: int, count: int, terms: int) -> float:
    if isinstance(noise, OneSidedNoise):
        sign = 1 if noise.direction == "up" else -1
        return float(stats.nbinom.pmf(sign * (seen - count), terms, -math.expm1(-float(noise.epsilon))))
    return float(np.exp(noise_sum(Fraction(1, 2), terms).log_mass(np.array([seen - count])))[0])


@pytest.mark.parametrize(
    ("noise", "opened"),
    # One-sided counts have no total.
    [(HALF, None), (HALF, 20), (HALF, 33), (UP, None), (OneSidedNoise(Fraction(1, 2), "down"), None)],
)
def test_the_posterior_is_bayes_rule_over_the_largest_cell_the_others_and_their_total(
    noise: NoiseLaw, opened: int | None
) -> None:
    """Three cells, two aggregators: a share with a mean of 1/3 and the weight of two devices."""
    a, b = 2 / 3, 4 / 3
    total = wanted = 0.0
    others = [mass(noise, 5, count, 4) for count in range(120)]
    for y in range(120):
        one = mass(noise, 19, y, 2)
        for rest in range(120):
            x = y + rest
            if one > 1e-15 and x:
                share = special.binom(x, y) * special.beta(y + a, rest + b) / special.beta(a, b)
                part = one * others[rest] * share * (1 if opened is None else mass(noise, opened, x, 2))
                total, wanted = total + part, wanted + part * y / x

    design = direct(3, noise)
    if opened is not None:
        design = replace(design, levels=Levels(3, total=True), coarser=(noise,))
    found = most_told(design, [OpenedWindow(cells=(2, 19, 3), total=opened)])

    assert found == pytest.approx(wanted / total, abs=1e-8)


def test_the_number_of_participants_is_the_group_where_it_is_told() -> None:
    """One value against none: the meter of two answers itself, with a prior of a half."""
    answer = RatioAnswer(group=60, sensitive=57)
    wanted = meter(Fraction(1, 2), [answer], HALF, 2, largest=Fraction(9, 10)).posterior

    assert most_told(direct(1, HALF), [OpenedWindow(cells=(57,), participants=60)]) == pytest.approx(wanted, abs=1e-8)
    assert most_told(direct(1, HALF), [OpenedWindow(cells=(57,))]) is None


@pytest.mark.parametrize("noise", [HALF, UP, GaussianNoise(Fraction(9))])
def test_the_cell_with_the_largest_number_tells_most(noise: NoiseLaw) -> None:
    generator, compared = np.random.default_rng(5), 0
    for _ in range(10):
        cells = [int(one) for one in generator.integers(0, 30, 4)]
        most = most_told(direct(4, noise), [OpenedWindow(cells=tuple(cells))])
        assert most is not None
        for cell in cells:
            # What a cell tells does not depend on which of the others hold the rest: spread evenly, it is the largest.
            rest = sum(cells) - cell
            even = (rest - 2 * (rest // 3), rest // 3, rest // 3)
            if max(even) <= cell < max(cells):
                assert (most_told(direct(4, noise), [OpenedWindow(cells=(cell, *even))]) or 0) < most
                compared += 1
    assert compared >= 5


def test_two_windows_tell_more_than_one_and_a_change_of_place_less() -> None:
    last, same, moved = (OpenedWindow(cells=cells) for cells in ((40, 1), (41, 0), (0, 41)))

    alone, again, changed = (most_told(direct(2, HALF), [*before, last]) or 0 for before in ([], [same], [moved]))

    assert again > alone
    assert changed == alone, "the largest of the last window alone and of both"


@pytest.mark.parametrize("noise", [TwoSidedNoise(Fraction(1, 40)), OneSidedNoise(Fraction(1, 40))])
@pytest.mark.parametrize("cells", [(900, 400, 350), pytest.param((9000, 300, 600), marks=pytest.mark.nightly)])
def test_counting_in_steps_changes_less_than_it_is_raised(
    noise: NoiseLaw, cells: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    coarse = most_told(direct(3, noise), [OpenedWindow(cells=cells)])
    monkeypatch.setattr(shares, "_MOST_STEPS", 1 << 12)
    fine = most_told(direct(3, noise), [OpenedWindow(cells=cells)])

    assert coarse is not None
    assert fine is not None
    assert fine <= coarse <= fine + 2e-3


@pytest.mark.parametrize("noise", [HALF, OneSidedNoise(Fraction(1, 10)), GaussianNoise(Fraction(42))])
def test_a_plan_says_from_which_group_on_a_typical_record_is_refused(noise: NoiseLaw) -> None:
    largest, design = Fraction(17, 20), direct(3, noise)
    size = smallest_refused(design, largest)
    assert size is not None

    def told(group: int) -> float:
        cell, mean = math.ceil(Fraction(19, 20) * group), 2 * Fraction(noise.mean)
        rest = round(Fraction(group - cell, 2) + mean)
        return most_told(design, [OpenedWindow(cells=(round(cell + mean), rest, rest))]) or 0

    assert told(size) > largest >= told(size - 1)
    assert told(2 * size) > largest
    assert smallest_refused(design, Fraction(99, 100)) is None, "19 in 20 are never believed to be 99 in 100"
    assert smallest_refused(direct(1, noise), largest) is None
    with pytest.raises(AnalysisError, match="largest posterior is 1"):
        smallest_refused(design, Fraction(1))


@pytest.mark.parametrize("name", ["k-ary", "unary", "mangat-vector"])
def test_no_record_of_randomized_answers_is_refused(name: str) -> None:
    answer = answer_named(name, 3, epsilon_local=Fraction(1))
    noised = Design(answer=answer, noise=HALF, values=3, aggregators=2)

    assert most_told(noised, [OpenedWindow.of(noised, (90, 1, 1))]) is None
    assert smallest_refused(noised, Fraction(9, 10)) is None


def test_what_a_record_does_not_tell_is_not_measured() -> None:
    response = KaryResponse(Fraction(1, 2), 2)
    noised = Design(answer=response, noise=HALF, values=2, aggregators=2)
    assert most_told(noised, [OpenedWindow(cells=(5, 5))]) is None
    exact = Design(answer=sampling(2).answer, noise=NoNoise(), values=2, aggregators=2)
    assert most_told(exact, [OpenedWindow(cells=(5, 5))]) is None
    assert most_told(direct(2, UP), [OpenedWindow(cells=(0, 0))]) is None, (
        "noise that only adds shows that nobody is there"
    )
    assert most_told(sampling(2), [OpenedWindow(cells=(90, 1))]) == most_told(direct(2), [OpenedWindow(cells=(90, 1))])


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ([], "one window or more of 2"),
        ([OpenedWindow(cells=(1,))], r"\[1\] cells"),
        ([OpenedWindow(cells=(1, 2)), OpenedWindow(cells=(1, 2), participants=3)], "all or none"),
        ([OpenedWindow(cells=(1, 10**13))], "in size"),
        ([OpenedWindow(cells=(1, 2), total=3)], "without a total; allowed is none"),
    ],
)
def test_bad_windows_are_refused(windows: list[OpenedWindow], words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        most_told(direct(2), windows)
