"""How long the demo's rounds must be on this machine: from a short speed measurement and the number of vehicles.

Measures and multiplies; the windows are long enough that a loaded machine still gets every vehicle in.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from fleetcount_protocol.prio3 import Prio3, prio3_one_hot, prio3_two_round

from fleetcount.demo_question import Question

__all__ = ["Speed", "Windows", "free_cores", "measure_speed", "windows_for"]

# Processor seconds that one vehicle costs all processes together in round one and in round two, with two aggregators,
# on a machine that makes a P-256 key and a signature in REFERENCE_S; without the arithmetic of shares and proofs.
REFERENCE_S: Final = 34e-6
COST_S: Final = {"grpc": (0.017, 0.014), "mqtt": (0.018, 0.013)}
MORE_AGGREGATORS: Final = 0.5
"""What each aggregator after the second adds to these costs, as a share of them."""

MARGIN: Final = 1.8
SLACK_S: Final = 2.0
"""For what does not grow with the fleet: connecting at first, a hiccup of the machine."""
LEAD_S: Final = 4
SHORTEST_S: Final = 4
LONGEST_S: Final = 3600
RELEASE_S: Final = 60
_USEFUL_CORES: Final = 3
"""Fleets and aggregators are single threads that wait for each other: more cores than this do not help."""
_OWN_THREADS: Final = 4
"""How many threads of ours want a core at any time, against the load that is here already."""
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Whole seconds: until round one opens, of each round (round two 0 when there is none), and until the release."""

    lead_s: int
    round_one_s: int
    round_two_s: int
    release_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds on this machine, now: a key and signature, a device's shares and proofs, one aggregator's check."""

    signature_s: float
    share_s: float
    verify_s: float


def free_cores() -> float:
    """Return how many cores a demo can count on: this machine's, less what its present load takes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    load = os.getloadavg()[0]
    return cores * min(1.0, _OWN_THREADS / max(1.0, _OWN_THREADS + load - 0.5))


def windows_for(question: Question, transports: Sequence[str], aggregators: int, speed: Speed, cores: float) -> Windows:
    """Return the windows in which `cores` cores get every vehicle in, with a margin of four fifths and two seconds."""
    one, two = 0.0, 0.0
    for transport in transports:
        vehicles = question.vehicles / len(transports)
        scale = speed.signature_s / REFERENCE_S * (1 + MORE_AGGREGATORS * (aggregators - 2))
        one += vehicles * COST_S[transport][0] * scale
        two += vehicles * COST_S[transport][1] * scale
    arithmetic = question.vehicles * (speed.share_s + aggregators * speed.verify_s)
    useful = max(0.5, min(cores, _USEFUL_CORES))
    if question.two_rounds:
        return Windows(
            lead_s=LEAD_S,
            round_one_s=_window(one / useful),
            round_two_s=_window((two + arithmetic) / useful),
            release_s=RELEASE_S + round(arithmetic),
        )
    return Windows(
        lead_s=LEAD_S,
        round_one_s=_window((one + arithmetic) / useful),
        round_two_s=0,
        release_s=RELEASE_S + round(arithmetic),
    )


def _window(work_s: float) -> int:
    return min(LONGEST_S, max(SHORTEST_S, math.ceil(work_s * MARGIN + SLACK_S)))


def measure_speed(question: Question, aggregators: int) -> Speed:
    """Measure this machine for about half a second, by the clock on the wall: other load on it counts."""
    length = question.scenario.domain.values + 1
    prio3 = (prio3_two_round if question.two_rounds else prio3_one_hot)(length, aggregators)
    # Both rounds, or the one: a position in 0..V each.
    measurement: Any = (1, 1) if question.two_rounds else 1
    nonce, key, context = bytes(16), bytes(32), bytes(36)
    shares: list[tuple[bytes, tuple[bytes, ...]]] = []
    share_s = _best(lambda: shares.append(_shard(prio3, context, measurement, nonce)))
    public_share, inputs = shares[0]
    verify_s = _best(lambda: prio3.verify_init(key, context, 1, nonce, public_share, inputs[1]))
    return Speed(signature_s=_best(_sign) / 50, share_s=share_s, verify_s=verify_s)


def _shard(prio3: Prio3, context: bytes, measurement: Any, nonce: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    return prio3.shard(context, measurement, nonce, os.urandom(prio3.rand_size))


def _sign() -> None:
    for _ in range(50):
        ec.generate_private_key(ec.SECP256R1()).sign(b"speed", ec.ECDSA(SHA256()))


def _best(work: Callable[[], object]) -> float:
    """Return the median of a few tries: the first loads caches, one may be interrupted."""
    times: list[float] = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[_TRIES // 2]
