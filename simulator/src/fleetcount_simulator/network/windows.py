"""How long the windows of a network run are: from what the same devices needed to enrol on the same aggregators.

Windows are fixed when a question is signed, so they are estimated: long enough for every device on a loaded machine,
and as short as the grid of whole seconds lets them be. Enrolling uses the devices, connections and sessions that answer
later.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from fleetcount_simulator.network.brokers import EMBEDDED, MOSQUITTO
from fleetcount_simulator.network.fleet_spec import OWN, SHARED
from fleetcount_simulator.network.machine_speed import Speed

IN_TURNS: Final = "in turns"
"""Connections of their own for more devices than may be connected at once: each connects anew in every round."""
COST_S: Final[Mapping[tuple[str, str], tuple[float, float, float]]] = MappingProxyType(
    {
        (OWN, "grpc"): (0.0080, 0.0052, 0.0055),
        (OWN, MOSQUITTO): (0.0030, 0.0024, 0.0027),
        (OWN, EMBEDDED): (0.0100, 0.0080, 0.0080),
        (IN_TURNS, "grpc"): (0.0080, 0.0112, 0.0115),
        (IN_TURNS, MOSQUITTO): (0.0030, 0.0045, 0.0048),
        (IN_TURNS, EMBEDDED): (0.0100, 0.0150, 0.0150),
        (SHARED, "grpc"): (0.0009, 0.0009, 0.0011),
        (SHARED, MOSQUITTO): (0.0020, 0.0020, 0.0028),
        (SHARED, EMBEDDED): (0.0021, 0.0021, 0.0032),
    }
)
"""Processor seconds that one device costs all processes together, enrolling, in round one and in round two, by the kind
of connections and what carries them, without the arithmetic of shares and proofs. Only how they relate matters."""
MARGIN: Final = 1.5
SHARED_MARGIN: Final = 1.2
"""Where all devices share connections: what has to wait goes together, and the longer it waits the less each costs."""
SLACK_S: Final = 0.7
"""For what does not grow with the fleet: a hiccup of the machine."""
OUTAGE_S: Final = 30
"""Shortest window with room for an aggregator that goes down in its middle and starts again."""
SKEW_S: Final = 10
"""Shortest window in which a clock's error, and not this machine, decides who is late."""
LEAD_S: Final = 3
RELEASE_S: Final = 300
"""The first release on a machine compiles the verification; everything after it takes a second."""
RECORD_S: Final = 0.006
"""To fetch a record of some hundred cells and to make the next step's window, in one device and its aggregator."""
_LEAST_CORES: Final = 0.25
_MOST_CORES: Final = 3.0
"""Fleets and aggregators are single threads that wait for each other: more cores than this do not help."""
_LONGEST_S: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Whole seconds: until round one of the first window opens, of each round (round two 0 when there is none), and how
    long a release may take afterwards."""

    lead_s: int = 0
    round_one_s: int
    round_two_s: int
    release_s: int

    @property
    def asking_s(self) -> int:
        """Seconds from signing to the close of the last window."""
        return self.lead_s + self.round_one_s + self.round_two_s

    def opened_after(self, seconds: float) -> "Windows":
        """Return the windows opened so much later."""
        return replace(self, lead_s=self.lead_s + math.ceil(seconds))

    @property
    def checking_s(self) -> int:
        """Seconds in which every report is checked one by one, the most that a release takes on a warm machine."""
        return max(0, self.release_s - RELEASE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """How many devices enrolled, by key of `COST_S`, and the seconds until the last had its sessions."""

    devices: Mapping[tuple[str, str], int]
    seconds: float
    load: float = 0.0
    """Threads of other programs that wanted each core before the run began."""

    def work_s(self, stage: int) -> float:
        """Return the processor seconds of all devices in a stage: 0 for enrolling, 1 and 2 for the rounds."""
        return sum(count * COST_S[way][stage] for way, count in self.devices.items())

    @property
    def cores(self) -> float:
        """How many processor seconds this machine gives the run in one second, beside its other load."""
        return max(_LEAST_CORES, min(_MOST_CORES, self.work_s(0) / max(self.seconds, 1e-3)))


def load_before() -> float:
    """Return how many threads wanted each core of this machine in the last minute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return os.getloadavg()[0] / cores


def windows_for(enrolment: Enrolment, rounds: int, aggregators: int, speed: Speed) -> Windows:
    """Return the windows in which all devices get in, at the speed at which they enrolled; they know of them before."""
    total = sum(enrolment.devices.values())
    one, two, shares = enrolment.work_s(1), enrolment.work_s(2), total * speed.share_s
    # What does not grow with the fleet is waiting for a turn: on a crowded machine each turn comes later.
    patience = max(1.0, enrolment.load)
    margin = SHARED_MARGIN if {way for way, _ in enrolment.devices} == {SHARED} else MARGIN
    if rounds == 1:
        one, two, shares = one + shares, 0.0, 0.0
    return Windows(
        round_one_s=_whole(one / enrolment.cores * margin + SLACK_S * patience),
        round_two_s=_whole((two + shares) / enrolment.cores * margin + SLACK_S * patience) if rounds == 2 else 0,
        release_s=RELEASE_S + math.ceil(total * aggregators * speed.verify_s),
    )


def with_outage(windows: Windows, start_s: float) -> Windows:
    """Return windows whose last one has room for an aggregator that goes down in its middle, twice at most.

    In half a window it starts twice, each time in up to one and a half times `start_s` seconds, which is what the first
    start took, and stays down for a quarter of it.
    """
    length = max(OUTAGE_S, math.ceil(12 * start_s))
    if windows.round_two_s:
        # Round one is not to be missed for want of time: a run with an outage cannot be asked again.
        first = max(windows.round_one_s, length // 2)
        return replace(windows, round_one_s=first, round_two_s=max(windows.round_two_s, length))
    return replace(windows, round_one_s=max(windows.round_one_s, length))


def stretched(windows: Windows, shortest_s: int) -> Windows:
    """Return windows for clocks that are wrong: opened later, both of one length, at least `shortest_s` seconds."""
    length = max(windows.round_one_s, windows.round_two_s, shortest_s)
    return replace(windows, lead_s=LEAD_S, round_one_s=length, round_two_s=length if windows.round_two_s else 0)


def with_records(windows: Windows, devices: int) -> Windows:
    """Return windows in which devices read a record before they answer, each within the first fourth of round one."""
    return replace(windows, round_one_s=_whole(windows.round_one_s * 4 / 3 + devices * RECORD_S))


def doubled(windows: Windows, times: int) -> Windows:
    """Return windows that are 2^`times` as long."""
    return replace(windows, round_one_s=windows.round_one_s << times, round_two_s=windows.round_two_s << times)


def _whole(seconds: float) -> int:
    return min(_LONGEST_S, max(1, math.ceil(seconds)))
