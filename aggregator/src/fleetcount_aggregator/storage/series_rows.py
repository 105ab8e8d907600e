"""The statements of the SQLite store about series: every read and write as a function of a connection.

Owns no connection, no thread and no transaction (sqlite_store).
"""

import sqlite3
from collections.abc import Mapping, Sequence

from fleetcount_protocol.ids import SeriesId, TaskId

from fleetcount_aggregator.storage.sqlite_rows import install_task
from fleetcount_aggregator.storage.store import SeriesRow, StoreError, TaskRow, WindowRow

__all__ = ["decide_windows", "install_series", "note_series", "read_notes", "read_series", "read_windows"]


def install_series(db: sqlite3.Connection, row: SeriesRow) -> SeriesRow:
    """See `Store.install_series`."""
    db.execute(
        "INSERT INTO series (series_id, signed, seed, installed_at, place)"
        " VALUES (?, ?, ?, ?, (SELECT COUNT(*) FROM series)) ON CONFLICT (series_id) DO NOTHING",
        (row.series_id, row.signed, row.seed, row.installed_at),
    )
    return next(one for one in read_series(db) if one.series_id == row.series_id)


def read_series(db: sqlite3.Connection) -> Sequence[SeriesRow]:
    """See `Store.series`."""
    query = "SELECT series_id, signed, seed, installed_at FROM series ORDER BY place"
    return [
        SeriesRow(series_id=SeriesId(row[0]), signed=row[1], seed=row[2], installed_at=row[3])
        for row in db.execute(query).fetchall()
    ]


def note_series(db: sqlite3.Connection, series_id: SeriesId, name: str, note: bytes) -> None:
    """See `Store.note_series`."""
    db.execute(
        "INSERT INTO series_notes (series_id, name, note) VALUES (?, ?, ?)"
        " ON CONFLICT (series_id, name) DO UPDATE SET note = excluded.note",
        (series_id, name, note),
    )


def read_notes(db: sqlite3.Connection, series_id: SeriesId) -> Mapping[str, bytes]:
    """See `Store.series_notes`."""
    return dict(db.execute("SELECT name, note FROM series_notes WHERE series_id = ?", (series_id,)).fetchall())


def decide_windows(db: sqlite3.Connection, rows: Sequence[WindowRow], task: TaskRow | None) -> None:
    """See `Store.decide_windows`."""
    try:
        db.executemany(
            "INSERT INTO windows (series_id, number, task_id, missing) VALUES (?, ?, ?, ?)",
            [(row.series_id, row.index, row.task_id or b"", row.missing) for row in rows],
        )
    except sqlite3.IntegrityError as error:
        raise StoreError("a window is decided already") from error
    if task is not None:
        install_task(db, task)


def read_windows(db: sqlite3.Connection, series_id: SeriesId, above: int) -> Sequence[WindowRow]:
    """See `Store.windows`."""
    query = "SELECT number, task_id, missing FROM windows WHERE series_id = ? AND number > ? ORDER BY number"
    return [
        WindowRow(series_id=series_id, index=row[0], task_id=TaskId(row[1]) if row[1] else None, missing=row[2])
        for row in db.execute(query, (series_id, above)).fetchall()
    ]
