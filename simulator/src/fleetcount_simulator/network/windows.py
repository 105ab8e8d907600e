"""How long the windows of a network run are: from the fleet, this machine's speed, and what earlier runs took.

Windows are fixed when a task is signed, so they are estimated: long enough for every device on a loaded machine, and as
short as the grid of whole seconds lets them be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from fleetcount_simulator.network.brokers import EMBEDDED, MOSQUITTO
from fleetcount_simulator.network.machine_speed import Speed

__all__ = ["Observed", "Windows", "doubled", "stretched", "windows_for", "with_outage"]

REFERENCE_S: Final = 34e-6
COST_S: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {"grpc": (0.0018, 0.0011), MOSQUITTO: (0.0040, 0.0028), EMBEDDED: (0.0042, 0.0032)}
)
"""Processor seconds that one device costs all processes together in round one and in round two, with two aggregators,
on a machine that makes a P-256 key and a signature in REFERENCE_S; without the arithmetic of shares and proofs."""
MORE_AGGREGATORS: Final = 0.5
"""What each aggregator after the second adds to these costs, as a share of them."""
MARGIN: Final = 1.3
LATER_MARGIN: Final = 1.2
"""The same once an earlier run has shown what it takes."""
ANNOUNCE_S: Final = 1.5
"""Until devices hear of a task: the leader looks for new ones every second, then hands it to the helpers."""
SLACK_S: Final = 0.7
"""For what does not grow with the fleet: connecting, a hiccup of the machine."""
OUTAGE_S: Final = 30
"""Shortest window with room for an aggregator that goes down in its middle and starts again."""
SKEW_S: Final = 10
"""Shortest window in which a clock's error, and not this machine, decides who is late."""
LEAD_S: Final = 3
RELEASE_S: Final = 300
"""The first release on a machine compiles the verification; everything after it takes a second."""
_USEFUL_CORES: Final = 3
_LONGEST_S: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Whole seconds: until round one opens (0: it is open when the task is signed), of each round (round two 0 when
    there is none), and how long a release may take afterwards."""

    lead_s: int = 0
    round_one_s: int
    round_two_s: int
    release_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an earlier run with the same fleet took, seconds from each window's opening to its last receipt."""

    round_one_s: float
    round_two_s: float


def windows_for(
    devices: Mapping[str, int],
    rounds: int,
    aggregators: int,
    speed: Speed,
    cores: float,
    observed: Observed | None = None,
) -> Windows:
    """Return the windows in which `cores` cores get all devices in, their number given by "grpc" or the kind of broker.

    With `observed`, the longest of the earlier runs, they are not longer than that asks for.
    """
    useful = max(0.5, min(cores, _USEFUL_CORES))
    scale = speed.signature_s / REFERENCE_S * (1 + MORE_AGGREGATORS * (aggregators - 2))
    one, two = (sum(count * COST_S[name][place] for name, count in devices.items()) * scale for place in (0, 1))
    total = sum(devices.values())
    if rounds == 1:
        one, two = one + total * speed.share_s, 0.0
    else:
        two += total * speed.share_s
    first, second = one / useful * MARGIN + ANNOUNCE_S, two / useful * MARGIN
    if observed is not None:
        first = min(first, observed.round_one_s * LATER_MARGIN)
        second = min(second, observed.round_two_s * LATER_MARGIN)
    return Windows(
        round_one_s=_whole(first),
        round_two_s=_whole(second) if rounds == 2 else 0,
        release_s=RELEASE_S + math.ceil(total * aggregators * speed.verify_s),
    )


def with_outage(windows: Windows, start_s: float) -> Windows:
    """Return windows whose last one has room for an aggregator that goes down in its middle, twice at most.

    In half a window it starts twice, each time in up to `start_s` seconds, and stays down for a quarter of it.
    """
    length = max(OUTAGE_S, math.ceil(8 * start_s))
    if windows.round_two_s:
        # Round one is not to be missed for want of time: a run with an outage cannot be asked again.
        first = max(windows.round_one_s, length // 2)
        return replace(windows, round_one_s=first, round_two_s=max(windows.round_two_s, length))
    return replace(windows, round_one_s=max(windows.round_one_s, length))


def stretched(windows: Windows, shortest_s: int) -> Windows:
    """Return windows for clocks that are wrong: opened later, both of one length, at least `shortest_s` seconds."""
    length = max(windows.round_one_s, windows.round_two_s, shortest_s)
    return replace(windows, lead_s=LEAD_S, round_one_s=length, round_two_s=length if windows.round_two_s else 0)


def doubled(windows: Windows, times: int) -> Windows:
    """Return windows that are 2^`times` as long."""
    return replace(windows, round_one_s=windows.round_one_s << times, round_two_s=windows.round_two_s << times)


def _whole(seconds: float) -> int:
    return min(_LONGEST_S, max(1, math.ceil(seconds + SLACK_S)))
