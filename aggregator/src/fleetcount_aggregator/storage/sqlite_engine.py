"""A store's database in one SQLite file: how it is opened, its transactions, the lock that keeps a second process out.

Reads and writes no rows. The data keys lie in files beside it.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from fleetcount_transport.durable_files import erase_file, replace_file, sync_directory
from fleetcount_transport.migrations import bring_up

from fleetcount_aggregator.storage.database import Change, Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.file_backend import FileBackend
from fleetcount_aggregator.storage.schema import (
    SERVING,
    SQLITE,
    check_store_state,
    check_version,
    made_as,
    read_store_state,
)

SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; its text about a damaged schema may be no text."""


class KeyFiles:
    """Implements `KeyStore` by files beside a database's file, named after it; erasing overwrites in place."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def _path(self, name: str) -> Path:
        return self._database.with_name(f"{self._database.stem}.{name}")

    def where(self, name: str) -> str:
        """See `KeyStore.where`."""
        return str(self._path(name))

    def read(self, name: str) -> bytes | None:
        """See `KeyStore.read`."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.where(name)} cannot be read: {error.strerror}") from error

    def names(self) -> Sequence[str]:
        """See `KeyStore.names`."""
        first = f"{self._database.stem}."
        return [
            path.name.removeprefix(first)
            for ending in ("data-key", "key-check")
            for path in self._database.parent.glob(f"{first}*{ending}")
        ]

    def add(self, name: str, wrapped: bytes) -> bytes:
        """See `KeyStore.add`: the store's lock keeps other processes out."""
        lying = self.read(name)
        if lying is None:
            self.write(name, wrapped)
            return wrapped
        try:
            # An earlier try may have failed or been killed when all was done but this.
            sync_directory(self._database.parent)
        except OSError as error:
            raise StoreError(f"{self.where(name)} could not be written: {error.strerror}") from error
        return lying

    def write(self, name: str, wrapped: bytes) -> None:
        """See `KeyStore.write`."""
        try:
            replace_file(self._path(name), wrapped, erase=True)
        except OSError as error:
            raise StoreError(f"{self.where(name)} could not be written: {error.strerror}") from error

    def erase(self, name: str) -> None:
        """See `KeyStore.erase`."""
        try:
            erase_file(self._path(name))
        except OSError as error:
            raise StoreError(f"{self.where(name)} could not be destroyed: {error.strerror}") from error


T = TypeVar("T")
_BUSY_MS: Final = 10_000
"""How long a statement waits for whoever looks at the file meanwhile."""
_FOLD_MS: Final = 100
"""And folding in the journal, which can be done later."""


class SqliteEngine:
    """Implements `Engine` over a file: one connection writes, one reads what is committed."""

    fatal = (sqlite3.Error,)
    heartbeat_s = None
    alone = True
    retries = 0
    epoch = 0

    def __init__(self, path: Path, lock: int, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self.place = str(path)
        self._path = path
        self._lock = lock
        self._writer = writer
        self._reader = reader

    @classmethod
    def open(
        cls, path: Path, *, check_state: Callable[[str, str], None] = check_store_state, made: str = SERVING
    ) -> Self:
        """Open or make the file, which stands as `made` if it is new.

        `check_state` judges whether it may be used, by its place and what it says of itself.

        Raises:
            StoreError: another process holds it, it is no store, damaged, of an unknown schema, or has been moved.
        """
        if not path.exists() and restoring_beside(path).exists():
            raise StoreError(f"{path} is not there: a restore of it has not ended; run it again")
        lock = _lock_file(path.with_name(path.name + ".lock"))
        with ExitStack() as opened:
            opened.callback(os.close, lock)
            # Under the lock: before it another process may still be making files here.
            _sync_names(path.parent)
            writer = opened.enter_context(closing(_connect(path, made)))
            reader = opened.enter_context(closing(_connect(path, made)))
            check_state(str(path), _store_state(path, writer))
            opened.pop_all()
        return cls(path, lock, writer, reader)

    def log_backend(self, path: Path) -> FileBackend:
        """See `Engine.log_backend`."""
        return FileBackend(path)

    def key_store(self) -> KeyFiles:
        """See `Engine.key_store`: files beside it."""
        return KeyFiles(self._path)

    def write(self, work: Callable[[Database], T]) -> T:
        """See `Engine.write`."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            result = work(self._writer)
            self._writer.execute("COMMIT")
        except BaseException as error:
            # A failing disk may fail this too: then the next transaction cannot begin, and says so.
            with suppress(sqlite3.Error):
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
            if isinstance(error, SQLITE_ERRORS):
                raise StoreError(f"{self.place} could not commit: {error}") from error
            raise
        return result

    def read(self, work: Callable[[Database], T]) -> T:
        """See `Engine.read`."""
        return self._look(self._reader, work)

    def read_as_writer(self, work: Callable[[Database], T]) -> T:
        """See `Engine.read_as_writer`."""
        return self._look(self._writer, work)

    def _look(self, connection: sqlite3.Connection, work: Callable[[Database], T]) -> T:
        try:
            return work(connection)
        except SQLITE_ERRORS as error:
            raise StoreError(f"{self.place} could not be read: {error}") from error

    def write_blocking(self, work: Callable[[Database], T]) -> T:
        """See `Engine.write_blocking`: nobody else writes."""
        return self.write(work)

    def note_changes(self, database: Database, changes: Sequence[Change]) -> None:
        """See `Engine.note_changes`: there is no other process."""

    def leads(self, database: Database) -> bool:
        """See `Engine.leads`: who has the file's lock is the only one."""
        return True

    def durability_problem(self) -> str:
        """See `Engine.durability_problem`: nobody else changes how this file is written."""
        return ""

    def checkpoint(self) -> bool:
        """See `Engine.checkpoint`; it is not done beside a reader, such as a backup, and holds up no other write."""
        try:
            self._writer.execute(f"PRAGMA busy_timeout = {_FOLD_MS}")
            return not self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:
            return False
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")

    def release_memory(self) -> None:
        """See `Engine.release_memory`: the pages of two connections, 4 MiB each at most."""
        for connection in (self._writer, self._reader):
            connection.execute("PRAGMA shrink_memory")

    def close(self) -> None:
        """See `Engine.close`; the write-ahead log is folded in."""
        self._reader.close()
        self._writer.close()
        os.close(self._lock)


def restoring_beside(path: Path) -> Path:
    """Return the directory in which a backup of a file waits until all of it is there."""
    return path.with_name(f".{path.name}.restoring")


def _lock_file(path: Path) -> int:
    """Take the lock beside a store's file and return its descriptor; closing the descriptor gives the lock back.

    Raises:
        StoreError: another process, or another store of this one, holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"{path} is locked: another aggregator process runs on this state directory") from error
    return descriptor


def _store_state(path: Path, connection: sqlite3.Connection) -> str:
    try:
        return read_store_state(connection)
    except (*SQLITE_ERRORS, StoreError) as error:
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error


def _sync_names(directory: Path) -> None:
    """Make the names of all files durable: one killed before it did so has left keys and logs that nobody syncs again.

    Raises:
        StoreError: the disk failed.
    """
    try:
        sync_directory(directory)
    except OSError as error:
        raise StoreError(f"{directory} could not be made durable: {error.strerror}") from error


def _connect(path: Path, made: str) -> sqlite3.Connection:
    """Open the file, made with mode 0600 and its tables if it is new: write-ahead log, a sync at every commit.

    Raises:
        StoreError: it cannot be opened, is not a SQLite file, or has an unknown schema; then it is left as it is.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error

    def find() -> int:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        known = "schema_version" in tables
        versions = connection.execute("SELECT version FROM schema_version").fetchall() if known else []
        return check_version(str(path), SQLITE, tables, [row[0] for row in versions])

    def note(version: int) -> None:
        connection.execute("DELETE FROM schema_version")
        connection.execute("INSERT INTO schema_version (version) VALUES (?)", (version,))

    try:
        find()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA cache_size = -4096")
        schema = made_as(SQLITE, made)
        bring_up(schema, begin="BEGIN IMMEDIATE", find=find, execute=connection.execute, note=note)
    except SQLITE_ERRORS as error:
        connection.close()
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error
    except StoreError:
        connection.close()
        raise
    return connection
