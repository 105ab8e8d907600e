"""The statements of a store in SQL about ended windows: every read and write as a function of a database.

A window is active until nothing is left to do for it, then archived: not loaded at a start, and answered about as
before. Once its reports' digests are not needed any more it is retired: its outcome, its record and its debit stay. At
last it may be forgotten. Owns no connection, no thread and no transaction (store); decides neither when nor why
(windows.retention).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.limits import MAX_LEDGER_ROWS
from fleetcount_protocol.messages import WindowState

from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.storage.database import INCLUDED, LEDGER, LIFECYCLE, WINDOWS, SealedDatabase
from fleetcount_aggregator.storage.errors import DamagedError
from fleetcount_aggregator.storage.question_rows import read_decided
from fleetcount_aggregator.storage.row_types import Charged, Cost, LedgerRow, Lifecycle, WindowRow
from fleetcount_aggregator.storage.rows import (
    ACTIVE,
    WINDOW,
    check_ended,
    count_rows,
    ledger_row,
    note_forgotten,
    read_window,
    window_holds,
    window_row,
)

AT_ONCE: Final = 64
"""Windows read, put to rest, retired or forgotten together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedWindow:
    """A window for which nothing is left to do: when it expires, Unix seconds, and whether this aggregator leads it."""

    window_id: WindowId
    expiry: int
    led: bool

    @property
    def sort_key(self) -> "SortKey":
        """Where it is among the others."""
        return self.expiry, self.window_id


SortKey = tuple[int, bytes]
"""Expiry and id: archived windows are read in this order."""
FIRST_KEY: Final[SortKey] = (-1, b"")
_OF_WINDOW: Final = ("windows", "steps", "rejections", "ledger")
"""The tables that still have rows of a retired window."""
_OF_QUESTION: Final = ("decided", "question_notes", "questions")


def read_active(db: SealedDatabase) -> Sequence[WindowId]:
    """Return the windows that are neither archived nor damaged, in order of installation: what a start loads."""
    rows = db.execute(f"{WINDOWS.select} WHERE {ACTIVE} ORDER BY place").fetchall()
    return [WindowId(row[0]) for row in rows if WINDOWS.holds(db, row)]


def read_latest(
    db: SealedDatabase, count: int, before: int | None, *, unfinished: bool = False
) -> Sequence[tuple[int, WindowRow]]:
    """Return the windows installed last with their numbers, newest first: `count` at most, below a number if given.

    `unfinished`: only those that have not ended.
    """
    ended = [state.value for state in FINAL_STATES] if unfinished else []
    query = f"{WINDOW} WHERE place < ? {'AND state NOT IN (?, ?)' * unfinished} ORDER BY place DESC LIMIT ?"
    rows = db.execute(query, (MAX_LEDGER_ROWS if before is None else before, *ended, count)).fetchall()
    return [(row[4], window_row(row)) for row in rows if window_holds(db, row)]


def read_unpurged(db: SealedDatabase) -> set[WindowId]:
    """Return the active windows of which `purge_window` would delete something."""
    query = (
        f"SELECT window_id FROM windows WHERE {ACTIVE} AND (chosen IS NOT NULL OR length(verify_key) > 0 OR EXISTS"  # noqa: S608 - constants
        " (SELECT 1 FROM batches WHERE batches.window_id = windows.window_id) OR EXISTS"
        " (SELECT 1 FROM steps WHERE steps.window_id = windows.window_id AND steps.transient = 1))"
    )
    return {WindowId(row[0]) for row in db.execute(query).fetchall()}


def purge_window(db: SealedDatabase, window_id: WindowId) -> None:
    """See `Store.purge`: what the database holds of it."""
    db.execute("DELETE FROM batches WHERE window_id = ?", (window_id,))
    db.execute("DELETE FROM steps WHERE window_id = ? AND transient = 1", (window_id,))
    db.execute("UPDATE windows SET verify_key = ? WHERE window_id = ?", (b"", window_id))
    db.execute(INCLUDED.update, INCLUDED.updating(db, window_id, None))


def archive_windows(db: SealedDatabase, rows: Sequence[ArchivedWindow]) -> None:
    """Remember that nothing is left to do for windows; doing it again changes nothing.

    Raises:
        StoreError: one of them has not ended; then nothing changes.
    """
    for row in rows:
        check_ended(db, row.window_id)
    working = "SELECT 1 FROM windows WHERE window_id = ? AND rest = ?"
    done = [row for row in rows if db.execute(working, (row.window_id, Lifecycle.ACTIVE.value)).fetchone()]
    values = [LIFECYCLE.updating(db, row.window_id, Lifecycle.ARCHIVED.value, row.expiry, int(row.led)) for row in done]
    db.executemany(LIFECYCLE.update, values)


def read_archived(db: SealedDatabase, rest: Lifecycle, above: SortKey, until: int) -> Sequence[ArchivedWindow]:
    """Return archived or retired windows by expiry: above a sort key, expired at `until`, and `AT_ONCE` at most.

    What is not as it was written stays as it is, until it is repaired.
    """
    due = f"{LIFECYCLE.select} WHERE rest = ? AND expiry <= ? AND (expiry, window_id) > (?, ?)"
    query = f"{due} ORDER BY expiry, window_id LIMIT ?"
    rows = db.execute(query, (rest.value, until, *above, AT_ONCE)).fetchall()
    return [
        ArchivedWindow(window_id=WindowId(row[0]), expiry=row[2], led=bool(row[3]))
        for row in rows
        if LIFECYCLE.holds(db, row)
    ]


def retire_windows(
    db: SealedDatabase, window_ids: Sequence[WindowId], kept: Mapping[WindowState, Sequence[str]]
) -> Sequence[WindowId]:
    """See `Store.retire`: what the database holds; return those that were archived, whose digests may go."""
    found: list[WindowId] = []
    for window_id in window_ids:
        stage = db.execute(f"{LIFECYCLE.select} WHERE window_id = ?", (window_id,)).fetchone()
        window = db.execute(f"{WINDOWS.select} WHERE window_id = ?", (window_id,)).fetchone()
        if (
            stage is None
            or stage[1] == Lifecycle.ACTIVE
            or not (LIFECYCLE.holds(db, stage) and WINDOWS.holds(db, window))
        ):
            continue
        names = kept[WindowState(window[1])]
        places = ", ".join("?" for _ in names)
        db.execute(f"DELETE FROM steps WHERE window_id = ? AND name NOT IN ({places})", (window_id, *names))  # noqa: S608
        taken = ",".join(name for name in window[6].split(",") if name in names)
        db.execute(WINDOWS.update, WINDOWS.updating(db, *window[:6], taken))
        db.execute(LIFECYCLE.update, LIFECYCLE.updating(db, window_id, Lifecycle.RETIRED.value, *stage[2:4]))
        found.append(window_id)
    return found


def forget_windows(db: SealedDatabase, window_ids: Sequence[WindowId]) -> Sequence[WindowId]:
    """Delete retired windows with all there is of them, debits too; return those that are gone.

    A window stays while its question is active: the next record's chain names it. An archived question goes with the
    last of its windows.
    """
    retired = (
        "SELECT 1 FROM windows WHERE window_id = ? AND rest = ? AND NOT EXISTS"
        " (SELECT 1 FROM decided JOIN questions ON questions.question_id = decided.question_id"
        " WHERE decided.window_id = windows.window_id AND questions.rest = 0)"
    )
    gone = [one for one in window_ids if db.execute(retired, (one, Lifecycle.RETIRED.value)).fetchone()]
    owners = "SELECT question_id FROM decided WHERE window_id = ?"
    questions = {row[0] for one in gone for row in db.execute(owners, (one,)).fetchall()}
    for table in _OF_WINDOW:
        db.executemany(f"DELETE FROM {table} WHERE window_id = ?", [(one,) for one in gone])  # noqa: S608 - constants
    for question_id in questions:
        _forget_question(db, question_id)
    if gone:
        note_forgotten(db)
        count_rows(db, "questions", "question_notes")
    return gone


def _forget_question(db: SealedDatabase, question_id: bytes) -> None:
    """Delete an archived question none of whose windows has a window any more."""
    left = "SELECT 1 FROM decided JOIN windows ON windows.window_id = decided.window_id WHERE decided.question_id = ?"
    if db.execute(left, (question_id,)).fetchone() is None:
        for table in _OF_QUESTION:
            db.execute(f"DELETE FROM {table} WHERE question_id = ?", (question_id,))  # noqa: S608 - constants


def read_cost(db: SealedDatabase, asked: Charged) -> Cost:
    """Return what a question costs: nothing if it was withdrawn or its one window failed, and without a debit.

    Windows of others that failed give nothing back: those that follow count from the unit that they began.
    """
    if asked.windows > 1 and not asked.withdrawn:
        return Cost.OPEN  # Its windows, of which it may have tens of thousands, change nothing.
    try:
        decided = read_decided(db, asked.question_id)
        named = [row.window_id for row in decided if row.window_id is not None and not row.missing]
        windows = [read_window(db, window_id) for window_id in named]
        debits = [read_debit(db, window_id) for window_id in named]
    except DamagedError:
        return Cost.OPEN
    if not asked.withdrawn and not decided:
        return Cost.OPEN
    if any(debit is not None for debit in debits):
        return Cost.DEBITED
    failed = [window is not None and window.state is WindowState.ABORTED for window in windows]
    return Cost.NOTHING if all(failed) else Cost.OPEN


def read_costs(db: SealedDatabase, asked: Sequence[Charged]) -> Sequence[Cost]:
    """Return what each question costs."""
    return [read_cost(db, one) for one in asked]


def read_debit(db: SealedDatabase, window_id: WindowId) -> LedgerRow | None:
    """Return what a window was debited, or None."""
    row = db.execute(f"{LEDGER.select} WHERE window_id = ?", (window_id,)).fetchone()
    return None if row is None else ledger_row(row)
