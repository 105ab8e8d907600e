"""What another aggregator is shown of what both take part in, when its store was put back from a backup.

Shows what all have signed, and to who is named in it alone; how a task ended it asks by itself (`outcomes`). It must
not take anything up (`adoption`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import AggregatorId, SeriesId, TaskId
from fleetcount_protocol.messages import InstallSeries
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.task.signed_file import decode_signed_task
from fleetcount_protocol.task.task import SignedTask

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.storage.store import TaskRow

__all__ = ["shared_ids", "shared_series", "shared_task"]

_ROWS: Final = 512
"""Tasks looked at for one call."""


async def shared_ids(context: Context, caller: AggregatorId, after: TaskId | None) -> SharedIds:
    """Return which of the next tasks the caller is one of the aggregators of, and in the first part of which series."""
    rows, following = await context.store.tasks_above(after, _ROWS)
    series = [one.series_id for one in context.series.values() if caller in one.others] if after is None else []
    return SharedIds(
        task_ids=await asyncio.to_thread(_with, rows, caller),
        series_ids=tuple(sorted(series)),
        following=following,
    )


def _with(rows: Sequence[TaskRow], caller: AggregatorId) -> tuple[TaskId, ...]:
    return tuple(row.task_id for row in rows if _signed(row, caller) is not None)


def _signed(row: TaskRow, caller: AggregatorId) -> SignedTask | None:
    """Return what was signed of a task that the caller may see. Windows follow from their series."""
    with suppress(DecodeError):  # Of an older version: its debit counts against nothing of today.
        signed = decode_signed_task(row.signed)
        if signed.task.series is None and caller in {one.aggregator_id for one in signed.task.aggregators}:
            return signed
    return None


async def shared_task(context: Context, caller: AggregatorId, task_id: TaskId) -> SignedTask:
    """Return a task as all have signed it.

    Raises:
        PeerRefusalError: UNKNOWN_TASK, there is none, or the caller is not one of its aggregators.
    """
    row = await context.store.task(task_id)
    signed = None if row is None else _signed(row, caller)
    if signed is None:
        raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
    return signed


async def shared_series(context: Context, caller: AggregatorId, series_id: SeriesId) -> InstallSeries:
    """Return a series as all have signed it, with what all its aggregators hold: the seed and the orders.

    Raises:
        PeerRefusalError: UNKNOWN_TASK, there is none, or the caller is not one of its aggregators.
    """
    series = context.series.get(series_id)
    if series is None or caller not in series.others:
        raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
    return InstallSeries(signed=series.signed, seed=series.seed, orders=series.orders)
