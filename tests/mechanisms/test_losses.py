"""The loss of every adversary's view, recomputed by enumerating what the adversary sees, and the golden numbers."""

import itertools
import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.exact_difference import (
    central_delta,
    message_epsilon,
    message_epsilon_binary,
    message_epsilon_of_face,
)
from fleetcount_mechanisms.losses import (
    Neighbours,
    exposure,
    linked_delta,
)
from fleetcount_mechanisms.noise import NoiseLaw, NoNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import (
    noise_epsilon_for,
    noise_epsilon_one_cell,
    noise_epsilon_two_cell,
    release_epsilon_one_cell,
    release_epsilon_two_cell,
    release_sd,
    response_release_epsilon,
    sampling_sd,
)
from fleetcount_mechanisms.responses import KaryResponse, Mangat, MangatVector, RandomizedResponse, TwoCoin, Warner
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import AdversaryView, views_of

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())
CLOSE: dict[str, Any] = {"rel": 1e-9, "abs": 1e-12}
HALF = Fraction(1, 2)
ONE = Neighbours.ONE_CELL
DICE = [
    SamplingDie.uniform(Fraction(9, 20), 1),
    SamplingDie.uniform(Fraction(1, 4), 4),
    SamplingDie(
        sampling_rate=Fraction(1, 4),
        values=3,
        face_probabilities=(Fraction(3, 8), Fraction(1, 8), Fraction(1, 16), Fraction(3, 16)),
    ),
]


def golden(group: str) -> list[dict[str, Any]]:
    return list(GOLDEN[group])


def hockey_stick(first: dict[Any, Fraction], second: dict[Any, Fraction], power: Fraction) -> Fraction:
    """Return the least delta for e**epsilon = power, in one direction."""
    return sum(
        (max(Fraction(0), mass - power * second.get(key, Fraction(0))) for key, mass in first.items()), Fraction(0)
    )


def test_the_loss_of_a_binary_message_is_the_larger_of_equations_21_and_25() -> None:
    for row in golden("sampling.eps"):
        no, yes = message_epsilon_binary(row["pi0"], row["pis"])

        assert no == pytest.approx(row["eq21"], **CLOSE)
        assert yes == pytest.approx(row["eq25"], **CLOSE)
        assert max(no, yes) == pytest.approx(row["binary"], **CLOSE)


def test_the_loss_of_a_message_is_equation_29_and_falls_with_the_face_probability() -> None:
    losses = [message_epsilon_of_face(row["piv"], row["pis"]) for row in golden("sampling.eps29")]

    assert losses == pytest.approx([row["eps"] for row in golden("sampling.eps29")], **CLOSE)
    assert losses == sorted(losses, reverse=True)


def test_the_linked_delta_is_the_sampling_rate() -> None:
    for row in golden("sampling.linked_delta"):
        die = SamplingDie.uniform(Fraction(str(row["pis"])), 3)

        assert float(linked_delta(die)) == pytest.approx(row["delta"], **CLOSE)


@pytest.mark.parametrize("row", golden("sampling.central_delta"), ids=str)
def test_the_delta_of_the_exact_difference_is_the_golden_one(row: dict[str, float]) -> None:
    delta = central_delta(row["pis"], int(row["n1"]), row["eps"])

    assert delta == pytest.approx(row["delta"], rel=1e-9)


def test_standard_deviations_without_and_with_noise_are_the_golden_ones() -> None:
    for row in golden("sampling.sd"):
        assert sampling_sd(row["n"], row["pis"]) == pytest.approx(row["sd"], **CLOSE)
    for row in golden("hardened.sd"):
        noise = noise_epsilon_two_cell(row["eps"], row["pis"])
        assert release_sd(row["n"], row["pis"], noise, row["k"]) == pytest.approx(row["sd"], **CLOSE)


def test_the_hardened_release_loses_the_golden_epsilon() -> None:
    for row in golden("hardened.eps"):
        assert release_epsilon_one_cell(row["pis"], row["e1"]) == pytest.approx(row["one"], **CLOSE)
        assert release_epsilon_two_cell(row["pis"], row["e1"]) == pytest.approx(row["two"], **CLOSE)


def test_the_noise_for_a_target_is_the_golden_one_before_rounding() -> None:
    for row in golden("hardened.e1"):
        assert noise_epsilon_one_cell(row["eps"], row["pis"]) == pytest.approx(row["one"], **CLOSE)
        assert noise_epsilon_two_cell(row["eps"], row["pis"]) == pytest.approx(row["two"], **CLOSE)


@pytest.mark.parametrize("die", DICE, ids=str)
def test_one_message_alone_loses_exactly_what_the_enumeration_of_its_law_loses(die: SamplingDie) -> None:
    positions = range(die.values + 1)
    worst = max(
        die.round_two_probability(output, first) / die.round_two_probability(output, second)
        for output, first, second in itertools.product(positions, repeat=3)
    )

    assert worst == 1 + die.sampling_rate / die.smallest_face_probability
    assert message_epsilon(die) == pytest.approx(math.log(worst), rel=1e-12)
    assert message_epsilon(die) >= math.log(worst)


@pytest.mark.parametrize("die", DICE, ids=str)
def test_both_rounds_together_have_delta_p_at_every_epsilon_and_no_less(die: SamplingDie) -> None:
    positions = range(die.values + 1)
    laws = [
        {pair: die.pair_probability(*pair, truth) for pair in itertools.product(positions, repeat=2)}
        for truth in positions
    ]

    for power in (Fraction(1), Fraction(3), Fraction(10**9)):
        worst = max(hockey_stick(laws[first], laws[second], power) for first in positions for second in positions)
        assert worst <= linked_delta(die)
        if power >= 1 + die.sampling_rate / die.smallest_face_probability:
            # Truth v >= 1 against 0: the pair (0, v) never happens under truth 0.
            assert worst == linked_delta(die)


@pytest.mark.parametrize("power", [Fraction(1), Fraction(11, 10), Fraction(3)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_the_delta_of_the_exact_difference_equals_its_enumeration(count: int, power: Fraction) -> None:
    rate = Fraction(9, 20)
    laws = [
        {
            successes: math.comb(size, successes) * rate**successes * (1 - rate) ** (size - successes)
            for successes in range(size + 1)
        }
        for size in (count, count - 1)
    ]
    exact = max(hockey_stick(laws[0], laws[1], power), hockey_stick(laws[1], laws[0], power))

    assert central_delta(float(rate), count, math.log(power)) == pytest.approx(float(exact), rel=1e-9)
    assert exact <= rate


def test_answering_again_with_fresh_coins_shows_the_truth_in_the_end() -> None:
    assert exposure(Fraction(1, 20), 0) == 0
    assert exposure(Fraction(1, 20), 1) == Fraction(1, 20)
    assert float(exposure(Fraction(1, 20), 30)) == pytest.approx(0.785, abs=1e-3)


def released_law(moves: dict[tuple[int, ...], Fraction], cells: tuple[int, ...]) -> Fraction:
    """Return a released vector's density up to a constant: noise ratio 1/2 a cell, moves = a device's additions."""
    return sum(
        (
            chance
            * math.prod((HALF ** abs(cell - moved) for cell, moved in zip(cells, move, strict=True)), start=Fraction(1))
            for move, chance in moves.items()
        ),
        Fraction(0),
    )


def worst_ratio(laws: list[dict[tuple[int, ...], Fraction]], cells: int) -> Fraction:
    window = list(itertools.product(range(-2, 4), repeat=cells))
    return max(
        released_law(first, point) / released_law(second, point)
        for first, second in itertools.permutations(laws, 2)
        for point in window
    )


@pytest.mark.parametrize("rate", [Fraction(9, 20), Fraction(1, 10), Fraction(1)], ids=str)
def test_the_release_loses_exactly_what_the_enumeration_of_its_law_loses(rate: Fraction) -> None:
    one = [{(0,): Fraction(1)}, {(0,): 1 - rate, (1,): rate}]
    two = [{(0, 0): 1 - rate, (1, 0): rate}, {(0, 0): 1 - rate, (0, 1): rate}]

    assert math.log(worst_ratio(one, 1)) == pytest.approx(release_epsilon_one_cell(rate, math.log(2)), rel=1e-12)
    assert math.log(worst_ratio(two, 2)) == pytest.approx(release_epsilon_two_cell(rate, math.log(2)), rel=1e-12)


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("rate", [Fraction(9, 20), Fraction(1, 4), Fraction(1, 1000), Fraction(1)], ids=str)
@pytest.mark.parametrize("target", [Fraction(1, 1000), Fraction(1, 10), Fraction(1), Fraction(20, 3)], ids=str)
def test_noise_for_a_target_never_passes_it_and_wastes_less_than_a_millionth(
    target: Fraction, rate: Fraction, neighbours: Neighbours
) -> None:
    noise = noise_epsilon_for(target, rate, neighbours)

    forward: Callable[[Fraction, Fraction], float] = (
        release_epsilon_one_cell if neighbours is Neighbours.ONE_CELL else release_epsilon_two_cell
    )
    assert noise.denominator <= 10**6
    assert forward(rate, noise) <= target + Fraction(1, 10**12)
    assert forward(rate, noise + Fraction(1, 10**6)) > target - Fraction(1, 10**12)


def views_by_slug(
    answer: SamplingDie | Truth | RandomizedResponse, noise: NoiseLaw, aggregators: int = 2
) -> dict[str, AdversaryView]:
    design = Design(answer=answer, noise=noise, values=answer.values, aggregators=aggregators)
    return {view.adversary: view for view in views_of(design)}


def test_the_views_of_the_binary_default_are_the_table_of_the_privacy_page() -> None:
    die = SamplingDie.uniform(Fraction(9, 20), 1)

    views = views_by_slug(die, TwoSidedNoise(Fraction("1.572")))

    shown = {slug: (view.epsilon, view.delta) for slug, view in views.items()}
    zero = Decimal(0)
    assert shown == {
        "public_and_broker": (Decimal("0.99965"), zero),
        "one_aggregator": (Decimal("0.99965"), zero),
        "all_but_one_aggregators": (Decimal("0.99965"), zero),
        "all_aggregators": (None, Decimal("0.45")),
        "sampled_bit_leaked": (Decimal("1.572"), zero),
        "one_round_two_message": (Decimal("0.96941"), zero),
    }
    assert views["public_and_broker"].neighbours == "one-cell"


def test_more_than_one_value_is_charged_for_two_cells() -> None:
    die = SamplingDie.uniform(Fraction(1, 4), 9)

    views = views_by_slug(die, TwoSidedNoise(Fraction("1.729")), 3)

    assert views["public_and_broker"].epsilon == Decimal("0.99975")
    assert views["sampled_bit_leaked"].epsilon == Decimal("3.458")
    assert views["one_round_two_message"].epsilon == Decimal("1.46634")
    assert {view.neighbours for view in views.values()} == {"two-cell", "any-value"}


def test_the_exact_release_of_the_paper_has_no_finite_epsilon_for_anybody() -> None:
    views = views_by_slug(SamplingDie.uniform(Fraction(1, 4), 9), NoNoise())

    assert views["public_and_broker"].epsilon is None
    assert views["public_and_broker"].delta == Decimal("0.25")
    assert views["sampled_bit_leaked"].delta == 1
    assert views["one_round_two_message"].epsilon is not None


def test_direct_mode_rests_on_the_noise_alone() -> None:
    one, many = (views_by_slug(Truth(values), TwoSidedNoise(Fraction(1))) for values in (1, 9))

    assert [views["public_and_broker"].epsilon for views in (one, many)] == [1, 2]
    assert (one["all_aggregators"].epsilon, one["all_aggregators"].delta) == (None, 1)


RESPONSES: list[RandomizedResponse] = [
    Warner(Fraction(3, 4)),
    TwoCoin(Fraction(4, 5), Fraction(1, 5)),
    Mangat(Fraction(1, 3)),
    KaryResponse(Fraction(1, 2), 2),
]


@pytest.mark.parametrize("response", RESPONSES, ids=lambda response: type(response).__name__)
def test_noised_randomized_answers_lose_what_the_enumeration_of_their_law_loses(
    response: RandomizedResponse,
) -> None:
    size = response.values + 1
    units = [tuple(int(cell == output) for cell in range(size)) for output in range(size)]
    laws = [{unit: response.probability(output, truth) for output, unit in enumerate(units)} for truth in range(size)]
    noise = Fraction("0.693147")

    claimed = response_release_epsilon(response, noise)

    # The enumeration has noise ratio 1/2, so e1 = ln 2, which is 2e-7 above the rational used.
    assert float(claimed) == pytest.approx(math.log(worst_ratio(laws, size)), abs=2e-5)


def test_noise_never_makes_an_answer_less_private_than_its_coins_or_its_noise() -> None:
    for response in (RESPONSES[0], RESPONSES[1], RESPONSES[3]):
        for noise in (Fraction(1, 100), Fraction(1), Fraction(10)):
            assert float(response_release_epsilon(response, noise)) <= min(response.epsilon, 2 * noise) + 1e-5
    vector = MangatVector(Fraction(1, 3), 5)
    assert float(response_release_epsilon(vector, Fraction(1, 10))) <= 0.1 + 1e-5


def test_the_local_loss_of_a_response_holds_against_all_aggregators_and_mangat_says_it_is_one_sided() -> None:
    warner, mangat = Warner.from_epsilon(Fraction(1)), Mangat.from_epsilon(Fraction(1))

    plain = views_by_slug(warner, NoNoise())
    noised = views_by_slug(warner, TwoSidedNoise(Fraction(1, 10)))
    one_sided = views_by_slug(mangat, NoNoise())

    assert {view.epsilon for view in plain.values()} == {Decimal(1)}
    assert noised["all_aggregators"].epsilon == 1
    public = noised["public_and_broker"].epsilon
    assert public is not None
    assert public < Decimal("0.2")
    assert {view.neighbours for view in one_sided.values()} == {"one-sided"}
    assert "not protected" in one_sided["public_and_broker"].sentence


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: central_delta(0.0, 1, 1.0), "sampling rate is 0.0, allowed: 0 <"),
        (lambda: central_delta(0.5, 0, 1.0), "count is 0, allowed: 1"),
        (lambda: central_delta(0.5, 1, math.nan), "epsilon is nan"),
        (lambda: release_epsilon_one_cell(2, 1), "sampling rate is 2.0"),
        (lambda: release_epsilon_two_cell(0.5, math.inf), "epsilon is inf, allowed: 0 <"),
        (lambda: noise_epsilon_for(Fraction(0), HALF, ONE), "target epsilon is 0"),
        (lambda: noise_epsilon_for(Fraction(1, 10**9), HALF, ONE), "target epsilon is 1/1000000000"),
        (lambda: noise_epsilon_for(1.0, HALF, ONE), "exact Fraction"),  # type: ignore[arg-type] # is refused
        (lambda: exposure(HALF, -1), "queries is -1"),
        (lambda: views_by_slug(DICE[0], NoNoise(), 1), "aggregators is 1, allowed: aggregators >= 2"),
        (
            lambda: Design(answer=DICE[0], noise=NoNoise(), values=4, aggregators=2),
            "values is 4, allowed: the answer's own 1",
        ),
        (lambda: TwoSidedNoise(Fraction(0)), "noise epsilon is 0"),
        (lambda: message_epsilon_of_face(0.0, 0.5), "face probability 0.0"),
    ],
)
def test_a_bad_parameter_is_named_with_its_range(call: Callable[[], object], words: str) -> None:
    with pytest.raises(MechanismError) as caught:
        call()

    assert words in str(caught.value)
