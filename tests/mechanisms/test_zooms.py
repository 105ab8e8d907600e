"""A report counted at several zooms: which square lies in which, and what all of them together lose, by enumeration."""

import itertools
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_mechanisms.accounting.charges import unit_loss, unit_pure
from fleetcount_mechanisms.accounting.question_losses import part_loss, question_losses
from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import SCALE, ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw, Truth, answer_named
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels, largest_side, neighbouring_sides
from fleetcount_mechanisms.losses import stated_loss
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread, noise_for
from fleetcount_mechanisms.planning import plan_question
from fleetcount_mechanisms.responses import KaryResponse, MangatVector
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of, views_of


def grid(columns: int, rows: int, zooms: int) -> Levels:
    return Levels(columns * rows, (columns, rows), neighbouring_sides(zooms))


ZOOMS = grid(4, 2, 2)
"""Eight squares, and above them two: the smallest pyramid."""
DEEP = grid(8, 4, 3)
SKIPPING = Levels(128, (16, 8), (1, 8))
"""Squares, and of eight times the side: what is between them is not opened."""
LINE = grid(16, 1, 4)
"""Sixteen values in order, and 2, 4 and 8 of them together."""
RATE = Fraction(1, 4)


def die(values: int, rate: Fraction = RATE) -> SamplingDie:
    return SamplingDie.uniform(rate, values, allow_large_rate=True)


def zoomed(answer: AnswerLaw, noise: NoiseLaw, zooms: Levels | None) -> Design:
    return Design(
        answer=answer, noise=noise, values=answer.values, aggregators=2, levels=zooms or Levels(answer.values)
    )


def places(zooms: Levels, truth: int) -> set[tuple[int, int, int]]:
    """Return (zoom, column, row) of every square that a truth lies in, by geometry alone."""
    if truth == 0:
        return set()
    columns, _ = zooms.grids[0]
    column, row = (truth - 1) % columns, (truth - 1) // columns
    return {(zoom, math.floor(column / side), math.floor(row / side)) for zoom, side in enumerate(zooms.sides)}


# Which square lies in which.


def test_sums_of_larger_squares_are_those_of_the_squares_inside_them() -> None:
    devices = [1, 2, 3, 4, 10, 20, 30, 40]

    assert ZOOMS.all_sums(devices) == [*devices, 1 + 2 + 10 + 20, 3 + 4 + 30 + 40]


@pytest.mark.parametrize("shape", [(8, 1), (1, 8)], ids=["row", "column"])
def test_values_in_order_are_summed_with_their_neighbours(shape: tuple[int, int]) -> None:
    devices = [1, 2, 3, 4, 10, 20, 30, 40]

    assert Levels(8, shape, (1, 2, 4), total=True).all_sums(devices) == [*devices, 3, 7, 30, 70, 10, 100, 110]
    assert Levels(8, shape, (1, 4)).all_sums(devices) == [*devices, 10, 100]


@pytest.mark.parametrize(
    "zooms", [ZOOMS, DEEP, grid(2, 4, 2), grid(6, 10, 2), grid(16, 16, 4), SKIPPING, LINE, grid(1, 12, 2)], ids=str
)
def test_a_device_counts_once_in_every_zoom_and_where_geometry_says(zooms: Levels) -> None:
    starts = list(itertools.accumulate(zooms.sizes, initial=0))

    for truth in range(1, zooms.sizes[0] + 1):
        one = zooms.all_sums([int(value == truth) for value in range(1, zooms.sizes[0] + 1)])
        found = {
            (zoom, (place - start) % zooms.grids[zoom][0], (place - start) // zooms.grids[zoom][0])
            for zoom, start in enumerate(starts[:-1])
            for place in range(start, starts[zoom + 1])
            if one[place]
        }
        assert (sum(one), found) == (zooms.count, places(zooms, truth))


@pytest.mark.parametrize(
    ("columns", "rows", "most"),
    [
        (1, 1, 1),
        (2, 2, 1),
        (2, 4, 2),
        (4, 4, 2),
        (16, 16, 8),
        (64, 32, 32),
        (12, 20, 4),
        (2, 16, 2),
        (4094, 1, 2),
        (1, 256, 128),
        (12, 1, 4),
        (2, 1, 1),
        (3, 4, 1),
    ],
)
def test_sides_are_halved_as_often_as_two_cells_are_left(columns: int, rows: int, most: int) -> None:
    larger = "{} values together" if 1 in (columns, rows) else "squares of {} times the side"

    assert largest_side(columns, rows) == most
    with pytest.raises(MechanismError, match=rf"{larger.format(2 * most)} .* allowed: {most} at most"):
        Levels(columns * rows, (columns, rows), (1, 2 * most))


def test_what_has_no_zooms_is_refused_by_name() -> None:
    noise = TwoSidedNoise(Fraction(1))
    with pytest.raises(MechanismError, match=r"sides are \(2, 4\), allowed: growing powers of two"):
        Levels(16, (4, 4), (2, 4))
    with pytest.raises(MechanismError, match=r"sides are \(1, 2\) of values that are neither a grid nor a line"):
        Levels(16, None, (1, 2))
    with pytest.raises(MechanismError, match="values is 4, allowed: the 8 cells of the levels"):
        zoomed(Truth(4), noise, ZOOMS)
    with pytest.raises(MechanismError, match="levels is 2 of answers by k-ary, allowed: 1"):
        zoomed(KaryResponse(Fraction(1, 2), 8), noise, ZOOMS)
    with pytest.raises(MechanismError, match="levels is 2 of answers by mangat-vector, allowed: 1"):
        zoomed(MangatVector(Fraction(1, 10), 8), noise, ZOOMS)
    with pytest.raises(MechanismError, match="levels is 2 of exact counts, allowed: 1"):
        zoomed(die(8), NoNoise(), ZOOMS)
    for law in (TwoSidedNoise, GaussianNoise):
        with pytest.raises(MechanismError, match="levels is 2 of answers by k-ary"):
            noise_for(answer_named("k-ary", 8, epsilon_local=Fraction(1)), Fraction(1, 2), law, Spread(levels=ZOOMS))


def test_a_design_opens_the_numbers_of_all_zooms() -> None:
    design = zoomed(Truth(32), TwoSidedNoise(Fraction(1)), DEEP)

    assert (design.summed_count, design.output_count, design.cell_count) == (32, 32 + 8 + 2, 42)
    assert len(design.opened_sums(range(32))) == design.output_count
    assert (design.moves, design.exposure) == ((((design.noise, 1),) * 6,), 1)


# What one release loses: only the numbers that a pair of truths moves can tell them apart.


def law_of(zooms: Levels, truth: int, seen: list[tuple[int, int, int]], rate: float) -> list[tuple[float, np.ndarray]]:
    """Return what a device adds to the numbers `seen`: with which chance what."""
    where = places(zooms, truth)
    own = np.array([float(one in where) for one in seen])
    return [(rate, own), (1 - rate, np.zeros(len(seen)))] if rate < 1 else [(1.0, own)]


def tables(zooms: Levels, noise: NoiseLaw, one: int, two: int, rate: float, reach: int) -> list[np.ndarray]:
    """Return the two laws of the numbers that differ, on a box around 0."""
    seen = sorted(places(zooms, one) | places(zooms, two))
    axis = np.arange(-reach, reach + 1.0)
    found = []
    for truth in (one, two):
        total = np.zeros([axis.size] * len(seen))
        for chance, added in law_of(zooms, truth, seen, rate):
            joint = np.ones(())
            for number in added:
                joint = np.multiply.outer(joint, _mass(noise, axis - number))
            total += chance * joint
        found.append(total)
    return found


def _mass(noise: NoiseLaw, at: np.ndarray) -> np.ndarray:
    if isinstance(noise, GaussianNoise):
        every = np.exp(-(np.arange(-300, 301.0) ** 2) / (2 * float(noise.variance))).sum()
        return np.exp(-at * at / (2 * float(noise.variance))) / every
    ratio = math.exp(-float(noise.epsilon or 0))
    if isinstance(noise, OneSidedNoise):
        signed = at if noise.direction == "up" else -at
        return np.where(signed >= 0, (1 - ratio) * ratio ** np.maximum(signed, 0), 0.0)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(at)


@pytest.mark.parametrize("zooms", [ZOOMS, grid(2, 4, 2)], ids=str)
@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(9, 20), Fraction(1)], ids=str)
@pytest.mark.parametrize("epsilon", [Fraction(1, 5), Fraction(1), Fraction(3)], ids=str)
def test_the_statement_of_geometric_noise_is_the_largest_ratio(
    zooms: Levels, rate: Fraction, epsilon: Fraction
) -> None:
    """Ratios of geometric numbers that move by at most one are extreme within one of 0."""
    noise, answer = TwoSidedNoise(epsilon), Truth(8) if rate == 1 else die(8, rate)
    claimed = float(epsilon_of(zoomed(answer, noise, zooms)) or 0)

    worst = 0.0
    for one, two in itertools.permutations(range(9), 2):
        first, second = tables(zooms, noise, one, two, float(rate), 1)
        worst = max(worst, float(np.log(first / second).max()))

    assert worst - 1e-12 <= claimed <= worst + 1.1e-5


@pytest.mark.parametrize("side", ["up", "down"])
def test_one_sided_noise_counts_once_a_zoom(side: str) -> None:
    noise = OneSidedNoise(Fraction(7, 10), "up" if side == "up" else "down")
    design = zoomed(Truth(8), noise, ZOOMS)
    value, none = tables(ZOOMS, noise, 3, 0, 1.0, 2)
    first, second = (value, none) if side == "up" else (none, value)

    with np.errstate(divide="ignore"):
        worst = float(np.log(first[first > 0] / second[first > 0]).max())

    assert worst == pytest.approx(1.4)
    assert (epsilon_of(design), unit_pure(design, 3)) == (Decimal("1.40000"), 3 * Fraction(14, 10))
    assert "epsilon 1.40000" in views_of(design)[0].sentence


@pytest.mark.parametrize("rate", [RATE, Fraction(1)], ids=str)
def test_the_statement_of_gaussian_noise_is_above_the_truth(rate: Fraction) -> None:
    noise, answer = GaussianNoise(Fraction(3, 2)), Truth(8) if rate == 1 else die(8, rate)
    view = views_of(zoomed(answer, noise, ZOOMS))[0]
    plain = views_of(zoomed(answer, noise, None))[0]
    claimed, below = float(view.epsilon or 0), float(plain.epsilon or 0)

    for one, two in ((1, 3), (1, 2), (1, 0), (0, 1)):
        first, second = tables(ZOOMS, noise, one, two, float(rate), 12)
        assert np.maximum(0, first - math.exp(claimed) * second).sum() <= float(view.delta)
    first, second = tables(ZOOMS, noise, 1, 3, float(rate), 12)
    # Counted once, the loss would be a claim that is broken.
    assert np.maximum(0, first - math.exp(below) * second).sum() > 100 * float(view.delta)


@pytest.mark.parametrize(
    ("answer", "law"),
    [
        (Truth(8), TwoSidedNoise),
        (Truth(8), GaussianNoise),
        (Truth(8), OneSidedNoise),
        (die(8), TwoSidedNoise),
        (die(8), GaussianNoise),
    ],
    ids=["direct", "direct-dG", "one-sided", "sampling", "sampling-dG"],
)
def test_planned_noise_keeps_the_promise_over_all_zooms_and_no_weaker_one_does(
    answer: AnswerLaw, law: type[PlannedNoise]
) -> None:
    target = Fraction(1)

    noise = noise_for(answer, target, law, Spread(levels=ZOOMS))
    planned = plan_question(400, answer, target, noise=law, spread=Spread(levels=ZOOMS)).design

    weaker = GaussianNoise(noise.variance - Fraction(1, 100)) if isinstance(noise, GaussianNoise) else None
    if weaker is None:
        weaker = type(noise)(noise.epsilon + Fraction(2, 10**6))  # type: ignore[union-attr, operator]
    assert planned.noise == noise
    assert (epsilon_of(planned) or 9) <= target < (epsilon_of(zoomed(answer, weaker, ZOOMS)) or 9)


def test_the_statement_says_how_many_zooms_are_seen_and_others_are_as_before() -> None:
    noise = TwoSidedNoise(Fraction(1))
    for answer in (Truth(8), die(8)):
        plain, several = zoomed(answer, noise, None), zoomed(answer, noise, ZOOMS)
        assert all("zoom" not in view.sentence for view in views_of(plain))
        told = [view for view in views_of(several) if "released counts of 2 zooms" in view.sentence]
        assert [view.adversary for view in told][:3] == [
            "public_and_broker",
            "one_aggregator",
            "all_but_one_aggregators",
        ]
        # What all aggregators see, and one message alone, is no more than before: a device still reports once.
        rest = [view for view in views_of(several) if view not in told]
        assert rest == [view for view in views_of(plain) if view.adversary in {one.adversary for one in rest}]


def test_a_leaked_coin_leaves_the_direct_loss_of_all_zooms() -> None:
    noise = TwoSidedNoise(Fraction(1))
    leaked = next(one for one in views_of(zoomed(die(32), noise, DEEP)) if one.adversary == "sampled_bit_leaked")

    assert leaked.epsilon == epsilon_of(zoomed(Truth(32), noise, DEEP)) == Decimal("6.00000")


# What ledgers add up, and a question.


@pytest.mark.parametrize("noise", [TwoSidedNoise(Fraction(4, 5)), GaussianNoise(Fraction(9))], ids=["geometric", "dG"])
@pytest.mark.parametrize("answer", [Truth(8), die(8)], ids=["direct", "sampling"])
def test_a_window_of_two_zooms_is_charged_like_two_windows_under_one_toss(answer: AnswerLaw, noise: NoiseLaw) -> None:
    orders, delta = (2, 5, 9), Fraction(1, 10**6)
    plain, several = zoomed(answer, noise, None), zoomed(answer, noise, ZOOMS)

    assert unit_loss(several, orders, 3) == unit_loss(plain, orders, 6)
    shape, twice = ScheduleShape(units=(3,), days=(3,)), ScheduleShape(units=(6,), days=(6,))
    found, expected = (question_losses(one, by, delta) for one, by in ((several, shape), (plain, twice)))
    assert (found.one_day, found.whole_question) == (expected.one_day, expected.whole_question)
    assert part_loss(several, 3, 1, delta) == part_loss(plain, 6, 2, delta)


@pytest.mark.parametrize("noise", [TwoSidedNoise(Fraction(1)), GaussianNoise(Fraction(3, 2))], ids=["geometric", "dG"])
@pytest.mark.parametrize("rate", [RATE, Fraction(1)], ids=str)
def test_no_charge_is_below_the_divergence_of_the_numbers(rate: Fraction, noise: NoiseLaw) -> None:
    design = zoomed(Truth(8) if rate == 1 else die(8, rate), noise, ZOOMS)
    plain = zoomed(design.answer, noise, None)
    order = 3

    first, second = tables(ZOOMS, noise, 1, 3, float(rate), 11)
    seen = (first > 1e-200) & (second > 1e-200)
    truth = math.log(float((first[seen] ** order * second[seen] ** (1 - order)).sum())) / (order - 1)

    charged, once = (unit_loss(one, (order,), 1).at[0] / SCALE for one in (design, plain))
    assert once < truth <= charged + 1e-9
    # The numbers outside of the box.
    assert charged <= 1.02 * truth


def test_the_noise_of_a_question_keeps_its_promise_over_all_zooms() -> None:
    shape, promise = ScheduleShape(units=(1,) * 24, days=(24,)), (Fraction(4), Fraction(1, 10**6))

    noise = noise_for_promise(Truth(32), shape, *promise, spread=Spread(levels=DEEP))

    plain = noise_for_promise(Truth(32), ScheduleShape(units=(1,) * 72, days=(72,)), *promise)
    assert noise == plain
    views = question_views(zoomed(Truth(32), noise, DEEP), shape, promise[1])
    assert max(one.epsilon or 0 for one in views[:3]) <= promise[0]
    assert "sees all releases of 3 zooms each; epsilon" in views[2].sentence


def test_stated_losses_grow_with_the_zooms() -> None:
    for noise in (TwoSidedNoise(Fraction(1, 2)), GaussianNoise(Fraction(50))):
        for answer in (Truth(256), die(256)):
            found = [
                stated_loss(zoomed(answer, noise, Levels(256, (16, 16), neighbouring_sides(zooms))))[0]
                for zooms in (1, 2, 3, 4)
            ]
            assert found == sorted(set(found))


@pytest.mark.parametrize("zooms", [1, 2, 3])
@pytest.mark.parametrize("law", [TwoSidedNoise, GaussianNoise])
def test_a_total_of_direct_counts_that_has_what_all_zooms_have_costs_nothing(
    law: type[PlannedNoise], zooms: int
) -> None:
    levels = Levels(256, (16, 16), neighbouring_sides(zooms))
    without = noise_for(Truth(256), Fraction(1), law, Spread.of_shares(levels))
    asked = Spread.of_shares(levels).with_total_for(Truth(256), law)
    noise = noise_for(Truth(256), Fraction(1), law, asked)

    assert noise == without
    assert asked.ratios[-1] == Fraction(1, zooms)
    assert epsilon_of(asked.design(Truth(256), noise)) == epsilon_of(Spread.of_shares(levels).design(Truth(256), noise))
    # A hair less noise of the total, and one who comes loses more than one who moves.
    dearer = Spread(levels=asked.levels, ratios=(*asked.ratios[:-1], asked.ratios[-1] * Fraction(9, 10)))
    lost, paid = (epsilon_of(one.design(Truth(256), noise)) for one in (asked, dearer))
    assert lost is not None
    assert paid is not None
    assert paid > lost


def test_geometric_noise_is_not_solved_for_a_total_whose_price_it_would_not_count() -> None:
    asked = Spread(levels=Levels(9, total=True), ratios=(Fraction(1, 2),))

    assert noise_for(Truth(9), Fraction(1), GaussianNoise, asked).variance > 0
    with pytest.raises(MechanismError, match="a total has 1/2 times the geometric noise of a cell, allowed: 1 times"):
        noise_for(Truth(9), Fraction(1), TwoSidedNoise, asked)
    with pytest.raises(MechanismError, match="a total is asked of one-sided counts"):
        noise_for(Truth(9), Fraction(1), OneSidedNoise, asked)


def test_zooms_have_the_shares_that_are_asked_for() -> None:
    levels = Levels(256, (16, 16), (1, 2))
    shares = (Fraction(83, 100), Fraction(17, 100))
    asked, equal = Spread.of_shares(levels, shares), Spread.of_shares(levels)

    assert equal.ratios == (1,)
    assert asked.cells_share(GaussianNoise) == shares[0]
    for law in (GaussianNoise, TwoSidedNoise):
        planned = asked.design(Truth(256), noise_for(Truth(256), Fraction(1), law, asked))
        lost = epsilon_of(planned)
        assert lost is not None
        assert Decimal("0.98") < lost <= 1
        cells, blocks = (float(one.draw_variance) for one in planned.laws)
        if law is GaussianNoise:
            assert blocks / cells == pytest.approx(83 / 17)
    with pytest.raises(MechanismError, match="there are 1 shares of the budget, allowed: 2"):
        Spread.of_shares(levels, shares[:1])
    with pytest.raises(MechanismError, match="there is a total, allowed: levels without one"):
        Spread.of_shares(replace(levels, total=True), shares)
