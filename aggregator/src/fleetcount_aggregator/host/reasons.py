"""The reason why a window waits, for whom, since when and until when: shared by commands, health, metrics and logs.

It must not reveal how many reports there are, not even whether there are enough: an observer who sees when a threshold
is crossed knows the exact number at that moment.
"""

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window
from fleetcount_transport.logs import log
from fleetcount_transport.watching import duration

_TOLD_AFTER_S: Final = 10.0
"""Seconds after which a wait is logged: calls are retried within seconds, so shorter waits are normal."""
_HALF_A_DAY_S: Final = 43_200


class WaitFor(enum.Enum):
    """The things that a window may wait for, a closed list."""

    OPENING = "opening"
    CLOSING = "closing"
    WORK = "work"
    PEER = "peer"
    LEADER = "leader"
    EARLIER_WINDOW = "earlier_window"
    STORE = "store"


_TEXTS: Final = {
    WaitFor.OPENING: "opens",
    WaitFor.CLOSING: "window closes",
    WaitFor.WORK: "agrees and releases",
    WaitFor.PEER: "waits for {whom}",
    WaitFor.LEADER: "waits for its leader {whom}",
    WaitFor.EARLIER_WINDOW: "waits for the window before it",
    WaitFor.STORE: "waits for this machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One reason why a window waits. `since` and `until` are Unix seconds, None if not known."""

    kind: WaitFor
    whom: str = ""
    since: float | None = None
    until: float | None = None
    problem: str = ""

    def text(self, now: float) -> str:
        """Return the text for an operator: "waits for beta since 40 s (unreachable); until 14:20:00 UTC"."""
        parts = _TEXTS[self.kind].format(whom=self.whom)
        if self.since is not None:
            parts += f" since {duration(now - self.since)}"
        if self.problem:
            parts += f" ({self.problem})"
        if self.until is None:
            return parts
        moment = clock_time(self.until, now)
        return f"{parts} {moment}" if self.kind in (WaitFor.OPENING, WaitFor.CLOSING) else f"{parts}; until {moment}"

    def fields(self, now: float) -> dict[str, Any]:
        """Return the same for programs."""
        return {"for": self.kind.value, "whom": self.whom, "since": self.since, "until": self.until} | {
            "text": self.text(now)
        }


def clock_time(moment: float, now: float) -> str:
    """Return a moment as a time of day in UTC, with its date if it is more than half a day away."""
    near = abs(moment - now) < _HALF_A_DAY_S
    return f"{datetime.fromtimestamp(moment, UTC):{'%H:%M:%S' if near else '%Y-%m-%d %H:%M'}} UTC"


def expected_wait(window: Window, state: WindowState, *, leads: bool | None, give_up_s: float | None) -> Wait | None:
    """Return what a window in a state waits for if nothing is wrong, None for one that has ended.

    `leads`: whether the aggregator leads the window, None if that is not known; `give_up_s` is its `[limits]
    give_up_s`, None if that is not known.
    """
    closes = window.round_two_closes if window.two_instalments else window.round_one_closes
    if state is WindowState.ANNOUNCED:
        return Wait(kind=WaitFor.OPENING, until=window.round_one_opens)
    if state is WindowState.COLLECTING:
        return Wait(kind=WaitFor.CLOSING, until=closes)
    if state not in (WindowState.AGREEING, WindowState.RELEASING):
        return None
    if leads is False:
        # No `until`: it follows from the leader's last call, not from the window.
        return Wait(kind=WaitFor.LEADER, whom=window.leader.aggregator_id, since=closes)
    return Wait(kind=WaitFor.WORK, since=closes, until=None if give_up_s is None else closes + give_up_s)


class Waits:
    """The unexpected waits of this process's windows; the log has each that lasts, and its end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waits: dict[WindowId, dict[tuple[WaitFor, str], Wait]] = {}
        self._told: set[tuple[WindowId, WaitFor, str]] = set()

    def note(
        self, window_id: WindowId, kind: WaitFor, problem: str = "", *, whom: str = "", until: float | None = None
    ) -> None:
        """Note that a window waits, from now on or still."""
        now, here = self._now(), self._waits.setdefault(window_id, {})
        before = here.get((kind, whom))
        since = now if before is None else before.since
        here[kind, whom] = wait = Wait(kind=kind, whom=whom, since=since, until=until, problem=problem)
        if since is not None and now - since >= _TOLD_AFTER_S and (window_id, kind, whom) not in self._told:
            self._told.add((window_id, kind, whom))
            log.warning("window_waits", window=str(window_id), reason=wait.text(now))

    def over(self, window_id: WindowId, kind: WaitFor, *, whom: str = "") -> None:
        """Note that a window does not wait for this any more."""
        here = self._waits.get(window_id, {})
        wait = here.pop((kind, whom), None)
        if not here:
            self._waits.pop(window_id, None)
        if (window_id, kind, whom) in self._told:
            self._told.discard((window_id, kind, whom))
            if wait is not None:
                log.info("window_waited", window=str(window_id), after=replace(wait, until=None).text(self._now()))

    def forget(self, window_id: WindowId) -> None:
        """Forget a window that has ended."""
        for kind, whom in list(self._waits.get(window_id, ())):
            self.over(window_id, kind, whom=whom)

    def of(self, window_id: WindowId) -> Wait | None:
        """Return the longest unexpected wait of a window, None if nothing is wrong."""
        return min(self._waits.get(window_id, {}).values(), key=lambda wait: wait.since or 0, default=None)

    def counts(self) -> Mapping[str, int]:
        """Return the number of waiting windows by `WaitFor` value."""
        kinds = Counter(kind for here in self._waits.values() for kind in {kind for kind, _ in here})
        return {kind.value: kinds[kind] for kind in (WaitFor.PEER, WaitFor.EARLIER_WINDOW, WaitFor.STORE)}
