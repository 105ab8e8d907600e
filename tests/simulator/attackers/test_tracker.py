"""A tracker of all windows: as good as theory says, within every promise that is kept, and beyond one that is broken.

Promises are held against exact binomial bounds with a chance of one in a million of a false alarm.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.attackers import check, rows
from fleetcount_simulator.attackers.tracker import Ways, log_likelihoods
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, Mechanism, Row
from fleetcount_simulator.standing import StandingQuestion

from tests.simulator.engines.test_panels import asked, run
from tests.simulator.fleets import K_ARY, attacker
from tests.simulator.test_standing import question

RATE = Fraction(2, 5)
EPSILON = Fraction(3)
DELTA = Fraction(1, 1000)
WAY = (1,) * 30 + (2,) * 10 + (1,) * 8
"""Where a device is that works elsewhere on its second day."""
GAMES = 4000


def promising(kind: str, coin: Coin, law: Any) -> Mechanism:
    """Return a mechanism whose noise just keeps (EPSILON, DELTA) for 48 windows."""
    made = Mechanism(name=kind, kind=kind, sampling_rate=RATE if kind == "sampling" else None)
    shape: ScheduleShape = question(coin, 48).shape
    noise = noise_for_promise(made.answer(3), shape, EPSILON, DELTA, law)
    if isinstance(noise, GaussianNoise):
        return replace(made, noise_variance=noise.variance)
    return replace(made, noise_epsilon=noise.epsilon)


def halved(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism with noise of half the standard deviation."""
    if mechanism.noise_variance is not None:
        return replace(mechanism, noise_variance=mechanism.noise_variance / 4)
    assert mechanism.noise_epsilon is not None
    return replace(mechanism, noise_epsilon=mechanism.noise_epsilon * 2)


def tracked(mechanism: Mechanism, one: StandingQuestion, **parameters: str) -> list[Row]:
    case: Case = asked([WAY, (3,) * 48, (2,) * 48], one, mechanism)
    given = {"games": str(GAMES)} | parameters
    who = attacker("tracker", **given)
    check(who)
    return rows(replace(case, attackers=(who,)), run(case, "exact-law", 0, 1), np.random.SeedSequence(5))


def one_question(coin: Coin, **more: Any) -> StandingQuestion:
    return replace(question(coin, 48, **more), delta=DELTA)


ALL = [
    ("direct", Coin.WINDOW),
    pytest.param("sampling", Coin.WINDOW, marks=pytest.mark.nightly),
    pytest.param("sampling", Coin.DAY, marks=pytest.mark.nightly),
    ("sampling", Coin.QUESTION),
]


@pytest.mark.parametrize("law", [GaussianNoise, TwoSidedNoise])
@pytest.mark.parametrize(("kind", "coin"), ALL)
def test_a_kept_promise_is_kept_and_halved_noise_is_seen(kind: str, coin: Coin, law: Any) -> None:
    mechanism = promising(kind, coin, law)

    kept = tracked(mechanism, one_question(coin))
    broken = tracked(halved(mechanism), one_question(coin), epsilon=str(EPSILON), delta="1/1000")

    assert all(row["within"] for row in kept)
    assert [row["within"] for row in broken if row["measure"] == "beyond_promise"] == [False]


@pytest.mark.parametrize("hides", ["answer", pytest.param("day", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("coin", [Coin.WINDOW, pytest.param(Coin.DAY, marks=pytest.mark.nightly), Coin.QUESTION])
def test_an_answer_or_a_day_of_a_question_keeps_its_own_promise(coin: Coin, hides: str) -> None:
    found = tracked(promising("sampling", coin, GaussianNoise), one_question(coin), hides=hides)

    assert found[-1]["questions"] == (1 if hides == "answer" else 24)
    assert all(row["within"] for row in found)
    guess = next(row for row in found if row["measure"] == "guess_rate")
    assert 0.5 <= guess["bound"] < 1


def test_one_answer_of_a_panel_is_not_amplified() -> None:
    """The coin's other answers betray it: a claim of the fresh coin's loss is broken."""
    mechanism = Mechanism(name="s", kind="sampling", sampling_rate=RATE, noise_epsilon=Fraction(1))
    fresh = tracked(mechanism, one_question(Coin.WINDOW), hides="answer")[0]["bound"]
    claim = {"epsilon": "1.05", "delta": "1/1000", "games": "20000"}

    panel = tracked(mechanism, one_question(Coin.QUESTION), hides="answer", **claim)

    assert fresh < 0.78
    assert [row["within"] for row in panel if row["measure"] == "beyond_promise"] == [False]
    again = tracked(mechanism, one_question(Coin.WINDOW), hides="answer", **claim)
    assert [row["within"] for row in again if row["measure"] == "beyond_promise"] == [True]


@pytest.mark.parametrize("coin", list(Coin))
def test_a_tracker_believes_as_much_as_is_true(coin: Coin) -> None:
    """The posterior of the likelier way is, on average, how often it is right: likelihoods are those of the draws."""
    units = {Coin.WINDOW: [0, 1, 2, 3], Coin.DAY: [0, 2], Coin.QUESTION: [0]}[coin]
    lengths = np.diff([*units, 4])
    values = np.array([[1, 1, 1, 1], [2, 1, 2, 0]])
    ways = Ways(values=values, units=np.array(units), lengths=lengths, hidden=lengths, hides="question", target="")
    mechanism = Mechanism(name="s", kind="sampling", sampling_rate=RATE, noise_epsilon=Fraction(2))
    case = asked([WAY, (3,) * 48], one_question(coin), mechanism)
    generator = np.random.default_rng(11)
    held = generator.integers(0, 2, 100_000)

    logs = log_likelihoods(case, ways, 1, held, generator).sum(axis=2)

    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    beliefs = shares[np.arange(held.size), held] / shares.sum(axis=1)
    right = (logs.argmax(axis=1) == held) - np.maximum(beliefs, 1 - beliefs)
    # Five standard errors: luck once in 1.7 million.
    assert abs(float(right.mean())) < 5 * float(right.std()) / held.size**0.5
    assert float(beliefs.mean()) > 0.6


@pytest.mark.parametrize("law", [GaussianNoise, TwoSidedNoise])
def test_guesses_of_direct_answers_are_as_good_as_theory_says(law: Any) -> None:
    found = tracked(promising("direct", Coin.WINDOW, law), one_question(Coin.WINDOW))
    guesses = [row for row in found if row["measure"] == "guess_rate"]

    assert [row["questions"] for row in guesses] == [1, 3, 6, 12, 24, 48]
    for row in guesses:
        # Five standard errors; the Gaussian formula is a limit, good to 0.002 here.
        assert abs(row["measured"] - row["theory"]) < 5 * 0.5 / GAMES**0.5 + 0.002
    assert guesses[-1]["measured"] > guesses[0]["measured"] + 0.1


def test_a_home_is_found_among_places_and_not_above_its_bound() -> None:
    strong = Mechanism(name="d", kind="direct", noise_variance=Fraction(4))
    found = tracked(strong, one_question(Coin.WINDOW), hides="home", device="0", places="4")

    assert {row["measure"] for row in found} == {"guess_rate"}
    assert found[-1]["questions"] == 38  # The windows at its usual place.
    assert found[-1]["measured"] > 0.8
    assert all(row["within"] for row in found)
    assert found[0]["target"] == "device 0, home: 4 places"


def test_a_missing_window_tells_nothing() -> None:
    one = one_question(Coin.WINDOW, outages=((0, 29),))
    found = tracked(promising("direct", Coin.WINDOW, GaussianNoise), one)

    assert found[-1]["questions"] == 18


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"hides": "week"}, "hides is 'week'"),
        ({"hides": "home"}, "hides is 'home' without device"),
        ({"device": "3"}, "device is 3; allowed is 0 to 2"),
        ({"places": "5"}, "places is 5; allowed is at most 4"),
        ({"colluders": "2"}, "colluders is '2'; allowed is a whole number from 1 to 1"),
        ({"epsilon": "0"}, "epsilon is '0'; allowed is a number above 0"),
        ({"delta": "x"}, "delta is 'x'; allowed is a number above 0, at most 1"),
        ({"value": "1"}, "'value' is not a key"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(parameters: dict[str, str], named: str) -> None:
    mechanism = Mechanism(name="d", kind="direct", noise_epsilon=Fraction(1))
    with pytest.raises(ScenarioError, match=named):
        tracked(mechanism, one_question(Coin.WINDOW), **parameters)


def test_a_tracker_needs_a_question_and_a_promise() -> None:
    with pytest.raises(ScenarioError, match="allowed is 'sampling' or 'direct' with two-sided noise"):
        tracked(K_ARY, one_question(Coin.WINDOW))
    case = asked([WAY], question(Coin.WINDOW, 48), K_ARY)
    alone = replace(case, epochs=replace(case.epochs, question=None), attackers=(attacker("tracker"),))
    with pytest.raises(ScenarioError, match=r"allowed with a \[schedule\] table"):
        rows(alone, run(case, "exact-law", 0, 1), np.random.SeedSequence(5))
