"""A study's question over real devices and aggregators: each window has its one record, and nobody is lost or
doubled.
"""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.engines.participation import earliest_joining, presence_histograms
from fleetcount_simulator.model import Case, Faults, Mechanism
from fleetcount_simulator.network.engine import NetworkEngine
from fleetcount_simulator.network.run import QuestionAsked

from tests.simulator.network.test_plan import GAUSSIAN, asked
from tests.simulator.network_cases import People

# A fresh copy compiles the verification first, and a loaded machine gets windows that are long.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600), pytest.mark.usefixtures("plain_verification")]
SEED = np.random.SeedSequence(20, spawn_key=(0, 0))
SOME = Fraction(1, 4)
MOST_NOISE = 12
"""Two aggregators' Gaussian noise of variance 1/2 each is as large in one cell with chance 1e-31."""


def conserved(case: Case, got: QuestionAsked) -> None:
    """Every device of every window is counted or has one reason not to be, and none is counted twice."""
    for one in got.windows:
        left = sum(one.account.tallies[name] for name in ("lost", "half_pairs", "late", "absent", "refused"))
        assert int(one.account.counted.sum()) + left == case.population.devices
        assert one.account.tallies["counted_twice"] == one.account.missing == 0


def as_the_oracle_says(case: Case, got: QuestionAsked) -> None:
    """Who is counted in a window is who is there by the arithmetic of the other engines; a pause has no record."""
    question = case.epochs.question
    assert question is not None
    for window, one in enumerate(got.windows):
        if question.is_missing(window):
            assert one.record is None
            assert not one.account.counted.any()
            continue
        expected = presence_histograms(case, window, 1)[0]
        assert one.account.counted.tolist() == expected.tolist(), window
        assert (one.record is not None) == (expected.sum() >= case.min_batch_size)
        if one.record is not None and case.mechanism.kind == "direct":
            cells = [cell.raw for cell in one.record.cells]
            assert np.abs(np.array(cells) - expected[1:]).max() <= MOST_NOISE


@pytest.mark.nightly
def test_devices_join_answer_and_leave_through_a_pause_and_every_window_is_as_the_oracle_says() -> None:
    case = asked(5, 24, joins=SOME, leaves=SOME, outages=((2, 2),))
    asks = NetworkEngine(transport="grpc")

    outcomes = [asks.run(case, window, [0], np.random.SeedSequence(20, spawn_key=(0, window))) for window in range(5)]

    (got,) = asks.ask_question(case, [0], SEED)  # What was asked above, not anew.
    as_the_oracle_says(case, got)
    conserved(case, got)
    assert [bool(one.released[0]) for one in outcomes] == [True, True, False, True, True]
    assert [one.counted[0].tolist() for one in outcomes] == [one.account.counted.tolist() for one in got.windows]
    assert outcomes[2].tallies["absent"].tolist() == [24]
    link = got.windows[3].record.chain if got.windows[3].record else None
    assert link is not None
    assert [(one.index, one.reason) for one in link.missing] == [(2, "paused")]


@pytest.mark.nightly
def test_a_panel_of_both_transports_meets_the_faults_of_every_window() -> None:
    sampling = Mechanism(name="s", kind="sampling", sampling_rate=Fraction(2, 5), noise_variance=Fraction(1, 2))
    share = Fraction(1, 8)
    faults = Faults(loss=share, drop_out=share, duplicates=Fraction(1, 2), reorder=True, ignition=True)
    people = People(60, 3, off={1: (0, 1), 2: (2,)}, epochs=6)
    case = asked(mechanism=sampling, coin=Coin.QUESTION, faults=faults, population=people)

    (got,) = NetworkEngine().ask_question(case, [0], SEED)

    conserved(case, got)
    for one in got.windows:
        assert one.record is not None
        assert one.account.tallies["absent"] == 2
        # Each is binomial around 7: 0 or above 30 once in 10^3 and 10^9 windows, and the seed is fixed.
        assert 1 <= one.account.tallies["lost"] <= 30
        assert 1 <= one.account.tallies["half_pairs"] <= 30


@pytest.mark.nightly
def test_real_ledgers_let_join_from_the_window_on_that_the_oracle_says() -> None:
    ledger = Fraction(30)
    case = asked(6, 24, joins=Fraction(1, 2), device_epsilon=ledger)

    (got,) = NetworkEngine(transport="grpc").ask_question(case, [0], SEED)

    assert 0 < earliest_joining(case) < 6
    assert got.windows[5].account.tallies["refused"] > 0
    as_the_oracle_says(case, got)
    conserved(case, got)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_hundred_windows_of_a_fleet_that_comes_and_goes() -> None:
    case = asked(100, 40, GAUSSIAN, joins=SOME, leaves=SOME, outages=((30, 32), (70, 70)))

    (got,) = NetworkEngine().ask_question(case, [0], SEED)

    as_the_oracle_says(case, got)
    conserved(case, got)
    assert sum(one.record is not None for one in got.windows) == 96
