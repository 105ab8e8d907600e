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
        """Exceptions that abort the whole transaction; any other is rolled back to a savepoint."""
        ...

    @property
    def heartbeat_s(self) -> float | None:
        """How often `durability_problem` is to be asked while nothing is written; None: never."""
        ...

    @property
    def alone(self) -> bool:
        """Whether no other process serves this database."""
        ...

    @property
    def epoch(self) -> int | None:
        """The epoch under which this process leads, None while it does not; it never changes for the only process."""
        ...

    @property
    def retries(self) -> int:
        """How many transactions were retried after conflicts with others, since this database was opened."""
        ...

    def log_backend(self, path: Path) -> LogBackend:
        """Return where the frames of the store's report logs lie; files are named after `path`."""
        ...

    def key_store(self) -> KeyStore:
        """Return where the keys of the store in this database lie."""
        ...

    def write(self, work: Callable[[Database], T]) -> T:
        """Run work in one transaction and return when it is durable.

        Work may be run again from its beginning, until it is committed: it has no side effects beyond the database, and
        draws nothing at random.

        Raises:
            StoreError: nothing was committed, or what became of it cannot be learned.
        """
        ...

    def write_blocking(self, work: Callable[[Database], T]) -> T:
        """Run work as `write`, but wait for locks of rows that others write instead of retrying (READ COMMITTED)."""
        ...

    def read(self, work: Callable[[Database], T]) -> T:
        """Run work that only reads what is committed; raises StoreError if it cannot."""
        ...

    def read_as_writer(self, work: Callable[[Database], T]) -> T:
        """Run work that only reads on the connection that writes, by its thread; raises StoreError if it cannot."""
        ...

    def note_changes(self, database: Database, changes: Sequence[Change]) -> None:
        """Note in the transaction that is open what other processes have to hear of."""
        ...

    def leads(self, database: Database) -> bool:
        """Whether this process may take the steps that happen once a window, for the length of this transaction."""
        ...

    def durability_problem(self) -> str:
        """Return why what is committed may not be durable, "" if it is; a server is asked once a second at most."""
        ...

    def checkpoint(self) -> bool:
        """Checkpoint, so that what was erased leaves the write-ahead log too; return whether that is done."""
        ...

    def release_memory(self) -> None:
        """Release the memory of cached pages, after everything was read once."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...


class SealedEngine:
    """An engine whose work gets a `SealedDatabase`; `unsealed` is the one below. See `Engine` for each method.

    Work that waits for locks (`write_blocking`) has no sealed rows and is run on `unsealed`.
    """

    def __init__(self, engine: Engine, seal: RowSeal) -> None:
        self.unsealed = engine
        self._seal = seal

    def write(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.write`."""

        def noted(db: Database) -> T:
            sealed = SealedDatabase(db, self._seal)
            result = work(sealed)
            self.unsealed.note_changes(db, sealed.changes)
            return result

        return self.unsealed.write(noted)

    def read(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.read`."""
        return self.unsealed.read(lambda db: work(SealedDatabase(db, self._seal)))

    def read_as_writer(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.read_as_writer`."""
        return self.unsealed.read_as_writer(lambda db: work(SealedDatabase(db, self._seal)))
