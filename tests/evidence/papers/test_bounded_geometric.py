"""The range-restricted geometric mechanism, exactly, with the worked examples of its paper."""

import itertools
import json
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_evidence.papers.geometric.bounded_geometric import (
    bounded_geometric_matrix,
    bounded_geometric_row,
    expected_loss,
    extremes_example,
    figure_two,
    remapped,
    single_device_losses,
    zero_one_loss,
)
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import SeededRandom
from hypothesis import given
from hypothesis import strategies as st

from tests.support.audit import chi_square_p
from tests.support.bounded_geometric import BoundedGeometric

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "golden.json").read_text())
RATIOS = st.fractions(min_value=Fraction(1, 20), max_value=Fraction(19, 20), max_denominator=60)


def as_text(matrix: tuple[tuple[Fraction, ...], ...]) -> list[list[str]]:
    return [[str(entry) for entry in row] for row in matrix]


def test_g_5_matches_the_golden_matrix():
    assert as_text(bounded_geometric_matrix(Fraction(1, 2), 5)) == GOLDEN["geo.Gn"]


def test_figure_two_is_g_5_with_one_answer_read_as_the_next():
    assert as_text(figure_two()) == GOLDEN["geo.fig2"]


@pytest.mark.parametrize("row", GOLDEN["geo.ex22"])
def test_example_2_2_matches_the_golden_fractions(row: dict[str, str]):
    example = extremes_example(int(row["n"]), Fraction(row["a"]))

    assert example.face_value_unbounded == Fraction(row["face_unbounded"])
    assert example.face_value_bounded == Fraction(row["face_Gn"])
    assert example.remapped == Fraction(row["remapped"])


@pytest.mark.parametrize("row", GOLDEN["geo.s61"])
def test_section_6_1_matches_the_golden_numbers(row: dict[str, float]):
    geometric, laplace = single_device_losses(Fraction(str(row["a"])))

    assert float(geometric) == pytest.approx(row["geometric"], abs=1e-9)
    assert laplace == pytest.approx(row["laplace"], abs=1e-9)


@given(RATIOS, st.integers(1, 7))
def test_rows_are_laws_and_adjacent_counts_differ_by_exactly_the_ratio(ratio: Fraction, maximum: int):
    matrix = bounded_geometric_matrix(ratio, maximum)

    ratios = {p / q for one, two in itertools.pairwise(matrix) for p, q in zip(one, two, strict=True)}

    assert all(sum(row) == 1 for row in matrix)
    assert ratios == {ratio, 1 / ratio}


@given(RATIOS, st.integers(1, 6), st.data())
def test_the_row_is_the_clamped_two_sided_noise(ratio: Fraction, maximum: int, data: st.DataObject):
    count, reach = data.draw(st.integers(0, maximum)), 60
    clamped = [Fraction(0)] * (maximum + 1)
    for noise in range(-reach, reach + 1):
        clamped[min(max(count + noise, 0), maximum)] += (1 - ratio) / (1 + ratio) * ratio ** abs(noise)

    row = bounded_geometric_row(ratio, count, maximum)

    assert all(abs(p - q) <= ratio ** (reach - maximum) for p, q in zip(row, clamped, strict=True))


@pytest.mark.parametrize("count", [0, 2, 5])
def test_the_sampler_follows_its_row_and_not_one_a_third_wider(count: int):
    mechanism = BoundedGeometric(epsilon=Fraction(7, 10), maximum=5)
    wider = BoundedGeometric(epsilon=Fraction(7, 13), maximum=5)

    drawn = mechanism.sample_many(count, SeededRandom(21), 100_000)

    assert chi_square_p(drawn, dict(enumerate(mechanism.row(count)))) > 1e-20
    assert chi_square_p(drawn, dict(enumerate(wider.row(count)))) < 1e-20
    assert 0 <= mechanism.sample(count, SeededRandom(22)) <= 5


def test_a_remap_moves_columns_and_keeps_the_privacy():
    ratio = Fraction(1, 3)

    merged = remapped(bounded_geometric_matrix(ratio, 3), (0, 0, 3, 3))

    assert all(sum(row) == 1 and row[1] == row[2] == 0 for row in merged)
    for one, two in itertools.pairwise(merged):
        assert all(ratio * q <= p <= q / ratio for p, q in zip(one, two, strict=True))


def test_expected_losses_weigh_the_rows_by_the_prior():
    matrix = ((Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 8), Fraction(7, 8)))
    prior = (Fraction(1, 3), Fraction(2, 3))

    assert expected_loss(matrix, prior, zero_one_loss) == Fraction(1, 12) + Fraction(1, 12)


def test_bad_arguments_are_refused_with_their_value():
    with pytest.raises(MechanismError, match="maximum is 0"):
        BoundedGeometric(epsilon=Fraction(1), maximum=0)
    with pytest.raises(MechanismError, match="epsilon"):
        BoundedGeometric(epsilon=0.5, maximum=3)
    for count in (-1, 4, True, 1.0):
        with pytest.raises(MechanismError, match="withheld"):
            BoundedGeometric(epsilon=Fraction(1), maximum=3).sample(count, SeededRandom(0))
    with pytest.raises(MechanismError, match="ratio is 1"):
        bounded_geometric_row(Fraction(1), 0, 2)
    with pytest.raises(MechanismError, match="maximum is 4, allowed: odd"):
        extremes_example(4, Fraction(1, 2))
    with pytest.raises(MechanismError, match=r"remap is \[0, 9\]"):
        remapped(bounded_geometric_matrix(Fraction(1, 2), 1), (0, 9))
    with pytest.raises(MechanismError, match="prior: 1 weights"):
        expected_loss(bounded_geometric_matrix(Fraction(1, 2), 1), (Fraction(1),), zero_one_loss)
