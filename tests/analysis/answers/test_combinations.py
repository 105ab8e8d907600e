"""Sums and differences of a table: the right channel for each question, and refusals that name what is wrong."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.chosen import all_at_once
from fleetcount_analysis.answers.combinations import difference, sums_of, total, totals_at_once
from fleetcount_analysis.answers.table import QuestionTable, Region, WindowCounts, question_table
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.errors import AnalysisError, RangeError, ShapeError
from fleetcount_analysis.intervals import response_intervals, sum_interval, unary_ends
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import OneSidedNoise
from fleetcount_mechanisms.responses import KaryResponse, MangatVector
from numpy.typing import NDArray

from tests.analysis.answers.samples import LEVEL, NOISE, direct, random_table, sampling, table_of
from tests.support.designs import design_name, every_design

ROWS = [[40, 3, 0, 17], [44, 5, -2, 30], [51, 1, 4, 12]]


def test_a_direct_sum_has_the_noises_of_all_its_counts() -> None:
    answer = total(table_of(direct(), ROWS), Region.of([1, 4], [0, 2]))

    reach = noise_sum(Fraction(1, 2), 8).central_reach(0.025)
    assert (answer.estimate, answer.low, answer.high) == (120, 120 - reach, 120 + reach)
    assert (answer.level, answer.together, answer.assumes) == (LEVEL, 1, "")


def test_a_sampled_sum_of_one_window_is_the_interval_of_sums() -> None:
    answer = total(table_of(sampling(), ROWS), Region.of([1, 2, 4], 1))

    assert answer.estimate == 4 * 79
    assert (answer.low, answer.high) == sum_interval([44, 5, 30], Fraction(1, 4), Fraction(1, 2), 2, LEVEL)


def test_windows_with_a_toss_each_add_up_to_one_channel() -> None:
    answer = total(table_of(sampling(), ROWS), Region.of(1, [0, 1, 2]))

    assert (answer.low, answer.high) == sum_interval([40, 44, 51], Fraction(1, 4), Fraction(1, 2), 2, LEVEL)


def test_a_shared_toss_widens_a_sum_and_a_stated_bound_narrows_it_again() -> None:
    fresh, shared = (table_of(sampling(), ROWS, unit) for unit in (1, 3))
    region = Region.of(1, [0, 1, 2])

    wide, stated = total(shared, region), total(shared, region, seen_at_most=1)

    own = total(fresh, region)
    assert wide.high - wide.low > 1.3 * (own.high - own.low)
    assert (stated.low, stated.high) == (own.low, own.high)
    assert stated.assumes == "no device is counted in more than 1 windows of one unit"
    assert total(shared, region, seen_at_most=3) == wide


def test_a_difference_of_windows_may_be_negative() -> None:
    answer = difference(table_of(direct(), ROWS), Region.of(4, 2), Region.of(4, 1))

    reach = noise_sum(Fraction(1, 2), 4).central_reach(0.025)
    assert (answer.estimate, answer.low, answer.high) == (-18, -18 - reach, -18 + reach)


def test_a_difference_under_one_toss_is_that_of_two_unless_devices_are_known_to_stay() -> None:
    fresh, shared = (table_of(sampling(), ROWS, unit) for unit in (1, 3))
    pair = Region.of(1, 1), Region.of(1, 0)

    own, wide, stated = (
        difference(fresh, *pair),
        difference(shared, *pair),
        difference(shared, *pair, stayed_at_least=120),
    )

    assert wide.low <= own.low
    assert own.high <= wide.high
    assert stated.high - stated.low < own.high - own.low
    assert stated.assumes == "at least 120 devices are counted in both"


def test_differences_of_a_window_with_itself_reflect() -> None:
    table = random_table(sampling())
    forth, back = (difference(table, Region.of(one, 3), Region.of(other, 3)) for one, other in ((1, 2), (2, 1)))

    assert (forth.low, forth.high) == (-back.high, -back.low)


def test_regions_of_one_cell_read_as_the_record_does() -> None:
    kary = Design(answer=KaryResponse(Fraction(1, 2), 4), noise=NOISE, values=4, aggregators=2)
    outputs = [300, 80, 120, 90, 210]
    one = total(table_of(kary, [outputs]), Region.of(2, 0))
    assert (one.low, one.high) == response_intervals(outputs, kary.answer, Fraction(1, 2), 2, LEVEL)[1]

    bits = Design(answer=MangatVector(Fraction(1, 3), 4), noise=NOISE, values=4, aggregators=2)
    opened = [300, 110, 130, 100, 120]
    one = total(table_of(bits, [opened]), Region.of(2, 0))
    bits, devices = np.array(opened[1:]), np.array([300])
    low, high = unary_ends(bits, devices, Fraction(1), Fraction(1, 3), Fraction(1, 2), 2, LEVEL)
    assert (one.low, one.high) == (low[1], high[1])


def test_all_cells_of_a_response_are_the_devices_less_those_without_a_value() -> None:
    kary = Design(answer=KaryResponse(Fraction(1, 2), 4), noise=NOISE, values=4, aggregators=2)
    table = table_of(kary, [[300, 80, 120, 90, 210]])

    everything = total(table, table.everything)

    assert everything.estimate == pytest.approx(float(table.estimates.sum()))
    assert everything.high - everything.low < sum((table.high - table.low).ravel())


def test_one_sided_sums_are_never_wrong_on_their_side() -> None:
    table = table_of(direct(noise=OneSidedNoise(Fraction(1, 2))), ROWS)

    answer = total(table, Region.of([1, 4], 0))

    assert answer.high == 57
    assert answer.low < 57
    assert difference(table, Region.of(1, 1), Region.of(1, 0)).low < 4


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
@pytest.mark.parametrize(("later", "earlier"), [([1], [1, 2, 3]), ([2, 3], [4]), ([1, 2], [3, 4])])
def test_differences_of_one_sided_sums_have_the_exact_law(up: bool, later: list[int], earlier: list[int]) -> None:
    noise = OneSidedNoise(Fraction(1, 2), "up" if up else "down")
    table = table_of(direct(noise=noise), ROWS)

    answer = difference(table, Region.of(later, 1), Region.of(earlier, 0))

    # By adding draws one by one, without the negative binomial's own functions.
    geometric = (1 - np.exp(-0.5)) * np.exp(-0.5 * np.arange(400))
    law = np.ones(1)
    for _ in range(2 * len(later)):
        law = np.convolve(law, geometric)
    for _ in range(2 * len(earlier)):
        law = np.convolve(law, geometric[::-1])
    added = (np.arange(law.size) - 2 * len(earlier) * 399) * (1 if up else -1)
    value = sum(ROWS[1][cell - 1] for cell in later) - sum(ROWS[0][cell - 1] for cell in earlier)
    inside = [d for d in range(value - 150, value + 151) if min(_tails(law, added, value - d)) > 0.025]
    assert (answer.low, answer.high) == (inside[0], inside[-1])


def _tails(law: NDArray[np.float64], added: NDArray[np.int64], noise: int) -> tuple[float, float]:
    return float(law[added >= noise].sum()), float(law[added <= noise].sum())


@pytest.mark.parametrize("design", every_design((2,)), ids=design_name)
def test_every_design_is_added_up_and_compared(design: Design) -> None:
    table = random_table(design, windows=2)

    if len(set(design.told_as)) > 1:
        with pytest.raises(RangeError, match="3 ways to be told; allowed is cells that are protected alike"):
            total(table, table.everything)
    else:
        everything = total(table, table.everything)
        assert everything.low <= everything.high
    change = difference(table, Region.of(1, 1), Region.of(1, 0))
    assert change.low <= change.high
    every = all_at_once(table, Region.of(range(1, design.values + 1), 0))
    for cell, chosen in enumerate(every):
        alone = total(table, Region.of(cell + 1, 0))
        # One count by itself reads as in its record.
        assert abs(alone.low - table.low[0, cell]) <= 1
        assert abs(alone.high - table.high[0, cell]) <= 1
        assert alone.estimate == pytest.approx(chosen.answer.estimate)


def test_sums_of_several_regions_hold_at_once() -> None:
    table = random_table(direct())
    regions = [Region.of(1, 0), Region.of([1, 3], [0, 2]), Region.of(2, 1)]

    found = totals_at_once(table, regions)

    for one, alone, terms in zip(found, [total(table, region) for region in regions], (2, 8, 2), strict=True):
        reach = noise_sum(Fraction(1, 2), terms).central_reach(0.05 / 6)
        assert (one.estimate, one.together) == (alone.estimate, 3)
        assert (one.low, one.high) == (max(0, int(one.estimate) - reach), int(one.estimate) + reach)
        assert one.high > alone.high
    with pytest.raises(RangeError, match="number of cells is 0"):
        totals_at_once(table, [])


def test_a_missing_window_is_named_with_its_reason() -> None:
    table = table_of(direct(), ROWS, missing=1)

    assert table.windows.tolist() == [0, 2, 3]
    with pytest.raises(RangeError, match=r"window is 1 \(paused\); allowed is a released window"):
        total(table, Region.of(1, [0, 1]))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda t: total(t, Region.of(5, 0)), "cell is 5; allowed is 1 to 4"),
        (lambda t: total(t, Region.of(1, 9)), "window is 9"),
        (lambda t: total(t, Region.of([], 0)), "region is 0 cells"),
        (lambda t: total(t, Region.of(1, [0, 1]), seen_at_most=3), "seen_at_most is 3; allowed is 1 to 2"),
        (lambda t: difference(t, Region.of(1, 0), Region.of([1, 2], 0)), "cell 1 of window 0 in both"),
        (lambda t: difference(t, Region.of(1, 2), Region.of(1, 0), stayed_at_least=1), "stayed_at_least is 1"),
        (lambda t: difference(t, Region.of(1, 1), Region.of(1, 0), stayed_at_least=-1), "stayed_at_least is -1"),
    ],
)
def test_bad_questions_are_refused(ask, words: str) -> None:
    with pytest.raises(RangeError, match=words):
        ask(table_of(sampling(), ROWS, unit=2))


def window(index: int, **changes: object) -> WindowCounts:
    fields: dict = {"index": index, "opens": 3600 * index, "unit": index, "outputs": (1, 2, 3, 4)} | changes
    return WindowCounts(**fields)


def made(*released: WindowCounts, missing: dict[int, str] | None = None, labels: str = "abcd") -> QuestionTable:
    return question_table(direct(), LEVEL, list(labels), [], released, missing)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (made, "number of released windows is 0"),
        (lambda: made(window(1), window(1)), "window is 1 twice"),
        (lambda: made(window(1), window(2, opens=0)), "out of order at window 2"),
        (lambda: made(window(1), window(2, unit=0)), "out of order at window 2"),
        (lambda: made(window(1), missing={1: "paused"}), "window is 1 released and missing"),
        (lambda: made(window(1), labels="abc"), "3 labels"),
        (lambda: made(window(1, outputs=(1, 2))), "window 1 has 2 numbers"),
    ],
)
def test_bad_tables_are_refused(make, words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        make()


def test_a_table_is_ordered_by_its_windows() -> None:
    table = made(window(2), window(0), window(1))

    assert table.windows.tolist() == [0, 1, 2]
    assert np.array_equal(table.estimates, table.raw)
    with pytest.raises(ShapeError, match="several sizes"):
        sums_of(table, [Region.of(1, 0), Region.of([1, 2], 0)])
