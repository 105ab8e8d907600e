"""What an operator sees of an aggregator, read from its store without disturbing it, whether it runs or not.

It must not write. It shows states, reasons and counts of refusals, never a number of reports.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import SeriesId, TaskId
from fleetcount_protocol.series.orders import SignedOrder
from fleetcount_protocol.series.signed_file import decode_signed_series
from fleetcount_protocol.task.signed_file import decode_signed_task

from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.storage import series_rows, sqlite_rows
from fleetcount_aggregator.storage.store import LedgerRow, SeriesRow, StoreError, TaskRow
from fleetcount_aggregator.tasks.series_notes import orders_of

__all__ = ["AggregatorStatus", "SeriesLine", "TaskLine", "read_status"]

_SET_ASIDE: Final = "(a task that this version does not serve)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """One task."""

    task_id: TaskId
    name: str
    window: int | None
    state: State
    abort_reason: str
    rejections: Mapping[RejectReason, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLine:
    """One series: how many of its windows are released, when the next opens, and which are missing, by reason.

    `following` is the first window that is not decided about, None after the last; `opens` its time, Unix seconds;
    `orders` are those taken, everybody's.
    """

    series_id: SeriesId
    name: str
    windows: int
    following: int | None
    opens: int | None
    released: int
    missing: Mapping[str, Sequence[int]]
    orders: Sequence[SignedOrder]


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorStatus:
    """All series and all tasks, windows of series too, oldest first, and the ledger."""

    series: Sequence[SeriesLine]
    tasks: Sequence[TaskLine]
    ledger: Sequence[LedgerRow]


def read_status(state_directory: Path) -> AggregatorStatus:
    """Return what the store in a state directory says.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    path = state_directory / "aggregator.db"
    if not path.is_file():
        raise StoreError(f"{path} does not exist: this aggregator has not been started yet")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            tasks = [_task_line(database, row) for row in sqlite_rows.read_tasks(database)]
            # A store that was last open under an older version has no series yet.
            known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'series'").fetchone()
            series = [_series_line(database, row) for row in series_rows.read_series(database)] if known else []
            return AggregatorStatus(series=series, tasks=tasks, ledger=sqlite_rows.read_ledger(database))
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _task_line(database: sqlite3.Connection, row: TaskRow) -> TaskLine:
    try:
        task = decode_signed_task(row.signed).task
        name, window = task.name, None if task.series is None else task.series.index
    except DecodeError:
        name, window = _SET_ASIDE, None
    return TaskLine(
        task_id=row.task_id,
        name=name,
        window=window,
        state=row.state,
        abort_reason=row.abort_reason,
        rejections=sqlite_rows.read_rejections(database, row.task_id),
    )


def _series_line(database: sqlite3.Connection, row: SeriesRow) -> SeriesLine:
    series = decode_signed_series(row.signed).series
    missing: dict[str, list[int]] = {}
    following = released = 0
    for window in series_rows.read_windows(database, row.series_id, above=-1):
        task = None if window.task_id is None or window.missing else sqlite_rows.read_task(database, window.task_id)
        reason = window.missing if task is None else task.abort_reason
        if reason:
            missing.setdefault(reason, []).append(window.index)
        released += task is not None and task.state is State.RELEASED
        following = window.index + 1
    ended = following >= series.schedule.windows
    return SeriesLine(
        series_id=row.series_id,
        name=series.name,
        windows=series.schedule.windows,
        following=None if ended else following,
        opens=None if ended else series.schedule.opens(following),
        released=released,
        missing=missing,
        orders=orders_of(series_rows.read_notes(database, row.series_id)),
    )
