"""A database as a store uses it: statements, rows that prove themselves, and a place for wrapped keys.

Statements are written once, with `?` for values, in words that SQLite and PostgreSQL read alike.

Each row carries a tag over its table, its key and its values, under a key of the store. A tag shows that a byte of the
row has changed, or that the row was written by somebody without the store's key. It does not show an older copy of a
whole row or of the whole store, which rollback marks are for, nor that a row is gone: what must not be forgotten is
named in another row (`WINDOWS`, column `taken`). Knows no meaning of a row.
"""

import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Protocol

from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreError


class Answer(Protocol):
    """The rows of one statement; bytes come as bytes, integers as int."""

    def fetchone(self) -> Any:
        """Return the next row as a tuple, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows that are left, as tuples."""
        ...


class Database(Protocol):
    """A connection inside a transaction, or one that only reads; `sqlite3.Connection` is one."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Answer:
        """Run one statement; what it raises is the engine's own error."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Run one statement for each row."""
        ...


class KeyStore(Protocol):
    """Small wrapped secrets by name. A write returns when it is durable; whatever fails raises StoreError."""

    def where(self, name: str) -> str:
        """How an error names a key."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return what lies there, or None."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of all that lie there."""
        ...

    def add(self, name: str, wrapped: bytes) -> bytes:
        """Put it where nothing lies; return what lies there then, durably, which another process may have put there."""
        ...

    def write(self, name: str, wrapped: bytes) -> None:
        """Put it in the place of what was there: a crash leaves the old one or the new one."""
        ...

    def erase(self, name: str) -> None:
        """Destroy it as far as the place allows; doing it again changes nothing."""
        ...


SEAL_BYTES: Final = 16
_AT_ONCE: Final = 4096
_INFO: Final = b"fleetcount aggregator rows 1"


class RowSeal:
    """Makes and checks the tags: HMAC-SHA256, 16 bytes, under a key that follows from a store's at-rest key.

    The first of `at_rest_keys` makes tags; one of any of them holds. Without a key nothing is checked and no tag made:
    that is how who may not see keys reads a store.
    """

    def __init__(self, *at_rest_keys: bytes) -> None:
        self._keys = tuple(hmac.digest(key, _INFO, "sha256") for key in at_rest_keys)

    def __repr__(self) -> str:
        return "RowSeal(…)"

    def tag(self, place: str, values: Sequence[object]) -> bytes:
        """Return the tag of values in a place; each a byte string, a text, an integer or None."""
        if not self._keys:
            raise StoreError("rows are written with the store's key alone")
        return hmac.digest(self._keys[0], _spelt(place, values), "sha256")[:SEAL_BYTES]

    def holds(self, tag: object, place: str, values: Sequence[object]) -> bool:
        """Return whether a tag is that of these values in this place."""
        if not self._keys:
            return True
        if not isinstance(tag, bytes):
            return False
        spelt = _spelt(place, values)
        for key in self._keys:  # noqa: SIM110 - a start checks a hundred thousand rows, of each any() is a tenth
            if hmac.compare_digest(tag, hmac.digest(key, spelt, "sha256")[:SEAL_BYTES]):
                return True
        return False


def _spelt(place: str, values: Sequence[object]) -> bytes:
    """Return values so that no others are spelt alike: first all of them with lengths for bytes, then the bytes."""
    shown: list[object] = []
    parts = [b""]
    for value in values:
        if isinstance(value, bytes):
            shown.append((len(value),))
            parts.append(value)
        else:
            shown.append(value)
    parts[0] = repr((place, shown)).encode()
    return b"".join(parts)


class Changed(StrEnum):
    """What other processes over the same database have to hear of; the value is what lies there (`changes`)."""

    WINDOW = "window"
    """It was installed or moved."""
    QUESTION = "question"
    """It was installed, noted something or decided about a window."""
    SESSION = "session"
    """Keys of it were erased."""
    DATA_KEY = "data key"
    """That of a window was destroyed; which is not named."""


Change = tuple[Changed, bytes]
"""What changed, and its id."""


class SealedDatabase:
    """A `Database`; `seal` makes and checks the tags of its rows, `changes` are those that others have to hear of."""

    __slots__ = ("changes", "execute", "executemany", "seal")

    def __init__(self, database: Database, seal: RowSeal) -> None:
        self.execute = database.execute
        self.executemany = database.executemany
        self.seal = seal
        self.changes: list[Change] = []


@dataclass(frozen=True)
class SealedTable:
    """Columns of a table that one tag covers: the primary key, the values, and the column with the tag."""

    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    seal: str = "seal"

    @cached_property
    def names(self) -> str:
        """Key, values and tag, as a SELECT lists them."""
        return ", ".join((*self.key, *self.columns, self.seal))

    @cached_property
    def select(self) -> str:
        """The SELECT of all of them, to which a WHERE may be added."""
        return f"SELECT {self.names} FROM {self.table}"  # noqa: S608 - constant

    @cached_property
    def insert(self) -> str:
        """The INSERT of a whole row, to which an ON CONFLICT may be added."""
        places = ", ".join("?" * (len(self.key) + len(self.columns) + 1))
        return f"INSERT INTO {self.table} ({self.names}) VALUES ({places})"  # noqa: S608 - constant

    @cached_property
    def update(self) -> str:
        """The UPDATE of values and tag by key, for what `updating` returns."""
        values = ", ".join(f"{one} = ?" for one in (*self.columns, self.seal))
        return f"UPDATE {self.table} SET {values} WHERE {' AND '.join(f'{one} = ?' for one in self.key)}"  # noqa: S608

    @cached_property
    def _place(self) -> str:
        return f"{self.table}.{self.seal}"

    def sealed(self, db: "SealedDatabase", *row: object) -> tuple[object, ...]:
        """Return a row, key and values in order, with its tag."""
        return (*row, db.seal.tag(self._place, row))

    def updating(self, db: "SealedDatabase", *row: object) -> tuple[object, ...]:
        """Return the parameters of `update` for a row, key and values in order."""
        width = len(self.key)
        return (*row[width:], db.seal.tag(self._place, row), *row[:width])

    def holds(self, db: "SealedDatabase", row: Sequence[Any]) -> bool:
        """Return whether a row as `select` returned it is as it was written."""
        return db.seal.holds(row[-1], self._place, row[:-1])

    def checked(self, db: "SealedDatabase", row: Sequence[Any]) -> Sequence[Any]:
        """Return a row as `select` returned it, if it is as it was written.

        Raises:
            DamagedError: it is not.
        """
        if not self.holds(db, row):
            raise DamagedError(self.damage(row))
        return row

    def damage(self, row: Sequence[Any]) -> Damage:
        """Return what is said of a row that does not hold; its own key may be what is damaged."""
        named = [one.hex() if isinstance(one, bytes) else str(one) for one in row[: len(self.key)]]
        what = ", ".join(f"{name} {value}" for name, value in zip(self.key, named, strict=True))
        of_window = self.key[0] == "window_id" and isinstance(row[0], bytes) and len(row[0]) == WindowId.SIZE
        window = row[0] if of_window else None
        return Damage(
            table=self.table,
            what=f"the row with {what} is not as it was written",
            window_id=None if window is None else WindowId(window),
        )


WINDOWS: Final = SealedTable(
    "windows", ("window_id",), ("state", "abort_reason", "installed_at", "place", "log_bytes", "taken")
)
"""`taken` names the lasting steps of the window, so that one whose row is gone is not taken again."""
CANONICAL: Final = SealedTable("windows", ("window_id",), ("canonical",), "canonical_seal")
DURABLE: Final = SealedTable("windows", ("window_id",), ("durable_bytes",), "durable_seal")
INCLUDED: Final = SealedTable("windows", ("window_id",), ("chosen",), "chosen_seal")
STEPS: Final = SealedTable("steps", ("window_id", "name"), ("request", "answer", "transient"))
BATCHES: Final = SealedTable("batches", ("window_id", "number"), ("positions", "verdicts", "share_digests", "kept"))
REJECTIONS: Final = SealedTable("rejections", ("window_id", "reason"), ("count",))
LIFECYCLE: Final = SealedTable("windows", ("window_id",), ("rest", "expiry", "led"), "rest_seal")
LEDGER: Final = SealedTable(
    "ledger", ("window_id",), ("signal", "opens", "closes", "epsilon", "debited_at", "place", "normal_signal")
)
COUNTERS: Final = SealedTable("counters", ("name",), ("value",))
MARKS: Final = SealedTable("marks", ("peer",), ("ledger_rows",))
SESSIONS: Final = SealedTable("sessions", ("session_id",), ("request", "certificate", "expiry", "accepted"))
QUESTION: Final = SealedTable("questions", ("question_id",), ("signed", "seed", "installed_at", "place", "rest"))
NOTES: Final = SealedTable("question_notes", ("question_id", "name"), ("note",))
DECIDED: Final = SealedTable("decided", ("question_id", "number"), ("window_id", "missing"))
EPOCHS: Final = SealedTable("epochs", ("name",), ("epoch",))
SEALED: Final = (
    *(WINDOWS, CANONICAL, DURABLE, INCLUDED, LIFECYCLE, STEPS, BATCHES, REJECTIONS, LEDGER, COUNTERS, MARKS),
    *(SESSIONS, QUESTION, NOTES, DECIDED, EPOCHS),
)  # fmt: skip
"""All there are. Chains of sessions and verify keys are not among them: they lie sealed, and open or do not."""


def reseal(db: "SealedDatabase") -> None:
    """Give every row its tag under the first key, in the transaction that is open.

    When the store's key has changed: a row that is damaged keeps its tag, and stays damaged.
    """
    for one in SEALED:
        for rows in row_pages(db, one):
            believed = [row for row in rows if one.holds(db, row)]
            db.executemany(one.update, [one.updating(db, *row[:-1]) for row in believed])


def row_pages(db: "SealedDatabase", one: SealedTable) -> Iterator[list[Any]]:
    """Yield all rows of a table by key, as `select` returns them, few of a million in memory at a time."""
    keys, count = ", ".join(one.key), len(one.key)
    first = f"{one.select} ORDER BY {keys} LIMIT {_AT_ONCE}"
    following = f"{one.select} WHERE ({keys}) > ({', '.join('?' * count)}) ORDER BY {keys} LIMIT {_AT_ONCE}"
    rows = db.execute(first).fetchall()
    while rows:
        yield rows
        rows = db.execute(following, tuple(rows[-1][:count])).fetchall()
