"""One-sided noise: exact rows, an exact sampler, answers that are never wrong, and the bounds of the ADP paper."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_mechanisms.asymmetric import (
    AsymmetricGeometric,
    Direction,
    approximate_detection,
    approximate_detection_paper,
    asymmetric_row,
    expected_safe_answers,
    expected_safe_answers_approximate,
    noisy_sum_detection,
    noisy_sum_law,
    optimal_detection,
    ratio_above,
    safe_law,
    simulation_only_safe_detection,
)
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.randomness import SeededRandom
from hypothesis import given
from hypothesis import strategies as st

from tests.support.audit import chi_square_p
from tests.support.cases import case
from tests.support.nightly import NIGHTLY

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())
DRAWS = 100_000 if NIGHTLY else 30_000
RATIOS = st.fractions(min_value=Fraction(1, 20), max_value=Fraction(19, 20), max_denominator=60)


def exact(number: float) -> Fraction:
    return Fraction(str(number))


class RecordingSource:
    """A seeded stream that remembers how many bytes each draw asked for."""

    def __init__(self) -> None:
        self.inner, self.requests = SeededRandom(5), list[int]()

    def random_bytes(self, count: int, /) -> bytes:
        self.requests.append(count)
        return self.inner.random_bytes(count)


class ScriptedSource:
    """Gives the scripted bytes, request by request."""

    def __init__(self, *fills: int) -> None:
        self.fills = list(fills)

    def random_bytes(self, count: int, /) -> bytes:
        return bytes([self.fills.pop(0)]) * count


# Laws.


@pytest.mark.parametrize("row", GOLDEN["ageo.row"])
def test_rows_match_the_golden_numbers(row: dict[str, object]):
    mechanism = AsymmetricGeometric(epsilon=exact(row["eps"]), maximum=row["n"])

    assert [float(p) for p in mechanism.row(row["f"])] == pytest.approx(row["row"], abs=1e-9)


@given(RATIOS, st.integers(0, 8), st.data())
def test_rows_are_laws_on_the_right_side_of_the_count(ratio: Fraction, maximum: int, data: st.DataObject):
    count = data.draw(st.integers(0, maximum))

    down = asymmetric_row(ratio, count, maximum)
    up = asymmetric_row(ratio, count, maximum, Direction.INCREASING)

    assert sum(down) == sum(up) == 1
    assert all(p == 0 for p in down[:count])
    assert all(p > 0 for p in down[count:])
    assert all(p > 0 for p in up[: count + 1])
    assert all(p == 0 for p in up[count + 1 :])
    assert down[maximum] == ratio ** (maximum - count)
    assert up[0] == ratio**count


@given(RATIOS, st.integers(1, 8), st.data())
def test_a_protected_change_moves_every_possible_answer_by_exactly_eps(ratio: Fraction, n: int, data: st.DataObject):
    count = data.draw(st.integers(1, n))
    before, after = asymmetric_row(ratio, count, n), asymmetric_row(ratio, count - 1, n)

    ratios = {p / q for p, q in zip(before, after, strict=True) if p > 0}

    assert ratios == {1 / ratio}


@given(RATIOS, st.integers(1, 8), st.data())
def test_increasing_rows_protect_the_opposite_change(ratio: Fraction, n: int, data: st.DataObject):
    count = data.draw(st.integers(0, n - 1))
    before = asymmetric_row(ratio, count, n, Direction.INCREASING)
    after = asymmetric_row(ratio, count + 1, n, Direction.INCREASING)

    assert {p / q for p, q in zip(before, after, strict=True) if p > 0} == {1 / ratio}


def test_mean_and_variance_are_those_of_the_geometric_law():
    noise = OneSidedGeometric(Fraction(1, 2))
    weights = [noise.pmf(g) for g in range(200)]

    mean = math.fsum(g * p for g, p in enumerate(weights))

    assert math.fsum(weights) == pytest.approx(1)
    assert noise.mean == pytest.approx(mean)
    assert noise.variance == pytest.approx(math.fsum((g - mean) ** 2 * p for g, p in enumerate(weights)))
    assert noise.pmf(-1) == 0


@pytest.mark.parametrize("epsilon", [Fraction(1, 1000), Fraction(1), Fraction(20)])
def test_the_rational_ratio_never_claims_a_larger_loss_than_eps(epsilon: Fraction):
    ratio = ratio_above(epsilon)

    assert 0 <= float(ratio) - math.exp(-epsilon) < 1e-15
    assert -math.log(ratio) <= float(epsilon) * (1 + 1e-15)


# The sampler.


def geometric_law(epsilon: float, cells: int) -> dict[int, Fraction]:
    """The law of min(G, cells)."""
    return dict(enumerate(asymmetric_row(ratio_above(exact(epsilon)), 0, cells)))


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 4.0])
def test_the_sampler_follows_its_law_and_not_one_a_third_wider(epsilon: float):
    drawn = [min(g, 80) for g in OneSidedGeometric(exact(epsilon)).sample_many(SeededRandom(11), DRAWS)]

    assert chi_square_p(drawn, geometric_law(epsilon, 80)) > 1e-20
    assert chi_square_p(drawn, geometric_law(round(epsilon / 1.3, 6), 80)) < 1e-20


@pytest.mark.parametrize("direction", Direction)
def test_answers_follow_the_exact_row(direction: Direction):
    mechanism = AsymmetricGeometric(epsilon=Fraction(1, 2), maximum=6, direction=direction)

    answers = mechanism.sample_many(2, SeededRandom(12), 20_000)

    assert chi_square_p(answers, dict(enumerate(mechanism.row(2)))) > 1e-20
    assert chi_square_p(answers, dict(enumerate(mechanism.row(3)))) < 1e-20
    assert 0 <= mechanism.sample(2, SeededRandom(13)) <= 6


def test_every_draw_asks_for_the_same_bytes_whatever_it_gives():
    source = RecordingSource()

    drawn = OneSidedGeometric(Fraction(1, 10)).sample_many(source, 2000)

    assert len(set(source.requests)) == 1
    assert len(source.requests) == 2000
    assert len(set(drawn)) > 30


def test_a_tie_is_decided_by_further_digits_and_the_far_tail_is_added():
    """All-zero words tie with the tail's threshold of 0; the next digits say "beyond", then ones end it."""
    noise = OneSidedGeometric(Fraction(1))

    beyond = noise.sample(ScriptedSource(0, 0, 255))
    none = noise.sample(ScriptedSource(0, 255))

    block = none + 1
    assert block & (block - 1) == 0
    assert beyond == none + block


class Blocks:
    """Gives the scripted blocks, one a request, and zeros' complement after them."""

    def __init__(self, *blocks: bytes) -> None:
        self.blocks = list(blocks)

    def random_bytes(self, count: int, /) -> bytes:
        return self.blocks.pop(0) if self.blocks else b"\xff" * count


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_a_tied_word_is_continued_with_the_digits_of_its_own_coin(lane: int):
    """Lane 0 is "further digits", lanes 1 and 2 are binary digits 0 and 1; words above their thresholds say no."""
    noise, worth = OneSidedGeometric(Fraction(23)), (4, 1, 2)[lane]
    coins = noise._thresholds
    index = lane or coins.digits + 1
    words = [coins.thresholds[other or coins.digits + 1] + (other != lane) for other in range(coins.digits + 1)]
    tied = b"".join(word.to_bytes(24, "little") for word in words)
    further = coins.coins[index].threshold(256) & ((1 << 128) - 1)

    below, above = (noise.sample(Blocks(tied, (further + step).to_bytes(16, "little"))) for step in (-1, 1))

    assert coins.digits == 2
    assert (below, above) == (worth, 0)


def test_one_draw_is_that_of_the_definition_when_ties_and_the_far_tail_are_everywhere() -> None:
    """G is the sum of 2^i times coin i, and of what lies beyond; each coin is its word below its threshold."""
    for seed in range(40):
        with case(f"seed {seed}"):
            epsilon = (Fraction(1, 7), Fraction(1), Fraction(9), Fraction(90))[seed % 4]
            noise, chance = OneSidedGeometric(epsilon), random.Random(seed)
            plan, source = noise._thresholds, random.Random(-1 - seed)
            lanes = [plan.digits + 1, *range(1, plan.digits + 1)]
            steps = [chance.choice([-1, 0, 0, 1]) for _ in lanes]
            words = [max(0, plan.thresholds[coin] + step) for coin, step in zip(lanes, steps, strict=True)]
            further = [source.choice([bytes(16), b"\x80" * 16, b"\xff" * 16]) for _ in range(100)]
            expected = Blocks(*further)
            coins = [
                plan.settle(coin, expected) if word == plan.thresholds[coin] else word < plan.thresholds[coin]
                for coin, word in zip(lanes, words, strict=True)
            ]
            value = sum(coin << place for place, coin in enumerate(coins[1:]))
            value += plan.beyond(expected) if coins[0] else 0

            # The upper 8 bytes of a lane's 24 are no part of the word.
            block = b"".join(word.to_bytes(16, "little") + source.randbytes(8) for word in words)

            assert noise.sample(Blocks(block, *further)) == value


# One-sided answers.


@given(RATIOS, st.integers(0, 6), st.integers(0, 5))
def test_safe_is_found_with_the_probability_of_the_exact_row(ratio: Fraction, count: int, threshold: int):
    assert safe_law(ratio, count, threshold) == sum(asymmetric_row(ratio, count, 6)[: threshold + 1])


@pytest.mark.parametrize("row", GOLDEN["adp.beta"])
def test_the_optimal_detection_matches_the_golden_numbers(row: dict[str, float]):
    assert optimal_detection(exact(row["eps"]), row["k"], exact(row["alpha"])) == pytest.approx(row["beta"], abs=1e-9)


def test_safe_answers_reach_the_optimum_and_laplace_loses_a_whole_step():
    found = safe_law(ratio_above(Fraction(1)), 1, 2)

    assert float(found) == pytest.approx(optimal_detection(Fraction(1), 2), abs=1e-12)
    assert simulation_only_safe_detection(1.0, 2) == pytest.approx(optimal_detection(Fraction(1), 1), abs=1e-12)


def test_false_alarms_buy_detection_at_the_stated_rate():
    assert optimal_detection(Fraction(1), 2, Fraction(1, 10)) == pytest.approx(1 - 0.9 * math.exp(-2))
    assert optimal_detection(Fraction(1), 2, Fraction(1)) == 1


@pytest.mark.parametrize("row", GOLDEN["dp.beta"])
def test_the_competitor_matches_the_golden_numbers(row: dict[str, float]):
    arguments = exact(row["eps"]), exact(row["delta"]), int(row["k"]), exact(row["alpha"])

    assert approximate_detection(*arguments) == pytest.approx(row["tight"], abs=1e-9)
    assert approximate_detection_paper(*arguments) == pytest.approx(row["paper"], abs=1e-9)


@given(st.fractions(min_value=Fraction(1, 10), max_value=3), RATIOS, st.integers(1, 20), st.booleans())
def test_the_tight_recursion_is_never_above_the_paper_s(epsilon: Fraction, delta: Fraction, steps: int, small: bool):
    shift = delta / 10**4 if small else delta

    tight = approximate_detection(epsilon, shift, steps)

    assert tight <= approximate_detection_paper(epsilon, shift, steps) * (1 + 1e-9)
    assert approximate_detection(epsilon, shift, steps + 1) >= tight


def test_the_tight_recursion_bends_before_it_reaches_one():
    assert approximate_detection(Fraction(1), Fraction(1, 10), 4) < 1
    assert approximate_detection_paper(Fraction(1), Fraction(1, 10), 4) == 1


@pytest.mark.parametrize("row", GOLDEN["adp.beta_k_noise"])
def test_the_noises_of_several_aggregators_match_the_golden_numbers(row: dict[str, float]):
    found = noisy_sum_detection(exact(row["eps"]), int(row["m"]), int(row["k"]))

    assert found == pytest.approx(row["beta"], abs=1e-9)


@given(RATIOS, st.integers(0, 8), st.integers(1, 3))
def test_the_sum_of_noises_is_the_convolution_of_their_laws(ratio: Fraction, slack: int, aggregators: int):
    one = [(1 - ratio) * ratio**g for g in range(slack + 1)]
    law = [Fraction(1)] + [Fraction(0)] * slack
    for _ in range(aggregators):
        law = [sum(law[i] * one[total - i] for i in range(total + 1)) for total in range(slack + 1)]

    assert noisy_sum_law(ratio, slack, aggregators) == sum(law)


@given(RATIOS, st.integers(0, 12))
def test_two_noises_have_the_closed_form(ratio: Fraction, slack: int):
    expected = 1 - (slack + 2) * ratio ** (slack + 1) + (slack + 1) * ratio ** (slack + 2)

    assert noisy_sum_law(ratio, slack, 2) == expected
    assert noisy_sum_law(ratio, -1, 2) == 0


def test_the_city_has_5031_expected_safe_answers_and_its_competitor_has_six():
    city = GOLDEN["adp.city"]
    histogram = dict(enumerate(city["h012"])) | {count: city["busy"].count(count) for count in city["busy"]}

    safe = expected_safe_answers(histogram, 2, Fraction(1))

    assert sum(histogram.values()) == 5835
    assert safe == pytest.approx(city["answers"], abs=1e-9)
    assert safe / sum(city["h012"]) == pytest.approx(city["e_beta_t3"], abs=1e-9)
    competitor = expected_safe_answers_approximate(histogram, 2, Fraction(1), Fraction(1, 10**4))
    assert competitor == pytest.approx(city["answers_eps_delta"], abs=1e-9)


# Bad input.


@pytest.mark.parametrize("count", [-1, 7, True, 2.0, None])
def test_a_count_out_of_range_is_refused_without_being_shown(count: object):
    mechanism = AsymmetricGeometric(epsilon=Fraction(1), maximum=6)

    for call in (mechanism.row, lambda value: mechanism.sample(value, SeededRandom(0))):
        with pytest.raises(MechanismError, match=r"0\.\.6 \(the value given is withheld\)"):
            call(count)


@pytest.mark.parametrize("epsilon", [0.5, Fraction(0), Fraction(-1), Fraction(101), "1"])
def test_an_eps_that_is_not_exact_or_out_of_range_is_refused(epsilon: object):
    with pytest.raises(MechanismError, match="epsilon"):
        AsymmetricGeometric(epsilon=epsilon, maximum=6)
    with pytest.raises(MechanismError, match="epsilon"):
        OneSidedGeometric(epsilon)


def test_other_bad_arguments_are_refused_with_their_value():
    with pytest.raises(MechanismError, match="maximum is -1"):
        AsymmetricGeometric(epsilon=Fraction(1), maximum=-1)
    with pytest.raises(MechanismError, match="ratio is 1"):
        asymmetric_row(Fraction(1), 0, 1)
    with pytest.raises(MechanismError, match="steps is 0"):
        optimal_detection(Fraction(1), 0)
    with pytest.raises(MechanismError, match="alpha is 2"):
        optimal_detection(Fraction(1), 1, Fraction(2))
    with pytest.raises(MechanismError, match="delta is -1"):
        approximate_detection(Fraction(1), Fraction(-1), 1)
    with pytest.raises(MechanismError, match="aggregators is 0"):
        noisy_sum_law(Fraction(1, 2), 1, 0)
    with pytest.raises(MechanismError, match="places is -1"):
        expected_safe_answers({0: -1}, 2, Fraction(1))
