"""What an aggregator does without being asked: opens windows, drives the tasks it leads, gives up the others.

`app` decides how often it is asked what is due.
"""

import asyncio

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.messages import TaskStatus
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.states import AbortReason, State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import Entry, Step, move, once, taken
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.roles.leader import Leader
from fleetcount_aggregator.tasks.loading import let_go
from fleetcount_aggregator.tasks.windows import decide_windows

__all__ = ["Scheduler"]


class Scheduler:
    """Looks after the tasks of one aggregator."""

    def __init__(self, context: Context, leader: Leader) -> None:
        self._context = context
        self._leader = leader
        self._delivered: set[TaskId] = set()
        self._spread: set[TaskId] = set()

    async def open_windows(self) -> None:
        """Decide about the windows of series that come near; what is far costs nothing.

        Raises:
            StoreError: the store failed; what was not decided is on the agenda again.
        """
        due = self._context.openings.take(self._context.clock.now())
        done = await asyncio.gather(*(decide_windows(self._context, one) for one in due), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    def due(self, task: InstalledTask) -> bool:
        """Whether the task's windows have closed by this aggregator's clock."""
        return self._context.clock.now() >= task.closes

    def pending(self) -> list[InstalledTask]:
        """Return the tasks that need this aggregator now; those that have ended for good are not looked at again."""
        live = self._context.live
        for task in [task for task in live.values() if self._is_over(task)]:
            del live[task.task_id]
            self._delivered.discard(task.task_id)
            self._spread.discard(task.task_id)
            let_go(self._context, task)
        return [task for task in live.values() if not self._rests(task)]

    def _is_over(self, task: InstalledTask) -> bool:
        released = self._context.states[task.task_id] is State.RELEASED
        owes_delivery = task.is_leader and released and task.task_id not in self._delivered
        return self._context.states[task.task_id] not in UNFINISHED and not owes_delivery

    def _rests(self, task: InstalledTask) -> bool:
        """Whether nothing can be done before the clock reaches the task's next window: thousands may rest."""
        if task.is_leader and task.task.series is None and task.task_id not in self._spread:
            return False
        state, now = self._context.states[task.task_id], self._context.clock.now()
        if state is State.ANNOUNCED:
            return now < task.task.round_one_opens
        return state is State.COLLECTING and now < task.closes

    async def look_after(self, task: InstalledTask) -> None:
        """Do what one task needs now; returns when there is nothing more to do at this moment.

        Raises:
            StoreError, MachineError: this machine failed; the task is looked after again later.
        """
        if task.is_leader and not await self._installed_everywhere(task):
            return
        if self._context.states[task.task_id] is State.ANNOUNCED and self._context.now() >= task.task.round_one_opens:
            await move(self._context, task.task_id, State.COLLECTING)
        if self._context.states[task.task_id] in (State.ANNOUNCED, State.COLLECTING) and not self.due(task):
            return
        if task.is_leader:
            if self._earlier_window_is_open(task):
                return
            if await self._leader.drive(task) is State.RELEASED:
                self._delivered.add(task.task_id)
        else:
            await self._wait_for_leader(task)

    def _earlier_window_is_open(self, task: InstalledTask) -> bool:
        """Whether the window before it in its series has not ended: a record names the digest of the one before."""
        window = task.task.series
        if window is None:
            return False
        others = ((one.task.series, self._context.states[one.task_id]) for one in self._context.live.values())
        return any(
            other is not None
            and other.series_id == window.series_id
            and other.index < window.index
            and state in UNFINISHED
            for other, state in others
        )

    async def _installed_everywhere(self, task: InstalledTask) -> bool:
        if task.task.series is not None:
            return True  # Every aggregator derives the window by itself.
        if await taken(self._context, task.task_id, Step.INSTALLED) is not None:
            self._spread.add(task.task_id)
            return True
        if self._context.states[task.task_id] not in UNFINISHED or not await self._leader.install(task):
            return False
        await once(self._context, task.task_id, Step.INSTALLED, b"", Entry())
        self._spread.add(task.task_id)
        return True

    async def _wait_for_leader(self, task: InstalledTask) -> None:
        """Give up on a leader that stays silent: at once if it says so, else after twice its own time.

        A helper that has signed the record cannot know the outcome by itself: it asks until the task expires.
        """
        if self._context.clock.now() < task.closes + self._context.limits.give_up_s:
            return
        status = await self._ask_leader(task)
        signed = await taken(self._context, task.task_id, Step.SIGN) is not None
        if status is not None and status.state is State.ABORTED:
            await self._give_up(task, AbortReason.PEER_ABORTED)
        elif status is not None and status.state is State.RELEASED:
            return  # The record is on its way: the leader hands it over again at each of its starts.
        elif signed and self._context.clock.now() >= task.task.expiry:
            await self._give_up(task, AbortReason.OUTCOME_UNKNOWN)
        elif not signed and self._context.clock.now() >= task.closes + 2 * self._context.limits.give_up_s:
            await self._give_up(task, AbortReason.LEADER_SILENT)

    async def _give_up(self, task: InstalledTask, reason: AbortReason) -> None:
        log.warning("task_aborted", task=str(task.task_id), reason=reason.value)
        await abort_here(self._context, task.task_id, reason)

    async def _ask_leader(self, task: InstalledTask) -> TaskStatus | None:
        peer = self._context.peers.get(task.leader_id)
        if peer is None:
            return None
        try:
            async with asyncio.timeout(self._context.limits.call_timeout_s):
                return await peer.status(task.task_id)
        except (PeerUnreachableError, PeerRefusalError, MachineError, TimeoutError):
            return None
