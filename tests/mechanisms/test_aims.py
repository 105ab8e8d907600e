"""Shares of the budget of zooms that are chosen for an aim: no others make the numbers aimed at err less."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from fleetcount_analysis.answers import joined_errors
from fleetcount_analysis.answers.levels import join_of
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread, scaled
from fleetcount_mechanisms.planning import shares_for_aim


@pytest.mark.parametrize("total", [True, False])
@pytest.mark.parametrize("law", [GaussianNoise(Fraction(100)), TwoSidedNoise(Fraction(4))])
@pytest.mark.parametrize(
    "aims",
    [{"cell": 1}, {"block": 1}, {"total": 1}, {"block": 1, "cell": 64}, {"block": 4, "total": 1, "cell": 36}],
)
@pytest.mark.parametrize(("sides", "step"), [((1, 8), 1), ((1, 2, 4), 9)])
def test_no_other_shares_err_less_at_what_is_aimed_at(
    sides: tuple[int, ...], step: int, aims: dict[str, int], law: NoiseLaw, total: bool
) -> None:
    levels, truth = Levels(64, (64, 1), sides), Truth(64)

    def missed(shares: Sequence[Fraction]) -> float:
        noise = scaled(law, 1 / shares[0])
        spread = Spread.of_shares(levels, shares)
        opened = spread.with_total_for(truth, type(law)) if total else spread
        errors = joined_errors(opened.design(truth, noise))
        last = len(sides) - 1
        whole = errors[-1] if total else math.sqrt(whole_variance(opened.design(truth, noise)))
        found = dict(zip(("cell", "block", "total"), (errors[0], errors[last], whole), strict=True))
        return sum(float(weight) * found[aim] ** 2 for aim, weight in aims.items())

    best = shares_for_aim(levels, {aim: Fraction(one) for aim, one in aims.items()}, law, total=total)

    assert sum(best) == 1
    least = missed(best)
    parts = [int(100 * one) for one in best[:-1]]
    near = [tuple(map(sum, zip(parts, move, strict=True))) for move in product((-1, 0, 1), repeat=len(parts))]
    for first in (*near, *product(range(1, 100, step), repeat=len(parts))):
        shares = [Fraction(one, 100) for one in (*first, 100 - sum(first))]
        if min(shares) > 0:
            assert missed(shares) >= least * (1 - 1e-9), shares


def whole_variance(design: Design) -> float:
    """Return the variance of the noise in the sum of the joined counts of the coarsest zoom."""
    join, laws = join_of(design)
    weights = join.weights(0, np.ones(design.levels.sizes[len(design.levels.sides) - 1]))
    return sum(float(one @ one) * law.variance for one, law in zip(weights, laws, strict=True))


@pytest.mark.parametrize(
    ("levels", "aims", "said"),
    [
        (Levels(64, (64, 1), (1, 8)), {}, "the aim is nothing, allowed: weights above 0 of cell, block, total"),
        (Levels(64, (64, 1), (1, 8)), {"city": Fraction(1)}, "the aim is city = 1"),
        (Levels(64, (64, 1), (1, 8)), {"cell": Fraction(0)}, "the aim is cell = 0"),
        (Levels(64), {"cell": Fraction(1)}, "there are 1 zooms, allowed with an aim: 2 to 8"),
    ],
)
def test_an_aim_that_cannot_be_is_refused(levels: Levels, aims: dict[str, Fraction], said: str) -> None:
    with pytest.raises(MechanismError) as caught:
        shares_for_aim(levels, aims, GaussianNoise(Fraction(4)), total=True)
    assert said in str(caught.value)
