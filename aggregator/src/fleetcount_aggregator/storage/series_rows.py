"""The statements of a store in SQL about series: every read and write as a function of a database.

Owns no connection, no thread and no transaction (sql_store).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fleetcount_protocol.ids import SeriesId, TaskId
from fleetcount_protocol.limits import MAX_SERIES_WINDOWS

from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.row_seal import DECIDED, NOTES, SERIES, Damage, DamagedError
from fleetcount_aggregator.storage.rows import install_task
from fleetcount_aggregator.storage.sealed_database import SealedDatabase
from fleetcount_aggregator.storage.store import DecidedWindow, SeriesRow, StoreError, TaskRow

__all__ = [
    "decide_windows",
    "install_series",
    "note_series",
    "read_decided",
    "read_decided_of",
    "read_notes",
    "read_one_series",
    "read_series",
    "reseal_seeds",
    "rest_series",
]


def install_series(db: SealedDatabase, row: SeriesRow, notes: Mapping[str, bytes]) -> SeriesRow:
    """See `Store.install_series`.

    Raises:
        DamagedError: the series is there and not as it was written.
    """
    place = db.execute("SELECT COALESCE(MAX(place), -1) + 1 FROM series").fetchone()[0]
    sealed = SERIES.sealed(db, row.series_id, row.signed, row.seed, row.installed_at, place, 0)
    if db.execute("SELECT 1 FROM series WHERE series_id = ?", (row.series_id,)).fetchone() is None:
        db.execute(SERIES.insert, sealed)
        for name, note in notes.items():
            note_series(db, row.series_id, name, note)
    held = db.execute(f"{SERIES.select} WHERE series_id = ?", (row.series_id,)).fetchone()
    return _series_row(SERIES.checked(db, held))


def read_series(db: SealedDatabase, ended_after: int = -1) -> Sequence[SeriesRow]:
    """See `Store.series`."""
    rows = db.execute(f"{SERIES.select} WHERE rest = 0 OR rest > ? ORDER BY place", (ended_after,)).fetchall()
    return [_series_row(row) for row in rows if SERIES.holds(db, row)]


def read_one_series(db: SealedDatabase, series_id: SeriesId) -> SeriesRow | None:
    """See `Store.one_series`.

    Raises:
        DamagedError: it is not as it was written.
    """
    row = db.execute(f"{SERIES.select} WHERE series_id = ?", (series_id,)).fetchone()
    return None if row is None else _series_row(SERIES.checked(db, row))


def rest_series(db: SealedDatabase, series_id: SeriesId, end: int, dropped: str) -> None:
    """See `Archive.rest_series`."""
    row = db.execute(f"{SERIES.select} WHERE series_id = ?", (series_id,)).fetchone()
    db.execute(SERIES.update, SERIES.updating(db, *SERIES.checked(db, row)[:-2], end))
    db.execute("DELETE FROM series_notes WHERE series_id = ? AND name LIKE ?", (series_id, f"{dropped}%"))


def _held(db: SealedDatabase) -> Sequence[Sequence[Any]]:
    rows: Sequence[Sequence[Any]] = db.execute(f"{SERIES.select} ORDER BY place").fetchall()
    return rows


def _series_row(row: Sequence[Any]) -> SeriesRow:
    return SeriesRow(series_id=SeriesId(row[0]), signed=row[1], seed=row[2], installed_at=row[3])


def reseal_seeds(db: SealedDatabase, data_keys: DataKeys) -> None:
    """Seal the seeds under the store's present key that lie under the one before; run at the start."""
    for series_id, signed, seed, installed_at, place, rest, _ in _held(db):
        sealed = data_keys.resealed(seed, b"verify seed", series_id)
        if sealed is not None:
            db.execute(SERIES.update, SERIES.updating(db, series_id, signed, sealed, installed_at, place, rest))


def note_series(db: SealedDatabase, series_id: SeriesId, name: str, note: bytes) -> None:
    """See `Store.note_series`."""
    db.execute(
        f"{NOTES.insert} ON CONFLICT (series_id, name) DO UPDATE SET note = excluded.note, seal = excluded.seal",
        NOTES.sealed(db, series_id, name, note),
    )


def read_notes(db: SealedDatabase, series_id: SeriesId) -> Mapping[str, bytes]:
    """See `Store.series_notes`.

    Raises:
        DamagedError: a note is not as it was written.
    """
    rows = db.execute(f"{NOTES.select} WHERE series_id = ?", (series_id,)).fetchall()
    return {name: note for _, name, note, _ in (NOTES.checked(db, row) for row in rows)}


def decide_windows(db: SealedDatabase, rows: Sequence[DecidedWindow], task: TaskRow | None) -> None:
    """See `Store.decide_windows`."""
    for row in rows:
        place = (row.series_id, row.index)
        if db.execute("SELECT 1 FROM decided WHERE series_id = ? AND number = ?", place).fetchone():
            raise StoreError("a window is decided already")
        db.execute(DECIDED.insert, DECIDED.sealed(db, *place, row.task_id or b"", row.missing))
    if task is not None:
        install_task(db, task)


def read_decided(
    db: SealedDatabase, series_id: SeriesId, above: int, below: int = MAX_SERIES_WINDOWS
) -> Sequence[DecidedWindow]:
    """See `Store.decided`.

    Raises:
        DamagedError: a window is not as it was written, or is gone.
    """
    query = f"{DECIDED.select} WHERE series_id = ? AND number > ? AND number < ? ORDER BY number"
    rows = [DECIDED.checked(db, row) for row in db.execute(query, (series_id, above, below)).fetchall()]
    for place, row in enumerate(rows, start=above + 1):
        if row[1] != place:
            raise DamagedError(
                Damage(table="decided", what=f"the row of window {place} of series {series_id.hex()} is gone")
            )
    return [_decided_row(row) for row in rows]


def read_decided_of(db: SealedDatabase, task_id: TaskId) -> DecidedWindow | None:
    """See `Store.decided_of`.

    Raises:
        DamagedError: the window is not as it was written.
    """
    row = db.execute(f"{DECIDED.select} WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else _decided_row(DECIDED.checked(db, row))


def _decided_row(row: Sequence[Any]) -> DecidedWindow:
    task_id = TaskId(row[2]) if row[2] else None
    return DecidedWindow(series_id=SeriesId(row[0]), index=row[1], task_id=task_id, missing=row[3])
