"""Fates of devices: the probabilities are those of the causes, and of the client's own timing."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_client.config import DeliverySettings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.faults import OUTAGE_STEPS, SPREAD, Fates, check, cut_share, fates
from fleetcount_simulator.model import Faults
from fleetcount_transport.failpoints import AGGREGATOR_FAILPOINTS
from scipy import stats

DEVICES = 200_000


def simulated(faults: Faults, rounds: int, aggregators: int, number: int = 1) -> list[int]:
    """Return how many devices are lost, missed, dropped, late, cut and counted, from clocks and sending times.

    Written from the description alone: a device sends each part when its own clock says so, and sends again until the
    window opens; an aggregator takes what comes from 0 to 1, by its own clock.
    """
    generator = np.random.default_rng(number)
    ahead = generator.uniform(-1, 1, DEVICES) * float(faults.clock_skew_s) / 60
    in_time = [
        np.all([_in_time(ahead, generator.uniform(0, 0.8, DEVICES)) for _ in range(aggregators)], axis=0)
        for _ in range(rounds)
    ]
    lost = generator.random(DEVICES) < float(faults.loss)
    dropped = (generator.random(DEVICES) < float(faults.drop_out)) & (rounds == 2)
    late = generator.random(DEVICES) < float(faults.late)
    cut = generator.random(DEVICES) < float(cut_share(faults))
    fate = np.full(DEVICES, 5)
    fate[cut] = 4
    fate[late | ~in_time[-1]] = 3
    fate[dropped] = 2
    if rounds == 2:
        fate[~in_time[0]] = 1
    else:
        fate[fate == 4] = 0
    fate[lost] = 0
    return np.bincount(fate, minlength=6).tolist()


def _in_time(ahead: np.ndarray, planned: np.ndarray) -> np.ndarray:
    sent = np.maximum(planned - ahead, 0)
    gives_up = 1 - ahead
    return (sent < 1) & (gives_up > 0)


def chances(one: Fates) -> np.ndarray:
    return np.array([float(p) for p in (one.lost, one.missed, one.dropped, one.late, one.cut, one.counted)])


def p_value(observed: list[int], law: np.ndarray) -> float:
    expected = law * DEVICES
    possible = expected > 0
    if any(count for count, can in zip(observed, possible, strict=True) if not can):
        return 0.0
    return float(stats.chisquare(np.array(observed)[possible], expected[possible]).pvalue)


ALL = Faults(
    loss=Fraction(1, 10),
    drop_out=Fraction(1, 7),
    late=Fraction(1, 9),
    clock_skew_s=Fraction(50),
    outage=((0, "collecting", Fraction(40)),),
)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("aggregators", [2, 5])
@pytest.mark.parametrize("skew_s", [0, 5, 12, 30, 60, 90, 600])
def test_fates_have_the_probabilities_of_their_causes(rounds: int, skew_s: int, aggregators: int) -> None:
    faults = replace(ALL, clock_skew_s=Fraction(skew_s))

    observed = simulated(faults, rounds, aggregators)

    assert p_value(observed, chances(fates(faults, rounds, aggregators))) > 1e-6
    assert p_value(observed, chances(fates(replace(faults, loss=Fraction(13, 100)), rounds, aggregators))) < 1e-6


def test_without_faults_every_device_is_counted() -> None:
    assert fates(Faults(), 2, 2).counted == fates(Faults(), 1, 2).counted == 1


def test_a_clock_that_is_wrong_by_less_than_the_margin_harms_nobody() -> None:
    assert fates(Faults(clock_skew_s=Fraction(12)), 2, 2).counted == 1


def test_a_device_known_to_be_gone_is_a_half_pair_or_nothing() -> None:
    gone = fates(Faults(loss=Fraction(1, 4), late=Fraction(1, 2)), 2, 2).without_drop_out()

    assert (gone.lost, gone.dropped, gone.counted) == (Fraction(1, 4), Fraction(3, 4), 0)


def test_devices_send_as_the_client_does() -> None:
    assert DeliverySettings().spread == SPREAD


def test_every_fail_point_of_an_aggregator_is_a_step_of_an_outage() -> None:
    assert set(AGGREGATOR_FAILPOINTS) <= set(OUTAGE_STEPS)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"loss": Fraction(-1)}, "faults.loss is -1"),
        ({"drop_out": Fraction(3, 2)}, "faults.drop_out is 3/2"),
        ({"late": Fraction(2)}, "faults.late is 2"),
        ({"duplicates": Fraction(2)}, "faults.duplicates is 2"),
        ({"clock_skew_s": Fraction(-1)}, "faults.clock_skew_s is -1"),
        ({"ignition": True, "drop_out": Fraction(1, 2)}, "with ignition = true it must be 0"),
        ({"outage": ((2, "collecting", Fraction(1)),)}, "aggregator 2; allowed is 0 to 1"),
        ({"outage": ((0, "lunch", Fraction(1)),)}, "step 'lunch'"),
        ({"outage": ((1, "leader.after_open", Fraction(1)),)}, "aggregator 0 leads"),
        ({"outage": ((0, "helper.after_sign_store", Fraction(1)),)}, "aggregator 0 leads"),
        ({"outage": ((0, "collecting", Fraction(-1)),)}, "-1 s down"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_faults_that_mean_nothing_are_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        check(Faults(**changed), 2)
