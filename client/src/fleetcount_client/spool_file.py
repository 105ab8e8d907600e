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

__all__ = ["StateFile"]

APPLICATION_ID: Final = 0x46435350
"""'FCSP' in the file's header: another program's database is refused, not adopted."""

_BUSY_TIMEOUT_S: Final = 5.0
_CHANGE: Final = """
CREATE TABLE change(device TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
"""
_SESSION: Final = """
CREATE TABLE session(device TEXT, session_id BLOB, aggregator_id TEXT NOT NULL, hpke_key BLOB NOT NULL,
    secret BLOB NOT NULL, receipt_key BLOB NOT NULL, number INTEGER NOT NULL, expiry INTEGER NOT NULL,
    PRIMARY KEY(device, session_id)) WITHOUT ROWID;
"""
_SCHEMA: Final = (
    """
CREATE TABLE device(name TEXT PRIMARY KEY, created_at REAL NOT NULL, first_valid INTEGER, secret BLOB) WITHOUT ROWID;
CREATE TABLE task(task_id BLOB PRIMARY KEY, canonical BLOB NOT NULL);
CREATE TABLE ledger(device TEXT, charge_id BLOB, name TEXT NOT NULL, signal TEXT NOT NULL, asked_at INTEGER NOT NULL,
    asked_until INTEGER NOT NULL, epsilon TEXT, exposure TEXT NOT NULL,
    relation TEXT NOT NULL DEFAULT 'any-value', answers TEXT NOT NULL DEFAULT '0', promise TEXT NOT NULL DEFAULT '',
    loss TEXT, series_id BLOB, sent INTEGER NOT NULL DEFAULT 1, PRIMARY KEY(device, charge_id)) WITHOUT ROWID;
CREATE TABLE report(device TEXT, task_id BLOB, phase INTEGER NOT NULL, reason TEXT NOT NULL, secret BLOB NOT NULL,
    charge_id BLOB, asked_at INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(device, task_id)) WITHOUT ROWID;
CREATE TABLE parcel(device TEXT, task_id BLOB, round INTEGER, position INTEGER, instalment BLOB NOT NULL,
    PRIMARY KEY(device, task_id, round, position));
CREATE TABLE series(device TEXT, series_id BLOB, name TEXT NOT NULL, offer BLOB NOT NULL, state INTEGER NOT NULL,
    changed_at REAL NOT NULL, reason TEXT NOT NULL, rule TEXT NOT NULL DEFAULT '',
    PRIMARY KEY(device, series_id)) WITHOUT ROWID;
"""
    + _CHANGE
    + _SESSION
)
_ADD_RELATIONS: Final = "ALTER TABLE ledger ADD COLUMN relation TEXT NOT NULL DEFAULT 'any-value';"
_ADD_SERIES: Final = (  # No value of anybody's is in it.
    """
ALTER TABLE device ADD COLUMN first_valid INTEGER;
ALTER TABLE device ADD COLUMN secret BLOB;
ALTER TABLE ledger RENAME COLUMN task_id TO charge_id;
ALTER TABLE ledger ADD COLUMN answers TEXT NOT NULL DEFAULT '0';
ALTER TABLE ledger ADD COLUMN promise TEXT NOT NULL DEFAULT '';
ALTER TABLE ledger ADD COLUMN loss TEXT;
ALTER TABLE ledger ADD COLUMN series_id BLOB;
ALTER TABLE ledger ADD COLUMN sent INTEGER NOT NULL DEFAULT 1;
UPDATE ledger SET answers=exposure;
ALTER TABLE report ADD COLUMN charge_id BLOB;
ALTER TABLE report ADD COLUMN asked_at INTEGER NOT NULL DEFAULT 0;
UPDATE report SET charge_id=task_id, asked_at=coalesce((SELECT asked_at FROM ledger
    WHERE ledger.device=report.device AND ledger.charge_id=report.task_id), 0);
CREATE TABLE series(device TEXT, series_id BLOB, name TEXT NOT NULL, offer BLOB NOT NULL, state INTEGER NOT NULL,
    changed_at REAL NOT NULL, reason TEXT NOT NULL, PRIMARY KEY(device, series_id)) WITHOUT ROWID;
"""  # noqa: S608 - constant
    + _CHANGE
)
_ADD_CHAINS: Final = (  # The keys of before are none of a chain: what they opened is erased, what was charged stands.
    """
UPDATE report SET phase=5, secret=x'', reason='its keys were those of an earlier version' WHERE phase IN (1,2,3);
DELETE FROM parcel;
DROP TABLE session;
"""
    + _SESSION
)
_NEW_NAMES: Final = """
UPDATE report SET phase=5, secret=x'', reason='its name was that of an earlier version' WHERE phase IN (1,2,3);
DELETE FROM parcel;
"""
"""No aggregator takes a name of before any more, and a new one would make a second report of the same answer."""
_ONLY_SERIES: Final = """
ALTER TABLE series ADD COLUMN rule TEXT NOT NULL DEFAULT '';
UPDATE series SET rule='series' WHERE state=4;
UPDATE report SET phase=5, secret=x'', reason='it was asked alone, as an earlier version did'
    WHERE phase IN (1,2,3) AND charge_id=task_id;
DELETE FROM parcel WHERE EXISTS (SELECT 1 FROM report
    WHERE report.device=parcel.device AND report.task_id=parcel.task_id AND charge_id=report.task_id);
DELETE FROM task WHERE task_id IN (SELECT task_id FROM report WHERE charge_id=task_id);
ALTER TABLE task RENAME COLUMN signed TO canonical;
UPDATE task SET canonical=substr(canonical, 13, length(canonical) - 13);
DROP TABLE refusal;
"""
"""A window's task stood between a label, its length, and the number of its signatures: 0."""


def _statements(text: str) -> tuple[str, ...]:
    return tuple(statement for statement in text.split(";") if statement.strip())


SCHEMA: Final = Schema(
    version=7,
    tables=_statements(_SCHEMA),
    steps={
        2: _statements(_ADD_RELATIONS),
        3: _statements(_ADD_SERIES),
        4: _statements(_ADD_CHAINS),
        5: _statements(_NEW_NAMES),
        6: _statements(_ONLY_SERIES),
    },
)
"""What brings a file of each version to the present one; what was charged stands as it is."""


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
        raise UsageError(
            f"state file {path} has schema {version}; allowed are {SCHEMA.oldest} to {SCHEMA.version} of this program"
        )
    return version
