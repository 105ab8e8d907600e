"""The statements of the SQLite store: every read and every write as a function of a connection, inside its transaction.

Owns no connection, no thread and no transaction (sqlite_store).
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId

from fleetcount_aggregator.states import State, StateConflictError, check_move
from fleetcount_aggregator.store import (
    PAGE,
    CompleteReport,
    InstalmentRow,
    LedgerRow,
    Outcome,
    ReportRow,
    ReportStatus,
    SessionRow,
    Step,
    StoredInstalment,
    StoreError,
    TaskChange,
    TaskRow,
    Verdict,
)

__all__ = [
    "add_instalment",
    "add_session",
    "apply_change",
    "complete_reports",
    "count_rejections",
    "forget_sessions",
    "install_task",
    "purge_task",
    "read_digest",
    "read_ledger",
    "read_marks",
    "read_rejections",
    "read_report",
    "read_reports",
    "read_session",
    "read_sessions_of",
    "read_step",
    "read_task",
    "read_tasks",
    "remember_mark",
]

_OPEN = (State.ANNOUNCED.value, State.COLLECTING.value)
_TASK = "SELECT task_id, signed, verify_key, state, abort_reason, installed_at FROM tasks"
_REPORT = "SELECT report_id, status, batch, reason, public_share_digest, verification FROM reports"


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


def _task_row(row: Sequence[Any]) -> TaskRow:
    return TaskRow(
        task_id=TaskId(row[0]),
        signed=row[1],
        verify_key=row[2],
        state=State(row[3]),
        abort_reason=row[4],
        installed_at=row[5],
    )


def _present(task: TaskRow | None, task_id: TaskId) -> TaskRow:
    if task is None:
        raise StoreError(f"task {task_id!r} is not installed")
    return task


def add_instalment(db: sqlite3.Connection, row: InstalmentRow) -> Outcome:
    """See `Store.add_instalments`, for one row."""
    report = db.execute(
        "SELECT certificate FROM reports WHERE task_id = ? AND report_id = ?", (row.task_id, row.report_id)
    ).fetchone()
    held = read_digest(db, row.task_id, row.report_id, row.round)
    if held is not None:
        return Outcome.SAME if held == row.digest and report[0] == row.certificate else Outcome.OTHER_BYTES
    state = db.execute("SELECT state FROM tasks WHERE task_id = ?", (row.task_id,)).fetchone()
    if state is None or state[0] not in _OPEN:
        return Outcome.CLOSED
    if report is not None and report[0] != row.certificate:
        return Outcome.OTHER_BYTES
    if report is None and not _new_report(db, row):
        return Outcome.SECOND_REPORT
    _insert_instalment(db, row)
    return Outcome.STORED


def _new_report(db: sqlite3.Connection, row: InstalmentRow) -> bool:
    """Insert the report; False if the unique constraint (task, certificate) says the device has another one."""
    cursor = db.execute(
        "INSERT INTO reports (task_id, report_id, certificate, status, verification) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (task_id, certificate) DO NOTHING",
        (row.task_id, row.report_id, row.certificate, ReportStatus.INCOMPLETE.value, b""),
    )
    return cursor.rowcount == 1


def _insert_instalment(db: sqlite3.Connection, row: InstalmentRow) -> None:
    db.execute(
        "INSERT INTO instalments (task_id, report_id, round, session_id, digest, public_share, ciphertext)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.task_id, row.report_id, row.round, row.session_id, row.digest, row.public_share, row.ciphertext),
    )
    held = db.execute(
        "SELECT COUNT(*) FROM instalments WHERE task_id = ? AND report_id = ?", (row.task_id, row.report_id)
    ).fetchone()[0]
    if held >= row.expected:
        db.execute(
            "UPDATE reports SET status = ? WHERE task_id = ? AND report_id = ?",
            (ReportStatus.COMPLETE.value, row.task_id, row.report_id),
        )


def read_digest(db: sqlite3.Connection, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
    """See `Store.instalment_digest`."""
    query = "SELECT digest FROM instalments WHERE task_id = ? AND report_id = ? AND round = ?"
    row = db.execute(query, (task_id, report_id, round_number)).fetchone()
    return Digest(row[0]) if row else None


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


def complete_reports(db: sqlite3.Connection, task_id: TaskId, limit: int) -> Sequence[CompleteReport]:
    """See `Store.complete_reports`."""
    rows = db.execute(
        "SELECT report_id FROM reports WHERE task_id = ? AND status = ? ORDER BY report_id LIMIT ?",
        (task_id, ReportStatus.COMPLETE.value, limit),
    ).fetchall()
    return [_complete(db, task_id, ReportId(row[0])) for row in rows]


def _complete(db: sqlite3.Connection, task_id: TaskId, report_id: ReportId) -> CompleteReport:
    rows = db.execute(
        "SELECT round, session_id, public_share, ciphertext FROM instalments"
        " WHERE task_id = ? AND report_id = ? ORDER BY round",
        (task_id, report_id),
    ).fetchall()
    return CompleteReport(
        report_id=report_id,
        instalments=tuple(
            StoredInstalment(round=row[0], session_id=SessionId(row[1]), public_share=row[2], ciphertext=row[3])
            for row in rows
        ),
    )


def read_reports(
    db: sqlite3.Connection, task_id: TaskId, status: ReportStatus | None, batch: int | None, after: bytes
) -> Sequence[ReportRow]:
    """See `Store.reports`."""
    where, values = ["task_id = ?", "report_id > ?"], [task_id, after]
    if status is not None:
        where.append("status = ?")
        values.append(status.value)  # type: ignore[arg-type]  # SQLite takes any mix of values.
    if batch is not None:
        where.append("batch = ?")
        values.append(batch)  # type: ignore[arg-type]  # As above.
    query = f"{_REPORT} WHERE {' AND '.join(where)} ORDER BY report_id LIMIT {PAGE}"
    return [_report_row(row) for row in db.execute(query, values).fetchall()]


def read_report(db: sqlite3.Connection, task_id: TaskId, report_id: ReportId) -> ReportRow | None:
    """See `Store.report`."""
    row = db.execute(f"{_REPORT} WHERE task_id = ? AND report_id = ?", (task_id, report_id)).fetchone()
    return _report_row(row) if row else None


def _report_row(row: Sequence[Any]) -> ReportRow:
    return ReportRow(
        report_id=ReportId(row[0]),
        status=ReportStatus(row[1]),
        batch=row[2],
        reason=None if row[3] is None else RejectReason(row[3]),
        public_share_digest=None if row[4] is None else Digest(row[4]),
        verification=row[5],
    )


def read_step(db: sqlite3.Connection, task_id: TaskId, name: str) -> Step | None:
    """See `Store.step`."""
    row = db.execute("SELECT request, answer FROM steps WHERE task_id = ? AND name = ?", (task_id, name)).fetchone()
    return Step(name=name, request=row[0], answer=row[1]) if row else None


def apply_change(db: sqlite3.Connection, change: TaskChange) -> Step | None:
    """See `Store.apply`."""
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
        db.execute(
            "INSERT INTO steps (task_id, name, request, answer) VALUES (?, ?, ?, ?)",
            (change.task_id, change.step.name, change.step.request, change.step.answer),
        )
    if change.debit is not None:
        _debit(db, change.debit)
    _judge(db, change)
    return None


def _debit(db: sqlite3.Connection, row: LedgerRow) -> None:
    db.execute(
        "INSERT INTO ledger (task_id, signal, opens, closes, epsilon, debited_at, place)"
        " VALUES (?, ?, ?, ?, ?, ?, (SELECT COUNT(*) FROM ledger)) ON CONFLICT (task_id) DO NOTHING",
        (row.task_id, row.signal, row.opens, row.closes, row.epsilon, row.debited_at),
    )


def _judge(db: sqlite3.Connection, change: TaskChange) -> None:
    counts = dict(change.rejections)
    for verdict in change.verdicts:
        if _set_verdict(db, change.task_id, verdict) and verdict.status is ReportStatus.REFUSED and verdict.reason:
            counts[verdict.reason] = counts.get(verdict.reason, 0) + 1
    if change.refuse_incomplete:
        halves = db.execute(
            "UPDATE reports SET status = ?, reason = ? WHERE task_id = ? AND status = ?",
            (
                ReportStatus.REFUSED.value,
                RejectReason.HALF_PAIR.value,
                change.task_id,
                ReportStatus.INCOMPLETE.value,
            ),
        ).rowcount
        if halves:
            counts[RejectReason.HALF_PAIR] = counts.get(RejectReason.HALF_PAIR, 0) + halves
    count_rejections(db, change.task_id, counts)


def _set_verdict(db: sqlite3.Connection, task_id: TaskId, verdict: Verdict) -> bool:
    cursor = db.execute(
        "UPDATE reports SET status = ?, batch = COALESCE(?, batch), reason = COALESCE(?, reason),"
        " public_share_digest = COALESCE(?, public_share_digest), verification = COALESCE(?, verification)"
        " WHERE task_id = ? AND report_id = ? AND status <> ?",
        (
            verdict.status.value,
            verdict.batch,
            None if verdict.reason is None else verdict.reason.value,
            verdict.public_share_digest,
            verdict.verification,
            task_id,
            verdict.report_id,
            ReportStatus.REFUSED.value,
        ),
    )
    return cursor.rowcount == 1


def read_ledger(db: sqlite3.Connection) -> Sequence[LedgerRow]:
    """See `Store.ledger`."""
    query = "SELECT task_id, signal, opens, closes, epsilon, debited_at FROM ledger ORDER BY place"
    return [
        LedgerRow(task_id=TaskId(row[0]), signal=row[1], opens=row[2], closes=row[3], epsilon=row[4], debited_at=row[5])
        for row in db.execute(query).fetchall()
    ]


def remember_mark(db: sqlite3.Connection, peer: AggregatorId, ledger_rows: int) -> None:
    """See `Store.remember_mark`."""
    db.execute(
        "INSERT INTO marks (peer, ledger_rows) VALUES (?, ?) ON CONFLICT (peer)"
        " DO UPDATE SET ledger_rows = excluded.ledger_rows WHERE excluded.ledger_rows > marks.ledger_rows",
        (str(peer), ledger_rows),
    )


def read_marks(db: sqlite3.Connection) -> Mapping[AggregatorId, int]:
    """See `Store.marks`."""
    return {AggregatorId(row[0]): row[1] for row in db.execute("SELECT peer, ledger_rows FROM marks").fetchall()}


def purge_task(db: sqlite3.Connection, task_id: TaskId) -> None:
    """See `Store.purge`."""
    db.execute("UPDATE instalments SET ciphertext = ? WHERE task_id = ?", (b"", task_id))
    db.execute("UPDATE reports SET verification = ? WHERE task_id = ?", (b"", task_id))
