"""Which rows of a store are damaged or gone, and how they are repaired.

A damaged key hides a row from whoever asks for it by key; so what lasts is named in the row of its window (`read_step`
looks there), and of what passes each row has another one beside it, which is compared here.

What still holds of a window stays, the rest goes, and the window ends; nothing is made up. Statements inside the
caller's transaction. Decides nothing: the caller knows how the window ended elsewhere (`repair`).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import decode_window

from fleetcount_aggregator.storage.database import (
    BATCHES,
    CANONICAL,
    COUNTERS,
    DECIDED,
    DURABLE,
    INCLUDED,
    LEDGER,
    LIFECYCLE,
    MARKS,
    NOTES,
    QUESTION,
    REJECTIONS,
    SEALED,
    SESSIONS,
    STEPS,
    WINDOWS,
    Changed,
    SealedDatabase,
    SealedTable,
    row_pages,
)
from fleetcount_aggregator.storage.errors import Damage, StoreError
from fleetcount_aggregator.storage.missing_rows import DRAWN, every_gap
from fleetcount_aggregator.storage.question_rows import decide_windows
from fleetcount_aggregator.storage.row_types import DecidedWindow, LedgerRow, Lifecycle, WindowRow
from fleetcount_aggregator.storage.rows import (
    ACTIVE,
    COUNTED,
    DEBITS,
    FORGOTTEN,
    add_debit,
    count_rows,
    install_window,
    note_forgotten,
    put_counter,
    read_counter,
    read_ledger_rows,
)
from fleetcount_aggregator.storage.schema import RESTORED, SERVING, read_store_state

_SEEMS_AT_REST: Final = "rest < 0 OR rest > 2 OR (rest IN (1, 2) AND expiry <= 0)"
_WORKED: Final = f"SELECT window_id FROM windows WHERE {ACTIVE}"  # noqa: S608 - constant


def damage_at_start(db: SealedDatabase) -> list[Damage]:
    """Return what is damaged of the active windows, and of what is read whole at the start.

    The rows of an archived window are checked when it is asked for: there may be hundreds of thousands. An active one
    whose damaged row says that it is archived has no expiry there, and is checked: no start would miss it.
    """
    found: list[Damage] = []
    for one in (WINDOWS, CANONICAL, DURABLE, INCLUDED, STEPS, REJECTIONS):
        rows = db.execute(f"{one.select} WHERE window_id IN ({_WORKED})").fetchall()
        found += [_damage(db, one, row) for row in rows if not one.holds(db, row)]
    rests = db.execute(f"{LIFECYCLE.select} WHERE {ACTIVE} OR {_SEEMS_AT_REST}").fetchall()
    found += [_damage(db, LIFECYCLE, row) for row in rests if not LIFECYCLE.holds(db, row)]
    for one in (BATCHES, LEDGER, COUNTERS, MARKS, QUESTION, NOTES, DECIDED):
        found += _damaged(db, one)
    return [*found, *_gone(db)]


def every_damage(db: SealedDatabase) -> list[Damage]:
    """Return everything that is damaged; some 3 us a row."""
    found = [*(damage for one in SEALED for damage in _damaged(db, one)), *_gone(db)]
    # A row that is damaged in its key is another row than the one that is named, and is told of once.
    return [*found, *every_gap(db)]


def _damaged(db: SealedDatabase, one: SealedTable) -> Iterator[Damage]:
    for rows in row_pages(db, one):
        for row in rows:
            if not one.holds(db, row):
                yield _damage(db, one, row)


def _damage(db: SealedDatabase, one: SealedTable, row: Sequence[Any]) -> Damage:
    damage = one.damage(row)
    if one is LEDGER:
        # Its window is whole; what was charged on a signal, and when, is read from debits.
        return replace(damage, window_id=None, hides_charge=True)
    if one is CANONICAL:
        # If its key is what is damaged, the bytes still say whose row it is.
        with suppress(DecodeError):
            return replace(damage, window_id=decode_window(row[1]).window_id)
    return damage


def _gone(db: SealedDatabase) -> list[Damage]:
    """Return the windows that lack a batch to a step of it, or a step to a batch; both go when a window has ended."""
    steps: dict[bytes, set[int]] = {}
    transient = f"SELECT window_id, name FROM steps WHERE transient = 1 AND window_id IN ({_WORKED})"  # noqa: S608 - constant
    for window_id, name in db.execute(transient).fetchall():
        number = str(name).rpartition("/")[2]
        if number.isdecimal():
            steps.setdefault(window_id, set()).add(int(number))
    batches: dict[bytes, set[int]] = {}
    for window_id, number in db.execute("SELECT window_id, number FROM batches").fetchall():
        batches.setdefault(window_id, set()).add(number)
    windows = {row[0] for row in db.execute(_WORKED).fetchall()}
    return [
        Damage(
            table="batches",
            what=f"window {window_id.hex()} lacks the row of a batch, or of its step",
            window_id=WindowId(window_id),
        )
        for window_id in windows
        if steps.get(window_id, set()) != batches.get(window_id, set())
    ]


Debit = Callable[[bytes], LedgerRow]
"""The debit of a window by its bytes."""


def canonical_of(db: SealedDatabase, window_id: WindowId) -> bytes | None:
    """Return a window's bytes, wherever they lie: the window's id follows from them. None if nobody has them."""
    row = db.execute("SELECT canonical FROM windows WHERE window_id = ?", (window_id,)).fetchone()
    if row is not None and _derived(row[0]) == window_id:
        return bytes(row[0])
    for lying in db.execute(CANONICAL.select).fetchall():
        if not CANONICAL.holds(db, lying) and _derived(lying[1]) == window_id:
            return bytes(lying[1])
    return None


def _derived(canonical: object) -> bytes | None:
    return hashlib.sha256(canonical).digest() if isinstance(canonical, bytes) else None


def end_window(db: SealedDatabase, window_id: WindowId, reason: str, debit: LedgerRow) -> WindowState:
    """End a damaged window here, or one of a backup: aborted, or released if its record lies there whole.

    It is charged in any case: whether it had drawn may be what is damaged, or have happened after the backup. What
    `Store.purge` deletes is left to it, but for batches and steps that pass.

    Raises:
        StoreError: the window's bytes are nowhere whole.
    """
    canonical = canonical_of(db, window_id)
    if canonical is None:
        raise StoreError(f"the bytes of window {window_id.hex()} are damaged: only a backup has them")
    if db.execute("SELECT 1 FROM windows WHERE window_id = ?", (window_id,)).fetchone() is None:
        lying = next(row[0] for row in db.execute(CANONICAL.select).fetchall() if row[1] == canonical)
        db.execute("UPDATE windows SET window_id = ? WHERE window_id = ?", (window_id, lying))
    db.execute("DELETE FROM batches WHERE window_id = ?", (window_id,))
    db.execute("DELETE FROM steps WHERE window_id = ? AND transient = 1", (window_id,))
    _drop_damaged(db, STEPS, window_id)
    _drop_damaged(db, REJECTIONS, window_id)
    names = [row[0] for row in db.execute("SELECT name FROM steps WHERE window_id = ?", (window_id,)).fetchall()]
    state = WindowState.RELEASED if "release" in names else WindowState.ABORTED
    row = db.execute("SELECT installed_at, place FROM windows WHERE window_id = ?", (window_id,)).fetchone()
    installed_at, place = (one if isinstance(one, int) else 0 for one in row)
    told = "" if state is WindowState.RELEASED else reason
    db.execute(
        WINDOWS.update, WINDOWS.updating(db, window_id, state.value, told, installed_at, place, None, ",".join(names))
    )
    db.execute(CANONICAL.update, CANONICAL.updating(db, window_id, canonical))
    db.execute(LIFECYCLE.update, LIFECYCLE.updating(db, window_id, Lifecycle.ACTIVE.value, 0, 0))
    db.execute(DURABLE.update, DURABLE.updating(db, window_id, 0))
    db.execute(INCLUDED.update, INCLUDED.updating(db, window_id, None))
    # The others may have to be told, or asked; then it is archived again.
    db.execute(LIFECYCLE.update, LIFECYCLE.updating(db, window_id, Lifecycle.ACTIVE.value, 0, 0))
    db.execute("UPDATE windows SET verify_key = ? WHERE window_id = ?", (b"", window_id))
    _debit(db, debit)
    note_forgotten(db)
    db.changes.append((Changed.WINDOW, window_id))
    return state


def mend_others(db: SealedDatabase, debit_of: Debit) -> list[str]:
    """Mend what belongs to no window that is under way; return what was done, a sentence each."""
    done = [f"forgot a session {named}" for named in _drop_damaged(db, SESSIONS)]
    done += [f"forgot the mark of peer {named}" for named in _drop_damaged(db, MARKS)]
    for row in db.execute(LIFECYCLE.select).fetchall():
        if not LIFECYCLE.holds(db, row):
            db.execute(LIFECYCLE.update, LIFECYCLE.updating(db, row[0], Lifecycle.ACTIVE.value, 0, 0))
            done.append(f"let window {row[0].hex()} be looked at again at the next start")
    done += [f"dropped a count of refusals of window {named}" for named in _drop_damaged(db, REJECTIONS)]
    done += [f"forgot the counter of {named}" for named in _drop_damaged(db, COUNTERS)]
    done += _mend_debits(db, debit_of)
    put_counter(db, DEBITS, read_ledger_rows(db))
    note_forgotten(db)
    count_rows(db, *COUNTED)
    return done


def _mend_debits(db: SealedDatabase, debit_of: Debit) -> list[str]:
    """Write the debits that are damaged or gone again, from their windows; return what was done."""
    ever, forgotten = read_counter(db, DEBITS), read_counter(db, FORGOTTEN) or 0
    lost, done = _drop_damaged(db, LEDGER), list[str]()
    marks = ", ".join("?" for _ in DRAWN)
    drawn = f"SELECT DISTINCT window_id FROM steps WHERE transient = 0 AND name IN ({marks})"  # noqa: S608 - constant
    gone = db.execute(f"{drawn} AND window_id NOT IN (SELECT window_id FROM ledger)", DRAWN).fetchall()  # noqa: S608
    # One that was aborted keeps no step of its draw for long: there the debit itself says whose it was.
    known = [row[0] for row in db.execute("SELECT window_id FROM windows").fetchall()] if lost else []
    for window_id in dict.fromkeys([*(row[0] for row in gone), *(one for one in known if one.hex() in lost)]):
        canonical = canonical_of(db, WindowId(window_id))
        if canonical is not None and _debit(db, debit_of(canonical)):
            done.append(f"wrote the debit of window {window_id.hex()} again")
    found = int(db.execute("SELECT count(*) FROM ledger").fetchone()[0])
    if ever is not None and found < ever - forgotten:
        done.append(
            f"found {found} debits, of {ever - forgotten} that were written; nothing says whose the others were"
        )
    return done


def _drop_damaged(db: SealedDatabase, table: SealedTable, window_id: WindowId | None = None) -> list[str]:
    """Delete the rows of a table that do not hold, or those of one window; return the first values of their keys."""
    where, values = ("", ()) if window_id is None else (" WHERE window_id = ?", (window_id,))
    key = " AND ".join(f"{one} = ?" for one in table.key)
    dropped: list[str] = []
    for row in db.execute(table.select + where, values).fetchall():
        if not table.holds(db, row):
            db.execute(f"DELETE FROM {table.table} WHERE {key}", tuple(row[: len(table.key)]))  # noqa: S608 - constant
            dropped.append(row[0].hex() if isinstance(row[0], bytes) else str(row[0]))
    return dropped


def _debit(db: SealedDatabase, debit: LedgerRow) -> bool:
    """Write a debit if there is none that holds; return whether it did."""
    known: Any = db.execute(f"{LEDGER.select} WHERE window_id = ?", (debit.window_id,)).fetchone()
    if known is not None and LEDGER.holds(db, known):
        return False
    db.execute("DELETE FROM ledger WHERE window_id = ?", (debit.window_id,))
    add_debit(db, debit)
    return True


# A store that was put back from a backup.


def is_restored(db: SealedDatabase) -> bool:
    """Return whether a store was put back, and windows of it may have ended elsewhere since."""
    return read_store_state(db) == RESTORED


def take_up_ended(db: SealedDatabase, window: WindowRow | None, windows: Sequence[DecidedWindow]) -> None:
    """Write a window of after the backup, without a data key, and what that decides of windows; `end_window` ends
    it.
    """
    decide_windows(db, windows, None)
    if window is not None:
        install_window(db, window)


def note_settled(db: SealedDatabase) -> None:
    """Remember that every window of the backup has ended here too."""
    db.execute("UPDATE instance SET store_state = ? WHERE store_state = ?", (SERVING, RESTORED))
