"""The statements of a store in SQL about questions: every read and write as a function of a database.

Owns no connection, no thread and no transaction (store).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.limits import MAX_QUESTION_WINDOWS

from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.database import DECIDED, NOTES, QUESTION, Changed, SealedDatabase
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreError
from fleetcount_aggregator.storage.row_types import DecidedWindow, QuestionRow, WindowRow
from fleetcount_aggregator.storage.rows import count_rows, install_window


def install_question(db: SealedDatabase, row: QuestionRow, notes: Mapping[str, bytes]) -> QuestionRow:
    """Remember a question with its first notes, all or nothing; return the row that is stored, which is the first.

    Raises:
        DamagedError: the question is there and not as it was written.
    """
    place = db.execute("SELECT COALESCE(MAX(place), -1) + 1 FROM questions").fetchone()[0]
    sealed = QUESTION.sealed(db, row.question_id, row.signed, row.seed, row.installed_at, place, 0)
    if db.execute("SELECT 1 FROM questions WHERE question_id = ?", (row.question_id,)).fetchone() is None:
        db.execute(QUESTION.insert, sealed)
        db.changes.append((Changed.QUESTION, row.question_id))
        for name, note in notes.items():
            note_question(db, row.question_id, name, note)
        count_rows(db, "questions")
    held = db.execute(f"{QUESTION.select} WHERE question_id = ?", (row.question_id,)).fetchone()
    return _question_row(QUESTION.checked(db, held))


def read_questions(db: SealedDatabase, ended_after: int = -1) -> Sequence[QuestionRow]:
    """Return every question that is active or ended after a second, in order of installation."""
    rows = db.execute(f"{QUESTION.select} WHERE rest = 0 OR rest > ? ORDER BY place", (ended_after,)).fetchall()
    return [_question_row(row) for row in rows if QUESTION.holds(db, row)]


def read_one_question(db: SealedDatabase, question_id: QuestionId) -> QuestionRow | None:
    """Return one question, or None.

    Raises:
        DamagedError: it is not as it was written.
    """
    row = db.execute(f"{QUESTION.select} WHERE question_id = ?", (question_id,)).fetchone()
    return None if row is None else _question_row(QUESTION.checked(db, row))


def archive_question(db: SealedDatabase, question_id: QuestionId, end: int, dropped: str) -> None:
    """Remember that nothing is left to do for a question that ended then; delete notes whose name begins so.

    Its windows and orders stay; it is read at a start only as `read_questions` says.
    """
    row = db.execute(f"{QUESTION.select} WHERE question_id = ?", (question_id,)).fetchone()
    db.execute(QUESTION.update, QUESTION.updating(db, *QUESTION.checked(db, row)[:-2], end))
    db.execute("DELETE FROM question_notes WHERE question_id = ? AND name LIKE ?", (question_id, f"{dropped}%"))
    count_rows(db, "question_notes")


def _held(db: SealedDatabase) -> Sequence[Sequence[Any]]:
    rows: Sequence[Sequence[Any]] = db.execute(f"{QUESTION.select} ORDER BY place").fetchall()
    return rows


def _question_row(row: Sequence[Any]) -> QuestionRow:
    return QuestionRow(question_id=QuestionId(row[0]), signed=row[1], seed=row[2], installed_at=row[3])


def reseal_seeds(db: SealedDatabase, data_keys: DataKeys) -> None:
    """Seal the seeds under the store's present key that lie under the one before; run at the start."""
    for question_id, signed, seed, installed_at, place, rest, _ in _held(db):
        sealed = data_keys.resealed(seed, b"verify seed", question_id)
        if sealed is not None:
            db.execute(QUESTION.update, QUESTION.updating(db, question_id, signed, sealed, installed_at, place, rest))


def note_question(db: SealedDatabase, question_id: QuestionId, name: str, note: bytes) -> None:
    """Remember something by name beside a question, in place of what was noted under this name before."""
    db.execute(
        f"{NOTES.insert} ON CONFLICT (question_id, name) DO UPDATE SET note = excluded.note, seal = excluded.seal",
        NOTES.sealed(db, question_id, name, note),
    )
    count_rows(db, "question_notes")
    db.changes.append((Changed.QUESTION, question_id))


def read_notes(db: SealedDatabase, question_id: QuestionId) -> Mapping[str, bytes]:
    """Return all notes of a question.

    Raises:
        DamagedError: a note is not as it was written.
    """
    rows = db.execute(f"{NOTES.select} WHERE question_id = ?", (question_id,)).fetchall()
    return {name: note for _, name, note, _ in (NOTES.checked(db, row) for row in rows)}


def decide_windows(db: SealedDatabase, rows: Sequence[DecidedWindow], window: WindowRow | None) -> None:
    """See `Store.decide_windows`."""
    for row in rows:
        place = (row.question_id, row.index)
        if db.execute("SELECT 1 FROM decided WHERE question_id = ? AND number = ?", place).fetchone():
            raise StoreError("a window is decided already")
        db.execute(DECIDED.insert, DECIDED.sealed(db, *place, row.window_id or b"", row.missing))
        db.changes.append((Changed.QUESTION, row.question_id))
    if window is not None:
        install_window(db, window)


def read_decided(
    db: SealedDatabase, question_id: QuestionId, above: int = -1, below: int = MAX_QUESTION_WINDOWS
) -> Sequence[DecidedWindow]:
    """Return the windows of a question that are decided, in order, above an index and below another.

    Raises:
        DamagedError: a window is not as it was written, or is gone.
    """
    query = f"{DECIDED.select} WHERE question_id = ? AND number > ? AND number < ? ORDER BY number"
    rows = [DECIDED.checked(db, row) for row in db.execute(query, (question_id, above, below)).fetchall()]
    for place, row in enumerate(rows, start=above + 1):
        if row[1] != place:
            raise DamagedError(
                Damage(table="decided", what=f"the row of window {place} of question {question_id.hex()} is gone")
            )
    return [_decided_row(row) for row in rows]


def read_decided_of(db: SealedDatabase, window_id: WindowId) -> DecidedWindow | None:
    """Return what was decided about the window that this id names or would name; None if it is none's.

    Raises:
        DamagedError: the window is not as it was written.
    """
    row = db.execute(f"{DECIDED.select} WHERE window_id = ?", (window_id,)).fetchone()
    return None if row is None else _decided_row(DECIDED.checked(db, row))


def _decided_row(row: Sequence[Any]) -> DecidedWindow:
    window_id = WindowId(row[2]) if row[2] else None
    return DecidedWindow(question_id=QuestionId(row[0]), index=row[1], window_id=window_id, missing=row[3])
