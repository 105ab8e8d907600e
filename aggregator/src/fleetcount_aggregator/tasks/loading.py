"""Which tasks are in memory: those with work to come and those that budgets add up; an ended window when asked for.

A series has thousands of windows: what has ended is read from the store again. It must not check, install or drive.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from fleetcount_protocol.errors import DecodeError, TaskError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.task.signal import check_signal
from fleetcount_protocol.task.signed_file import decode_signed_task, stored_task_bytes
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.states import FINAL_STATES, AbortReason, State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import Step, move
from fleetcount_aggregator.storage.store import LedgerRow, TaskRow

__all__ = ["let_go", "load_tasks", "read_task", "task_here"]

_MOST_ENDED: Final = 64
"""Ended windows kept in memory, the last to end or to be asked for: devices come late in crowds."""


def read_task(context: Context, row: TaskRow) -> InstalledTask:
    """Return a stored task.

    Raises:
        FleetcountError: it cannot be read (another signing key, a damaged file, a rule it breaks).
    """
    signed = decode_signed_task(row.signed)
    return InstalledTask(
        signed=signed,
        verify_key=context.at_rest.open(row.verify_key, b"verify key", row.task_id),
        position=signed.task.position_of(context.aggregator_id),
    )


async def task_here(context: Context, task_id: TaskId) -> InstalledTask | None:
    """Return a task of this aggregator, from the store if it is an ended window; None for any other id, unread.

    Raises:
        StoreError: the store failed.
    """
    known = context.tasks.get(task_id)
    if known is not None or task_id not in context.states:
        return known
    row = await context.store.task(task_id)
    if row is None:
        return None
    task = context.tasks[task_id] = read_task(context, row)
    let_go(context, task)
    return task


def let_go(context: Context, task: InstalledTask) -> None:
    """Let an ended window leave memory, once `_MOST_ENDED` others have ended or been asked for after it."""
    if task.task.series is None:
        return
    context.resting[task.task_id] = None
    while len(context.resting) > _MOST_ENDED:
        oldest = next(iter(context.resting))
        del context.resting[oldest]
        context.tasks.pop(oldest, None)


async def load_tasks(context: Context) -> None:
    """Take up the tasks of the store, when the process starts and the series are loaded; of ended windows their states.

    A window whose record its leader still owes the others has not ended yet.

    Raises:
        FleetcountError: a stored task cannot be read (another signing key, a damaged file).
    """
    states = await context.store.states()
    ended = await _ended_windows(context, states)
    for task_id, state in states.items():
        if task_id in ended:
            context.states[task_id] = state
        elif (row := await context.store.task(task_id)) is not None:
            await _take_up(context, row)


async def _ended_windows(context: Context, states: Mapping[TaskId, State]) -> set[TaskId]:
    """Return the windows that nothing is left to do for, and note the outcomes of those this aggregator leads."""
    led = any(series.is_leader for series in context.series.values())
    owed = frozenset(await context.store.released_without(Step.DELIVERED.value) if led else ())
    found: set[TaskId] = set()
    for series in context.series.values():
        schedule = series.series.schedule
        for index, task_id in enumerate(series.windows):
            if task_id is None or states.get(task_id) not in FINAL_STATES:
                continue
            if series.is_leader:
                context.note_outcome(task_id, schedule.closes(index) + schedule.expiry_s)
            if not (series.is_leader and task_id in owed):
                found.add(task_id)
    return found


async def _take_up(context: Context, row: TaskRow) -> None:
    try:
        task = read_task(context, row)
    except DecodeError as error:
        await _set_aside(context, row, error)
        return
    context.take_up(task, row.state)
    if task.is_leader and task.task.series is None and row.state in FINAL_STATES:
        context.note_outcome(row.task_id, task.task.expiry)


async def _set_aside(context: Context, row: TaskRow, error: DecodeError) -> None:
    """Leave a task of an older version to the store, whose answers about it stay; one that runs ends.

    Only a task that is stored as it was signed, and whose debit counts against nothing that can be asked today.
    """
    intact = hashlib.sha256(stored_task_bytes(row.signed)).digest() == row.task_id
    debits = [one for one in await context.store.ledger() if one.task_id == row.task_id]
    if not intact or any(map(_counts, debits)):
        raise error
    if row.state in UNFINISHED:
        context.states[row.task_id] = row.state
        await move(context, row.task_id, State.ABORTED, reason=AbortReason.NOT_SERVED.value)
        del context.states[row.task_id]
        await context.store.purge(row.task_id)
    log.warning("task_set_aside", task=str(row.task_id), reason=str(error))


def _counts(debit: LedgerRow) -> bool:
    """Whether a task of today may be on the signal of a debit."""
    try:
        check_signal(debit.signal)
    except TaskError:
        return False
    return True
