"""How long the demo's rounds must be on this machine: from a short speed measurement and the number of vehicles.

Measures and multiplies; the windows are long enough that a loaded machine still gets every vehicle in.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetcount_protocol.vdaf.prio3 import prio3_one_hot, prio3_two_round
from fleetcount_simulator.network import machine_speed
from fleetcount_simulator.network.brokers import EMBEDDED, MOSQUITTO
from fleetcount_simulator.network.machine_speed import Speed, free_cores

from fleetcount.demo_question import Question

__all__ = ["Speed", "Windows", "free_cores", "measure_speed", "windows_for"]

# Processor seconds that one vehicle costs all processes together in round one and in round two, with two aggregators,
# on a machine that makes a P-256 key and a signature in REFERENCE_S; without the arithmetic of shares and proofs.
REFERENCE_S: Final = 34e-6
COST_S: Final = {"grpc": (0.013, 0.009), MOSQUITTO: (0.007, 0.005), EMBEDDED: (0.020, 0.014)}
MORE_AGGREGATORS: Final = 0.5
"""What each aggregator after the second adds to these costs, as a share of them."""

MARGIN: Final = 1.6
SLACK_S: Final = 2.0
"""For what does not grow with the fleet: connecting at first, a hiccup of the machine."""
LEAD_S: Final = 2
SHORTEST_S: Final = 4
LONGEST_S: Final = 3600
RELEASE_S: Final = 60
_USEFUL_CORES: Final = 3
"""Fleets and aggregators are single threads that wait for each other: more cores than this do not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Whole seconds: until round one opens, of each round (round two 0 when there is none), and until the release."""

    lead_s: int
    round_one_s: int
    round_two_s: int
    release_s: int


def windows_for(
    question: Question, transports: Sequence[str], broker: str, aggregators: int, speed: Speed, cores: float
) -> Windows:
    """Return the windows in which `cores` cores get every vehicle in, over MQTT through this kind of broker."""
    one, two = 0.0, 0.0
    for transport in transports:
        vehicles = question.vehicles / len(transports)
        scale = speed.signature_s / REFERENCE_S * (1 + MORE_AGGREGATORS * (aggregators - 2))
        cost = COST_S[broker if transport == "mqtt" else transport]
        one += vehicles * cost[0] * scale
        two += vehicles * cost[1] * scale
    # Reports are checked once the last window has closed.
    shares, checks = question.vehicles * speed.share_s, question.vehicles * aggregators * speed.verify_s
    useful = max(0.5, min(cores, _USEFUL_CORES))
    if question.two_rounds:
        return Windows(
            lead_s=LEAD_S,
            round_one_s=_window(one / useful),
            round_two_s=_window((two + shares) / useful),
            release_s=RELEASE_S + round(checks),
        )
    return Windows(
        lead_s=LEAD_S,
        round_one_s=_window((one + shares) / useful),
        round_two_s=0,
        release_s=RELEASE_S + round(checks),
    )


def _window(work_s: float) -> int:
    return min(LONGEST_S, max(SHORTEST_S, math.ceil(work_s * MARGIN + SLACK_S)))


def measure_speed(question: Question, aggregators: int) -> Speed:
    """Measure this machine with a report of this question."""
    make = prio3_two_round if question.two_rounds else prio3_one_hot
    # Both rounds, or the one: a position in 0..V each.
    measurement: Any = (1, 1) if question.two_rounds else 1
    # The load of this machine is reckoned with by `free_cores`: by the clock on the wall it would count twice.
    return machine_speed.measure_speed(
        make(question.scenario.domain.values + 1, aggregators), measurement, time.thread_time
    )
