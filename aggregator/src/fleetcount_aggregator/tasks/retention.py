"""How long what has ended is kept: tasks go to rest when nothing is left to do for them, are retired, are forgotten.

An ended task at rest is not loaded at a start, nor is a series that counts in no period's budget any more.
`keep_digests_s` after a task expires the digests of its reports go, and what only its own repetition needed;
`keep_records_s` later, if the operator wants that, its record and its debit. Decides by this aggregator's clock; never
touches a task that has not ended.
"""

from dataclasses import replace
from typing import Final

from fleetcount_protocol.ids import TaskId
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import KEPT, Step, taken
from fleetcount_aggregator.storage.archive import AT_ONCE, FIRST, Place, Rest, RestRow
from fleetcount_aggregator.storage.row_seal import DamagedError
from fleetcount_aggregator.tasks.series_notes import rest_series

__all__ = ["Retention"]

_LOOK_S: Final = 60
"""Seconds between two looks for tasks whose time is over, while there are none."""


class Retention:
    """Looks after the ended tasks of one aggregator."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._retiring_at = self._forgetting_at = -1.0
        self._forgotten: Place = FIRST

    async def look(self) -> None:
        """Put to rest, retire and forget what is due, `AT_ONCE` tasks of each at most.

        Raises:
            StoreError: the store failed; what was not done is done at the next look.
        """
        await self._put_to_rest()
        now = self._context.clock.now()
        if now >= self._retiring_at:
            self._retiring_at = now if await self._retire() else now + _LOOK_S
            await self._rest_series()
        if now >= self._forgetting_at:
            self._forgetting_at = now if await self._forget() else now + _LOOK_S

    async def _put_to_rest(self) -> None:
        """Put tasks to rest that have ended; one with a record that a helper lacks waits for the next start."""
        tasks = list(self._context.ended.values())[:AT_ONCE]
        if not tasks:
            return
        rows = [row for task in tasks if (row := await self._rest_of(task)) is not None]
        await self._context.store.put_to_rest(rows)
        for task in tasks:
            self._context.ended.pop(task.task_id, None)
            self._context.purged.discard(task.task_id)

    async def _rest_of(self, task: InstalledTask) -> RestRow | None:
        """Return how a task rests, purged; None for one that waits, and for a damaged one, which waits for a repair."""
        context, task_id = self._context, task.task_id
        try:
            await context.store.task(task_id)  # Else its row would fail all that go to rest with it.
            if await self._is_owed(task):
                return None
            if task_id not in context.purged:
                await context.purge(task_id)  # What a failing disk has cut off.
        except DamagedError as error:
            context.quarantine(replace(error.damage, task_id=task_id), task.asked)
            return None
        return RestRow(task_id=task_id, expiry=task.asked.expiry, led=task.is_leader)

    async def _is_owed(self, task: InstalledTask) -> bool:
        """Whether a helper may still be waiting for the record, which is handed over at the next start."""
        if not task.is_leader or await self._context.state_of(task.task_id) is not State.RELEASED:
            return False
        over = self._context.now() >= task.asked.expiry + self._context.limits.keep_digests_s
        return not over and await taken(self._context, task.task_id, Step.DELIVERED) is None

    async def _retire(self) -> bool:
        """Retire tasks; return whether there may be more. One waits whose outcome a broker keeps that is away."""
        context = self._context
        rows = await context.store.resting(Rest.AT_REST, FIRST, context.now() - context.limits.keep_digests_s)
        done = [row.task_id for row in rows if not row.led or await context.withdraw(row.task_id)]
        if done:
            await context.store.retire(done, KEPT)
            log.info("tasks_retired", count=len(done))
        return len(done) == AT_ONCE

    async def _rest_series(self) -> None:
        """Put series to rest that are over: their windows have expired, and no budget looks back so far."""
        context, limits = self._context, self._context.limits
        held = {one.asked.series.series_id for one in context.live.values()}
        for series in list(context.series.values()):
            schedule = series.asked.schedule
            over = schedule.end + max(schedule.expiry_s + limits.keep_digests_s, limits.budget_period_s)
            if context.now() >= over and series.series_id not in held and series.following >= schedule.windows:
                await rest_series(context, series)
                log.info("series_at_rest", series=str(series.series_id))

    async def _forget(self) -> bool:
        """Forget tasks; return whether there may be more. Windows of a series that goes on are passed over."""
        context, keep_s = self._context, self._context.limits.keep_records_s
        if keep_s is None:
            return False
        until = context.now() - context.limits.keep_digests_s - keep_s
        rows = await context.store.resting(Rest.RETIRED, self._forgotten, until)
        gone = await context.store.forget([row.task_id for row in rows]) if rows else ()
        for task_id in gone:
            self._drop(task_id)
        if gone:
            log.info("tasks_forgotten", count=len(gone))
        more = len(rows) == AT_ONCE
        self._forgotten = rows[-1].place if more else FIRST
        return more

    def _drop(self, task_id: TaskId) -> None:
        for known in (self._context.tasks, self._context.states, self._context.resting):
            known.pop(task_id, None)
