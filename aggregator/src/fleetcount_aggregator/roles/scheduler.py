"""What an aggregator does without being asked: opens windows, drives the windows it leads, gives up the others.

`app` decides how often it is asked what is due.
"""

import asyncio

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.durable_steps import move
from fleetcount_aggregator.host.reasons import WaitFor
from fleetcount_aggregator.host.states import UNFINISHED
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.roles.leader import Leader
from fleetcount_aggregator.roles.settling import Settling
from fleetcount_aggregator.windows.windows import decide_windows


class Scheduler:
    """Looks after the windows of one aggregator."""

    def __init__(self, context: Context, leader: Leader, settling: Settling) -> None:
        self._context = context
        self._windows = context.windows
        self._questions = context.questions
        self._host = context.host
        self._leader = leader
        self._settling = settling
        self._delivered: set[WindowId] = set()

    async def open_windows(self) -> None:
        """Decide about the windows of questions that come near; what is far costs nothing.

        Those that opened before a restored store is whole are not decided about here (`roles.outcomes`).

        Raises:
            StoreError: the store failed; what was not decided is on the agenda again.
        """
        if self._questions.adopting:
            return
        due = self._questions.openings.take(self._host.moment().now)
        known = [one for one in due if one in self._questions]
        done = await asyncio.gather(*(decide_windows(self._context, one) for one in known), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    def pending(self) -> list[InstalledWindow]:
        """Return the windows that need this aggregator now. Thousands may wait: they cost nothing before they are
        due.
        """
        windows, now = self._windows, self._host.moment().now
        windows.update_due()
        for window in list(windows.due.values()):
            if self._is_over(window):
                self._leave(window)
            elif now < (moment := self._rests_until(window)):
                windows.wait_until(moment, window.window_id)
        return list(windows.due.values())

    def _is_over(self, window: InstalledWindow) -> bool:
        state = self._windows.states[window.window_id]
        if state is WindowState.RELEASED:
            return not window.is_leader or window.window_id in self._delivered
        return state is WindowState.ABORTED and self._settling.is_settled(window)

    def _leave(self, window: InstalledWindow) -> None:
        """Drop what is remembered of a window that has ended for good."""
        self._delivered.discard(window.window_id)
        self._settling.forget(window.window_id)
        self._windows.end(window)

    def _rests_until(self, window: InstalledWindow) -> float:
        """Return before when nothing can be done for a window, unless it moves."""
        state = self._windows.states[window.window_id]
        if state is WindowState.ABORTED:
            return self._settling.settles_at(window)
        if state is WindowState.ANNOUNCED:
            return window.asked.round_one_opens
        if not window.is_leader:
            return self._settling.asks_at(window)
        return window.closes + self._windows.leeway_s(window) if state is WindowState.COLLECTING else 0

    async def look_after(self, window: InstalledWindow) -> None:
        """Do what one window needs now; returns when there is nothing more to do at this moment.

        Raises:
            StoreError, MachineError: this machine failed; the window is looked after again later.
        """
        if self._windows.states[window.window_id] is WindowState.ABORTED:
            await self._settling.settle(window)
            return
        if (
            self._windows.states[window.window_id] is WindowState.ANNOUNCED
            and self._host.now() >= window.asked.round_one_opens
        ):
            await move(self._windows, window.window_id, WindowState.COLLECTING)
        taking = self._windows.states[window.window_id] in (WindowState.ANNOUNCED, WindowState.COLLECTING)
        if taking and not self._windows.is_over(window):
            return
        if window.is_leader:
            if self._earlier_window_is_open(window):
                self._windows.waits.note(window.window_id, WaitFor.EARLIER_WINDOW)
                return
            self._windows.waits.over(window.window_id, WaitFor.EARLIER_WINDOW)
            if await self._leader.drive(window) is WindowState.RELEASED:
                self._delivered.add(window.window_id)
        else:
            await self._settling.wait_for_leader(window)

    def _earlier_window_is_open(self, window: InstalledWindow) -> bool:
        """Whether the window before it in its question has not ended: a record names the digest of the one before."""
        place = window.asked.question
        others = ((one.asked.question, self._windows.states[one.window_id]) for one in self._windows.due.values())
        return any(
            other.question_id == place.question_id and other.index < place.index and state in UNFINISHED
            for other, state in others
        )
