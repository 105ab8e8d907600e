"""What a question loses: the tables of docs/privacy.md, units that days cut, and agreement with other software."""

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
from fleetcount_mechanisms.accounting.question_losses import larger_chance, part_loss, question_losses, units_loss
from fleetcount_mechanisms.accounting.vectors import ScheduleShape, gaussian_unit_delta, geometric_unit_epsilon
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.renyi import (
    bounded_divergence,
    panel_geometric_divergence,
    panel_pure_epsilon,
    pure_divergence,
    zcdp_delta,
    zcdp_epsilon,
)
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampled_gaussian import panel_gaussian_divergence
from fleetcount_mechanisms.sampling import SamplingDie

DELTA = Fraction(1, 10**9)
DAYS = (24,) * 30
HOURLY = ScheduleShape(units=(1,) * 720, days=DAYS)
DAILY = ScheduleShape(units=DAYS, days=DAYS)
WHOLE = ScheduleShape(units=(720,), days=DAYS)


def design(answer: AnswerLaw, noise: NoiseLaw) -> Design:
    return Design(answer=answer, noise=noise, values=answer.values, aggregators=2)


def sampled(rate: Fraction) -> SamplingDie:
    return SamplingDie.uniform(rate, 5, allow_large_rate=True)


def gaussian(sd: str) -> GaussianNoise:
    return GaussianNoise(Fraction(sd) ** 2)


# Direct answers.


def test_the_table_of_direct_answers() -> None:
    tight = question_losses(design(Truth(5), gaussian("25.692")), HOURLY, DELTA)
    exact = question_losses(design(Truth(5), TwoSidedNoise(Fraction(389, 10_000))), HOURLY, DELTA)

    assert [round(float(loss), 4) for loss in (tight.one_answer, tight.one_day)] == [0.3040, 1.5913]
    assert 9.9999 < tight.whole_question <= 10
    assert float(exact.one_answer) == pytest.approx(0.0778, abs=1e-6)
    assert [round(float(loss), 3) for loss in (exact.one_day, exact.whole_question)] == [1.415, 9.52]


@pytest.mark.parametrize(
    ("sd", "geometric", "gauss"), [(5, 12, 13), (10, 33, 54), (20, 122, 218), (50, 742, 1363), (100, 2960, 5453)]
)
def test_the_table_of_how_many_maps_fit(sd: int, geometric: int, gauss: int) -> None:
    """The standard deviation is that of one cell of two aggregators' noises."""
    answers = design(Truth(5), GaussianNoise(Fraction(sd * sd, 2)))
    # Var = 2 * 1/(2 sinh(e1/2)**2).
    noise = TwoSidedNoise(Fraction(round(2 * math.asinh(1 / sd) * 10**12), 10**12))
    for question, most in ((answers, gauss), (design(Truth(5), noise), geometric)):
        assert units_loss(question, Counter({1: most}), DELTA) <= 10
        assert units_loss(question, Counter({1: most + 1}), DELTA) > 10


@pytest.mark.parametrize("windows", [1, 2, 5])
@pytest.mark.parametrize("epsilon", ["1/2", "1", "3/2", "5/2"])
def test_the_chance_of_a_larger_move_is_that_of_the_moved_numbers(windows: int, epsilon: str) -> None:
    """By convolution of what each moved number adds to the log of the odds."""
    shape, least = ScheduleShape(units=(1,) * windows, days=(windows,)), Fraction(epsilon)
    for noise, one in (
        (GaussianNoise(Fraction(9)), {z: math.exp(-z * z / 18) for z in range(-45, 46)}),
        (TwoSidedNoise(Fraction(1, 3)), {1: 1.0, 0: math.exp(-1 / 3)}),
    ):
        mass, total = sum(one.values()), {0: 1.0}
        for _ in range(2 * windows):
            new = Counter[int]()
            for (so_far, chance), (more, weight) in product(total.items(), one.items()):
                new[so_far + more] += chance * weight / mass
            total = dict(new)
        if isinstance(noise, GaussianNoise):
            above = sum(chance for z, chance in total.items() if (2 * z + 2 * windows) / 18 > least)
        else:
            above = sum(chance for ups, chance in total.items() if (2 * ups - 2 * windows) / 3 > float(least) + 1e-12)

        found = float(larger_chance(design(Truth(5), noise), shape, Fraction(600), least))

        assert above * (1 - 1e-9) <= found
        if isinstance(noise, TwoSidedNoise):
            assert found == pytest.approx(above, rel=1e-9, abs=1e-15)
        elif found < 0.1:
            assert found <= 1.1 * above


def test_the_chances_of_the_tables_are_far_above_delta() -> None:
    direct, geometric = design(Truth(5), gaussian("25.692")), design(Truth(5), TwoSidedNoise(Fraction(40632, 10**6)))
    lost = question_losses(geometric, HOURLY, DELTA)

    assert float(larger_chance(direct, HOURLY, Fraction(304, 1000), Fraction(99))) == pytest.approx(2e-8, rel=0.03)
    assert float(larger_chance(geometric, HOURLY, Fraction(1), lost.whole_question)) == pytest.approx(4.3e-9, rel=0.01)
    day = ScheduleShape(units=(1,) * 24, days=(24,))
    assert float(larger_chance(geometric, day, Fraction(1), lost.one_day)) == pytest.approx(1.5e-8, rel=0.03)
    for rate, shape in (("1/4", HOURLY), ("1/4", DAILY), ("1/2", WHOLE)):
        noisy = design(sampled(Fraction(rate)), gaussian("13.008"))
        lost = question_losses(noisy, shape, DELTA)
        chance = larger_chance(noisy, shape, lost.one_answer, lost.whole_question)
        assert DELTA < chance < Fraction(1, 10**6)


# Panel coins.


@pytest.mark.parametrize(
    ("rate", "shape", "sd"),
    [
        ("1/2", HOURLY, "12.858"),
        ("1/2", DAILY, "13.008"),
        ("1/2", WHOLE, "17.531"),
        ("1/4", HOURLY, "6.445"),
        ("1/4", DAILY, "7.368"),
        ("1/4", WHOLE, "16.032"),
    ],
)
def test_the_table_of_panel_coins(rate: str, shape: ScheduleShape, sd: str) -> None:
    sizes = Counter(shape.units)

    assert 9.98 < units_loss(design(sampled(Fraction(rate)), gaussian(sd)), sizes, DELTA) <= 10
    weaker = gaussian(str(Fraction(sd) - Fraction(1, 100)))
    assert units_loss(design(sampled(Fraction(rate)), weaker), sizes, DELTA) > 10


def test_an_event_under_a_panel_coin_is_not_amplified() -> None:
    found = [float(panel_pure_epsilon(Fraction(1, 4), m, 1, Fraction(1, 2), 2)) for m in (1, 2, 4, 8, 24)]
    whole = [float(panel_pure_epsilon(Fraction(1, 4), m, m, Fraction(1, 2), 2)) for m in (1, 2, 4, 8, 24)]

    assert found == pytest.approx([0.2538, 0.3574, 0.5971, 0.9143, 1.0000], abs=5e-5)
    assert whole == pytest.approx([0.2538, 0.5294, 1.1980, 2.9488, 10.9014], abs=5e-5)
    direct = units_loss(design(Truth(5), gaussian("8.14")), Counter({1: 1}), DELTA)
    alone = part_loss(design(sampled(Fraction(1, 4)), gaussian("8.14")), 24, 1, DELTA)
    amplified = units_loss(design(sampled(Fraction(1, 4)), gaussian("8.14")), Counter({1: 1}), DELTA)
    assert amplified < Fraction(95, 100) * direct < alone <= direct


def test_an_answer_of_a_unit_with_one_window_is_a_unit() -> None:
    question = design(sampled(Fraction(1, 4)), gaussian("8.14"))

    assert part_loss(question, 1, 1, DELTA) == units_loss(question, Counter({1: 1}), DELTA)


def test_days_of_different_lengths_count_by_the_longest_and_units_may_be_cut_by_days() -> None:
    question = design(sampled(Fraction(1, 4)), gaussian("8.14"))
    ragged = ScheduleShape(units=(5, 24, 3), days=(5, 24, 3))
    cut = ScheduleShape(units=(10, 10, 10), days=(15, 15))

    assert question_losses(question, ragged, DELTA).one_day == units_loss(question, Counter({24: 1}), DELTA)
    lost = question_losses(question, cut, DELTA)
    assert units_loss(question, Counter({10: 1}), DELTA) < lost.one_day
    assert lost.one_day <= units_loss(question, Counter({10: 2}), DELTA)


def test_all_changes_grow_from_answer_to_day_to_question() -> None:
    for answer, noise in (
        (Truth(1), gaussian("9")),
        (sampled(Fraction(1, 4)), TwoSidedNoise(Fraction(1, 10))),
        (KaryResponse(Fraction(1, 2), 3), gaussian("2")),
        (KaryResponse(Fraction(1, 2), 3), NoNoise()),
        (Truth(3), OneSidedNoise(Fraction(1, 10))),
    ):
        for shape in (HOURLY, DAILY, WHOLE):
            lost = question_losses(design(answer, noise), shape, DELTA)
            assert 0 < lost.one_answer <= lost.one_day <= lost.whole_question


def test_an_exact_sampled_count_has_no_loss_to_add() -> None:
    with pytest.raises(MechanismError, match="no finite epsilon"):
        question_losses(design(sampled(Fraction(1, 4)), NoNoise()), HOURLY, DELTA)


# Formulas at their limits.


def test_one_sided_losses_have_no_square_root_gain() -> None:
    assert bounded_divergence(Fraction(1), None, 7) == 1
    assert bounded_divergence(Fraction(1), Fraction(0), 7) == 0
    two_sided, nearly = pure_divergence(Fraction(1), 7), bounded_divergence(Fraction(1), Fraction(20), 7)
    assert two_sided < nearly < 1


def test_a_sure_coin_is_no_coin() -> None:
    order, noise = 5, Fraction(1, 10)
    assert panel_gaussian_divergence(Fraction(1), 24, Fraction(100), order) == Fraction(5 * 24, 100)
    sure = panel_geometric_divergence(Fraction(1), 24, noise, order)
    assert float(sure) == pytest.approx(float(48 * pure_divergence(noise, order)), rel=1e-12)
    assert panel_pure_epsilon(Fraction(1), 24, 3, noise, 2) == pytest.approx(6 * noise, rel=1e-12)
    sure_delta = gaussian_unit_delta(Fraction(1), 24, Fraction(100), Fraction(2))
    assert float(sure_delta) == pytest.approx(float(zcdp_delta(Fraction(24, 100), Fraction(2))), rel=1e-12)


def test_conversions_are_inverse_at_their_best_orders() -> None:
    for rho in (Fraction(1, 660), Fraction(1), Fraction(50)):
        epsilon = zcdp_epsilon(rho, DELTA)
        assert float(zcdp_delta(rho, epsilon)) == pytest.approx(1e-9, rel=1e-9)


def test_arguments_out_of_range_are_refused_with_their_value() -> None:
    with pytest.raises(MechanismError, match=r"changed windows is 3, allowed: 1\.\.2"):
        panel_pure_epsilon(Fraction(1, 4), 2, 3, Fraction(1), 2)
    with pytest.raises(MechanismError, match="cells is 3"):
        panel_pure_epsilon(Fraction(1, 4), 2, 1, Fraction(1), 3)
    with pytest.raises(MechanismError, match="sampling rate is 0"):
        geometric_unit_epsilon(Fraction(0), 1, Fraction(1), DELTA, Fraction(1))
    with pytest.raises(MechanismError, match="epsilon is -1"):
        gaussian_unit_delta(Fraction(1, 4), 1, Fraction(1), Fraction(-1))
    with pytest.raises(MechanismError, match="rho is -1"):
        zcdp_epsilon(Fraction(-1), DELTA)
    with pytest.raises(MechanismError, match="order is 1,"):
        pure_divergence(Fraction(1), 1)
    with pytest.raises(MechanismError, match="delta is 0"):
        units_loss(design(Truth(1), gaussian("9")), Counter({1: 1}), Fraction(0))


# Other software.


@pytest.mark.parametrize(("sd", "steps", "theirs"), [("25.692", 1440, 9.999965196731512), ("5", 48, 9.305178237976863)])
def test_renyi_losses_of_the_gaussian_are_those_of_dp_accounting_0_6(sd: str, steps: int, theirs: float) -> None:
    ours = zcdp_epsilon(Fraction(steps) / (2 * Fraction(sd) ** 2), DELTA)

    assert -1e-9 < theirs - float(ours) < 1e-3


@pytest.mark.nightly
def test_renyi_losses_of_the_gaussian_agree_with_dp_accounting() -> None:
    accountant = pytest.importorskip(
        "dp_accounting.rdp.rdp_privacy_accountant", reason="needs dp-accounting (`make nightly` installs it)"
    )
    event = pytest.importorskip("dp_accounting.dp_event", reason="needs dp-accounting (`make nightly` installs it)")

    for sd, steps in ((25.692, 1440), (5.0, 48)):
        peer = accountant.RdpAccountant(orders=[1 + n / 50 for n in range(1, 3000)])
        peer.compose(event.GaussianDpEvent(sd), steps)
        ours = zcdp_epsilon(Fraction(steps) / (2 * Fraction(str(sd)) ** 2), DELTA)
        # Both minimise the same bound; the peer over a grid of orders.
        assert -1e-9 < peer.get_epsilon(1e-9) - float(ours) < 1e-3


@pytest.mark.nightly
def test_the_exact_loss_of_the_gaussian_is_below_ours_by_the_margin_of_the_table() -> None:
    pld = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="needs dp-accounting (`make nightly` installs it)"
    )

    exact = pld.from_gaussian_mechanism(25.69 / math.sqrt(1440), value_discretization_interval=1e-4)

    assert exact.get_epsilon_for_delta(1e-9) == pytest.approx(9.5513, abs=2e-3)
