"""The time in which this machine makes and checks one report of a question, to estimate the time of a fleet.

It only measures; `windows` derives the windows from it.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_protocol.window.window import Window, prio3_for

_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Processor seconds of one thread of this machine: a device's shares and proofs, one aggregator's check."""

    share_s: float
    verify_s: float


def measure_speed(window: Window) -> Speed:
    """Measure this machine with one report of a window, for about half a second; other load does not count."""
    prio3, nonce, key, context = prio3_for(window), bytes(16), bytes(32), bytes(36)
    shares: list[tuple[bytes, tuple[bytes, ...]]] = []
    share_s = _median(
        lambda: shares.append(prio3.shard(context, _measurement(window), nonce, os.urandom(prio3.rand_size)))
    )
    public_share, inputs = shares[0]
    verify_s = _median(lambda: prio3.verify_init(key, context, 1, nonce, public_share, inputs[1]))
    return Speed(share_s=share_s, verify_s=verify_s)


def _measurement(window: Window) -> Any:
    """Return a measurement of the form that the circuit of the window expects."""
    if window.design.rounds == 2:
        return 1, 1
    if (most := window.design.levels.most) > 1:
        return tuple(int(place < most) for place in range(window.values))
    return (1,) * (window.values + 1) if window.design.form is AnswerForm.BITS else 1


def _median(work: Callable[[], object]) -> float:
    """Return the median of a few tries: the first loads caches, one may be interrupted."""
    times: list[float] = []
    for _ in range(_TRIES):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return sorted(times)[_TRIES // 2]
