"""Sets of values of one device: what a change moves, by enumeration of all sets, and what a count of holders costs."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

import pytest
from fleetcount_mechanisms.accounting.charges import unit_divergence, unit_pure
from fleetcount_mechanisms.answers import Relation, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels, worst_moves
from fleetcount_mechanisms.losses import moves_pure, moves_rho
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread, noise_for
from fleetcount_mechanisms.statement import ledger_loss_of, relation_of, views_of

SIZES = [(2, 2), (3, 2), (4, 2), (5, 2), (5, 3), (4, 4)]


def sets(values: int, most: int) -> list[frozenset[int]]:
    return [frozenset(one) for size in range(most + 1) for one in combinations(range(values), size)]


def worst(values: int, most: int, cell: Fraction, total: Fraction | None) -> Fraction:
    """Return the most that a set which becomes another one costs, each number that moves costing its price."""
    found = Fraction(0)
    for one, two in product(sets(values, most), repeat=2):
        any_moved = total is not None and bool(one) is not bool(two)
        found = max(found, len(one ^ two) * cell + (total or 0) * any_moved)
    return found


@pytest.mark.parametrize("total", [None, Fraction(1, 4), Fraction(40)])
@pytest.mark.parametrize(("values", "most"), SIZES)
def test_a_set_that_becomes_another_costs_what_every_pair_of_sets_says(
    values: int, most: int, total: Fraction | None
) -> None:
    levels = Levels(values, total=total is not None, most=most)
    noises = [Fraction(3), *([] if total is None else [total])]

    gaussian = worst_moves(levels, [GaussianNoise(one) for one in noises])
    geometric = worst_moves(levels, [TwoSidedNoise(one) for one in noises])

    assert moves_rho(gaussian) == worst(values, most, Fraction(1, 6), None if total is None else 1 / (2 * total))
    assert moves_pure(geometric) == worst(values, most, Fraction(3), total)


@pytest.mark.parametrize("law", [GaussianNoise, TwoSidedNoise])
@pytest.mark.parametrize(("values", "most"), SIZES)
def test_the_number_of_holders_is_free_at_its_noise_and_not_below(
    values: int, most: int, law: type[GaussianNoise | TwoSidedNoise]
) -> None:
    answer = Truth(values, most)
    spread = Spread(levels=Levels(values, most=most)).with_total_for(answer, law)
    price = moves_rho if law is GaussianNoise else moves_pure
    noise = law(Fraction(9) if law is GaussianNoise else Fraction(1, 3))
    alone = price(Design(answer=answer, noise=noise, values=values, aggregators=2).moves)

    assert spread.levels.total is (most < values)
    if most == values:
        with pytest.raises(MechanismError, match=rf"sets of {most} of {values} values, allowed: .* of fewer values"):
            noise_for(answer, Fraction(1), law=TwoSidedNoise, spread=Spread(levels=replace(spread.levels, total=True)))
        return
    assert spread.ratios == (Fraction(1, min(2 * most, values) - most),)
    assert price(spread.design(answer, noise).moves) == alone
    cheaper = Spread(levels=spread.levels, ratios=(spread.ratios[0] * Fraction(99, 100),))
    assert (price(cheaper.design(answer, noise).moves) or 0) > (alone or 0)


def test_what_ledgers_and_statements_say_of_sets() -> None:
    geometric = Design(answer=Truth(5, 2), noise=TwoSidedNoise(Fraction(1, 10)), values=5, aggregators=2)
    gaussian = Design(answer=Truth(5, 2), noise=GaussianNoise(Fraction(100)), values=5, aggregators=2)

    assert unit_pure(geometric, 3) == 3 * 4 * Fraction(1, 10)
    assert 0 <= unit_divergence(gaussian, 3, 7) - 3 * 7 * Fraction(4, 200) < Fraction(1, 10**60)
    assert str(ledger_loss_of(geometric).epsilon) == "0.40000"
    assert relation_of(geometric) is relation_of(gaussian) is Relation.ANY_VALUE
    assert {view.neighbours for view in views_of(geometric)} == {"any-value"}
    assert "any change of one device's truth" in views_of(gaussian)[0].sentence


def test_sets_of_one_value_are_the_values_themselves() -> None:
    one = Design(answer=Truth(4), noise=GaussianNoise(Fraction(9)), values=4, aggregators=2)

    assert one == Design(answer=Truth(4, 1), noise=GaussianNoise(Fraction(9)), values=4, aggregators=2)
    assert one.levels.nested


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Truth(4, 5), "values at once is 5, allowed: 1..4"),
        (lambda: Truth(4, 0), "values at once is 0, allowed: 1..4"),
        (lambda: Truth(4, 1.5), "values at once is 1.5, allowed: 1..4"),  # type: ignore[arg-type]
        (lambda: Levels(4, most=True), "values at once is True, allowed: 1..4"),
        (lambda: Levels(4, (2, 2), (1, 2), most=2), "asked of sets, allowed: cells and the total"),
        (lambda: Levels(4, margins=(2, 2), most=2), "asked of sets"),
        (lambda: Levels(4, weighted=True, most=2), "asked of sets"),
        (
            lambda: Design(answer=Truth(4, 2), noise=OneSidedNoise(Fraction(1)), values=4, aggregators=2),
            "one-sided noise is on sets of values",
        ),
        (
            lambda: Design(
                answer=Truth(4, 2),
                noise=GaussianNoise(Fraction(9)),
                values=4,
                aggregators=2,
                levels=Levels(4, total=True),
                coarser=(GaussianNoise(Fraction(9)),),
            ),
            "levels are of 1 values a device, allowed: 2",
        ),
    ],
)
def test_what_does_not_go_with_sets_is_refused(make: object, said: str) -> None:
    with pytest.raises(MechanismError, match=said):
        make()  # type: ignore[operator]
