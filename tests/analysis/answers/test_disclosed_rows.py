"""What sets, margins and weighted sums tell is Bayes' rule of the stated model, enumerated count by count."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from fleetcount_analysis.answers import disclosed_rows, shares
from fleetcount_analysis.answers.disclosure import OpenedWindow, most_told, smallest_refused
from fleetcount_analysis.errors import AnalysisError
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from numpy.typing import NDArray
from scipy import special

CELLS, ROWS, TOTAL = (TwoSidedNoise(Fraction(one, 4)) for one in (3, 2, 5))
Counts = NDArray[np.int64]
Chances = NDArray[np.float64]
LARGEST = 90
"""Counts of the enumeration: all others have a probability below 1e-12."""


def designed(levels: Levels, *coarser: NoiseLaw, noise: NoiseLaw = CELLS) -> Design:
    answer = Truth(levels.values, levels.most)
    return Design(answer=answer, noise=noise, values=levels.values, aggregators=2, levels=levels, coarser=coarser)


@lru_cache(maxsize=64)
def law(noise: TwoSidedNoise, terms: int) -> Chances:
    """The law of so many two-sided geometric noises, by convolution, from -1000 to 1000."""
    rate = float(noise.epsilon)
    one = np.tanh(rate / 2) * np.exp(-rate * np.abs(np.arange(-1000, 1001)))
    found = np.zeros(2001)
    found[1000] = 1
    for _ in range(terms):
        found = np.convolve(found, one)[1000:3001]
    return found


def mass(noise: NoiseLaw, seen: int, counts: Counts, terms: int) -> Chances:
    """The chance that counts give a sum of numbers; `counts` may be as far off as the sums of 90 devices are."""
    assert isinstance(noise, TwoSidedNoise)
    return np.asarray(law(noise, terms)[1000 + seen - counts])


def any_between(low: Counts, high: Counts, step: int, chance: Callable[[Counts], Chances]) -> Chances:
    """The chance of a number that is low, low + step, ... or high, each as likely."""
    found, number = np.zeros(low.shape), (high - low) // step + 1
    for place in range(int(number.max())):
        found += np.where(place < number, chance(np.minimum(low + step * place, high)), 0)
    return found / number


def believed(prior: float, chance: Callable[[Counts, Counts], Chances]) -> float:
    """E[y/x] by enumeration of all pairs of counts."""
    x, y = (np.array(one) for one in zip(*((x, y) for x in range(1, LARGEST) for y in range(x + 1)), strict=True))
    a, b = 2 * prior, 2 * (1 - prior)
    weight = special.binom(x, y) * special.beta(y + a, x - y + b) / special.beta(a, b) * chance(x, y)
    return float(np.sum(weight * y / x) / np.sum(weight))


@pytest.mark.parametrize("total", [None, 9, 22])
@pytest.mark.parametrize("most", [2, 3])
def test_a_set_is_read_from_its_cell_the_others_and_the_number_of_holders(most: int, total: int | None) -> None:
    cells = (4, 11, 5)
    levels = Levels(3, total=total is not None, most=most)
    design = designed(levels, *((TOTAL,) if levels.total else ()))

    def chance(x: Counts, y: Counts) -> Chances:
        low, high = x - y, (most - 1) * y + min(most, 2) * (x - y)
        others = any_between(low, high, 1, lambda one: mass(CELLS, 9, one, 4))
        return mass(CELLS, 11, y, 2) * others * (1 if total is None else mass(TOTAL, total, x, 2))

    found = most_told(design, [OpenedWindow(cells=cells, total=total)])

    assert found == pytest.approx(believed((most + 1) / 6, chance), abs=1e-7)


def test_among_participants_a_set_is_read_from_its_cell_and_their_number() -> None:
    design = designed(Levels(3, most=2))
    found = most_told(design, [OpenedWindow(cells=(4, 11, 5), participants=14)])

    wanted = believed(3 / 8, lambda x, y: mass(CELLS, 11, y, 2) * mass(CELLS, 14, x, 2))
    assert found == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("total", [None, 12])
@pytest.mark.parametrize(
    ("cells", "first", "second"),
    [
        ((9, 2, 1, 0, 1, 0), (10, 2), (8, 4, 1)),
        ((4, 5, 5, 1, 0, 1), (7, 8), (2, 4, 5)),  # The two numbers of a dimension's value disagree on the largest.
    ],
)
def test_margins_are_read_with_the_cells_of_their_values(
    cells: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...], total: int | None
) -> None:
    levels = Levels(6, margins=(2, 3), total=total is not None)
    design = designed(levels, ROWS, ROWS, *((TOTAL,) if levels.total else ()))
    columns = np.array(cells).reshape(2, 3)

    def everything(x: Counts) -> Chances:
        return np.ones(x.shape) if total is None else mass(TOTAL, total, x, 2)

    def value(own: int, margin: Sequence[int], sums: Sequence[int], other: Sequence[int]) -> float:
        size, width = len(margin), 6 // len(margin)

        def chance(x: Counts, y: Counts) -> Chances:
            rest = mass(ROWS, sum(margin) - margin[own], x - y, 2 * (size - 1))
            below = mass(CELLS, sum(sums) - sums[own], x - y, 2 * (6 - width))
            group = mass(ROWS, sum(other), x, 2 * len(other)) * everything(x)
            return mass(ROWS, margin[own], y, 2) * mass(CELLS, sums[own], y, 2 * width) * rest * below * group

        return believed(1 / size, chance)

    def cell(x: Counts, y: Counts) -> Chances:
        margins = mass(ROWS, sum(first), x, 4) * mass(ROWS, sum(second), x, 6) * everything(x)
        return mass(CELLS, max(cells), y, 2) * mass(CELLS, sum(cells) - max(cells), x - y, 10) * margins

    rows = [value(one, first, columns.sum(axis=1).tolist(), second) for one in range(2)]
    rows += [value(one, second, columns.sum(axis=0).tolist(), first) for one in range(3)]
    found = most_told(design, [OpenedWindow(cells=cells, rows=(*first, *second), total=total)])

    assert found == pytest.approx(max(*rows, believed(1 / 6, cell)), abs=1e-7)
    assert max(rows) >= believed(1 / 6, cell), "who is in a cell has both of its values"


@pytest.mark.parametrize("total", [None, 12])
@pytest.mark.parametrize("weighted", [-30, -9, 4, 22])
@pytest.mark.parametrize("cells", [(8, 3, 2, 1), (2, 5, 6, 0)])
def test_a_weighted_sum_tells_which_weights_are_many(cells: tuple[int, ...], weighted: int, total: int | None) -> None:
    sums = TwoSidedNoise(Fraction(1, 4))
    levels = Levels(4, weighted=True, total=total is not None)
    design = designed(levels, sums, *((TOTAL,) if levels.total else ()))

    def told(place: int) -> float:
        weights = [-3, -1, 1, 3]
        own = weights.pop(place)

        def chance(x: Counts, y: Counts) -> Chances:
            low, high = min(weights) * (x - y), max(weights) * (x - y)
            of_weights = any_between(low, high, 2, lambda one: mass(sums, weighted, own * y + one, 2))
            rest = mass(CELLS, sum(cells) - cells[place], x - y, 6)
            return mass(CELLS, cells[place], y, 2) * rest * of_weights * everything(x)

        return believed(1 / 4, chance)

    def everything(x: Counts) -> Chances:
        return np.ones(x.shape) if total is None else mass(TOTAL, total, x, 2)

    found = most_told(design, [OpenedWindow(cells=cells, rows=(weighted,), total=total)])

    assert found == pytest.approx(max(told(place) for place in range(4)), abs=1e-7)


def test_cells_beside_a_weighted_sum_that_are_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    design = designed(Levels(6, weighted=True), TwoSidedNoise(Fraction(1, 4)))
    generator = np.random.default_rng(3)
    for _ in range(5):
        cells = tuple(int(one) for one in generator.integers(0, 40, 6))
        window = OpenedWindow(cells=cells, rows=(sum((2 * v - 5) * count for v, count in enumerate(cells)),))
        exact = most_told(design, [window])
        with monkeypatch.context() as few:
            few.setattr(disclosed_rows, "_MOST_CELLS", 1)
            bound = most_told(design, [window])
        assert 0 < (exact or 0) <= (bound or 0) <= 1


def test_numbers_that_contradict_each_other_still_tell_what_the_cells_tell() -> None:
    weighted = designed(Levels(3, weighted=True), TwoSidedNoise(Fraction(1, 2)))
    sets = designed(Levels(3, most=2, total=True), TOTAL)

    assert (most_told(weighted, [OpenedWindow(cells=(90, 0, 0), rows=(10**6,))]) or 0) > 0.9
    assert (most_told(sets, [OpenedWindow(cells=(90, 10**6, 10**6), total=10**6)]) or 0) > 0.9
    # More devices with a value than devices with any: no counts can have given these.
    assert most_told(sets, [OpenedWindow(cells=(90, 0, 10**6), total=100)]) == 1


def test_the_mean_tells_of_a_value_whose_number_is_not_the_largest() -> None:
    # Twelve devices' weights are worth ten at the last value: so most are there, whichever cell's number is larger.
    design = designed(Levels(3, weighted=True), TwoSidedNoise(Fraction(2)), noise=TwoSidedNoise(Fraction(1, 10)))
    beside = most_told(design, [OpenedWindow(cells=(13, 0, 12), rows=(22,))]) or 0
    alone = most_told(designed(Levels(3), noise=TwoSidedNoise(Fraction(1, 10))), [OpenedWindow(cells=(13, 0, 12))]) or 0

    assert beside > alone + 0.1


@pytest.mark.parametrize(
    "design",
    [
        designed(Levels(8, most=3, total=True), GaussianNoise(Fraction(9)), noise=GaussianNoise(Fraction(30))),
        designed(Levels(8, margins=(2, 4)), ROWS, ROWS),
        designed(Levels(8, weighted=True, total=True), TwoSidedNoise(Fraction(1, 20)), TOTAL),
    ],
    ids=["sets", "margins", "mean"],
)
def test_two_windows_tell_more_and_plans_say_from_which_group_on(design: Design) -> None:
    truth = (60, 2, 1, 0, 1, 0, 0, 1)
    total = [sum(truth)] if design.levels.total and design.levels.most > 1 else []
    window = OpenedWindow.of(design, design.levels.all_sums([*truth, *total]))
    once, twice = most_told(design, [window]) or 0, most_told(design, [window, window]) or 0
    size = smallest_refused(design, Fraction(17, 20))

    assert 0.7 < once <= twice <= 1
    assert size is not None
    assert 2 < size < 100


def in_steps(design: Design, window: OpenedWindow, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """What is believed over all counts, and over a few dozen."""
    exact = most_told(design, [window]) or 0
    with monkeypatch.context() as few:
        few.setattr(shares, "_MOST_STEPS", 32)
        return exact, most_told(design, [window]) or 0


@pytest.mark.parametrize("levels", [Levels(30), Levels(30, most=2, total=True)], ids=["values", "sets"])
def test_counts_in_steps_make_a_value_that_nobody_may_have_no_likelier(
    levels: Levels, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beforehand few have a value of 30, so that 0 is far likelier than 1: it must not stand for its neighbours.
    noise, total = GaussianNoise(Fraction(1600)), (GaussianNoise(Fraction(900)),) * levels.total
    window = OpenedWindow(cells=(180, *(0,) * 29), participants=None if total else 200, total=200 if total else None)

    exact, found = in_steps(designed(levels, *total, noise=noise), window, monkeypatch)

    assert 0.3 < exact < 0.5
    assert exact <= found < exact + 0.003


@pytest.mark.parametrize("total", [1200, 1205, 1211, 1217])
@pytest.mark.parametrize("beside", ["nothing", "margins", "a weighted sum"])
def test_a_total_that_tells_more_than_the_cells_is_missed_by_no_step(
    beside: str, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, sharp, wide = (GaussianNoise(Fraction(one)) for one in (900, 1, 400_000))
    margins = (2, 3) if beside == "margins" else ()
    levels = Levels(6, margins=margins, weighted=beside == "a weighted sum", total=True)
    rows = {"nothing": (), "margins": (800, 400, 700, 300, 200), "a weighted sum": (0,)}[beside]
    laws = {"nothing": (), "margins": (noise, noise), "a weighted sum": (wide,)}[beside]
    design = designed(levels, *laws, sharp, noise=noise)

    exact, found = in_steps(
        design, OpenedWindow(cells=(700, 100, 100, 50, 50, 200), rows=rows, total=total), monkeypatch
    )

    assert exact <= found < exact + 0.003


def test_records_of_many_cells_are_read_within_a_second_or_two() -> None:
    for design in (
        designed(Levels(1000, most=8, total=True), TOTAL),
        designed(Levels(1000, margins=(20, 50)), ROWS, ROWS),
        designed(Levels(1000, weighted=True), TwoSidedNoise(Fraction(1, 4000))),
    ):
        numbers = [one % 7 for one in range(design.levels.opened)]
        assert 0 <= (most_told(design, [OpenedWindow.of(design, numbers)]) or 0) <= 1


@pytest.mark.parametrize(
    "window", [OpenedWindow(cells=(1,) * 4), OpenedWindow(cells=(1,) * 4, rows=(1, 2, 3)), OpenedWindow(cells=(1,) * 3)]
)
def test_other_numbers_than_the_design_opens_are_refused(window: OpenedWindow) -> None:
    with pytest.raises(AnalysisError):
        most_told(designed(Levels(4, margins=(2, 2)), ROWS, ROWS), [window])


def test_a_weighted_sum_with_noise_too_wide_is_refused() -> None:
    design = designed(Levels(4, weighted=True), TwoSidedNoise(Fraction(1, 10**6)))
    with pytest.raises(AnalysisError, match="the noise of a weighted sum reaches"):
        most_told(design, [OpenedWindow(cells=(9, 9, 9, 9), rows=(0,))])


def test_a_value_with_both_numbers_above_another_s_is_believed_more() -> None:
    design = designed(Levels(4, margins=(2, 2)), ROWS, ROWS)
    low = OpenedWindow(cells=(8, 1, 1, 0), rows=(8, 4, 6, 6))
    high = OpenedWindow(cells=(9, 1, 0, 0), rows=(9, 3, 6, 6))
    assert (most_told(design, [low]) or 0) < (most_told(design, [high]) or 0)
