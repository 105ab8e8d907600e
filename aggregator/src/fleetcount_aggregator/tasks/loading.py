"""Which tasks are in memory: those in work; one that has ended when it is asked for.

An aggregator has thousands of ended tasks: they are read from the store again. It must not check, install or drive.
"""

import asyncio
from contextlib import suppress
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.task.task import Task, decode_task

from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.states import FINAL_STATES, State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.storage.row_seal import Damage, DamagedError
from fleetcount_aggregator.storage.store import StoreAwayError, StoreError, TaskRow

__all__ = ["follow_task", "learn_task", "let_go", "load_tasks", "read_task", "task_here", "task_row"]

_MOST_ENDED: Final = 64
"""Ended tasks kept in memory, the last to end or to be asked for: devices come late in crowds."""


async def learn_task(context: Context, row: TaskRow) -> InstalledTask:
    """Return a stored task as `read_task` does; a data key that this process has not read is read in a thread.

    Raises:
        FleetcountError: as `read_task`; the server that has the key is away.
    """
    if row.state not in FINAL_STATES:
        await context.learned_key(row.task_id)
    return read_task(context, row)


def read_task(context: Context, row: TaskRow) -> InstalledTask:
    """Return a stored task, whose data key is in memory; one that has ended has no verify key any more.

    Raises:
        FleetcountError: it cannot be read (another at-rest key, a damaged file, a rule it breaks).
    """
    task, has_ended = decode_task(row.canonical), row.state in FINAL_STATES
    if task.task_id != row.task_id:
        what = f"the bytes of task {row.task_id.hex()} are another task's"
        raise DamagedError(Damage(table="tasks", what=what, task_id=row.task_id))
    return InstalledTask(
        asked=task,
        verify_key=b"" if has_ended else context.data_key(row.task_id).open(row.verify_key, *_place(row.task_id)),
        position=task.position_of(context.aggregator_id),
    )


async def task_row(context: Context, task: InstalledTask) -> TaskRow:
    """Return a new task as it goes into the store, its verify key sealed under its data key, which is made here.

    Raises:
        StoreError: the disk does not take the key.
    """
    data_key = await asyncio.to_thread(context.store.data_keys.make, task.task_id)
    return TaskRow(
        task_id=task.task_id,
        canonical=task.asked.canonical,
        verify_key=data_key.seal(task.verify_key, *_place(task.task_id)),
        state=State.ANNOUNCED,
        abort_reason="",
        installed_at=context.now(),
    )


def _place(task_id: TaskId) -> tuple[bytes, ...]:
    return b"verify key", task_id


async def task_here(context: Context, task_id: TaskId) -> InstalledTask | None:
    """Return a task of this aggregator, read from the store if it has ended; None for any other id.

    Raises:
        DamagedError: it is in quarantine.
        StoreError: the store failed.
    """
    context.check_whole(task_id)
    known = context.tasks.get(task_id)
    if known is not None:
        return known
    row = await context.store.task(task_id)
    if row is None or row.state not in FINAL_STATES:
        return context.tasks.get(task_id)  # What is being installed is not here before it is taken up.
    task = read_task(context, row)
    context.tasks[task_id] = task
    context.states[task_id] = row.state
    let_go(context, task)
    return task


def let_go(context: Context, task: InstalledTask) -> None:
    """Let an ended task leave memory, once `_MOST_ENDED` others have ended or been asked for after it."""
    context.resting[task.task_id] = None
    while len(context.resting) > _MOST_ENDED:
        oldest = next(iter(context.resting))
        for known in (context.resting, context.tasks, context.states):
            known.pop(oldest, None)


async def load_tasks(context: Context) -> None:
    """Take up the tasks in work, when the process starts or is elected and the series are loaded; the others rest.

    What is damaged is named, and its task in quarantine; the others are taken up. A record that a helper lacks, or an
    abort that is not known everywhere, is work. Finishes the purges a crash has cut off.

    Raises:
        FleetcountError: a stored task cannot be read (another at-rest key).
    """
    context.started = context.clock.now()  # Whom a leader has talked to before nothing in memory says.
    context.adopting = await context.store.restored()
    damaged = await context.store.damaged()
    # Who led meanwhile may have settled what an earlier term found; what is damaged still is found again below.
    for task_id in context.quarantined.keys() - {one.task_id for one in damaged}:
        del context.quarantined[task_id]
    for damage in damaged:
        await _quarantine(context, damage)
    context.ended.clear()  # What a former term has left of them is in work still, or another's work is done.
    in_work = await context.store.tasks_in_work()
    for task_id in in_work:
        if task_id not in context.quarantined:
            await _take_up(context, task_id)
    for task_id in context.live.keys() - set(in_work):
        await _let_rest(context, task_id)
    # Who is elected has started long ago: what was cut off since then still has its key.
    keys = await asyncio.to_thread(context.store.data_keys.held)
    cut_off = [one for one in context.live if one in keys and context.states[one] in FINAL_STATES]
    for task_id in dict.fromkeys((*await context.store.unpurged(), *cut_off)):
        if task_id not in context.quarantined and await context.state_of(task_id) is not None:
            await _purge(context, task_id)


async def _let_rest(context: Context, task_id: TaskId) -> None:
    """Let go of what another process has brought to rest, and nobody said so here before this one was elected."""
    try:
        await follow_task(context, task_id)
    except DamagedError as error:
        await _quarantine(context, error.damage)
    for held in (context.live, context.awake):
        held.pop(task_id, None)  # It may be forgotten.


async def _purge(context: Context, task_id: TaskId) -> None:
    try:
        await context.purge(task_id)
    except DamagedError as error:
        await _quarantine(context, error.damage)


async def follow_task(context: Context, task_id: TaskId) -> None:
    """Take up what the store has of one task that another process of this aggregator installed or moved.

    Raises:
        FleetcountError: the store failed, or the task cannot be read.
    """
    row = await context.store.task(task_id)
    if row is None:
        return
    known = context.tasks.get(task_id)
    if row.state in UNFINISHED:
        context.take_up(known or await learn_task(context, row), row.state)
        return
    for held in (context.live, context.awake):
        held.pop(task_id, None)
    if known is not None and context.states[task_id] is not row.state:
        context.states[task_id] = row.state
        context.note_outcome(known)
        let_go(context, known)


async def _take_up(context: Context, task_id: TaskId) -> None:
    try:
        row = await context.store.task(task_id)
        if row is None:
            return
        task = await learn_task(context, row)
    except DamagedError as error:
        await _quarantine(context, error.damage)
        return
    except StoreAwayError:
        raise
    except StoreError:
        key = Damage(table="tasks", what=f"the verify key of task {task_id.hex()} does not open", task_id=task_id)
        await _quarantine(context, key)
        return
    place = task.asked.series
    if place.series_id not in context.series and row.state in UNFINISHED:
        damage = Damage(
            table="series", what=f"task {task_id.hex()} is a window of a series that is damaged", task_id=task_id
        )
        context.quarantine(damage, task.asked)
        return
    context.take_up(task, row.state)


async def _quarantine(context: Context, damage: Damage) -> None:
    """Put a task in quarantine with its fields, if its bytes are whole."""
    task: Task | None = None
    if damage.task_id is not None and (canonical := await context.store.canonical(damage.task_id)) is not None:
        with suppress(DecodeError):
            found = decode_task(canonical)
            task = found if found.task_id == damage.task_id else None
    context.quarantine(damage, task)
