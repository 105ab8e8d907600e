"""What time it is, and whether anybody has confirmed that: every deadline of an aggregator goes through a `Moment`.

A process that starts reads a clock that may be wrong. Two witnesses confirm it: the store, which remembers the latest
time at which it was acted on, and the peers, whose answers bear their time. Until then nothing is done that cannot be
undone: no window is given up, no key is deleted, no list is signed under the present time. It must not call a peer, and
decides about no window.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.ids import AggregatorId
from fleetcount_transport.logs import log

NOTED_EVERY_S: Final = 10.0
"""Seconds between two times that the store is given to remember."""


@dataclass(frozen=True, slots=True)
class Skew:
    """The seconds by which a peer's clock is ahead of this one: `seconds`, plus or minus `give_or_take_s`."""

    seconds: float
    give_or_take_s: float

    @classmethod
    def of(cls, said: float, asked: float, answered: float) -> "Skew":
        """Return the skew from one answer: the peer read its time `said` between the call and the answer."""
        return cls(said - (asked + answered) / 2, (answered - asked) / 2)

    def __str__(self) -> str:
        return f"{self.seconds:+.1f} s from this one (give or take {self.give_or_take_s:.1f} s)"

    @property
    def certain_s(self) -> float:
        """The least possible difference of the clocks, seconds."""
        return max(0.0, abs(self.seconds) - self.give_or_take_s)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time by this aggregator's clock, Unix seconds, and whether it is confirmed.

    `sure` is the latest time that has certainly come: the same once it is confirmed.
    """

    now: float
    is_confirmed: bool
    sure: float

    def is_past(self, deadline: float) -> bool:
        """Return whether a deadline is over for good: what follows may be irrevocable."""
        return self.is_confirmed and self.now >= deadline


class Moments:
    """The clock of one aggregator, and what confirms it. Before `begin` it is confirmed: an aggregator without a past.

    Once confirmed the clock stays so while the process runs: it goes on by the time that has passed (`AnchoredClock`).
    """

    def __init__(self, now: Callable[[], float], largest_skew_s: float) -> None:
        self.now = now
        """Returns the time by this aggregator's clock, Unix seconds, confirmed or not."""
        self.largest_skew_s = largest_skew_s
        self.skews: dict[AggregatorId, Skew] = {}
        self._peers: frozenset[AggregatorId] = frozenset()
        self._is_sure = True
        self._latest = 0.0
        self._began = 0.0

    def begin(self, latest: float | None, peers: Iterable[AggregatorId], *, is_right: bool = False) -> None:
        """Begin with the latest time that the store remembers, None if it remembers none.

        The clock is confirmed if it goes on from there, or the operator says that it `is_right`; else once all `peers`
        agree with it.
        """
        self._peers = frozenset(peers)
        self._began = self.now()
        self._latest = self._began if latest is None else latest
        self._is_sure = is_right
        self.hear(latest)
        if not self._is_sure:
            log.warning("clock_not_confirmed", clock=utc_text(self._began), store=utc_text(self._latest))

    def hear(self, latest: float | None) -> None:
        """Compare the clock with the time that the store remembers now, None if it remembers none."""
        if latest is None or abs(self.now() - latest) <= self.largest_skew_s:
            self._is_sure = True

    def of(self, others: Iterable[AggregatorId] | None = None) -> Moment:
        """Return the moment for a matter between this aggregator and `others`; None: all its peers."""
        now = self.now()
        if not self._is_sure and self._peers and all(map(self._agrees, self._peers)):
            self._is_sure = True
            log.info("clock_confirmed", clock=utc_text(now))
        if self._is_sure or (others is not None and self._all_agree(others)):
            return Moment(now, True, now)
        # The time since the start is known for certain, whatever the clock says.
        return Moment(now, False, self._latest + now - self._began)

    def complaint(self) -> str:
        """Return a sentence that says that the clock is not confirmed, with both times; "" once it is."""
        moment = self.of()
        if moment.is_confirmed:
            return ""
        clock, store = utc_text(moment.now), utc_text(self._latest)
        return (
            f"the clock says {clock}, and this store was last acted on at {store}: until its"
            " peers agree with the clock, or it is started with --clock-is-right, nothing is done that cannot be undone"
        )

    def _all_agree(self, others: Iterable[AggregatorId]) -> bool:
        asked = self._peers.intersection(others)
        return bool(asked) and all(map(self._agrees, asked))

    def _agrees(self, peer: AggregatorId) -> bool:
        skew = self.skews.get(peer)
        return skew is not None and abs(skew.seconds) + skew.give_or_take_s <= self.largest_skew_s


KeyT = TypeVar("KeyT", bound=bytes)


class DueQueue(Generic[KeyT]):
    """Keys by the moment at which they are due: the cost is that of the due keys, however many wait.

    A key that is put twice is due at the earlier moment. Reads no clock.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, KeyT]] = []
        self._moments: dict[KeyT, float] = {}

    def put(self, moment: float, key: KeyT) -> None:
        """Add a key that is due at a moment."""
        if moment < self._moments.get(key, float("inf")):
            self._moments[key] = moment
            heapq.heappush(self._heap, (moment, key))

    def take(self, now: float) -> list[KeyT]:
        """Remove and return the keys that are due, earliest first, each once."""
        due: list[KeyT] = []
        while self._heap and self._heap[0][0] <= now:
            moment, key = heapq.heappop(self._heap)
            if self._moments.get(key) == moment:
                del self._moments[key]
                due.append(key)
        return due
