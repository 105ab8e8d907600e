"""The statements of a store in SQL about ended tasks: every read and write as a function of a database.

Owns no connection, no thread and no transaction (sql_store).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.limits import MAX_LEDGER_ROWS

from fleetcount_aggregator.host.states import FINAL_STATES, State
from fleetcount_aggregator.storage.archive import AT_ONCE, Place, Rest, RestRow
from fleetcount_aggregator.storage.row_seal import CHOSEN, LEDGER, RESTS, TASKS, DamagedError
from fleetcount_aggregator.storage.rows import IN_WORK, TASK, check_ended, ledger_row, read_task, task_holds, task_row
from fleetcount_aggregator.storage.sealed_database import SealedDatabase
from fleetcount_aggregator.storage.series_rows import read_decided
from fleetcount_aggregator.storage.store import Charged, Cost, LedgerRow, TaskRow

__all__ = [
    "forget_tasks",
    "purge_task",
    "put_to_rest",
    "read_cost",
    "read_debit",
    "read_in_work",
    "read_latest",
    "read_resting",
    "read_unpurged",
    "retire_tasks",
]

_OF_TASK: Final = ("tasks", "steps", "rejections", "ledger")
"""The tables that still have rows of a retired task."""
_OF_SERIES: Final = ("decided", "series_notes", "series")


def read_in_work(db: SealedDatabase) -> Sequence[TaskId]:
    """See `Archive.tasks_in_work`."""
    rows = db.execute(f"{TASKS.select} WHERE {IN_WORK} ORDER BY place").fetchall()
    return [TaskId(row[0]) for row in rows if TASKS.holds(db, row)]


def read_latest(
    db: SealedDatabase, count: int, before: int | None, *, unfinished: bool = False
) -> Sequence[tuple[int, TaskRow]]:
    """Return the tasks installed last with their numbers, newest first: `count` at most, below a number if given.

    `unfinished`: only those that have not ended.
    """
    ended = [state.value for state in FINAL_STATES] if unfinished else []
    query = f"{TASK} WHERE place < ? {'AND state NOT IN (?, ?)' * unfinished} ORDER BY place DESC LIMIT ?"
    rows = db.execute(query, (MAX_LEDGER_ROWS if before is None else before, *ended, count)).fetchall()
    return [(row[4], task_row(row)) for row in rows if task_holds(db, row)]


def read_unpurged(db: SealedDatabase) -> set[TaskId]:
    """Return the tasks in work of which `purge_task` would delete something."""
    query = (
        f"SELECT task_id FROM tasks WHERE {IN_WORK} AND (chosen IS NOT NULL OR length(verify_key) > 0 OR EXISTS"  # noqa: S608 - constants
        " (SELECT 1 FROM batches WHERE batches.task_id = tasks.task_id) OR EXISTS"
        " (SELECT 1 FROM steps WHERE steps.task_id = tasks.task_id AND steps.passing = 1))"
    )
    return {TaskId(row[0]) for row in db.execute(query).fetchall()}


def purge_task(db: SealedDatabase, task_id: TaskId) -> None:
    """See `Store.purge`: what the database holds of it."""
    db.execute("DELETE FROM batches WHERE task_id = ?", (task_id,))
    db.execute("DELETE FROM steps WHERE task_id = ? AND passing = 1", (task_id,))
    db.execute("UPDATE tasks SET verify_key = ? WHERE task_id = ?", (b"", task_id))
    db.execute(CHOSEN.update, CHOSEN.updating(db, task_id, None))


def put_to_rest(db: SealedDatabase, rows: Sequence[RestRow]) -> None:
    """See `Archive.put_to_rest`."""
    for row in rows:
        check_ended(db, row.task_id)
    working = "SELECT 1 FROM tasks WHERE task_id = ? AND rest = ?"
    done = [row for row in rows if db.execute(working, (row.task_id, Rest.IN_WORK.value)).fetchone()]
    values = [RESTS.updating(db, row.task_id, Rest.AT_REST.value, row.expiry, int(row.led)) for row in done]
    db.executemany(RESTS.update, values)


def read_resting(db: SealedDatabase, rest: Rest, above: Place, until: int) -> Sequence[RestRow]:
    """See `Archive.resting`. What is not as it was written stays as it is, until it is repaired."""
    query = (
        f"{RESTS.select} WHERE rest = ? AND expiry <= ? AND (expiry, task_id) > (?, ?) ORDER BY expiry, task_id LIMIT ?"
    )
    rows = db.execute(query, (rest.value, until, *above, AT_ONCE)).fetchall()
    return [RestRow(task_id=TaskId(row[0]), expiry=row[2], led=bool(row[3])) for row in rows if RESTS.holds(db, row)]


def retire_tasks(
    db: SealedDatabase, task_ids: Sequence[TaskId], kept: Mapping[State, Sequence[str]]
) -> Sequence[TaskId]:
    """See `Archive.retire`: what the database holds; return those that were at rest, whose digests may go."""
    found: list[TaskId] = []
    for task_id in task_ids:
        rests = db.execute(f"{RESTS.select} WHERE task_id = ?", (task_id,)).fetchone()
        task = db.execute(f"{TASKS.select} WHERE task_id = ?", (task_id,)).fetchone()
        if rests is None or rests[1] == Rest.IN_WORK or not (RESTS.holds(db, rests) and TASKS.holds(db, task)):
            continue
        names = kept[State(task[1])]
        places = ", ".join("?" for _ in names)
        db.execute(f"DELETE FROM steps WHERE task_id = ? AND name NOT IN ({places})", (task_id, *names))  # noqa: S608
        taken = ",".join(name for name in task[6].split(",") if name in names)
        db.execute(TASKS.update, TASKS.updating(db, *task[:6], taken))
        db.execute(RESTS.update, RESTS.updating(db, task_id, Rest.RETIRED.value, *rests[2:4]))
        found.append(task_id)
    return found


def forget_tasks(db: SealedDatabase, task_ids: Sequence[TaskId]) -> Sequence[TaskId]:
    """See `Archive.forget`."""
    retired = (
        "SELECT 1 FROM tasks WHERE task_id = ? AND rest = ? AND NOT EXISTS"
        " (SELECT 1 FROM decided JOIN series ON series.series_id = decided.series_id"
        " WHERE decided.task_id = tasks.task_id AND series.rest = 0)"
    )
    gone = [one for one in task_ids if db.execute(retired, (one, Rest.RETIRED.value)).fetchone()]
    owners = "SELECT series_id FROM decided WHERE task_id = ?"
    series = {row[0] for one in gone for row in db.execute(owners, (one,)).fetchall()}
    for table in _OF_TASK:
        db.executemany(f"DELETE FROM {table} WHERE task_id = ?", [(one,) for one in gone])  # noqa: S608 - constants
    for series_id in series:
        _forget_series(db, series_id)
    return gone


def _forget_series(db: SealedDatabase, series_id: bytes) -> None:
    """Delete a series at rest none of whose windows has a task any more."""
    left = "SELECT 1 FROM decided JOIN tasks ON tasks.task_id = decided.task_id WHERE decided.series_id = ?"
    if db.execute(left, (series_id,)).fetchone() is None:
        for table in _OF_SERIES:
            db.execute(f"DELETE FROM {table} WHERE series_id = ?", (series_id,))  # noqa: S608 - constants


def read_cost(db: SealedDatabase, asked: Charged) -> Cost:
    """See `Store.costs`."""
    if asked.windows > 1 and not asked.withdrawn:
        return asked.cost(0, ())  # Its windows, of which it may have tens of thousands, change nothing.
    try:
        rows = read_decided(db, asked.series_id, above=-1)
        named = [row.task_id for row in rows if row.task_id is not None and not row.missing]
        tasks = [(read_task(db, task_id), read_debit(db, task_id)) for task_id in named]
    except DamagedError:
        return Cost.OPEN
    states = ((None if task is None else task.state, debit is not None) for task, debit in tasks)
    return asked.cost(len(rows), states)


def read_debit(db: SealedDatabase, task_id: TaskId) -> LedgerRow | None:
    """See `Archive.debit`."""
    row = db.execute(f"{LEDGER.select} WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else ledger_row(row)
