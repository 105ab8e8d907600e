"""What a store needs of a database: transactions, who leads, where its logs and keys lie.

SQLite (`sqlite_engine`) and PostgreSQL (`postgres_engine`) are the engines.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from fleetcount_aggregator.storage.database import Change, Database, KeyStore, RowSeal, SealedDatabase
from fleetcount_aggregator.storage.frames import LogBackend

T = TypeVar("T")


class Engine(Protocol):
    """One open database. `write` and `read` may run at once, each by one thread at a time."""

    @property
    def place(self) -> str:
        """How an error names the database; never with a password."""
        ...

    @property
    def fatal(self) -> tuple[type[Exception], ...]:
        """What ends a transaction whole, when a statement in it raises it; anything else is undone by a savepoint."""
        ...

    @property
    def heartbeat_s(self) -> float | None:
        """How often `trouble` is to be asked while nothing is written; None: never."""
        ...

    @property
    def alone(self) -> bool:
        """Whether no other process serves this database."""
        ...

    @property
    def epoch(self) -> int | None:
        """The number under which this process leads, None while it does not; who is the only one has one number."""
        ...

    @property
    def begun_again(self) -> int:
        """How many transactions were begun again since others stood in their way, since this one was opened."""
        ...

    def log_backend(self, path: Path) -> LogBackend:
        """Return where the frames of the store's report logs lie; files are named after `path`."""
        ...

    def key_store(self) -> KeyStore:
        """Return where the keys of the store in this database lie."""
        ...

    def write(self, work: Callable[[Database], T]) -> T:
        """Run work in one transaction and return when it is durable.

        Work may be run again from its beginning, until it is committed: it changes nothing but the database, and what
        it draws it was given.

        Raises:
            StoreError: nothing was committed, or what became of it cannot be learned.
        """
        ...

    def write_in_line(self, work: Callable[[Database], T]) -> T:
        """Run work as `write`, but wait for those who write the same rows and see what they committed (READ COMMITTED).

        However often they write them it is done once, where `write` would begin again each time.
        """
        ...

    def read(self, work: Callable[[Database], T]) -> T:
        """Run work that only reads what is committed; raises StoreError if it cannot."""
        ...

    def peek(self, work: Callable[[Database], T]) -> T:
        """Run work that only reads, by the thread that writes; raises StoreError if it cannot."""
        ...

    def note_changes(self, database: Database, changes: Sequence[Change]) -> None:
        """Note in the transaction that is open what other processes have to hear of."""
        ...

    def leads(self, database: Database) -> bool:
        """Whether this process may take the steps that happen once a window, for the length of this transaction."""
        ...

    def trouble(self) -> str:
        """Look, a second apart at most, whether what is committed is durable; return why nothing may be, or ""."""
        ...

    def fold(self) -> bool:
        """Let no journal of the database hold what was erased in it; return whether that is done."""
        ...

    def slim(self) -> None:
        """Hold no more memory than is needed, after everything was looked at once."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


class SealedEngine:
    """An engine whose work gets a `SealedDatabase`; see `Engine` for each method."""

    def __init__(self, engine: Engine, seal: RowSeal) -> None:
        self.plain = engine
        self._seal = seal

    def write(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.write`."""

        def noted(db: Database) -> T:
            sealed = SealedDatabase(db, self._seal)
            result = work(sealed)
            self.plain.note_changes(db, sealed.changes)
            return result

        return self.plain.write(noted)

    def read(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.read`."""
        return self.plain.read(lambda db: work(SealedDatabase(db, self._seal)))

    def peek(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.peek`."""
        return self.plain.peek(lambda db: work(SealedDatabase(db, self._seal)))
