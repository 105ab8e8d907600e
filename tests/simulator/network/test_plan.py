"""What real devices are asked of a study's question, and what they cannot be asked; how its records must follow."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.window.domain import Categories
from fleetcount_simulator.engines.participation import presence_histograms
from fleetcount_simulator.errors import ProcessError, ScenarioError
from fleetcount_simulator.model import Case, Epochs, Faults, Mechanism
from fleetcount_simulator.network.device_faults import DeviceFault
from fleetcount_simulator.network.engine import NetworkEngine
from fleetcount_simulator.network.plan import faultless_plan, plan_of
from fleetcount_simulator.network.question import question_of, reading_of, readings_of
from fleetcount_simulator.network.run import check_chain
from fleetcount_simulator.standing import StandingQuestion, schedule_of

from tests.simulator.network_cases import People, case_of

GAUSSIAN = Mechanism(name="g", kind="direct", noise_variance=Fraction(1, 2))
SEED = np.random.SeedSequence(20, spawn_key=(0, 3))


def asked(windows: int = 6, devices: int = 40, mechanism: Mechanism = GAUSSIAN, **changes: Any) -> Case:
    settings: dict[str, Any] = {"coin": Coin.WINDOW, "epsilon": None, "delta": Fraction(1, 10**9)}
    names = ("coin", "joins", "leaves", "outages")
    given = {name: changes.pop(name) for name in names if name in changes}
    question = StandingQuestion(schedule=schedule_of(windows, 3600, 0), **(settings | given))
    epochs = Epochs(count=windows, question=question, device_epsilon=changes.pop("device_epsilon", None))
    people = changes.pop("population", People(devices, 3, epochs=windows))
    return case_of(mechanism=mechanism, epochs=epochs, population=people, **changes)


def test_a_plan_holds_who_is_there_in_every_window_and_what_each_reads() -> None:
    people = People(40, 3, off={1: (5, 6)}, epochs=6)
    case = asked(joins=Fraction(1, 4), leaves=Fraction(1, 4), population=people, faults=Faults(ignition=True))

    question = question_of(case)
    plan = plan_of(case, question, 1, SEED)

    for window in range(6):
        truths = plan.truths[window][plan.unharmed[window]]
        assert np.bincount(truths, minlength=4).tolist() == presence_histograms(case, window, 1)[0].tolist()
        assert plan.part.readings[window] == [readings_of(question.domain, int(value)) for value in plan.truths[window]]
        # Joining and leaving are the devices' own acts, not faults that befall them.
        stay = zip(plan.part.came, plan.part.gone, strict=True)
        off = [came <= window < gone and number in (5, 6) for number, (came, gone) in enumerate(stay)]
        assert [bool(flags & DeviceFault.ABSENT) for flags in plan.part.faults[window]] == off
    half = plan.part.of(slice(1, None, 2))
    assert half.came == plan.part.came[1::2]
    assert half.readings[4] == plan.part.readings[4][1::2]


def test_a_fleet_that_nothing_befalls_answers_every_window() -> None:
    domain = question_of(asked()).domain
    assert isinstance(domain, Categories)
    readings = [[reading_of(domain, (device + window) % 4) for device in range(5)] for window in range(3)]

    plan = faultless_plan(domain, readings)

    assert plan.truths.tolist() == [[(device + window) % 4 for device in range(5)] for window in range(3)]
    assert plan.part.readings == [[(reading,) for reading in row] for row in readings]
    assert (plan.question.windows, plan.question.coin, plan.pauses) == (3, Coin.WINDOW, [])
    assert (plan.part.came, plan.part.gone) == ([0] * 5, [3] * 5)
    assert plan.unharmed.all()
    assert not np.any(plan.part.faults)


def test_the_faults_of_a_window_are_those_of_its_epoch_whichever_window_asks() -> None:
    lossy = asked(faults=Faults(loss=Fraction(1, 2)), devices=200)
    question = question_of(lossy)

    plans = [
        plan_of(lossy, question, run, np.random.SeedSequence(20, spawn_key=(0, window)))
        for run, window in ((0, 0), (0, 5), (1, 0))
    ]

    assert plans[0].part.faults == plans[1].part.faults != plans[2].part.faults
    assert plans[0].part.faults[0] != plans[0].part.faults[1]


def test_outages_become_pauses_that_are_apart() -> None:
    case = asked(20, outages=((9, 9), (3, 5), (6, 7), (4, 4)))

    assert plan_of(case, question_of(case), 0, SEED).pauses == [(3, 7), (9, 9)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"coin": Coin.DAY}, "schedule.coin is 'day'"),
        ({"faults": Faults(late=Fraction(1, 8))}, r"faults\.late"),
        ({"faults": Faults(clock_skew_s=Fraction(1))}, r"faults\.clock_skew_s"),
        ({"faults": Faults(outage=((0, "collecting", Fraction(1)),))}, r"faults\.outage"),
        ({"mechanism": Mechanism(name="e", kind="sampling", sampling_rate=Fraction(2, 5))}, "'e' has release 'exact"),
        (
            {"mechanism": Mechanism(name="l", kind="direct", noise_epsilon=Fraction(100)), "windows": 20},
            "'l' lose more than epsilon 700 at delta 1e-09",
        ),
        ({"windows": 30_000}, r"schedule\.windows is 30000 for 40 devices"),
        ({"windows": 600, "outages": tuple((t, t) for t in range(0, 600, 4))}, r"schedule\.outages has 150"),
    ],
)
def test_what_real_devices_are_not_asked_in_a_question_is_refused_before_anything_starts(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ScenarioError, match=named):
        NetworkEngine().run(asked(**changes), 0, [0], SEED)


# The chain.


class Record:
    """What `check_chain` reads of a record."""

    def __init__(self, name: int, before: "tuple[int, Record] | None" = None, paused: tuple[int, ...] = ()) -> None:
        self.digest = Digest(bytes([name]) * 32)
        missing = tuple(MissingWindow(index=window, reason="paused") for window in paused)
        index, digest = (None, None) if before is None else (before[0], before[1].digest)
        self.chain = ChainLink(previous=digest, previous_index=index, missing=missing)


def test_records_follow_each_other_over_their_pauses() -> None:
    first = Record(1)
    second = Record(2, (0, first), paused=(1, 2))

    check_chain({0: first, 3: second, 4: Record(3, (3, second))}, [(1, 2)])  # type: ignore[dict-item] # as said


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (Record(2, (0, Record(9)), paused=(1, 2)), "of window 3 does not follow that of window 0"),
        (Record(2, (2, Record(1)), paused=()), "of window 3 does not follow that of window 0"),
        (Record(2, (0, Record(1)), paused=(1,)), r"of window 3 names \[1\] as paused before it"),
        (Record(2), "does not follow"),
    ],
)
def test_a_record_that_hides_another_or_a_pause_is_found(second: Record, named: str) -> None:
    with pytest.raises(ProcessError, match=named):
        check_chain({0: Record(1), 3: second}, [(1, 2)])  # type: ignore[dict-item] # as said
