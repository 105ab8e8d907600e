"""The statements of a store in SQL: every read and every write as a function of a database, inside its transaction.

What is read is as it was written (`row_seal`), or DamagedError. Owns no connection, no thread and no transaction
(store).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import MAX_LEDGER_ROWS
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.signal import normal_signal

from fleetcount_aggregator.host.states import FINAL_STATES, StateConflictError, check_move
from fleetcount_aggregator.storage.database import (
    BATCHES,
    CANONICAL,
    COUNTERS,
    DURABLE,
    EPOCHS,
    INCLUDED,
    LEDGER,
    LIFECYCLE,
    MARKS,
    REJECTIONS,
    STEPS,
    WINDOWS,
    Changed,
    Database,
    SealedDatabase,
)
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreError
from fleetcount_aggregator.storage.frames import LogState
from fleetcount_aggregator.storage.row_types import (
    BatchRow,
    LedgerRow,
    Lifecycle,
    StepRow,
    WindowChange,
    WindowRow,
)

_COUNT_BYTES: Final = 8


def packed(included: bytes) -> bytes:
    """Return a sealed set as it is kept: the number of reports (8 bytes), then a bit each, the highest first."""
    return uint(len(included), _COUNT_BYTES) + np.packbits(np.frombuffer(included, dtype=np.uint8)).tobytes()


def unpacked(kept: bytes) -> bytes:
    """Return a sealed set, 1 or 0 a report, as `packed` gave it.

    Raises:
        StoreError: it is damaged.
    """
    count = int.from_bytes(kept[:_COUNT_BYTES])
    if len(kept) != _COUNT_BYTES + -(-count // 8):
        raise StoreError("a sealed set has not as many bits as it has reports")  # How many that are nobody learns.
    return np.unpackbits(np.frombuffer(kept, dtype=np.uint8)[_COUNT_BYTES:], count=count).tobytes()


BATCHES_AT_ONCE: Final = 64
"""Batches read at once, so that memory holds a few thousand reports of them and not a million."""
_OPEN = (WindowState.ANNOUNCED.value, WindowState.COLLECTING.value)
_POSITION_BYTES = "<u4"
_UNFINISHED = ", ".join(f"'{state.value}'" for state in (*(set(WindowState) - FINAL_STATES),))
ACTIVE: Final = f"(rest = {Lifecycle.ACTIVE.value} OR state IN ({_UNFINISHED}))"
"""Which windows there is something to do for: those that have not ended, whatever else is said of them."""
_NOTE_EPOCH: Final = (
    EPOCHS.insert + " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, seal = excluded.seal"
    " WHERE excluded.epoch > epochs.epoch"
)
TIME: Final = "time"
"""The latest time at which the store was acted on (`note_time`), Unix seconds."""
DEBITS: Final = "debits"
"""The counter of all debits, those that are forgotten too: what peers compare with what they have seen."""
FORGOTTEN: Final = "forgotten debits"
COUNTED: Final = ("marks", "epochs", "questions", "question_notes")
"""The tables whose number of rows is a counter: nothing else would say that one is gone."""
WINDOW: Final = f"SELECT {WINDOWS.names}, canonical, canonical_seal, verify_key FROM windows"  # noqa: S608 - constant


@dataclass(frozen=True, slots=True)
class _Held:
    """What the store holds of where a window stands; the fields are the columns of `WINDOWS`, in order."""

    window_id: WindowId
    state: WindowState
    abort_reason: str
    installed_at: int
    place: int
    log_bytes: int | None
    taken: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> "_Held":
        return cls(WindowId(row[0]), WindowState(row[1]), *row[2:7])

    def row(self) -> tuple[object, ...]:
        return (self.window_id, self.state.value, *(getattr(self, name) for name in WINDOWS.columns[1:]))

    def has_taken(self, name: str) -> bool:
        return name in self.taken.split(",")


@dataclass(frozen=True, slots=True)
class Closing:
    """What a report log held at the moment intake closed: its length, and how many reports lacked an instalment."""

    log_bytes: int
    half_pairs: int
    twofold: int = 0
    """Devices with two different reports."""
    beyond: int = 0
    """Reports that are more than a set may have."""


def install_window(db: SealedDatabase, row: WindowRow) -> None:
    """Remember a window; one that is there stays as it is."""
    if read_window(db, row.window_id) is not None:
        return
    place = db.execute("SELECT COALESCE(MAX(place), -1) + 1 FROM windows").fetchone()[0]
    held = _Held(row.window_id, row.state, row.abort_reason, row.installed_at, place, None, "")
    tags = (CANONICAL.sealed(db, row.window_id, row.canonical), DURABLE.sealed(db, row.window_id, 0))
    columns = (
        f"{WINDOWS.names}, canonical, canonical_seal, durable_bytes, durable_seal, chosen_seal, rest_seal, verify_key"
    )
    others = (
        INCLUDED.sealed(db, row.window_id, None)[-1],
        LIFECYCLE.sealed(db, row.window_id, Lifecycle.ACTIVE.value, 0, 0)[-1],
    )
    db.execute(
        f"INSERT INTO windows ({columns}) VALUES ({', '.join('?' * 15)})",  # noqa: S608 - constant
        (*WINDOWS.sealed(db, *held.row()), *tags[0][1:], *tags[1][1:], *others, row.verify_key),
    )
    db.changes.append((Changed.WINDOW, row.window_id))


def read_window(db: SealedDatabase, window_id: WindowId) -> WindowRow | None:
    """Return one window, or None.

    Raises:
        DamagedError: it is not as it was written.
    """
    row = db.execute(f"{WINDOW} WHERE window_id = ?", (window_id,)).fetchone()
    if row is None:
        return None
    if not window_holds(db, row):
        raise DamagedError(WINDOWS.damage(row))
    return window_row(row)


def read_canonical(db: SealedDatabase, window_id: WindowId) -> bytes | None:
    """Return a window's bytes, None if they are not as they were written, whatever else of it is."""
    row = db.execute(f"{CANONICAL.select} WHERE window_id = ?", (window_id,)).fetchone()
    return row[1] if row is not None and CANONICAL.holds(db, row) else None


def window_holds(db: SealedDatabase, row: Sequence[Any]) -> bool:
    """Return whether a row as `WINDOW` selects it is as it was written."""
    return WINDOWS.holds(db, row[:8]) and CANONICAL.holds(db, (row[0], row[8], row[9]))


def window_row(row: Sequence[Any]) -> WindowRow:
    """Return a window from a row as `WINDOW` selects it."""
    held = _Held.of(row)
    return WindowRow(
        window_id=held.window_id,
        canonical=row[8],
        verify_key=row[10],
        state=held.state,
        abort_reason=held.abort_reason,
        installed_at=held.installed_at,
    )


def _held(db: SealedDatabase, window_id: WindowId) -> _Held:
    row = db.execute(f"{WINDOWS.select} WHERE window_id = ?", (window_id,)).fetchone()
    if row is None:
        raise StoreError(f"window {window_id!r} is not installed")
    return _Held.of(WINDOWS.checked(db, row))


def plain_state(db: Database, window_id: WindowId) -> WindowState | None:
    """Return the state that a window's row names, unchecked; None if there is no such window."""
    row = db.execute("SELECT state FROM windows WHERE window_id = ?", (window_id,)).fetchone()
    return None if row is None else WindowState(row[0])


def takes_instalments(db: SealedDatabase, window_id: WindowId) -> bool:
    """Return whether the window is there and its intake not closed."""
    row = db.execute("SELECT state FROM windows WHERE window_id = ?", (window_id,)).fetchone()
    return row is not None and row[0] in _OPEN


def read_log_states(db: SealedDatabase) -> list[LogState]:
    """Return what the report log of each active window must be, of those whose rows are as they were written."""
    found = db.execute(f"{DURABLE.select} WHERE {ACTIVE}").fetchall()
    durable = {row[0]: row[1] for row in found if DURABLE.holds(db, row)}
    rows = db.execute(f"{WINDOWS.select} WHERE {ACTIVE}").fetchall()
    rows = [row for row in rows if WINDOWS.holds(db, row) and row[0] in durable]
    return [
        LogState(
            window_id=held.window_id,
            ended=held.state in FINAL_STATES,
            set_sealed=held.state is WindowState.RELEASING,
            durable_length=durable[held.window_id],
            closed_length=held.log_bytes,
        )
        for held in map(_Held.of, rows)
    ]


def note_durable(db: SealedDatabase, lengths: Mapping[WindowId, int]) -> None:
    """Remember how long logs are: so many bytes are on the disk, and receipts were given for them."""
    db.executemany(DURABLE.update, [DURABLE.updating(db, window, length) for window, length in lengths.items()])


def count_rejections(db: SealedDatabase, window_id: WindowId, counts: Mapping[RejectReason, int]) -> None:
    """Add to a window's rejection counters."""
    if not counts:
        return
    known = read_rejections(db, window_id)
    rows = [(window_id, reason.value, known.get(reason, 0) + count) for reason, count in counts.items()]
    db.executemany(
        f"{REJECTIONS.insert} ON CONFLICT (window_id, reason)"
        " DO UPDATE SET count = excluded.count, seal = excluded.seal",
        [REJECTIONS.sealed(db, *row) for row in rows],
    )


def read_rejections(db: SealedDatabase, window_id: WindowId) -> Mapping[RejectReason, int]:
    """Return a window's rejection counters."""
    rows = db.execute(f"{REJECTIONS.select} WHERE window_id = ?", (window_id,)).fetchall()
    return {RejectReason(reason): count for _, reason, count, _ in (REJECTIONS.checked(db, row) for row in rows)}


def read_batches(db: SealedDatabase, window_id: WindowId, above: int = -1) -> Sequence[BatchRow]:
    """Return the batches of a window by number, above a number and `BATCHES_AT_ONCE` at most (`every_batch`)."""
    query = f"{BATCHES.select} WHERE window_id = ? AND number > ? ORDER BY number LIMIT ?"
    return [_batch_row(db, row) for row in db.execute(query, (window_id, above, BATCHES_AT_ONCE)).fetchall()]


def read_batch(db: SealedDatabase, window_id: WindowId, number: int) -> BatchRow | None:
    """Return one batch, or None."""
    row = db.execute(f"{BATCHES.select} WHERE window_id = ? AND number = ?", (window_id, number)).fetchone()
    return None if row is None else _batch_row(db, row)


def _batch_row(db: SealedDatabase, row: Sequence[Any]) -> BatchRow:
    _, number, positions, verdicts, share_digests, kept, _ = BATCHES.checked(db, row)
    return BatchRow(
        number=number,
        positions=np.frombuffer(positions, dtype=_POSITION_BYTES).astype(np.int64),
        verdicts=verdicts,
        share_digests=share_digests,
        kept=kept,
    )


def read_included(db: SealedDatabase, window_id: WindowId) -> bytes | None:
    """Return the sealed set, one byte of 0 or 1 a complete report; None before it is sealed and after purging."""
    row = db.execute(f"{INCLUDED.select} WHERE window_id = ?", (window_id,)).fetchone()
    kept = None if row is None else INCLUDED.checked(db, row)[1]
    return None if kept is None else unpacked(kept)


def read_step(db: SealedDatabase, window_id: WindowId, name: str) -> StepRow | None:
    """Return a step that was taken, or None.

    Raises:
        DamagedError: the step is not as it was written, or was taken and is gone.
    """
    query = f"{STEPS.select} WHERE window_id = ? AND name = ?"
    row = db.execute(query, (window_id, name)).fetchone()
    if row is None:
        if "/" in name:
            return None  # Of a batch, whose row shows that it is gone (`row_repair`).
        held = db.execute(f"{WINDOWS.select} WHERE window_id = ?", (window_id,)).fetchone()
        if held is None or not _Held.of(WINDOWS.checked(db, held)).has_taken(name):
            return None
        # Who only reads is in no transaction: it may have been taken since it was looked for.
        row = db.execute(query, (window_id, name)).fetchone()
        if row is None:
            raise DamagedError(
                Damage(
                    table="steps",
                    what=f"step {name} of window {window_id.hex()} was taken, and its row is gone",
                    window_id=window_id,
                )
            )
    _, _, request, answer, transient, _ = STEPS.checked(db, row)
    return StepRow(name=name, request=request, answer=answer, transient=bool(transient))


def apply_change(db: SealedDatabase, change: WindowChange, closing: Closing | None) -> StepRow | None:
    """See `Store.apply`; `closing` comes with a change that closes intake."""
    held = window = _held(db, change.window_id)
    if change.step is not None and (known := read_step(db, change.window_id, change.step.name)) is not None:
        return known
    if window.state not in change.required:
        raise StateConflictError(window.state, change.step.name if change.step else "this change")
    if change.new_state is not None:
        check_move(window.state, change.new_state)
        window = replace(window, state=change.new_state, abort_reason=change.abort_reason)
        db.changes.append((Changed.WINDOW, change.window_id))
        # An archived window that a record shown late releases is active again.
        db.execute(LIFECYCLE.update, LIFECYCLE.updating(db, change.window_id, Lifecycle.ACTIVE.value, 0, 0))
    if change.step is not None:
        step = change.step
        row = STEPS.sealed(db, change.window_id, step.name, step.request, step.answer, int(step.transient))
        db.execute(STEPS.insert, row)
        if not step.transient:
            window = replace(window, taken=",".join(filter(None, (window.taken, step.name))))
    if change.batch is not None:
        _put_batch(db, change.window_id, change.batch)
    if change.included is not None:
        db.execute(INCLUDED.update, INCLUDED.updating(db, change.window_id, packed(change.included)))
    if change.debit is not None:
        add_debit(db, change.debit)
    count_rejections(db, change.window_id, change.rejections)
    if closing is not None:
        window = replace(window, log_bytes=closing.log_bytes)
        found = {
            RejectReason.HALF_PAIR: closing.half_pairs,
            RejectReason.DUPLICATE_OTHER_BYTES: closing.twofold,
            RejectReason.WINDOW_CLOSED: closing.beyond,
        }
        count_rejections(db, change.window_id, {reason: count for reason, count in found.items() if count})
    if window != held:
        db.execute(WINDOWS.update, WINDOWS.updating(db, *window.row()))
    return None


def _put_batch(db: SealedDatabase, window_id: WindowId, row: BatchRow) -> None:
    positions = row.positions.astype(_POSITION_BYTES).tobytes()
    db.execute(
        f"{BATCHES.insert} ON CONFLICT (window_id, number) DO UPDATE SET positions = excluded.positions,"
        " verdicts = excluded.verdicts, share_digests = excluded.share_digests, kept = excluded.kept,"
        " seal = excluded.seal",
        BATCHES.sealed(db, window_id, row.number, positions, row.verdicts, row.share_digests, row.kept),
    )


def add_debit(db: SealedDatabase, row: LedgerRow) -> None:
    """Write a debit, unless the window has one, and count it."""
    if db.execute("SELECT 1 FROM ledger WHERE window_id = ?", (row.window_id,)).fetchone():
        return
    place = read_ledger_rows(db)
    columns = (row.window_id, row.signal, row.opens, row.closes, row.epsilon, row.debited_at, place)
    db.execute(LEDGER.insert, LEDGER.sealed(db, *columns, normal_signal(row.signal)))
    put_counter(db, DEBITS, place + 1)


def put_counter(db: SealedDatabase, name: str, value: int) -> None:
    """Write a counter."""
    db.execute(
        f"{COUNTERS.insert} ON CONFLICT (name) DO UPDATE SET value = excluded.value, seal = excluded.seal",
        COUNTERS.sealed(db, name, value),
    )


def counted_rows(table: str) -> str:
    """Return the name of the counter of a table's rows."""
    return f"rows of {table}"


def count_rows(db: SealedDatabase, *tables: str) -> None:
    """Write how many rows tables of `COUNTED` have now; to be called wherever one comes or goes."""
    for table in tables:
        found = int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - names of `COUNTED`
        put_counter(db, counted_rows(table), found)


def count_first(db: SealedDatabase) -> None:
    """Count all tables of `COUNTED` in a store of a version that did not count them, and its debits."""
    if all(read_counter(db, counted_rows(table)) is None for table in COUNTED):
        count_rows(db, *COUNTED)
        if read_counter(db, DEBITS) is not None:
            note_forgotten(db)


def note_forgotten(db: SealedDatabase) -> None:
    """Write how many debits are forgotten: those that were ever written and are not there by now."""
    found = int(db.execute("SELECT count(*) FROM ledger").fetchone()[0])
    put_counter(db, FORGOTTEN, read_ledger_rows(db) - found)


def read_counter(db: SealedDatabase, name: str) -> int | None:
    """Return a counter; None if there is none, or it is damaged."""
    row = db.execute(f"{COUNTERS.select} WHERE name = ?", (name,)).fetchone()
    return int(row[1]) if row is not None and COUNTERS.holds(db, row) else None


def note_time(db: SealedDatabase, now: int) -> None:
    """Remember a time at which this store was acted on, Unix seconds, by a clock that is confirmed."""
    put_counter(db, TIME, now)


def read_latest_time(db: SealedDatabase) -> int | None:
    """Return the time remembered last (`note_time`), 0 for one that is damaged; None if none was."""
    row = db.execute(f"{COUNTERS.select} WHERE name = ?", (TIME,)).fetchone()
    return None if row is None else int(row[1]) if COUNTERS.holds(db, row) else 0


def read_ledger_rows(db: SealedDatabase) -> int:
    """Return how many debits there have ever been, those that are forgotten too: it never falls.

    With a damaged counter at least what is there counts.
    """
    if (known := read_counter(db, DEBITS)) is not None:
        return known
    return int(db.execute("SELECT COALESCE(MAX(place), -1) + 1 FROM ledger").fetchone()[0])


def read_ledger(db: SealedDatabase, most: int = MAX_LEDGER_ROWS) -> Sequence[LedgerRow]:
    """Return the last debits, `most` of them, oldest first. A damaged row is one of it."""
    rows = db.execute(f"{LEDGER.select} ORDER BY place DESC LIMIT ?", (most,)).fetchall()
    return [ledger_row(row) for row in reversed(rows)]


def ledger_row(row: Sequence[Any]) -> LedgerRow:
    """Return a debit from a row as `LEDGER` selects it."""
    return LedgerRow(
        window_id=WindowId(row[0]), signal=row[1], opens=row[2], closes=row[3], epsilon=row[4], debited_at=row[5]
    )


def note_epoch(db: SealedDatabase, name: str, epoch: bytes) -> None:
    """Remember an epoch under a name; one that is not greater, as bytes, than the one there is not stored."""
    count_first(db)
    db.execute(_NOTE_EPOCH, EPOCHS.sealed(db, name, epoch))
    count_rows(db, "epochs")


def read_epochs(db: SealedDatabase) -> Mapping[str, bytes]:
    """Return the epochs by name (`greetings`)."""
    return {name: bytes(epoch) for name, epoch in db.execute("SELECT name, epoch FROM epochs").fetchall()}


def raise_high_water(db: SealedDatabase, peer: AggregatorId, ledger_rows: int) -> None:
    """Remember the highest ledger count a peer has shown; a lower one is not stored."""
    if ledger_rows > read_high_water(db).get(peer, 0):
        db.execute(
            f"{MARKS.insert} ON CONFLICT (peer) DO UPDATE SET ledger_rows = excluded.ledger_rows, seal = excluded.seal",
            MARKS.sealed(db, str(peer), ledger_rows),
        )
        count_rows(db, "marks")


def read_high_water(db: SealedDatabase) -> Mapping[AggregatorId, int]:
    """Return the highest ledger count of every peer seen so far.

    A damaged row counts as absent: what the peer shows next is its mark again.
    """
    rows = [row for row in db.execute(MARKS.select).fetchall() if MARKS.holds(db, row)]
    return {AggregatorId(peer): ledger_rows for peer, ledger_rows, _ in rows}


def check_ended(db: SealedDatabase, window_id: WindowId) -> None:
    """Refuse what may happen to an ended window alone.

    Raises:
        StoreError: the window has not ended, or is not installed.
    """
    state = _held(db, window_id).state
    if state not in FINAL_STATES:
        raise StoreError(f"window {window_id.hex()} is {state.value}: only of an ended window anything is deleted")
