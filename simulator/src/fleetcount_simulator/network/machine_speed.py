"""How fast this machine is now, for who must say beforehand how long real clients need: measured in half a second.

Measures and nothing else; what a window becomes of it is the demo's and the network engine's affair.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from fleetcount_protocol.vdaf.prio3 import Prio3

__all__ = ["Speed", "free_cores", "measure_speed"]

_OWN_THREADS: Final = 4
"""How many threads of ours want a core at any time, against the load that is here already."""
_TRIES: Final = 3
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds on this machine, now: a key and signature, a device's shares and proofs, one aggregator's check."""

    signature_s: float
    share_s: float
    verify_s: float


def free_cores() -> float:
    """Return how many cores a run can count on: this machine's, less what its present load takes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    load = os.getloadavg()[0]
    return cores * min(1.0, _OWN_THREADS / max(1.0, _OWN_THREADS + load - 0.5))


def measure_speed(prio3: Prio3, measurement: Any, clock: Clock = time.perf_counter) -> Speed:
    """Measure this machine with one report, for about half a second.

    By the clock on the wall, other load counts; by `time.thread_time` it does not, for who reckons with it by itself.
    """
    nonce, key, context = bytes(16), bytes(32), bytes(36)
    shares: list[tuple[bytes, tuple[bytes, ...]]] = []
    share_s = _median(
        lambda: shares.append(prio3.shard(context, measurement, nonce, os.urandom(prio3.rand_size))), clock
    )
    public_share, inputs = shares[0]
    verify_s = _median(lambda: prio3.verify_init(key, context, 1, nonce, public_share, inputs[1]), clock)
    return Speed(signature_s=_median(_sign, clock) / 50, share_s=share_s, verify_s=verify_s)


def _sign() -> None:
    for _ in range(50):
        ec.generate_private_key(ec.SECP256R1()).sign(b"speed", ec.ECDSA(SHA256()))


def _median(work: Callable[[], object], clock: Clock) -> float:
    """Return the median of a few tries: the first loads caches, one may be interrupted."""
    times: list[float] = []
    for _ in range(_TRIES):
        started = clock()
        work()
        times.append(clock() - started)
    return sorted(times)[_TRIES // 2]
