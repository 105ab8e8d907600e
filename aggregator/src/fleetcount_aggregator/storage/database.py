"""What a store needs of a database's connection: statements, and a place for wrapped keys.

Statements are written once, with `?` for values, in words that SQLite and PostgreSQL read alike.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


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


class KeyPlace(Protocol):
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
