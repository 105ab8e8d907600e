"""What of a store's rows is damaged: rows whose tag does not hold, and rows that others show to be gone.

Reads, and changes nothing. A damaged key hides a row from whoever asks for it by key; so what lasts is named in the row
of its window (`read_step` looks there), and of what passes each row has another one beside it, which is compared here.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.window.window import decode_window

from fleetcount_aggregator.storage.errors import Damage
from fleetcount_aggregator.storage.row_seal import (
    BATCHES,
    CANONICAL,
    CHOSEN,
    COUNTERS,
    DECIDED,
    DURABLE,
    LEDGER,
    MARKS,
    NOTES,
    QUESTION,
    REJECTIONS,
    RESTS,
    SEALED,
    STEPS,
    WINDOWS,
    SealedDatabase,
    SealedTable,
    row_pages,
)
from fleetcount_aggregator.storage.rows import IN_WORK

_SEEMS_AT_REST: Final = "rest < 0 OR rest > 2 OR (rest IN (1, 2) AND expiry <= 0)"
_WORKED: Final = f"SELECT window_id FROM windows WHERE {IN_WORK}"  # noqa: S608 - constant


def damage_at_start(db: SealedDatabase) -> list[Damage]:
    """Return what is damaged of the windows in work, and of what is read whole at the start.

    What a window at rest holds is only looked at when it is asked for: there may be hundreds of thousands. One in work
    that seems to be at rest has no expiry there, and is looked at: no start would miss it.
    """
    found: list[Damage] = []
    for one in (WINDOWS, CANONICAL, DURABLE, CHOSEN, STEPS, REJECTIONS):
        rows = db.execute(f"{one.select} WHERE window_id IN ({_WORKED})").fetchall()
        found += [_damage(db, one, row) for row in rows if not one.holds(db, row)]
    rests = db.execute(f"{RESTS.select} WHERE {IN_WORK} OR {_SEEMS_AT_REST}").fetchall()
    found += [_damage(db, RESTS, row) for row in rests if not RESTS.holds(db, row)]
    for one in (BATCHES, LEDGER, COUNTERS, MARKS, QUESTION, NOTES, DECIDED):
        found += _damaged(db, one)
    return [*found, *_gone(db)]


def every_damage(db: SealedDatabase) -> list[Damage]:
    """Return everything that is damaged; some 3 us a row."""
    return [*(damage for one in SEALED for damage in _damaged(db, one)), *_gone(db)]


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
    passing = f"SELECT window_id, name FROM steps WHERE passing = 1 AND window_id IN ({_WORKED})"  # noqa: S608 - constant
    for window_id, name in db.execute(passing).fetchall():
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
