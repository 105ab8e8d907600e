"""What an aggregator does without being asked: opens windows, drives the tasks it leads, gives up the others.

`app` decides how often it is asked what is due.
"""

import asyncio

from fleetcount_protocol.ids import TaskId

from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.agenda import Agenda
from fleetcount_aggregator.host.reasons import WaitFor
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import move
from fleetcount_aggregator.roles.leader import Leader
from fleetcount_aggregator.roles.settling import Settling
from fleetcount_aggregator.tasks.loading import let_go
from fleetcount_aggregator.tasks.windows import decide_windows

__all__ = ["Scheduler"]


class Scheduler:
    """Looks after the tasks of one aggregator."""

    def __init__(self, context: Context, leader: Leader, settling: Settling) -> None:
        self._context = context
        self._leader = leader
        self._settling = settling
        self._delivered: set[TaskId] = set()
        self._asleep: Agenda[TaskId] = Agenda()

    async def open_windows(self) -> None:
        """Decide about the windows of series that come near; what is far costs nothing.

        Those that opened before a restored store is whole are not decided about here (`adoption`).

        Raises:
            StoreError: the store failed; what was not decided is on the agenda again.
        """
        if self._context.adopting:
            return
        due = self._context.openings.take(self._context.clock.now())
        known = [one for one in due if one in self._context.series]
        done = await asyncio.gather(*(decide_windows(self._context, one) for one in known), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    def due(self, task: InstalledTask) -> bool:
        """Whether nothing more is taken for the task by this aggregator's clock."""
        return self._context.is_over(task)

    def pending(self) -> list[InstalledTask]:
        """Return the tasks that need this aggregator now. Thousands may rest: they cost nothing before they are due."""
        live, awake, now = self._context.live, self._context.awake, self._context.clock.now()
        for task_id in self._asleep.take(now):
            if task_id in live:
                awake[task_id] = live[task_id]
        for task in list(awake.values()):
            if self._is_over(task):
                self._leave(task)
            elif now < (moment := self._rests_until(task)):
                del awake[task.task_id]
                self._asleep.put(moment, task.task_id)
        return list(awake.values())

    def _is_over(self, task: InstalledTask) -> bool:
        state = self._context.states[task.task_id]
        if state is State.RELEASED:
            return not task.is_leader or task.task_id in self._delivered
        return state is State.ABORTED and self._settling.is_settled(task)

    def _leave(self, task: InstalledTask) -> None:
        """Let go of a task that has ended for good."""
        for known in (self._context.live, self._context.awake):
            del known[task.task_id]
        self._delivered.discard(task.task_id)
        self._settling.forget(task.task_id)
        self._context.waits.forget(task.task_id)
        self._context.ended[task.task_id] = task
        let_go(self._context, task)

    def _rests_until(self, task: InstalledTask) -> float:
        """Return before when nothing can be done for a task, unless it moves."""
        state = self._context.states[task.task_id]
        if state is State.ABORTED:
            return self._settling.settles_at(task)
        if state is State.ANNOUNCED:
            return task.asked.round_one_opens
        if not task.is_leader:
            return self._settling.asks_at(task)
        return task.closes + self._context.leeway_s(task) if state is State.COLLECTING else 0

    async def look_after(self, task: InstalledTask) -> None:
        """Do what one task needs now; returns when there is nothing more to do at this moment.

        Raises:
            StoreError, MachineError: this machine failed; the task is looked after again later.
        """
        if self._context.states[task.task_id] is State.ABORTED:
            await self._settling.settle(task)
            return
        if self._context.states[task.task_id] is State.ANNOUNCED and self._context.now() >= task.asked.round_one_opens:
            await move(self._context, task.task_id, State.COLLECTING)
        if self._context.states[task.task_id] in (State.ANNOUNCED, State.COLLECTING) and not self.due(task):
            return
        if task.is_leader:
            if self._earlier_window_is_open(task):
                self._context.waits.note(task.task_id, WaitFor.EARLIER_WINDOW)
                return
            self._context.waits.over(task.task_id, WaitFor.EARLIER_WINDOW)
            if await self._leader.drive(task) is State.RELEASED:
                self._delivered.add(task.task_id)
        else:
            await self._settling.wait_for_leader(task)

    def _earlier_window_is_open(self, task: InstalledTask) -> bool:
        """Whether the window before it in its series has not ended: a record names the digest of the one before."""
        place = task.asked.series
        others = ((one.asked.series, self._context.states[one.task_id]) for one in self._context.awake.values())
        return any(
            other.series_id == place.series_id and other.index < place.index and state in UNFINISHED
            for other, state in others
        )
