"""A coin that holds for several windows: the joint law of their sums, in both engines; who joins, leaves, is missed.

Chi-square tests at alpha = 1e-6, as in `test_engines_agree`: a right law fails once in a million.
"""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.engines import engine
from fleetcount_simulator.engines.participation import ABSENT, ON, REFUSED, earliest_joining, presence
from fleetcount_simulator.model import Case, EngineName, Epochs, Faults, Mechanism
from fleetcount_simulator.standing import StandingQuestion, membership_windows

from tests.simulator.engines.test_engines_agree import ALPHA, ENGINES, Law, p_value, unit
from tests.simulator.fleets import DIRECT, SAMPLING, Held, case
from tests.simulator.test_standing import question
from tests.support.nightly import NIGHTLY

P = Fraction(3, 10)
WAYS = ((1, 1), (1, 2), (1, 2), (2, 2), (0, 1))
"""The values of five devices in two windows."""
RUNS = 10_000 if NIGHTLY else 2_500
COMPARED = 4_000 if NIGHTLY else 1_000
LOSSY = Faults(loss=Fraction(1, 5), drop_out=Fraction(1, 4), late=Fraction(1, 10), duplicates=Fraction(1, 10))


def asked(ways: Any, one: StandingQuestion, mechanism: Mechanism = SAMPLING, **more: Any) -> Case:
    """Return the case of devices that go these ways; the ways of all windows after the last are the last."""
    values = np.array(ways, dtype=np.uint16).T
    values = values[np.minimum(np.arange(one.windows), len(values) - 1)]
    held = Held(values, int(values.max()))
    return case(held, mechanism, epochs=Epochs(count=one.windows, question=one, **more.pop("epochs", {})), **more)


def run(one: Case, name: EngineName, epoch: int, runs: int = RUNS) -> Any:
    return engine(name).run(one, epoch, range(runs), np.random.SeedSequence(1, spawn_key=(0, epoch)))


def joint_law(*, fresh: bool) -> Law:
    """Return the law of both windows' sums: a device moves its cell in both or in neither, or in each by a coin."""
    total: Law = {(0, 0, 0, 0): Fraction(1)}
    for first, second in WAYS:
        grown: Law = defaultdict(Fraction)
        for before, chance in total.items():
            for one, two in ((1, 1), (1, 0), (0, 1), (0, 0)):
                if fresh:
                    likely = (P if one else 1 - P) * (P if two else 1 - P)
                else:
                    likely = (P if one else 1 - P) * (one == two)
                moved = (*unit(first - 1, 2, one * (first > 0)), *unit(second - 1, 2, two * (second > 0)))
                grown[tuple(a + b for a, b in zip(before, moved, strict=True))] += chance * likely
        total = {outcome: chance for outcome, chance in grown.items() if chance}
    return total


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("coin", [Coin.WINDOW, Coin.QUESTION])
def test_two_windows_have_the_joint_law_of_their_coin(coin: Coin, name: EngineName) -> None:
    one = asked(WAYS, question(coin, 2))

    found = [tuple(row) for row in np.hstack([run(one, name, epoch).outputs for epoch in (0, 1)]).tolist()]

    assert p_value(found, joint_law(fresh=coin is Coin.WINDOW)) > ALPHA
    assert p_value(found, joint_law(fresh=coin is not Coin.WINDOW)) < ALPHA


@pytest.mark.parametrize("name", ENGINES)
def test_a_new_day_tosses_anew(name: EngineName) -> None:
    one = asked([(1,)] * 40, question(Coin.DAY, 48))

    sums = [run(one, name, epoch, 1).outputs[0].tolist() for epoch in (0, 1, 23, 24, 47)]

    assert sums[0] == sums[1] == sums[2] != sums[3] == sums[4]  # 40 coins a day, seeded.


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(Faults(), id="none"),
        pytest.param(LOSSY, id="lossy", marks=pytest.mark.nightly),
        pytest.param(replace(LOSSY, naive=True), id="naive"),
    ],
)
def test_the_engines_agree_about_a_panel_with_faults(faults: Faults) -> None:
    one = asked(WAYS * 20, question(Coin.QUESTION, 2), faults=faults)
    found = {name: run(one, name, 1, COMPARED) for name in ENGINES}

    means = [found[name].outputs.mean(axis=0) for name in ENGINES]
    errors = [found[name].outputs.std(axis=0) / np.sqrt(COMPARED) for name in ENGINES]
    # Six standard errors of the difference: a false alarm in 2e-9 of the cases for each of two cells.
    assert (np.abs(means[0] - means[1]) < 6 * np.hypot(*errors)).all()
    spreads = [found[name].outputs.var(axis=0) for name in ENGINES]
    assert np.allclose(spreads[0], spreads[1], rtol=6 * np.sqrt(2 / COMPARED) * np.sqrt(2))
    for name in ENGINES:
        tallies = found[name].tallies
        gone = sum(tallies[key] for key in ("lost", "late", "half_pairs", "absent", "refused"))
        assert (found[name].participants + gone == 100).all()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("coin", list(Coin))
def test_devices_are_conserved_while_they_join_and_leave(coin: Coin, name: EngineName) -> None:
    one = asked([(1,)] * 300, question(coin, 12, joins=Fraction(1, 2), leaves=Fraction(1, 3)), faults=LOSSY)

    came, gone_at = membership_windows(cast("StandingQuestion", one.epochs.question), 0, 300)
    assert 100 < (came > 0).sum() < 200
    assert 60 < (gone_at < 12).sum() < 140
    for epoch in range(12):
        outcome = run(one, name, epoch, 3)
        gone = sum(outcome.tallies[key] for key in ("lost", "late", "half_pairs", "absent", "refused"))
        assert (outcome.participants + gone == 300).all()
        assert (outcome.tallies["absent"] == ((epoch < came) | (epoch >= gone_at)).sum()).all()


@pytest.mark.parametrize("name", ENGINES)
def test_a_window_in_an_outage_is_not_released(name: EngineName) -> None:
    one = asked([(1,)] * 30, question(Coin.WINDOW, 6, outages=((2, 3),)), DIRECT)

    assert [bool(run(one, name, epoch, 1).released[0]) for epoch in range(6)] == [True, True, False, False, True, True]


@pytest.mark.parametrize("name", ENGINES)
def test_a_ledger_takes_the_rest_of_a_question_or_nothing(name: EngineName) -> None:
    mechanism = replace(SAMPLING, noise_epsilon=Fraction(1))
    limited = {"device_epsilon": Fraction(10)}
    one = asked([(1,)] * 400, question(Coin.WINDOW, 48, joins=Fraction(1)), mechanism, epochs=limited)
    earliest = earliest_joining(one)

    assert 1 < earliest < 47
    found = [presence(one, epoch, 2, 0, 400) for epoch in range(48)]
    states = np.stack([one for one in found if one is not None])
    assert len(states) == 48
    # Whoever answers once answers in every window to the end; whoever is refused, never.
    answered = states == ON
    assert (np.diff(answered.astype(int), axis=0) >= 0).all()
    assert not (answered.any(axis=0) & (states == REFUSED).any(axis=0)).any()
    assert (states[0] == ABSENT).sum() > 300
    assert run(one, name, 47, 1).participants[0] == answered[-1].sum()


def test_a_ledger_with_no_room_refuses_everybody() -> None:
    mechanism = replace(SAMPLING, noise_epsilon=Fraction(1))
    one = asked([(1,)] * 20, question(Coin.QUESTION, 48), mechanism, epochs={"device_epsilon": Fraction(1, 2)})

    assert run(one, "exact-law", 0, 1).tallies["refused"][0] == 20
    assert run(one, "per-device", 0, 1).tallies["refused"][0] == 20
