"""What must be there in a store and is not: rows that others name, and rows whose number is remembered beside them.

A tag says that a row is as it was written; that a row is gone, only another one can say. It reads every row that names
others, and changes nothing.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.window.window import decode_window

from fleetcount_aggregator.storage.database import SealedDatabase
from fleetcount_aggregator.storage.errors import Damage
from fleetcount_aggregator.storage.rows import COUNTED, DEBITS, FORGOTTEN, counted_rows, read_counter

DRAWN: Final = ("commit", "sign", "release")
"""The steps after which a window has cost what it costs, one of which it keeps for good if it is signed or released."""


def every_gap(db: SealedDatabase) -> Iterator[Damage]:
    """Yield everything that is missing."""
    if db.execute("SELECT count(*) FROM instance").fetchone()[0] != 1:
        yield Damage(table="database", what="the row of the store about itself is missing")
    yield from _of_windows(db)
    yield from _of_questions(db)
    yield from _debits(db)
    yield from _sessions(db)
    counters = {table: read_counter(db, counted_rows(table)) for table in COUNTED}
    for table, known in counters.items():
        found = _count(db, table)
        if known is None and found and any(one is not None for one in counters.values()):
            yield Damage(table="counters", what=f"the number of rows of {table} is missing")
        if known is not None and known != found:
            yield Damage(table=table, what=f"{table} has {found} rows, of {known} that were written")


def _count(db: SealedDatabase, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - names of this module


def _of_windows(db: SealedDatabase) -> Iterator[Damage]:
    """Yield the steps and debits that windows name and the store has not, and windows that nobody decided."""
    steps: dict[bytes, set[str]] = {}
    for window_id, name in db.execute("SELECT window_id, name FROM steps").fetchall():
        steps.setdefault(window_id, set()).add(name)
    charged = {row[0] for row in db.execute("SELECT window_id FROM ledger").fetchall()}
    decided = {row[0] for row in db.execute("SELECT window_id FROM decided").fetchall()}
    known = set()
    for window_id, canonical, taken in db.execute("SELECT window_id, canonical, taken FROM windows").fetchall():
        known.add(window_id)
        window, names = _id(window_id), [name for name in str(taken).split(",") if name]
        for name in names:
            if name not in steps.get(window_id, set()):
                yield Damage(
                    table="steps", what=f"step {name} of window {_hex(window_id)} is missing", window_id=window
                )
        if window_id not in charged and set(DRAWN).intersection(names):
            yield Damage(table="ledger", what=f"the debit of window {_hex(window_id)} is missing", hides_charge=True)
        with suppress(DecodeError, QuestionError, TypeError):
            if window_id not in decided and decode_window(canonical).window_id == window_id:
                yield Damage(table="decided", what=f"nothing decided window {_hex(window_id)}, which is there")
    for window_id in charged - known:
        yield Damage(table="windows", what=f"window {_hex(window_id)} is missing, which was charged")
    living = "SELECT decided.window_id FROM decided JOIN questions ON questions.question_id = decided.question_id"
    for (window_id,) in db.execute(f"{living} WHERE questions.rest = 0 AND decided.missing = ''").fetchall():
        if window_id not in known:
            yield Damage(table="windows", what=f"window {_hex(window_id)} is missing, which was decided")


def _of_questions(db: SealedDatabase) -> Iterator[Damage]:
    """Yield the questions that decisions name and the store has not, and the gaps in their decisions."""
    known = {row[0] for row in db.execute("SELECT question_id FROM questions").fetchall()}
    rows = db.execute("SELECT question_id, count(*), max(number) FROM decided GROUP BY question_id").fetchall()
    for question_id, count, last in rows:
        if question_id not in known:
            yield Damage(
                table="questions", what=f"question {_hex(question_id)} is missing, of which windows are decided"
            )
        if count != last + 1:
            what = f"of question {_hex(question_id)} {count} windows are decided, up to number {last}"
            yield Damage(table="decided", what=what)


def _debits(db: SealedDatabase) -> Iterator[Damage]:
    """Yield whether there are as many debits as were ever written and not forgotten."""
    ever, found = read_counter(db, DEBITS), _count(db, "ledger")
    if ever is None:
        if found:
            yield Damage(table="counters", what="the number of debits is missing")
        return
    left = ever - (read_counter(db, FORGOTTEN) or 0)
    if left != found:
        yield Damage(table="ledger", what=f"ledger has {found} debits, of {left} that were written", hides_charge=True)


def _sessions(db: SealedDatabase) -> Iterator[Damage]:
    """Yield sessions without their keys, and keys without their session."""
    for one, other, what in (
        ("sessions", "chains", "session {} has lost its keys"),
        ("chains", "sessions", "the keys of session {} have lost it"),
    ):
        alone = f"SELECT session_id FROM {one} WHERE session_id NOT IN (SELECT session_id FROM {other})"  # noqa: S608
        for (session_id,) in db.execute(alone).fetchall():
            yield Damage(table="sessions", what=what.format(_hex(session_id)))


def _id(window_id: object) -> WindowId | None:
    return WindowId(window_id) if isinstance(window_id, bytes) and len(window_id) == WindowId.SIZE else None


def _hex(key: object) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)[:80]
