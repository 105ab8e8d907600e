"""What a store that was put back from a backup lacks: series, orders and windows that came after it.

Every other aggregator shows what both take part in. What this aggregator's operator has signed is taken up again, and
ends: the record that all have signed is adopted, or the task is aborted, and each is charged. Nothing of it goes on,
so nothing can be drawn a second time. It must not decide how a task ends (`repair`).
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from fleetcount_protocol.errors import PeerError, TaskError
from fleetcount_protocol.ids import AggregatorId, SeriesId, TaskId
from fleetcount_protocol.series.derive import check_verify_seed
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.task.task import Task
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context, Quarantined
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.roles.calling import call_peer
from fleetcount_aggregator.storage.mending import take_up_ended
from fleetcount_aggregator.storage.row_seal import Damage
from fleetcount_aggregator.storage.sql_store import SqlStore
from fleetcount_aggregator.storage.store import TaskRow
from fleetcount_aggregator.tasks.decided import decided_window
from fleetcount_aggregator.tasks.series_install import adopt_series
from fleetcount_aggregator.tasks.series_orders import take_delivered_order
from fleetcount_aggregator.tasks.windows import opening_lead_s, past_window

__all__ = ["Adoption"]

_LACKED: Final = "is of after the backup"


class Adoption:
    """Asks every other aggregator once for what this store lacks; what it takes up is in quarantine until it ends."""

    def __init__(self, context: Context, store: SqlStore) -> None:
        self._context = context
        self._store = store
        self._asked: set[AggregatorId] = set()

    async def look(self, settle: Callable[[TaskId], Awaitable[bool]]) -> bool:
        """Ask who has not shown everything yet; return whether nothing is lacking any more.

        `settle` ends a task, or says that it has to wait.

        Raises:
            StoreError: this machine failed; look again.
        """
        for peer in self._context.peers:
            if peer not in self._asked:
                try:
                    await self._take_from(peer)
                except (PeerUnreachableError, PeerRefusalError) as error:
                    log.warning("restored_store_waits", peer=peer, reason=str(error))
                else:
                    self._asked.add(peer)
        if len(self._asked) < len(self._context.peers):
            return False  # An order that is not known yet may skip a window.
        series = list(self._context.series.values())
        return all([await self._windows(one, settle) for one in series])

    async def _take_from(self, peer: AggregatorId) -> None:
        after: SeriesId | None = None
        while True:
            shared = await self._shared(peer, after)
            for series_id in shared.series_ids:
                await self._take_series(peer, series_id)
            if not shared.more:
                return
            if after is not None and shared.series_ids[-1] <= after:
                raise PeerRefusalError(PeerProblem.MALFORMED)
            after = shared.series_ids[-1]

    async def _shared(self, peer: AggregatorId, after: SeriesId | None) -> SharedIds:
        return await call_peer(self._context, peer, lambda one: one.shared(after))

    def _row(self, task: Task) -> TaskRow:
        """Return a task as it is taken up: without a verify key, so that it can go on nowhere."""
        return TaskRow(
            task_id=task.task_id,
            canonical=task.canonical,
            verify_key=b"",
            state=State.ANNOUNCED,
            abort_reason="",
            installed_at=self._context.now(),
        )

    def _set_aside(self, task: Task) -> None:
        task_id = task.task_id
        lacked = Damage(table="tasks", what=f"task {task_id.hex()} {_LACKED}", task_id=task_id)
        self._context.quarantined[task_id] = Quarantined(lacked, task)
        log.info("task_taken_up_again", task=str(task_id), name=task.name)

    async def _take_series(self, peer: AggregatorId, series_id: SeriesId) -> None:
        """Take up a series that is not known here, and the orders about it that are not."""
        context = self._context
        shown = await call_peer(context, peer, lambda one: one.shared_series(series_id))
        try:
            if shown.signed.series.series_id != series_id:
                raise TaskError("it is another series")
            check_verify_seed(shown.signed.series, shown.seed)
            await adopt_series(context, shown.signed, shown.seed, shown.orders)
            for order in shown.orders:
                await take_delivered_order(context, peer, order)
        except PeerError as error:
            log.warning("shared_series_refused", series=str(series_id), peer=peer, reason=str(error))

    async def _windows(self, series: InstalledSeries, settle: Callable[[TaskId], Awaitable[bool]]) -> bool:
        """Take up the windows that opened since the backup, each after the one before it has ended."""
        context, schedule = self._context, series.asked.schedule
        lead = opening_lead_s(schedule)
        while series.following < schedule.windows and schedule.opens(series.following) - lead <= context.now():
            if series.following > 0:
                before = (await decided_window(context, series.series_id, series.following - 1)).task_id
                if before is not None and before in context.quarantined and not await settle(before):
                    return False
            async with series.lock:
                decided = await past_window(context, series, series.following)
                if decided is None:
                    return False
                row, task = decided
                installed = None if task is None else self._row(task.asked)
                await self._store.mend(partial(take_up_ended, task=installed, windows=[row]))
                if task is not None:
                    self._set_aside(task.asked)
                series.following = row.index + 1
        return True
