"""What an operator sees of an aggregator, read from its store without disturbing it, whether it runs or not.

It must not write. It shows states, reasons and counts of refusals, never a number of reports.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.task.signed_file import decode_signed_task

from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.storage import sqlite_rows
from fleetcount_aggregator.storage.store import LedgerRow, StoreError

__all__ = ["AggregatorStatus", "TaskLine", "read_status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """One task."""

    task_id: TaskId
    name: str
    state: State
    abort_reason: str
    rejections: Mapping[RejectReason, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorStatus:
    """All tasks, oldest first, and the ledger."""

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
            tasks = [
                TaskLine(
                    task_id=row.task_id,
                    name=decode_signed_task(row.signed).task.name,
                    state=row.state,
                    abort_reason=row.abort_reason,
                    rejections=sqlite_rows.read_rejections(database, row.task_id),
                )
                for row in sqlite_rows.read_tasks(database)
            ]
            return AggregatorStatus(tasks=tasks, ledger=sqlite_rows.read_ledger(database))
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
