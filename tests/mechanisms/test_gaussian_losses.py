"""Losses with Gaussian noise: the golden rows, never below brute force on the lattice or other accountants."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_mechanisms.answers import AnswerLaw, Relation, Truth, answer_named
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.losses import STATED_DELTA, gaussian_loss
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_mechanisms.randomness import rounded_up
from fleetcount_mechanisms.renyi import gaussian_rho, order_epsilon, zcdp_epsilon
from fleetcount_mechanisms.sampled_gaussian import panel_added, panel_gaussian_divergence
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray

Floats = NDArray[np.float64]
HALF, DELTA = Fraction(1, 2), STATED_DELTA


def test_the_golden_rows() -> None:
    near = 1e-14
    assert gaussian_rho(2, 1, Fraction(100)) == Fraction(1, 100)
    assert float(zcdp_epsilon(Fraction(1), DELTA)) == pytest.approx(9.52146367179223, abs=near * 10)
    assert float(zcdp_epsilon(Fraction(1, 660), DELTA)) == pytest.approx(0.304019425441280, abs=1e-12)
    assert float(order_epsilon(5 * Fraction(24, 660), Fraction(5), DELTA)) == pytest.approx(4.73713161163205, abs=near)
    assert float(order_epsilon(Fraction(9), Fraction(9), DELTA / 3)) == pytest.approx(11.3352986578784, abs=1e-13)
    assert float(2 * panel_added(HALF, 1, Fraction(166), 5)) == pytest.approx(0.00758144426371819, abs=near)
    assert float(2 * panel_added(Fraction(1, 10), 1, Fraction(4), 3)) == pytest.approx(0.00874731669715412, abs=near)


@pytest.mark.parametrize("rho", [Fraction(1, 10**6), Fraction(1, 660), Fraction(1), Fraction(4)])
def test_the_order_found_is_the_best_of_a_fine_grid_and_below_the_simple_bound(rho: Fraction) -> None:
    found = float(zcdp_epsilon(rho, DELTA))
    simple = float(rho) + 2 * math.sqrt(float(rho) * -math.log(DELTA))
    above = np.geomspace(1e-4, 1e7, 200_000)
    grid = (1 + above) * float(rho) - np.log1p(1 / above) - (math.log(DELTA) + np.log1p(above)) / above

    assert found < simple
    assert found <= float(grid.min()) + 1e-9
    assert found == pytest.approx(float(grid.min()), rel=1e-6)


# Brute force: the release law of one device's answer with one honest aggregator's noise, cell by cell.


def lattice(variance: float, reach: int) -> Floats:
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-(z**2) / (2 * variance))
    return np.asarray(mass / mass.sum())


def release(chances: dict[tuple[int, ...], float], noise: Floats) -> Floats:
    """Return the law of (what the answer adds, by its chances) + noise, an axis a cell."""
    total: Floats = np.zeros(1)
    for added, chance in chances.items():
        law: Floats = np.ones(1)
        for one in added:
            law = np.multiply.outer(law, np.roll(noise, one))
        total = total + chance * law.reshape(law.shape[1:])
    return total


def delta_at(one: Floats, other: Floats, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


SAMPLED = Fraction(1, 4)
CASES = {
    "direct V=1": (Truth(1), [{(0,): 1.0}, {(1,): 1.0}]),
    "direct V=2": (Truth(2), [{(0, 0): 1.0}, {(1, 0): 1.0}, {(0, 1): 1.0}]),
    "sampling V=1": (SamplingDie.uniform(SAMPLED, 1), [{(0,): 1.0}, {(0,): 0.75, (1,): 0.25}]),
    "sampling V=2": (
        SamplingDie.uniform(SAMPLED, 2),
        [{(0, 0): 1.0}, {(0, 0): 0.75, (1, 0): 0.25}, {(0, 0): 0.75, (0, 1): 0.25}],
    ),
    "mangat": (answer_named("mangat", 1, parameters={"flip": HALF}), [{(1, 0): 0.5, (0, 1): 0.5}, {(0, 1): 1.0}]),
    "warner": (
        answer_named("warner", 1, parameters={"keep": Fraction(19, 20)}),
        [{(1, 0): 0.95, (0, 1): 0.05}, {(1, 0): 0.05, (0, 1): 0.95}],
    ),
}


def under(answer: AnswerLaw, variance: Fraction) -> Design:
    return Design(answer=answer, noise=GaussianNoise(variance), values=answer.values, aggregators=2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("variance", [2, 9, 40])
def test_the_loss_is_at_least_that_of_brute_force_and_at_most_a_third_above(name: str, variance: int) -> None:
    answer, truths = CASES[name]
    epsilon, delta = gaussian_loss(under(answer, Fraction(variance)), Relation.ANY_VALUE)
    noise = lattice(variance, 12 * math.isqrt(variance) + 14)
    laws = [release(chances, noise) for chances in truths]
    pairs = [(one, other) for one in laws for other in laws if one is not other]

    worst = max(delta_at(one, other, float(epsilon)) for one, other in pairs)
    assert worst <= float(delta) * (1 + 1e-6) + 1e-16
    if delta:
        # The claim is no more than a third too large: the truth at three quarters of it is above delta.
        assert max(delta_at(one, other, 0.7 * float(epsilon)) for one, other in pairs) > float(delta)


def test_a_bit_of_a_vector_loses_less_than_a_value_and_both_hold() -> None:
    answer = answer_named("mangat-vector", 2, parameters={"flip": Fraction(1, 4)})
    noise = lattice(9, 50)
    bits = {0: {0: 0.75, 1: 0.25}, 1: {1: 1.0}}
    laws = {
        truth: release({(a, b): p * q for a, p in bits[truth[0]].items() for b, q in bits[truth[1]].items()}, noise)
        for truth in ((0, 0), (0, 1), (1, 0), (1, 1))
    }
    bit, value = (gaussian_loss(under(answer, Fraction(9)), one) for one in (Relation.ANY_BIT, Relation.ANY_VALUE))

    assert bit < value
    for one, first in laws.items():
        for other, second in laws.items():
            apart = sum(x != y for x, y in zip(one, other, strict=True))
            loss = float(bit[0] if apart == 1 else value[0])
            assert delta_at(first, second, loss) <= float(DELTA) * (1 + 1e-6)


@pytest.mark.parametrize("variance", [4, 25, 662])
def test_the_renyi_loss_of_a_sampled_value_is_at_least_that_of_the_worst_pair(variance: int) -> None:
    noise = lattice(variance, 14 * math.isqrt(variance) + 14)
    _, one, other = (release(law, noise) for law in CASES["sampling V=2"][1])
    for order in (2, 5, 16):
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = order * np.log(one) - (order - 1) * np.log(other)
        renyi = float(np.logaddexp.reduce(logs[np.isfinite(logs)])) / (order - 1)
        claim = float(panel_gaussian_divergence(SAMPLED, 1, Fraction(variance), order))
        assert renyi <= claim * (1 + 1e-9)
        assert renyi > 0.5 * claim


def test_a_local_promise_stands_where_it_is_the_smaller_one() -> None:
    answer = answer_named("warner", 1, parameters={"keep": Fraction(3, 5)})

    assert gaussian_loss(under(answer, Fraction(1)), Relation.ANY_VALUE) == (Fraction(answer.epsilon), 0)  # type: ignore[attr-defined]
    assert gaussian_loss(under(answer, Fraction(10**6)), Relation.ANY_VALUE)[1] == DELTA


def test_a_release_loses_what_opendp_0_16_says_and_at_most_8_percent_more_than_the_exact_loss() -> None:
    """OpenDP turns rho into epsilon with the same bound; dp-accounting 0.6 is exact."""
    claim = float(zcdp_epsilon(gaussian_rho(2, 1, Fraction(662)), DELTA))

    assert claim == pytest.approx(0.3035429538157363, rel=1e-4)
    assert 0.9 * claim < 0.28710187728641645 <= claim


@pytest.mark.nightly
def test_other_accountants_agree() -> None:
    """OpenDP turns rho into epsilon with the same bound; dp-accounting is exact, at most 8 % below for one release."""
    opendp = pytest.importorskip("opendp.prelude", reason="needs OpenDP (`make nightly` installs it)")
    pld = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="needs dp-accounting (`make nightly` installs it)"
    )
    rho = gaussian_rho(2, 1, Fraction(662))
    opendp.enable_features("contrib", "idealized-numerics")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)
    noised = opendp.c.make_zCDP_to_approxDP(opendp.m.make_gaussian(*space, scale=math.sqrt(662)))
    claim = float(zcdp_epsilon(rho, DELTA))

    theirs = noised.map(math.sqrt(2)).epsilon(float(DELTA))
    exact = pld.from_gaussian_mechanism(math.sqrt(662), sensitivity=math.sqrt(2), value_discretization_interval=1e-5)
    assert claim == pytest.approx(theirs, rel=1e-4)
    assert 0.9 * claim < exact.get_epsilon_for_delta(float(DELTA)) <= claim


def test_the_table_of_the_privacy_page_is_computed() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    for variance in (4, 662, 5000):
        answers = (Truth(1), Truth(2), SamplingDie.uniform(SAMPLED, 1), SamplingDie.uniform(SAMPLED, 2))
        losses = [gaussian_loss(under(answer, Fraction(variance)), Relation.ANY_VALUE)[0] for answer in answers]
        assert f"| {variance} | " + " | ".join(str(rounded_up(loss)) for loss in losses) + " |" in page


def test_parameters_outside_their_range_are_refused() -> None:
    for call, words in (
        (lambda: gaussian_rho(0, 1, Fraction(1)), "cells is 0"),
        (lambda: gaussian_loss(under(Truth(1), Fraction(0)), Relation.ANY_VALUE), "noise variance is 0"),
        (lambda: order_epsilon(Fraction(1), Fraction(1), DELTA), "order is 1"),
        (lambda: order_epsilon(Fraction(1), Fraction(2), Fraction(1)), "delta is 1"),
        (lambda: zcdp_epsilon(Fraction(-1), DELTA), "rho is -1"),
        (lambda: panel_gaussian_divergence(HALF, 1, Fraction(1), 1), "order is 1"),
    ):
        with pytest.raises(MechanismError, match=words):
            call()
