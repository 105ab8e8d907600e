"""What an aggregator does without being asked: opens windows, drives the tasks it leads, gives up the others.

One call of `tick` looks at every task once; `app` decides how often it is called.
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

__all__ = ["Scheduler"]


class Scheduler:
    """Looks after the tasks of one aggregator."""

    def __init__(self, context: Context, leader: Leader) -> None:
        self._context = context
        self._leader = leader
        self._delivered: set[TaskId] = set()

    def due(self, task: InstalledTask) -> bool:
        """Whether the task's windows have closed by this aggregator's clock."""
        return self._context.clock.now() >= task.closes

    def pending(self) -> list[InstalledTask]:
        """Return the tasks that still need this aggregator."""
        states = self._context.states
        return [
            task
            for task in self._context.tasks.values()
            if states[task.task_id] in UNFINISHED or self._owes_delivery(task)
        ]

    def _owes_delivery(self, task: InstalledTask) -> bool:
        released = self._context.states[task.task_id] is State.RELEASED
        return task.is_leader and released and task.task_id not in self._delivered

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
            await self._leader.drive(task)
            self._delivered.add(task.task_id)
        else:
            await self._wait_for_leader(task)

    async def _installed_everywhere(self, task: InstalledTask) -> bool:
        if await taken(self._context, task.task_id, Step.INSTALLED) is not None:
            return True
        if self._context.states[task.task_id] not in UNFINISHED or not await self._leader.install(task):
            return False
        await once(self._context, task.task_id, Step.INSTALLED, b"", Entry())
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
