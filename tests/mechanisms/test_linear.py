"""Linear answers: one price for every number that is opened, the free total, and three pairs under a coin."""

import math
from fractions import Fraction

import pytest
from fleetcount_mechanisms.design import Spread
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels, worst_moves
from fleetcount_mechanisms.linear import gaussian_price, geometric_price, group_price, least_squares_variance
from fleetcount_mechanisms.moves import moves_pure, moves_rho
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.sampled_gaussian import total_divergences
from fleetcount_mechanisms.sampling import SamplingDie

S = Fraction(9)


def cells(values: int) -> list[list[int]]:
    return [[int(place == one) for place in range(values)] for one in range(values)]


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

    assert moves_rho(gaussian) == gaussian_price(levels.rows(), each)
    assert moves_pure(geometric) == geometric_price(levels.rows(), each)


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
        geometric_price([[1], [1]], [S])
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
