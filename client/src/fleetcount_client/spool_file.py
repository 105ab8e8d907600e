"""The device's one SQLite file: its owner's alone, opened when needed, its schema checked or brought up to date.

Write-ahead log, synchronous=FULL: what a transaction has committed survives a power cut. Knows tables, not what a row
means.
"""

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_transport.migrations import NEW, Schema, bring_up

APPLICATION_ID: Final = 0x46435350
"""'FCSP' in the file's header: another program's database is refused, not adopted."""

_BUSY_TIMEOUT_S: Final = 5.0
_TABLES: Final = (
    "CREATE TABLE device(name TEXT PRIMARY KEY, created_at REAL NOT NULL, first_valid INTEGER, secret BLOB)"
    " WITHOUT ROWID",
    "CREATE TABLE windows(window_id BLOB PRIMARY KEY, canonical BLOB NOT NULL)",
    "CREATE TABLE ledger(device TEXT, charge_id BLOB, name TEXT NOT NULL, signal TEXT NOT NULL,"
    " asked_at INTEGER NOT NULL, asked_until INTEGER NOT NULL, epsilon TEXT, exposure TEXT NOT NULL,"
    " relation TEXT NOT NULL, answers TEXT NOT NULL, promise TEXT NOT NULL, loss TEXT, question_id BLOB,"
    " sent INTEGER NOT NULL, counts_until INTEGER, PRIMARY KEY(device, charge_id)) WITHOUT ROWID",
    "CREATE TABLE report(device TEXT, window_id BLOB, phase INTEGER NOT NULL, reason TEXT NOT NULL,"
    " secret BLOB NOT NULL, charge_id BLOB, asked_at INTEGER NOT NULL, PRIMARY KEY(device, window_id)) WITHOUT ROWID",
    "CREATE TABLE parcel(device TEXT, window_id BLOB, round INTEGER, position INTEGER, instalment BLOB NOT NULL,"
    " PRIMARY KEY(device, window_id, round, position))",
    "CREATE TABLE questions(device TEXT, question_id BLOB, name TEXT NOT NULL, offer BLOB NOT NULL,"
    " state INTEGER NOT NULL, changed_at REAL NOT NULL, reason TEXT NOT NULL, rule TEXT NOT NULL,"
    " PRIMARY KEY(device, question_id))"
    " WITHOUT ROWID",
    "CREATE TABLE change(device TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE session(device TEXT, session_id BLOB, aggregator_id TEXT NOT NULL, hpke_key BLOB NOT NULL,"
    " secret BLOB NOT NULL, receipt_key BLOB NOT NULL, number INTEGER NOT NULL, expiry INTEGER NOT NULL,"
    " PRIMARY KEY(device, session_id)) WITHOUT ROWID",
)
SCHEMA: Final = Schema(version=1, tables=_TABLES, steps={})
"""A step to a next version leaves what was charged as it stands, and adds to the tables above what it adds."""


class StateFile:
    """One file of mode 0600, for one device or, in a simulation, for many under different names.

    Opened when first used, closed by `close` and opened again at the next use. `durable=False` gives up the fsync, for
    simulations only. `kept` is for what its users keep in memory of the rows, a device each; it outlives `close`.
    """

    __slots__ = ("_connection", "_durable", "_path", "kept")

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self._connection: sqlite3.Connection | None = None
        self.kept: dict[str, Any] = {}

    def close(self) -> None:
        """Close the file; the write-ahead log is folded in, so that what was erased is gone from the disk."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def erase(self) -> None:
        """Fold in the write-ahead log and empty it, so that what was erased is in no file any more.

        Another process that reads just now keeps the log; it goes with the next call, or at the next opening.
        """
        self.rows("PRAGMA wal_checkpoint(TRUNCATE)", ())

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run the block as one durable transaction: all of it or nothing.

        Raises:
            MachineError: the file cannot be read or written (full, read-only, damaged); nothing was changed.
        """
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            raise MachineError(f"state file {self._path}: {error}") from error

    def rows(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of one query.

        Raises:
            MachineError: the file cannot be read.
        """
        try:
            return self._open().execute(query, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise MachineError(f"state file {self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        _create_private(self._path)
        connection = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            # FULL: the write-ahead log is synced at every commit, so that nothing is sent that a power cut could take.
            connection.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}")
            # Coins and keys are overwritten with zeros when they are deleted.
            connection.execute("PRAGMA secure_delete=ON")
            _check_schema(connection, self._path)
            # What a crash left of the log still holds what the rows have overwritten.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except BaseException:
            connection.close()
            raise
        return connection


def _create_private(path: Path) -> None:
    """Create the file with mode 0600, or check that an existing one is the owner's alone."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        mode = path.stat().st_mode
        if mode & 0o077:
            raise UsageError(f"state file {path} has mode 0{mode & 0o777:o}; allowed is 0600") from None


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    def note(version: int) -> None:
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={version}")

    bring_up(
        SCHEMA,
        begin="BEGIN IMMEDIATE",
        find=lambda: _version(connection, path),
        execute=connection.execute,
        note=note,
    )


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the file's tables; raises UsageError for a file of anything else."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    ours = application == APPLICATION_ID and version != NEW and SCHEMA.knows(version)
    if not ours and (application, version, tables) != (0, NEW, 0):
        raise UsageError(f"state file {path} has schema {version}; allowed is {SCHEMA.span}, of this program")
    return version
