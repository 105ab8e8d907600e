"""Attackers: what they reach is what theory says, and stays within what is promised; a broken promise is seen.

Guess rates are binomial: a right rate lies within `SPREAD` = 6 standard deviations of its theory but once in 5e8.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_mechanisms.losses import Neighbours
from fleetcount_mechanisms.planned_noise import noise_epsilon_for
from fleetcount_simulator import attackers
from fleetcount_simulator.attackers.alarm import alarm_power, alarms, largest_unseen
from fleetcount_simulator.attackers.findings import share_of
from fleetcount_simulator.attackers.guessing import GuessingGame, best_guess_rate, play, posteriors
from fleetcount_simulator.attackers.liars import claimed_values, weight
from fleetcount_simulator.attackers.promises import guess_bound
from fleetcount_simulator.engines import engine
from fleetcount_simulator.engines.answer_laws import answer_law
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, Epochs, Mechanism, Row

from tests.simulator.fleets import (
    BITS,
    DIRECT,
    K_ARY,
    ONE_SIDED,
    RESPONSES,
    SAMPLING,
    Counted,
    Held,
    attacker,
    case,
    fleet,
    seed,
)

SPREAD = 6
GAMES = 20_000
HIDDEN = Mechanism(name="hidden", kind="sampling", sampling_rate=Fraction(1, 4), noise_epsilon=Fraction(1729, 1000))
WITH_NOISE = [
    HIDDEN,
    DIRECT,
    ONE_SIDED,
    Mechanism(name="down", kind="one-sided", noise_epsilon=Fraction(1, 2), direction="down"),
    Mechanism(name="noised k-ary", kind="k-ary", epsilon_local=Fraction(2), noise_epsilon=Fraction(1)),
    Mechanism(name="noised bits", kind="mangat-vector", epsilon_local=Fraction(1), noise_epsilon=Fraction(1)),
    Mechanism(name="noised unary", kind="unary", epsilon_local=Fraction(1), noise_epsilon=Fraction(1)),
]
EXACT = [SAMPLING, K_ARY, *BITS]


@dataclass(frozen=True)
class Laplace:
    """A law of noise that nothing here knows."""

    name: str = "laplace"
    epsilon: Fraction | None = Fraction(1)
    mean: float = 0.0
    variance: float = 2.0


@pytest.mark.parametrize("law", [Laplace(), Laplace(epsilon=None)], ids=["with an epsilon", "without"])
def test_a_guess_under_a_law_of_noise_that_is_not_known_is_refused_by_name(law: Laplace) -> None:
    game = GuessingGame(law=answer_law(DIRECT.design(3, 2)), noise=law, noises=1, candidates=(1, 2))

    with pytest.raises(ScenarioError, match="noise is 'laplace'; guesses are computed for geometric and"):
        best_guess_rate(game)


def values_of(mechanism: Mechanism) -> int:
    return 1 if mechanism in RESPONSES else 3


def rows_of(one: Case, runs: int = 3) -> list[Row]:
    outcome = engine("exact-law").run(one, 0, range(runs), seed())
    return attackers.rows(one, outcome, np.random.SeedSequence(9, spawn_key=(0, 0, 7)))


def row(one: Case, measure: str, runs: int = 3) -> Row:
    (found,) = [found for found in rows_of(one, runs) if found["measure"] == measure]
    return found


def near(rate: float, theory: float, games: int = GAMES) -> bool:
    return abs(rate - theory) <= SPREAD * math.sqrt(max(theory * (1 - theory), 1e-9) / games)


def game(mechanism: Mechanism, noises: int, pair: tuple[int, ...], hidden: tuple[int, ...] = ()) -> GuessingGame:
    law = answer_law(mechanism.design(values_of(mechanism), 2))
    return GuessingGame(law=law, noise=mechanism.noise, noises=noises, candidates=pair, hidden=hidden)


# Liars and cheats.


@pytest.mark.parametrize("strategy", ["one-cell", "spread", "random"])
@pytest.mark.parametrize(
    "mechanism", [HIDDEN, SAMPLING, RESPONSES[1], K_ARY, *BITS, *WITH_NOISE[1:]], ids=lambda m: m.name
)
def test_liars_shift_a_cell_by_what_theory_says_and_by_no_more(mechanism: Mechanism, strategy: str) -> None:
    liars = attacker("liars", devices="3000", strategy=strategy)
    counts = [4000, 500, 400, 300][: values_of(mechanism) + 1]
    one = case(Counted(counts), mechanism, attackers=(liars,))

    shift = row(one, "shift", runs=400)

    spread = (shift["high"] - shift["low"]) / 2 / 1.96
    assert abs(shift["measured"] - shift["theory"]) < SPREAD * spread
    assert shift["theory"] <= shift["bound"] + 1e-9
    assert shift["within"]
    assert abs(shift["measured"] - 1.3 * shift["theory"]) > SPREAD * spread


def test_a_liar_shifts_a_sampled_cell_by_one_over_the_rate() -> None:
    assert weight(answer_law(HIDDEN.design(3, 2))) == 4
    assert weight(answer_law(DIRECT.design(3, 2))) == 1


def test_liars_claim_as_their_strategy_says() -> None:
    generator = np.random.default_rng(1)

    assert claimed_values(attacker("liars", devices="7", value="2"), 3, generator).tolist() == [0, 0, 7, 0]
    assert claimed_values(attacker("liars", devices="7", strategy="spread"), 3, generator).tolist() == [0, 3, 2, 2]
    drawn = claimed_values(attacker("liars", devices="7", strategy="random"), 3, generator)
    assert (drawn[0], drawn.sum()) == (0, 7)


@pytest.mark.parametrize("mechanism", [HIDDEN, DIRECT], ids=lambda one: one.name)
def test_cheats_change_nothing_and_are_counted(mechanism: Mechanism) -> None:
    cheats = attacker("cheats", devices="30")
    one = case(fleet((10, 20, 30, 40)), mechanism, attackers=(cheats,))

    refused = row(one, "refused", runs=4)

    assert (refused["trials"], refused["measured"]) == (120, 1.0)
    outcomes = [engine("exact-law").run(other, 0, [0], seed()) for other in (one, case(one.population, mechanism))]
    assert np.array_equal(outcomes[0].outputs, outcomes[1].outputs)


# The alarm.


def everybody_somewhere(devices: int, rate: Fraction, liars: int = 0) -> Case:
    mechanism = Mechanism(name="s", kind="sampling", sampling_rate=rate)
    lying = (attacker("liars", devices=str(liars)),) if liars else ()
    return case(Counted([0, *([devices // 10] * 10)]), mechanism, attackers=lying)


def test_the_alarm_sees_what_the_design_says_it_sees() -> None:
    one = everybody_somewhere(100_000, Fraction(1, 20))

    unseen = largest_unseen(one, 100_000)

    # More than 327 movers too many of 100,000; a liar is a device too, so that 5 % of the liars are expected to move.
    assert unseen * 19 / 20 == pytest.approx(327, abs=2)
    assert alarm_power(one, 100_000, 0, unseen) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("liars", [250, 320, 345, 400])
def test_the_power_of_the_alarm_is_its_theory(liars: int) -> None:
    found = row(everybody_somewhere(100_000, Fraction(1, 20), liars), "alarm", runs=1000)

    assert near(found["measured"], found["theory"], 1000)


def test_an_honest_fleet_raises_no_alarm_and_a_lenient_one_as_often_as_it_says() -> None:
    one = everybody_somewhere(100_000, Fraction(1, 20))
    outcome = engine("exact-law").run(one, 0, range(4000), seed())

    assert not alarms(one, outcome.outputs, outcome.participants).any()
    lenient = alarms(one, outcome.outputs, outcome.participants, false_alarm=0.05).mean()
    assert near(float(lenient), 0.05, 4000)


def test_noise_is_part_of_the_alarm() -> None:
    mechanism = Mechanism(name="s", kind="sampling", sampling_rate=Fraction(1, 20), noise_epsilon=Fraction(1, 100))
    one = case(Counted([0, *([1000] * 10)]), mechanism)
    outcome = engine("exact-law").run(one, 0, range(4000), seed())

    assert near(float(alarms(one, outcome.outputs, outcome.participants, 0.05).mean()), 0.05, 4000)
    assert largest_unseen(one, 10_000) > 20 * largest_unseen(everybody_somewhere(10_000, Fraction(1, 20)), 10_000)


def test_devices_without_a_value_give_liars_room() -> None:
    one = everybody_somewhere(100_000, Fraction(1, 20))

    assert alarm_power(one, 100_000, 0, 500) > 0.9
    assert alarm_power(one, 90_000, 10_000, 500) < 1e-4


# Guesses: the best rate is a closed form where there is one.


def test_one_geometric_noise_is_guessed_exactly_as_often_as_promised() -> None:
    # A binary direct count with one unknown noise: TV = (1-a)/(1+a), so the best guess attains e^eps/(1 + e^eps).
    law = answer_law(DIRECT.design(1, 2))
    one = GuessingGame(law=law, noise=DIRECT.noise, noises=1, candidates=(1, 0))

    assert best_guess_rate(one) == pytest.approx(math.e / (1 + math.e), abs=1e-12)
    assert guess_bound(DIRECT.design(1, 2), 1) == pytest.approx(math.e / (1 + math.e), abs=1e-5)


@pytest.mark.parametrize("mechanism", [WITH_NOISE[2], WITH_NOISE[3]], ids=lambda one: one.name)
def test_one_sided_noise_is_guessed_exactly_as_often_as_promised(mechanism: Mechanism) -> None:
    one = game(mechanism, 1, (1, 0))

    epsilon = float(mechanism.noise_epsilon or 0)
    assert best_guess_rate(one) == pytest.approx(1 - math.exp(-epsilon) / 2, abs=1e-9)
    assert guess_bound(mechanism.design(3, 2), 1) == pytest.approx(1 - math.exp(-epsilon) / 2, abs=1e-5)


@pytest.mark.parametrize(
    ("mechanism", "rate"),
    [
        (SAMPLING, (1 + 0.3) / 2),
        (RESPONSES[1], 1 / (1 + math.exp(-1))),
        (RESPONSES[2], 1 - math.exp(-1) / 2),
        (K_ARY, 0.5 + (math.exp(1.5) - 1) / (math.exp(1.5) + 3) / 2),
        (BITS[0], 1 - math.exp(-1) / 2),
    ],
    ids=lambda value: value.name if isinstance(value, Mechanism) else "",
)
def test_without_noise_the_best_rate_is_that_of_the_local_law(mechanism: Mechanism, rate: float) -> None:
    pair = (1, 0) if values_of(mechanism) == 1 or mechanism is BITS[0] else (1, 2)

    assert best_guess_rate(game(mechanism, 2, pair)) == pytest.approx(rate, abs=1e-9)


GAUSSIAN = [
    Mechanism(name="direct gaussian", kind="direct", noise_variance=Fraction(9)),
    Mechanism(name="sampling gaussian", kind="sampling", sampling_rate=Fraction(1, 4), noise_variance=Fraction(2)),
]


@pytest.mark.parametrize("noises", [1, 2])
@pytest.mark.parametrize("mechanism", [*WITH_NOISE, *GAUSSIAN, *EXACT, *RESPONSES], ids=lambda one: one.name)
def test_a_guesser_reaches_the_best_rate_and_no_guess_beats_the_promise(mechanism: Mechanism, noises: int) -> None:
    two = mechanism.kind not in {"one-sided", "mangat-vector"} and values_of(mechanism) > 1
    for pair in [(1, 0), (1, 2)] if two else [(1, 0)]:
        one = game(mechanism, noises, pair)

        best = best_guess_rate(one)
        right = play(one, 1, GAMES, np.random.default_rng(2)) / GAMES

        assert best is not None
        assert near(right, best)
        assert best <= guess_bound(mechanism.design(values_of(mechanism), 2), noises) + 1e-9


STRICT = Mechanism(name="strict", kind="sampling", sampling_rate=Fraction(9, 20), noise_epsilon=Fraction(1, 2))


@pytest.mark.parametrize("mechanism", [STRICT, DIRECT, WITH_NOISE[4]], ids=lambda one: one.name)
def test_a_broken_promise_is_seen(mechanism: Mechanism) -> None:
    assert mechanism.noise_epsilon is not None
    weaker = Mechanism(
        name="weaker",
        kind=mechanism.kind,
        sampling_rate=mechanism.sampling_rate,
        epsilon_local=mechanism.epsilon_local,
        noise_epsilon=mechanism.noise_epsilon * 4,
    )
    bound = guess_bound(mechanism.design(3, 2), 1)

    found = share_of(play(game(weaker, 1, (1, 2)), 1, GAMES, np.random.default_rng(3)), GAMES)

    assert found.least > bound


def test_others_whose_coins_are_unknown_hide_a_device_further() -> None:
    alone, crowd = game(HIDDEN, 2, (1, 2)), game(HIDDEN, 2, (1, 2), hidden=(200, 300))

    rates = [best_guess_rate(one) for one in (alone, crowd)]

    assert rates[0] is not None
    assert rates[1] is not None
    assert 0.5 < rates[1] < rates[0] - 0.05
    assert near(play(crowd, 1, GAMES, np.random.default_rng(4)) / GAMES, rates[1])


def test_posteriors_are_calibrated() -> None:
    # The mean posterior of the truth, over both truths, is what a guess drawn from the posterior gets right.
    one, generator = game(HIDDEN, 2, (1, 2)), np.random.default_rng(5)

    (first, right_one), (second, right_two) = (posteriors(one, held, GAMES, generator) for held in (0, 1))

    best = best_guess_rate(one)
    assert best is not None
    assert near((right_one + right_two) / 2 / GAMES, best, 2 * GAMES)
    for shares in (first, second):
        # Bayes: of the games whose posterior of the truth is near x, the truth is the other candidate in 1 - x.
        assert 0.5 < shares.mean() < best
    odds = np.exp(float(law_loss(HIDDEN)))
    assert max(first.max(), second.max()) <= odds / (1 + odds) + 1e-9


def law_loss(mechanism: Mechanism) -> float:
    bound = guess_bound(mechanism.design(3, 2), 2)
    return math.log(bound / (1 - bound))


# The attackers' rows.


@pytest.mark.parametrize("mechanism", [*WITH_NOISE, *EXACT, *RESPONSES], ids=lambda one: one.name)
def test_who_knows_all_others_stays_within_the_promise(mechanism: Mechanism) -> None:
    counts = [40, 30, 20, 10][: values_of(mechanism) + 1]
    one = case(Counted(counts), mechanism, attackers=(attacker("known-others"),))

    found = row(one, "guess_rate")

    assert found["within"]
    assert near(found["measured"], found["theory"])
    assert found["theory"] <= found["bound"] + 1e-9


def test_knowing_truths_alone_is_less() -> None:
    rates = [
        row(case(Counted([40, 300, 200]), HIDDEN, attackers=(attacker("known-others", knows=knows),)), "guess_rate")
        for knows in ("answers", "truths")
    ]

    assert rates[1]["measured"] < rates[0]["measured"] - 0.05


def test_all_but_one_aggregators_learn_more_than_the_public_and_no_more_than_promised() -> None:
    guesses = []
    for kind in ("known-others", "colluding-aggregators"):
        one = case(Counted([40, 300, 200]), HIDDEN, aggregators=5, attackers=(attacker(kind),))
        guesses.append(row(one, "guess_rate"))

    public, colluding = guesses
    assert public["measured"] < colluding["measured"] - 0.03
    assert colluding["within"]
    assert near(colluding["measured"], colluding["theory"])


def test_all_aggregators_see_the_sampled_and_nothing_else() -> None:
    all_three = attacker("colluding-aggregators", colluders="3")
    population = Held(np.tile(fleet((5, 5, 5)).values, (10, 1)), 2)
    one = case(population, HIDDEN, aggregators=3, attackers=(all_three,), epochs=Epochs(count=10))

    guess, seen = row(one, "guess_rate"), row(one, "exposure")

    assert guess["bound"] == guess["theory"] == pytest.approx((1 + 0.25) / 2)
    assert seen["theory"] == pytest.approx(1 - 0.75**10)
    assert near(seen["measured"], seen["theory"])
    assert near(guess["measured"], guess["theory"])


def test_repeats_and_overlaps_add_up_until_the_ledger_ends_them() -> None:
    analyst = attacker("repeating-analyst", repeats="6", overlaps="2")
    loss = Fraction(law_loss(HIDDEN)).limit_denominator(10**6)
    one = case(
        Counted([40, 300, 200]), HIDDEN, attackers=(analyst,), epochs=Epochs(count=6, device_epsilon=3 * loss + 1)
    )

    free, ledger = row(one, "guess_rate"), row(one, "guess_rate_ledger")

    assert (free["questions"], ledger["questions"]) == (12, 4)
    assert 0.6 < ledger["measured"] < free["measured"] - 0.05
    assert free["within"]
    assert ledger["within"]
    assert ledger["bound"] == pytest.approx(1 / (1 + math.exp(-4 * law_loss(HIDDEN))))


@pytest.mark.parametrize("mechanism", [HIDDEN, DIRECT, ONE_SIDED], ids=lambda one: one.name)
def test_an_average_is_as_good_as_theory_says(mechanism: Mechanism) -> None:
    analyst = attacker("repeating-analyst", repeats="9", games="100")
    one = case(Counted([40, 300, 200, 5]), mechanism, attackers=(analyst,))

    found = row(one, "error_of_average")

    spread = (found["high"] - found["low"]) / 2 / 1.96
    assert abs(found["measured"] - found["theory"]) < SPREAD * spread
    assert abs(found["measured"] - 1.3 * found["theory"]) > SPREAD * spread


def test_a_tracker_learns_a_commute_epoch_by_epoch_and_no_more_than_promised() -> None:
    day = np.zeros((4, 20), dtype=np.uint16)
    day[:, 7] = [3, 1, 1, 3]
    tracker = attacker("repeating-analyst", device="7")
    one = case(Held(day, 3), HIDDEN, attackers=(tracker,), epochs=Epochs(count=4))

    found = rows_of(one)

    posterior = [one for one in found if one["measure"] == "posterior"]
    assert [one["epoch"] for one in posterior] == [0, 1, 2, 3]
    assert {one["target"] for one in posterior} == {"device 7: value 1 or value 3"}
    (place,) = [one for one in found if one["measure"] == "guess_rate_of_place"]
    assert place["within"]
    assert all(0.5 < one["measured"] < place["bound"] for one in posterior)
    (seen,) = [one for one in found if one["measure"] == "exposure"]
    assert seen["theory"] == pytest.approx(1 - 0.75**4)


@pytest.mark.parametrize("mechanism", [K_ARY, BITS[0], ONE_SIDED, DIRECT], ids=lambda one: one.name)
def test_every_mechanism_can_be_tracked(mechanism: Mechanism) -> None:
    day = np.zeros((3, 20), dtype=np.uint16)
    day[:, 7] = [3, 1, 2]
    tracker = attacker("repeating-analyst", device="7", games="2000")
    one = case(Held(day, 3), mechanism, attackers=(tracker,), epochs=Epochs(count=3))

    assert [found["within"] for found in rows_of(one) if found["measure"] == "guess_rate_of_place"] == [True]


def test_rows_are_the_same_for_the_same_seed_whoever_else_attacks() -> None:
    guesser = attacker("known-others", games="500")
    alone = case(Counted([40, 300, 200]), HIDDEN, attackers=(guesser,))
    joined = case(Counted([40, 300, 200]), HIDDEN, attackers=(guesser, attacker("cheats", devices="2")))

    assert rows_of(alone) == rows_of(alone) == rows_of(joined)[:1]


def test_all_rows_have_the_same_columns() -> None:
    kinds = ("liars", "cheats", "known-others", "colluding-aggregators", "repeating-analyst")
    one = case(Counted([40, 300, 200]), HIDDEN, attackers=tuple(attacker(kind) for kind in kinds))

    found = rows_of(one)

    assert {tuple(one) for one in found} == {tuple(found[0])}
    assert {one["kind"] for one in found} == set(kinds)


def test_an_attack_on_releases_that_never_came_is_measured_in_no_trial() -> None:
    one = case(Counted([4, 3, 2]), HIDDEN, min_batch_size=10**6, attackers=(attacker("liars"),))

    shift, alarm = row(one, "shift"), row(one, "alarm")

    assert (shift["trials"], shift["measured"], alarm["trials"], alarm["measured"]) == (0, None, 0, None)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (attacker("liers"), "kind is 'liers'"),
        (attacker("liars", count="3"), "'count' is not a key of kind 'liars'"),
        (attacker("liars", devises="3"), "did you mean 'devices'"),
        (attacker("liars", devices="0"), "devices is '0'; allowed is a whole number from 1"),
        (attacker("liars", devices="-1"), "devices is '-1'"),
        (attacker("liars", devices="1.5"), "devices is '1.5'"),
        (attacker("liars", devices="１"), "devices is '１'"),
        (attacker("liars", strategy="most"), "strategy is 'most'"),
        (attacker("liars", strategy="spread", value="2"), "value is for strategy 'one-cell'"),
        (attacker("cheats", value="2"), "'value' is not a key"),
        (attacker("known-others", knows="all"), "knows is 'all'"),
        (attacker("known-others", value="2", against="2"), "against is 2, the value itself"),
        (attacker("known-others", against="nobody"), "against is 'nobody'"),
        (attacker("known-others", games="0"), "games is '0'"),
        (attacker("colluding-aggregators", colluders="0"), "colluders is '0'"),
        (attacker("repeating-analyst", repeats="0"), "repeats is '0'"),
        (attacker("repeating-analyst", overlaps="1e3"), "overlaps is '1e3'"),
        (Attacker(name="m", kind="liars", parameters=(("devices", "1"), ("devices", "2"))), "given twice"),
    ],
    ids=lambda value: "" if isinstance(value, Attacker) else value,
)
def test_an_attacker_that_makes_no_sense_is_refused_by_name(wrong: Attacker, named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        attackers.check(wrong)


@pytest.mark.parametrize(
    ("mechanism", "wrong", "named"),
    [
        (HIDDEN, attacker("liars", value="4"), "value is 4; allowed is 1 to V = 3"),
        (HIDDEN, attacker("known-others", value="4"), "value is '4'"),
        (ONE_SIDED, attacker("known-others", against="2"), "promises nothing between two values"),
        (DIRECT, attacker("known-others", knows="truths"), "allowed without sampling is 'answers'"),
        (HIDDEN, attacker("colluding-aggregators", colluders="3"), "colluders is 3; allowed is 1 to k = 2"),
        (HIDDEN, attacker("repeating-analyst", repeats="9999", overlaps="9"), "89991 questions"),
        (HIDDEN, attacker("repeating-analyst", device="99"), "device is 99; allowed is 0 to 5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_attacker_that_does_not_fit_the_case_is_refused_by_name(
    mechanism: Mechanism, wrong: Attacker, named: str
) -> None:
    one: Any = case(fleet((1, 2, 2, 1)), mechanism)
    outcome = engine("exact-law").run(one, 0, [0], seed())

    with pytest.raises(ScenarioError, match=named):
        attackers.rows(case(one.population, mechanism, attackers=(wrong,)), outcome, seed())


def test_the_promise_of_the_default_noise_is_the_planned_one() -> None:
    epsilon = noise_epsilon_for(Fraction(1), Fraction(9, 20), Neighbours.ONE_CELL)
    mechanism = Mechanism(name="s", kind="sampling", sampling_rate=Fraction(9, 20), noise_epsilon=epsilon)

    assert guess_bound(mechanism.design(1, 2), 1) == pytest.approx(math.e / (1 + math.e), abs=1e-5)
