"""When to try again: exponential delays with jitter and a cap.

Decides delays only; never sleeps, never sends.
"""

from dataclasses import dataclass
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource, uniform_below

_STEPS: Final = 1 << 20
_LONGEST_HINT_S: Final = 300.0


def uniform_seconds(source: RandomSource, seconds: float) -> float:
    """Return a time drawn uniformly from [0, `seconds`), in 2^20 steps; raises ValueError for less than 0."""
    if seconds < 0:
        raise ValueError(f"seconds is {seconds}, not >= 0")
    return seconds * uniform_below(source, _STEPS) / _STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How to try again: first delay `base_s`, doubled each time up to `cap_s`, each cut by up to one half at random."""

    base_s: float = 0.5
    cap_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s <= 86_400:
            raise ValueError(f"base_s {self.base_s} and cap_s {self.cap_s} must satisfy 0 < base_s <= cap_s <= 86400")


class Backoff:
    """The delays of one question of attempts; the jitter keeps a fleet from returning in step after an outage."""

    __slots__ = ("_attempt", "_hint_s", "_retry", "_source")

    def __init__(self, retry: Retry, source: RandomSource) -> None:
        self._retry = retry
        self._source = source
        self._attempt = 0
        self._hint_s = 0.0

    def heed(self, hint_s: float) -> None:
        """Wait at least so long before the next attempt; who says so may be anybody, so five minutes at most."""
        self._hint_s = max(self._hint_s, min(hint_s, _LONGEST_HINT_S))

    def next_delay(self) -> float:
        """Return the next delay in seconds, between one half and the whole of min(cap, base * 2^attempt).

        After a hint it is no less than once and twice the hint, drawn at random: all were told the same.
        """
        # 2^63 seconds is beyond every cap; the bound keeps the power small after days of attempts.
        whole = min(self._retry.cap_s, self._retry.base_s * 2.0 ** min(self._attempt, 63))
        self._attempt += 1
        delay = whole / 2 + uniform_seconds(self._source, whole / 2)
        hint_s, self._hint_s = self._hint_s, 0.0
        return max(delay, hint_s + uniform_seconds(self._source, hint_s)) if hint_s else delay
