"""Linear answers: one price for every number that is opened, the free total, and three pairs under a coin."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from fleetcount_evidence.golden.linear import Rows, gaussian_price, group_price, least_squares_variance, moves_of
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels, Move, worst_moves
from fleetcount_mechanisms.losses import move_divergence, move_pure, move_rho, moves_loss, moves_pure, moves_rho
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread
from fleetcount_mechanisms.planning import mean_sd, spread_for_mean
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampled_gaussian import total_divergences
from fleetcount_mechanisms.sampling import SamplingDie

from tests.support.designs import rows_of

S = Fraction(9)


def cells(values: int) -> list[list[int]]:
    return [[int(place == one) for place in range(values)] for one in range(values)]


def geometric_price(rows: Rows, epsilons: list[Fraction]) -> Fraction:
    """Return the pure epsilon of numbers under geometric noise e_i: the most over moves of sum of |A_iu - A_iv| e_i."""
    return max(
        sum((abs(apart) * one for apart, one in zip(move, epsilons, strict=True)), Fraction(0))
        for move in moves_of(rows)
    )


@pytest.mark.parametrize("values", [2, 3, 7])
def test_a_total_with_the_noise_of_a_cell_is_free_and_one_with_less_is_not(values: int) -> None:
    alone = gaussian_price(cells(values), [S] * values)
    rows = [*cells(values), [1] * values]

    assert alone == 1 / S == gaussian_price(rows, [S] * values + [S])
    assert gaussian_price(rows, [S] * values + [S - 1]) == 1 / (2 * S) + 1 / (2 * (S - 1)) > alone
    assert geometric_price(rows, [Fraction(1, 3)] * (values + 1)) == 2 * Fraction(1, 3)
    # Presence then costs as much as a value, and groups more.
    assert group_price(cells(values), [S] * values, 2) == 1 / S
    assert group_price(rows, [S] * (values + 1), 2) == Fraction(2 + 4) / (2 * S)


def test_a_yes_no_total_is_the_cell_again_and_costs_as_much() -> None:
    assert gaussian_price([[1], [1]], [S, S]) == 1 / S == 2 * gaussian_price([[1]], [S])


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("sides", [(1,), (1, 2), (1, 4), (1, 2, 4)], ids=str)
@pytest.mark.parametrize("noises", [("3", "5", "7", "2"), ("3", "3", "3", "3"), ("4", "1", "9", "1/2")], ids=str)
def test_the_closed_form_of_levels_is_the_price_of_their_rows(
    sides: tuple[int, ...], noises: tuple[str, ...], total: bool
) -> None:
    levels = Levels(32, (8, 4), sides, total)
    given = [Fraction(one) for one in (*noises[: len(sides)], *noises[3:] * total)]
    each = [one for one, size in zip(given, levels.sizes, strict=True) for _ in range(size)]

    gaussian = worst_moves(levels, [GaussianNoise(one) for one in given])
    geometric = worst_moves(levels, [TwoSidedNoise(one) for one in given])

    assert moves_rho(gaussian) == gaussian_price(rows_of(levels), each)
    assert moves_pure(geometric) == geometric_price(rows_of(levels), each)


MARGINS = (Levels(12, margins=(4, 3)), Levels(24, margins=(2, 3, 4)), Levels(4, margins=(2, 2)))
WEIGHTED = (*(Levels(values, weighted=True) for values in (2, 3, 8)), Levels(8, (8, 1), (1, 2), weighted=True))


@pytest.mark.parametrize("total", ["", "1/3", "5", "40"])
@pytest.mark.parametrize("levels", [*MARGINS, *WEIGHTED], ids=str)
def test_margins_and_weighted_sums_cost_what_their_rows_do(levels: Levels, total: str) -> None:
    opened = replace(levels, total=bool(total))
    given = [Fraction(one) for one in ("3", "5", "1/2", "7")[: levels.count]] + [Fraction(total or 1)] * bool(total)
    each = [one for one, size in zip(given, opened.sizes, strict=True) for _ in range(size)]

    gaussian = worst_moves(opened, [GaussianNoise(max(one, Fraction(1, 4))) for one in given])
    geometric = worst_moves(opened, [TwoSidedNoise(one) for one in given])

    assert moves_rho(gaussian) == gaussian_price(rows_of(opened), each)
    assert moves_pure(geometric) == geometric_price(rows_of(opened), each)


@pytest.mark.parametrize("law", [GaussianNoise, TwoSidedNoise])
@pytest.mark.parametrize("levels", [*MARGINS, *WEIGHTED], ids=str)
def test_a_total_is_free_beside_margins_and_a_weighted_sum_and_one_of_less_noise_is_not(
    levels: Levels, law: type[GaussianNoise | TwoSidedNoise]
) -> None:
    shares = [Fraction(one, sum(range(1, levels.count + 1))) for one in range(1, levels.count + 1)]
    asked = Spread.of_shares(levels, shares, law)
    opened = asked.with_total_for(Truth(levels.values), law)
    price = moves_rho if law is GaussianNoise else moves_pure

    def lost(spread: Spread) -> Fraction:
        design = spread.design(Truth(levels.values), law(S if law is GaussianNoise else Fraction(1, 2)))
        return price(design.moves) or Fraction(0)

    assert lost(opened) == lost(asked)
    assert lost(replace(opened, ratios=(*opened.ratios[:-1], opened.ratios[-1] * Fraction(99, 100)))) > lost(asked)
    if not levels.weighted:
        assert 1 / opened.ratios[-1] == 1 + sum(1 / ratio for ratio in asked.ratios)


@pytest.mark.parametrize("law", [GaussianNoise, TwoSidedNoise])
@pytest.mark.parametrize("levels", [MARGINS[0], WEIGHTED[2], WEIGHTED[3]], ids=str)
def test_shares_are_parts_of_what_a_value_that_becomes_another_loses(
    levels: Levels, law: type[GaussianNoise | TwoSidedNoise]
) -> None:
    shares = [Fraction(one, sum(range(1, levels.count + 1))) for one in range(1, levels.count + 1)]
    design = Spread.of_shares(levels, shares, law).design(
        Truth(levels.values), law(S if law is GaussianNoise else Fraction(1, 2))
    )
    (replaced,) = design.moves

    def lost(move: Move) -> Fraction:
        return (move_rho if law is GaussianNoise else move_pure)(move) or Fraction(0)

    parts = [lost(tuple(one for one in replaced if one[0] == noise)) for noise in design.laws]
    assert [part / lost(replaced) for part in parts] == shares
    assert Spread.of_shares(levels, shares, law).cells_share(law) == shares[0]


def test_a_number_that_moves_further_loses_no_more_than_is_charged() -> None:
    # The law of geometric noise moved by 3, beside randomized response of 3 epsilon.
    epsilon, order = Fraction(1, 5), 4
    shifted = [(math.tanh(0.1) * math.exp(-0.2 * abs(z)), -0.2 * (abs(z) - abs(z - 3))) for z in range(-400, 400)]
    exact = math.log(math.fsum(chance * math.exp(-(order - 1) * loss) for chance, loss in shifted)) / (order - 1)
    bound = float(move_divergence(((TwoSidedNoise(epsilon), 3),), order))

    assert 0.5 * bound < exact <= bound
    assert move_divergence(((GaussianNoise(S), 3),), order) == order * Fraction(9) / (2 * S)
    assert moves_loss((((TwoSidedNoise(epsilon), 3),),), 1, Fraction(1, 10**9)) <= 3 * epsilon


def test_margins_and_weighted_sums_count_as_they_say() -> None:
    table, line = Levels(6, margins=(2, 3), total=True), Levels(4, weighted=True, total=True)

    assert table.all_sums([1, 2, 3, 10, 20, 30]) == [1, 2, 3, 10, 20, 30, 6, 60, 11, 22, 33, 66]
    assert (table.sizes, table.count, table.opened, table.starts()) == ((6, 2, 3, 1), 4, 12, (0, 6, 8, 11, 12))
    assert line.all_sums([1, 10, 100, 1000]) == [1, 10, 100, 1000, -3 - 10 + 100 + 3000, 1111]
    assert line.sizes == (4, 1, 1)
    assert line.parents(0) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"margins": (6,)}, r"margins are \(6,\), allowed: 2 dimensions or more"),
        ({"margins": (6, 1)}, r"margins are \(6, 1\), allowed: 2 dimensions or more, of 2 values or more each"),
        ({"margins": (3, 3)}, "values is 6, allowed: the 9 cells of the margins"),
        ({"margins": (3, 2), "weighted": True}, "margins are asked beside a weighted sum, allowed: one of both"),
        ({"margins": (3, 2), "grid": (6, 1), "sides": (1, 2)}, "margins are asked beside zooms, allowed: one of both"),
    ],
)
def test_levels_that_do_not_fit_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(MechanismError, match=said):
        Levels(6, **fields)
    with pytest.raises(MechanismError, match="a weighted sum is asked of a single value"):
        Levels(1, weighted=True)


@pytest.mark.parametrize(
    ("answer", "noise"),
    [
        (Truth(6), OneSidedNoise(Fraction(1))),
        (SamplingDie.uniform(Fraction(1, 4), 6), GaussianNoise(S)),
        (KaryResponse(Fraction(1, 2), 6), TwoSidedNoise(Fraction(1))),
    ],
)
@pytest.mark.parametrize("levels", [Levels(6, margins=(3, 2)), Levels(6, weighted=True)], ids=["margins", "weighted"])
def test_margins_and_weighted_sums_are_of_direct_answers_alone(
    answer: AnswerLaw, noise: NoiseLaw, levels: Levels
) -> None:
    with pytest.raises(MechanismError, match=r"(are|is) asked of .* allowed: of direct ones|allowed: 1; for answers"):
        Spread(levels=levels).design(answer, noise)


@pytest.mark.parametrize(("share", "sd"), [(Fraction(1, 32), 0.025795), (Fraction(1, 16), 0.026145)])
def test_the_planned_error_of_a_mean_is_that_of_least_squares(share: Fraction, sd: float) -> None:
    spread = spread_for_mean(33, GaussianNoise, (share, 1 - share)).with_total_for(Truth(33), GaussianNoise)
    design = spread.design(Truth(33), GaussianNoise(Fraction(648) / share))
    each = [
        Fraction(2 * law.draw_variance)
        for law, size in zip(design.laws, design.levels.sizes, strict=True)
        for _ in range(size)
    ]
    exact = least_squares_variance(rows_of(design.levels), each, [design.levels.weight(v + 1) for v in range(33)])

    # Thirty-six vehicles on a cell that has the whole budget.
    assert mean_sd(design, 1000) == pytest.approx(sd, rel=1e-4)
    assert mean_sd(design, 1000) == pytest.approx(math.sqrt(float(exact) / 64**2 + 1000 / (6 * 32**2)) / 1000)
    assert mean_sd(design, 100_000) < 0.0003
    with pytest.raises(MechanismError, match="a mean is planned of sampling answers, allowed: of direct ones"):
        mean_sd(Spread(levels=Levels(33)).design(SamplingDie.uniform(Fraction(1, 4), 33), GaussianNoise(S)), 10)


@pytest.mark.parametrize("values", [2, 3, 4, 24])
def test_least_squares_with_a_free_total_have_the_variances_of_the_simplex(values: int) -> None:
    rows, noises = [*cells(values), [1] * values], [S] * (values + 1)
    for many in {1, 2, values}:
        wanted = [int(place < many) for place in range(values)]
        assert least_squares_variance(rows, noises, wanted) == S * many * (1 - Fraction(many, values + 1))


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(MechanismError, match="there are no rows of one length"):
        gaussian_price([[1], [1, 0]], [S, S])
    with pytest.raises(MechanismError, match="there are 1 noises"):
        gaussian_price([[1], [1]], [S])
    with pytest.raises(MechanismError, match="devices is 3"):
        group_price(cells(2), [S, S], 3)
    with pytest.raises(MechanismError, match="rank V"):
        least_squares_variance([[1, 1]], [S], [1, 0])
    with pytest.raises(MechanismError, match="1 weights"):
        least_squares_variance(cells(2), [S, S], [1])


@pytest.mark.parametrize(
    ("rate", "variance", "ratio"), [("1/2", 1, 1), ("1/4", 4, 4), ("1/10", 6, 8), ("1/4", 60, 4), ("1/4", 900, 2)]
)
@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_three_pairs_under_a_coin_are_those_of_the_lattice(
    rate: str, variance: int, ratio: int, order: int
) -> None:
    p, total = float(Fraction(rate)), ratio * variance
    noise, noises = (
        [(z, math.exp(-z * z / (2 * s))) for z in range(-reach(s), reach(s) + 1)] for s in (variance, total)
    )
    mass = math.fsum(w for _, w in noise) * math.fsum(w for _, w in noises)
    both, added, removed = list[float](), list[float](), list[float]()
    sums = [(weight, math.exp((t - 0.5) / total)) for t, weight in noises]
    one = [(weight, math.exp((z - 0.5) / variance)) for z, weight in noise]
    for weight, grown in sums:
        chances = [(w * weight, 1 - p + p * up * grown) for w, up in one]
        added.append(math.fsum(chance * ratio_of**order for chance, ratio_of in chances))
        removed.append(math.fsum(chance * ratio_of ** (1 - order) for chance, ratio_of in chances))
        # Two cells and the total: a goes from the first cell, b into the second, the total moves with each.
        from_first = math.fsum(w * (1 - p + p * up * grown) ** order for w, up in one)
        both.append(weight * from_first * math.fsum(w * (1 - p + p * down * grown) ** (1 - order) for w, down in one))

    pair, more, less = total_divergences(Fraction(rate), Fraction(variance), ratio, order)

    assert float(more) == pytest.approx(math.log(math.fsum(added) / mass) / (order - 1), rel=1e-9)
    assert float(less) == pytest.approx(math.log(math.fsum(removed) / mass) / (order - 1), rel=1e-9)
    cell = math.fsum(w for _, w in noise)
    assert float(pair) == pytest.approx(math.log(math.fsum(both) / (mass * cell)) / (order - 1), rel=1e-9)
    # Theorem 2 word for word would add the parts, and above its own order none of the pairs is the worst for good.
    assert pair != more + less


def reach(variance: float) -> int:
    return math.ceil(9 * math.sqrt(variance)) + 6


@pytest.mark.parametrize(
    ("rate", "values", "law", "unit", "ratios"),
    [
        ("1/2", 72, GaussianNoise, 1, (4,)),
        ("1/5", 5, GaussianNoise, 1, (4,)),
        ("1/10", 9, GaussianNoise, 1, (8,)),
        ("1/5", 4, GaussianNoise, 1, ()),
        ("1/10", 8, GaussianNoise, 1, ()),
        ("1/4", 72, GaussianNoise, 2, ()),
        ("1/4", 72, TwoSidedNoise, 1, ()),
    ],
)
def test_the_noise_of_a_total_of_sampled_answers_follows_the_rate(
    rate: str, values: int, law: type[GaussianNoise | TwoSidedNoise], unit: int, ratios: tuple[int, ...]
) -> None:
    die = SamplingDie.uniform(Fraction(rate), values, allow_large_rate=True)

    assert Spread(levels=Levels(values)).with_total_for(die, law, unit).ratios == ratios


def test_no_pair_is_the_worst_at_every_order() -> None:
    steep = total_divergences(Fraction(1, 4), Fraction(4), 1, 5)
    flat = total_divergences(Fraction(1, 4), Fraction(4), 8, 2)

    assert max(range(3), key=steep.__getitem__) == 1
    assert max(range(3), key=flat.__getitem__) == 0
