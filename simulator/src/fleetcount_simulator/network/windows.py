"""The length of a network run's windows, estimated from the time in which the same devices enrolled.

A signed question fixes its windows, so their length is estimated before: long enough for every device on a loaded
machine, and as short as whole seconds allow. Enrolling uses the same devices, connections and sessions as answering.
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
"""Own connections of more devices than may be connected at once: each device connects anew in every round."""
COST_S: Final[Mapping[tuple[str, str], tuple[float, float, float]]] = MappingProxyType(
    {
        (OWN, "grpc"): (0.0080, 0.0026, 0.0032),
        (OWN, "relay"): (0.0120, 0.0030, 0.0036),
        (OWN, MOSQUITTO): (0.0030, 0.0017, 0.0018),
        (OWN, EMBEDDED): (0.0100, 0.0080, 0.0080),
        (IN_TURNS, "grpc"): (0.0080, 0.0112, 0.0115),
        (IN_TURNS, "relay"): (0.0120, 0.0140, 0.0145),
        (IN_TURNS, MOSQUITTO): (0.0030, 0.0045, 0.0048),
        (IN_TURNS, EMBEDDED): (0.0100, 0.0150, 0.0150),
        (SHARED, "grpc"): (0.0009, 0.0005, 0.0005),
        (SHARED, "relay"): (0.0012, 0.0007, 0.0007),
        (SHARED, MOSQUITTO): (0.0020, 0.0011, 0.0011),
        (SHARED, EMBEDDED): (0.0021, 0.0021, 0.0032),
    }
)
"""Processor seconds of all processes for one device: enrolling, round one, round two; by the kind of connections and
their carrier, without the arithmetic of shares and proofs. Only their ratios matter."""
MARGIN: Final = 1.5
SHARED_MARGIN: Final = 1.2
"""Where devices share connections: messages that wait are sent in batches, and larger batches cost less per message."""
SLACK_S: Final = 0.7
"""Added for delays that do not grow with the fleet: the scheduler of a busy machine."""
OUTAGE_S: Final = 30
"""Shortest window with room for an aggregator that goes down in its middle and starts again."""
SKEW_S: Final = 10
"""Shortest window in which a clock's error, and not this machine, makes a device late."""
LEAD_S: Final = 3
RELEASE_S: Final = 300
"""The first release on a machine compiles the verification; everything after it takes a second."""
_RECORD_S: Final = 0.001
"""Processor seconds, as those of `COST_S`, in which a device and its aggregator fetch a record of some hundred cells
and derive the next window."""
_PUBLISH_S: Final = 6
"""Seconds from the close of a step to its record at every aggregator, on an idle machine, two or three times over."""
_OFFER_S: Final = 0.8
_MOST_PATIENCE: Final = 4.0
"""Seconds from signing a question until devices have the offers of all aggregators on an idle machine, and the most by
which a busy one takes longer."""
_JOIN_S: Final = 0.0003
_RESERVE_S: Final = 0.0002
"""Processor seconds, as those of `COST_S`, for a device to join a question and to reserve a window in its ledger. Who
joins later answers in what is left of round one."""
_LEAST_CORES: Final = 0.1
_MOST_CORES: Final = 3.0
"""Fleets and aggregators are single threads that wait for each other: more cores than this do not help."""
_LONGEST_S: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """When the first window opens and how long the windows are: seconds, whole ones but for `lead_s`.

    `lead_s` is until round one of the first window, `round_two_s` 0 where there is no such round, `release_s` the most
    that a release takes, `gap_s` from the close of a window to the opening of the next one.
    """

    lead_s: float = 0.0
    round_one_s: int
    round_two_s: int
    release_s: int
    gap_s: int = 1

    @property
    def rounds_s(self) -> int:
        """Seconds in which a window takes answers."""
        return self.round_one_s + self.round_two_s

    def asking_s(self, windows: int) -> int:
        """Return the seconds from signing to the close of the last of so many windows, rounded up."""
        return math.ceil(self.lead_s) + windows * self.rounds_s + (windows - 1) * self.gap_s

    def opened_after(self, seconds: float) -> "Windows":
        """Return the windows, opened `seconds` later; a schedule begins with the next whole second."""
        return replace(self, lead_s=self.lead_s + seconds)

    @property
    def checking_s(self) -> int:
        """Seconds in which every report is checked one by one: the most that a release takes after compilation."""
        return max(0, self.release_s - RELEASE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """How many devices of so many processes enrolled, by key of `COST_S`, and the seconds until the last had its
    sessions."""

    devices: Mapping[tuple[str, str], int]
    processes: int
    seconds: float
    load: float = 0.0
    """Runnable threads of other programs per core, before the run began."""

    def work_s(self, stage: int) -> float:
        """Return the processor seconds of all devices in a stage: 0 for enrolling, 1 and 2 for the rounds."""
        return sum(count * COST_S[way][stage] for way, count in self.devices.items())

    @property
    def cores(self) -> float:
        """The processor seconds that the run gets per second, beside the machine's other load."""
        return max(_LEAST_CORES, min(_MOST_CORES, self.work_s(0) / max(self.seconds, 1e-3)))

    @property
    def patience(self) -> float:
        """How many times as long as on an idle machine a process waits: for the scheduler, by the runnable threads."""
        return max(1.0, self.load)


def _machine_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def load_before() -> float:
    """Return the runnable threads per core of this machine, averaged over the last minute."""
    return os.getloadavg()[0] / _machine_cores()


def lead_s(enrolment: Enrolment, windows: int) -> float:
    """Return the seconds from signing a question of some windows until the devices take part.

    Devices of a process join one after the other, processes side by side as far as there are cores; at the speed at
    which the devices enrolled.
    """
    work_s = (_JOIN_S + _RESERVE_S * windows) * sum(enrolment.devices.values())
    return _OFFER_S * min(enrolment.patience, _MOST_PATIENCE) + work_s / min(enrolment.processes, enrolment.cores)


def windows_for(enrolment: Enrolment, rounds: int, aggregators: int, speed: Speed) -> Windows:
    """Return windows long enough for all devices, at the speed at which they enrolled."""
    total, patience = sum(enrolment.devices.values()), enrolment.patience
    one, two = enrolment.work_s(1) / enrolment.cores, enrolment.work_s(2) / enrolment.cores
    # Seconds of this machine already, unlike those of `COST_S`: how fast the devices enrolled is in them.
    shares = total * speed.share_s * patience / min(enrolment.processes, _machine_cores())
    margin = SHARED_MARGIN if {way for way, _ in enrolment.devices} == {SHARED} else MARGIN
    if rounds == 1:
        one, two, shares = one + shares, 0.0, 0.0
    checking_s = math.ceil(total * aggregators * speed.verify_s)
    return Windows(
        round_one_s=_whole(one * margin + SLACK_S * patience),
        round_two_s=_whole((two + shares) * margin + SLACK_S * patience) if rounds == 2 else 0,
        release_s=RELEASE_S + checking_s,
        gap_s=max(1, checking_s),
    )


def with_outage(windows: Windows, start_s: float) -> Windows:
    """Return windows whose last one has room for an aggregator that goes down in its middle, twice at most.

    In half a window it starts twice, each time within one and a half times `start_s`, the seconds of the first start,
    and is down for a quarter of the window.
    """
    length = max(OUTAGE_S, math.ceil(12 * start_s))
    if windows.round_two_s:
        # Round one is long too: a run with an outage is not repeated when the machine was too slow.
        first = max(windows.round_one_s, length // 2)
        return replace(windows, round_one_s=first, round_two_s=max(windows.round_two_s, length))
    return replace(windows, round_one_s=max(windows.round_one_s, length))


def stretched(windows: Windows, shortest_s: int) -> Windows:
    """Return windows for wrong clocks: opened later, both rounds of one length, at least `shortest_s` seconds."""
    length = max(windows.round_one_s, windows.round_two_s, shortest_s)
    return replace(windows, lead_s=LEAD_S, round_one_s=length, round_two_s=length if windows.round_two_s else 0)


def with_records(windows: Windows, enrolment: Enrolment) -> Windows:
    """Return windows in which devices read the record of the one before, in the first quarter of round one; between
    two windows there is time for that record.
    """
    reading_s = MARGIN * _RECORD_S * sum(enrolment.devices.values()) / enrolment.cores
    gap_s = max(math.ceil(_PUBLISH_S * enrolment.patience), windows.gap_s)
    return replace(windows, round_one_s=_whole(windows.round_one_s * 4 / 3 + reading_s), gap_s=gap_s)


def doubled(windows: Windows, times: int) -> Windows:
    """Return windows that are 2^`times` as long."""
    return replace(windows, round_one_s=windows.round_one_s << times, round_two_s=windows.round_two_s << times)


def _whole(seconds: float) -> int:
    return min(_LONGEST_S, max(1, math.ceil(seconds)))
