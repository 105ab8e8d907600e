"""The statements of the SQLite store: every read and every write as a function of a connection, inside its transaction.

Owns no connection, no thread and no transaction (sqlite_store).
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, SessionId, TaskId

from fleetcount_aggregator.host.states import FINAL_STATES, State, StateConflictError, check_move
from fleetcount_aggregator.storage.report_logs import LogState
from fleetcount_aggregator.storage.store import (
    BATCHES_AT_ONCE,
    BatchRow,
    LedgerRow,
    SessionRow,
    StepRow,
    StoreError,
    TaskChange,
    TaskRow,
)

__all__ = [
    "Closing",
    "add_session",
    "apply_change",
    "count_rejections",
    "forget_sessions",
    "install_task",
    "note_durable",
    "purge_task",
    "raise_high_water",
    "read_batch",
    "read_batches",
    "read_chosen",
    "read_high_water",
    "read_ledger",
    "read_log_states",
    "read_rejections",
    "read_released_without",
    "read_session",
    "read_sessions",
    "read_sessions_of",
    "read_states",
    "read_step",
    "read_task",
    "read_tasks",
    "read_unpurged",
    "takes_instalments",
]

_OPEN = (State.ANNOUNCED.value, State.COLLECTING.value)
_POSITION_BYTES = "<u4"
_TASK = "SELECT task_id, signed, verify_key, state, abort_reason, installed_at FROM tasks"
_BATCH = "SELECT number, positions, verdicts, share_digests, kept FROM batches"


@dataclass(frozen=True, slots=True)
class Closing:
    """What a report log held at the moment intake closed: its length, and how many reports lacked an instalment."""

    log_bytes: int
    half_pairs: int


def add_session(db: sqlite3.Connection, row: SessionRow) -> None:
    """See `Store.add_session`."""
    db.execute(
        "INSERT INTO sessions (session_id, request, certificate, expiry) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (session_id) DO NOTHING",
        (row.session_id, row.request, row.certificate, row.expiry),
    )


def read_session(db: sqlite3.Connection, session_id: SessionId) -> SessionRow | None:
    """See `Store.session`."""
    row = db.execute("SELECT request, certificate, expiry FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    if row is None:
        return None
    return SessionRow(session_id=session_id, request=row[0], certificate=Digest(row[1]), expiry=row[2])


def read_sessions(db: sqlite3.Connection, session_ids: Sequence[SessionId]) -> Sequence[SessionRow]:
    """See `Store.sessions`."""
    rows = (read_session(db, session_id) for session_id in session_ids)
    return [row for row in rows if row is not None]


def read_sessions_of(db: sqlite3.Connection, certificate: Digest, now: int) -> int:
    """See `Store.sessions_of`."""
    query = "SELECT COUNT(*) FROM sessions WHERE certificate = ? AND expiry > ?"
    return int(db.execute(query, (certificate, now)).fetchone()[0])


def forget_sessions(db: sqlite3.Connection, expired_before: int) -> None:
    """See `Store.forget_sessions`."""
    db.execute("DELETE FROM sessions WHERE expiry < ?", (expired_before,))


def install_task(db: sqlite3.Connection, row: TaskRow) -> TaskRow:
    """See `Store.install`."""
    db.execute(
        "INSERT INTO tasks (task_id, signed, verify_key, state, abort_reason, installed_at, place)"
        " VALUES (?, ?, ?, ?, ?, ?, (SELECT COUNT(*) FROM tasks)) ON CONFLICT (task_id) DO NOTHING",
        (row.task_id, row.signed, row.verify_key, row.state.value, row.abort_reason, row.installed_at),
    )
    return _present(read_task(db, row.task_id), row.task_id)


def read_tasks(db: sqlite3.Connection) -> Sequence[TaskRow]:
    """See `Store.tasks`."""
    return [_task_row(row) for row in db.execute(f"{_TASK} ORDER BY place").fetchall()]


def read_task(db: sqlite3.Connection, task_id: TaskId) -> TaskRow | None:
    """See `Store.task`."""
    row = db.execute(f"{_TASK} WHERE task_id = ?", (task_id,)).fetchone()
    return _task_row(row) if row else None


def read_states(db: sqlite3.Connection) -> Mapping[TaskId, State]:
    """See `Store.states`."""
    rows = db.execute("SELECT task_id, state FROM tasks ORDER BY place").fetchall()
    return {TaskId(row[0]): _state(row[1]) for row in rows}


def read_released_without(db: sqlite3.Connection, step: str) -> Sequence[TaskId]:
    """See `Store.released_without`."""
    query = (
        "SELECT task_id FROM tasks WHERE state = ? AND NOT EXISTS"
        " (SELECT 1 FROM steps WHERE steps.task_id = tasks.task_id AND steps.name = ?)"
    )
    return [TaskId(row[0]) for row in db.execute(query, (State.RELEASED.value, step)).fetchall()]


def _task_row(row: Sequence[Any]) -> TaskRow:
    return TaskRow(
        task_id=TaskId(row[0]),
        signed=row[1],
        verify_key=row[2],
        state=_state(row[3]),
        abort_reason=row[4],
        installed_at=row[5],
    )


def _state(stored: str) -> State:
    """Return a stored state; "verifying" is what releasing was called before, in stores that exist."""
    return State.RELEASING if stored == "verifying" else State(stored)


def _present(task: TaskRow | None, task_id: TaskId) -> TaskRow:
    if task is None:
        raise StoreError(f"task {task_id!r} is not installed")
    return task


def takes_instalments(db: sqlite3.Connection, task_id: TaskId) -> bool:
    """Return whether the task is there and its intake not closed."""
    row = db.execute("SELECT state FROM tasks WHERE task_id = ?", (task_id,)).fetchone()
    return row is not None and row[0] in _OPEN


def read_log_states(db: sqlite3.Connection) -> list[LogState]:
    """Return what the report logs must be, task by task."""
    rows = db.execute("SELECT task_id, state, durable_bytes, log_bytes FROM tasks").fetchall()
    return [
        LogState(
            task_id=TaskId(row[0]),
            ended=_state(row[1]) in FINAL_STATES,
            set_sealed=_state(row[1]) is State.RELEASING,
            durable_length=row[2],
            closed_length=row[3],
        )
        for row in rows
    ]


def note_durable(db: sqlite3.Connection, lengths: Mapping[TaskId, int]) -> None:
    """Remember how long logs are: so many bytes are on the disk, and receipts were given for them."""
    db.executemany(
        "UPDATE tasks SET durable_bytes = ? WHERE task_id = ?", [(length, task) for task, length in lengths.items()]
    )


def count_rejections(db: sqlite3.Connection, task_id: TaskId, counts: Mapping[RejectReason, int]) -> None:
    """See `Store.count_rejections`."""
    for reason, count in counts.items():
        db.execute(
            "INSERT INTO rejections (task_id, reason, count) VALUES (?, ?, ?)"
            " ON CONFLICT (task_id, reason) DO UPDATE SET count = rejections.count + excluded.count",
            (task_id, reason.value, count),
        )


def read_rejections(db: sqlite3.Connection, task_id: TaskId) -> Mapping[RejectReason, int]:
    """See `Store.rejections`."""
    rows = db.execute("SELECT reason, count FROM rejections WHERE task_id = ?", (task_id,)).fetchall()
    return {RejectReason(reason): count for reason, count in rows}


def read_batches(db: sqlite3.Connection, task_id: TaskId, above: int) -> Sequence[BatchRow]:
    """See `Store.batches`."""
    query = f"{_BATCH} WHERE task_id = ? AND number > ? ORDER BY number LIMIT ?"
    return [_batch_row(row) for row in db.execute(query, (task_id, above, BATCHES_AT_ONCE)).fetchall()]


def read_batch(db: sqlite3.Connection, task_id: TaskId, number: int) -> BatchRow | None:
    """See `Store.batch`."""
    row = db.execute(f"{_BATCH} WHERE task_id = ? AND number = ?", (task_id, number)).fetchone()
    return None if row is None else _batch_row(row)


def _batch_row(row: Sequence[Any]) -> BatchRow:
    return BatchRow(
        number=row[0],
        positions=np.frombuffer(row[1], dtype=_POSITION_BYTES).astype(np.int64),
        verdicts=row[2],
        share_digests=row[3],
        kept=row[4],
    )


def read_chosen(db: sqlite3.Connection, task_id: TaskId) -> bytes | None:
    """See `Store.chosen`."""
    row = db.execute("SELECT chosen FROM tasks WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else row[0]


def read_step(db: sqlite3.Connection, task_id: TaskId, name: str) -> StepRow | None:
    """See `Store.step`."""
    query = "SELECT request, answer, passing FROM steps WHERE task_id = ? AND name = ?"
    row = db.execute(query, (task_id, name)).fetchone()
    return StepRow(name=name, request=row[0], answer=row[1], passing=bool(row[2])) if row else None


def apply_change(db: sqlite3.Connection, change: TaskChange, closing: Closing | None) -> StepRow | None:
    """See `Store.apply`; `closing` comes with a change that closes intake."""
    task = _present(read_task(db, change.task_id), change.task_id)
    if change.step is not None and (known := read_step(db, change.task_id, change.step.name)) is not None:
        return known
    if task.state not in change.required:
        raise StateConflictError(task.state, change.step.name if change.step else "this change")
    if change.new_state is not None:
        check_move(task.state, change.new_state)
        db.execute(
            "UPDATE tasks SET state = ?, abort_reason = ? WHERE task_id = ?",
            (change.new_state.value, change.abort_reason, change.task_id),
        )
    if change.step is not None:
        _insert_step(db, change.task_id, change.step)
    if change.batch is not None:
        _put_batch(db, change.task_id, change.batch)
    if change.chosen is not None:
        db.execute("UPDATE tasks SET chosen = ? WHERE task_id = ?", (change.chosen, change.task_id))
    if change.debit is not None:
        _debit(db, change.debit)
    count_rejections(db, change.task_id, change.rejections)
    if closing is not None:
        _close(db, change.task_id, closing)
    return None


def _insert_step(db: sqlite3.Connection, task_id: TaskId, step: StepRow) -> None:
    db.execute(
        "INSERT INTO steps (task_id, name, request, answer, passing) VALUES (?, ?, ?, ?, ?)",
        (task_id, step.name, step.request, step.answer, int(step.passing)),
    )


def _put_batch(db: sqlite3.Connection, task_id: TaskId, row: BatchRow) -> None:
    positions = row.positions.astype(_POSITION_BYTES).tobytes()
    db.execute(
        "INSERT INTO batches (task_id, number, positions, verdicts, share_digests, kept) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (task_id, number) DO UPDATE SET positions = excluded.positions, verdicts = excluded.verdicts,"
        " share_digests = excluded.share_digests, kept = excluded.kept",
        (task_id, row.number, positions, row.verdicts, row.share_digests, row.kept),
    )


def _close(db: sqlite3.Connection, task_id: TaskId, closing: Closing) -> None:
    db.execute("UPDATE tasks SET log_bytes = ? WHERE task_id = ?", (closing.log_bytes, task_id))
    if closing.half_pairs:
        count_rejections(db, task_id, {RejectReason.HALF_PAIR: closing.half_pairs})


def _debit(db: sqlite3.Connection, row: LedgerRow) -> None:
    db.execute(
        "INSERT INTO ledger (task_id, signal, opens, closes, epsilon, debited_at, place)"
        " VALUES (?, ?, ?, ?, ?, ?, (SELECT COUNT(*) FROM ledger)) ON CONFLICT (task_id) DO NOTHING",
        (row.task_id, row.signal, row.opens, row.closes, row.epsilon, row.debited_at),
    )


def read_ledger(db: sqlite3.Connection) -> Sequence[LedgerRow]:
    """See `Store.ledger`."""
    query = "SELECT task_id, signal, opens, closes, epsilon, debited_at FROM ledger ORDER BY place"
    return [
        LedgerRow(task_id=TaskId(row[0]), signal=row[1], opens=row[2], closes=row[3], epsilon=row[4], debited_at=row[5])
        for row in db.execute(query).fetchall()
    ]


def raise_high_water(db: sqlite3.Connection, peer: AggregatorId, ledger_rows: int) -> None:
    """See `Store.raise_high_water`."""
    db.execute(
        "INSERT INTO marks (peer, ledger_rows) VALUES (?, ?) ON CONFLICT (peer)"
        " DO UPDATE SET ledger_rows = excluded.ledger_rows WHERE excluded.ledger_rows > marks.ledger_rows",
        (str(peer), ledger_rows),
    )


def read_high_water(db: sqlite3.Connection) -> Mapping[AggregatorId, int]:
    """See `Store.high_water`."""
    return {AggregatorId(row[0]): row[1] for row in db.execute("SELECT peer, ledger_rows FROM marks").fetchall()}


def read_unpurged(db: sqlite3.Connection) -> set[TaskId]:
    """Return the tasks of which `purge_task` would delete something."""
    query = (
        "SELECT task_id FROM batches UNION SELECT task_id FROM steps WHERE passing = 1"
        " UNION SELECT task_id FROM tasks WHERE chosen IS NOT NULL"
    )
    return {TaskId(row[0]) for row in db.execute(query).fetchall()}


def purge_task(db: sqlite3.Connection, task_id: TaskId) -> None:
    """See `Store.purge`: what the database holds of it."""
    db.execute("DELETE FROM batches WHERE task_id = ?", (task_id,))
    db.execute("DELETE FROM steps WHERE task_id = ? AND passing = 1", (task_id,))
    db.execute("UPDATE tasks SET chosen = NULL WHERE task_id = ?", (task_id,))
