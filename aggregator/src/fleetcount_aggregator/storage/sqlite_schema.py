"""The tables of the SQLite store, how its file is opened, and the lock that keeps a second process out.

Plain SQL without SQLite's own features, so that another database can take it over; reads and writes no rows.
"""

import fcntl
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fleetcount_aggregator.storage.store import StoreError

__all__ = ["SCHEMA_VERSION", "connect", "lock_file"]

SCHEMA_VERSION: Final = 4
_NEW: Final = 0

_SERIES_TABLES: Final = (
    "CREATE TABLE series (series_id BLOB PRIMARY KEY, signed BLOB NOT NULL, seed BLOB NOT NULL,"
    " installed_at INTEGER NOT NULL, place INTEGER NOT NULL)",
    "CREATE TABLE series_notes (series_id BLOB NOT NULL, name TEXT NOT NULL, note BLOB NOT NULL,"
    " PRIMARY KEY (series_id, name))",
    "CREATE TABLE windows (series_id BLOB NOT NULL, number INTEGER NOT NULL, task_id BLOB NOT NULL,"
    " missing TEXT NOT NULL, PRIMARY KEY (series_id, number))",
)
_TABLES: Final = (
    "CREATE TABLE tasks (task_id BLOB PRIMARY KEY, signed BLOB NOT NULL, verify_key BLOB NOT NULL, state TEXT NOT NULL,"
    " abort_reason TEXT NOT NULL, installed_at INTEGER NOT NULL, place INTEGER NOT NULL,"
    " durable_bytes INTEGER NOT NULL DEFAULT 0, log_bytes INTEGER, chosen BLOB)",
    "CREATE TABLE sessions (session_id BLOB PRIMARY KEY, request BLOB NOT NULL, certificate BLOB NOT NULL,"
    " expiry INTEGER NOT NULL)",
    "CREATE INDEX sessions_by_certificate ON sessions (certificate, expiry)",
    "CREATE INDEX sessions_by_expiry ON sessions (expiry)",
    "CREATE TABLE batches (task_id BLOB NOT NULL, number INTEGER NOT NULL, positions BLOB NOT NULL,"
    " verdicts BLOB NOT NULL, share_digests BLOB NOT NULL, kept BLOB NOT NULL, PRIMARY KEY (task_id, number))",
    "CREATE TABLE rejections (task_id BLOB NOT NULL, reason INTEGER NOT NULL, count INTEGER NOT NULL,"
    " PRIMARY KEY (task_id, reason))",
    "CREATE TABLE steps (task_id BLOB NOT NULL, name TEXT NOT NULL, request BLOB NOT NULL, answer BLOB NOT NULL,"
    " passing INTEGER NOT NULL, PRIMARY KEY (task_id, name))",
    "CREATE TABLE ledger (task_id BLOB PRIMARY KEY, signal TEXT NOT NULL, opens INTEGER NOT NULL,"
    " closes INTEGER NOT NULL, epsilon TEXT NOT NULL, debited_at INTEGER NOT NULL, place INTEGER NOT NULL)",
    "CREATE TABLE marks (peer TEXT PRIMARY KEY, ledger_rows INTEGER NOT NULL)",
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    *_SERIES_TABLES,
)
_STEPS: Final[Mapping[int, tuple[str, ...]]] = {3: _SERIES_TABLES}
"""What a store of an older version lacks: the statements that make it one of the next version."""


def lock_file(path: Path) -> int:
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


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, made with mode 0600 and its tables if it is new: write-ahead log, a sync at every commit.

    Raises:
        StoreError: it cannot be opened, is not a SQLite file, or has an unknown schema; then it is left as it is.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error
    try:
        version = _version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA cache_size = -16384")
        if version == _NEW:
            _create(connection)
        elif version < SCHEMA_VERSION:
            _bring_up(connection, version)
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error
    except StoreError:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the file's schema, `_NEW` without tables; refuse a schema this version does not know."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()}
    if not tables:
        return _NEW
    known = "schema_version" in tables
    versions = connection.execute("SELECT version FROM schema_version").fetchall() if known else []
    found = versions[0][0] if len(versions) == 1 else "none"
    if found != SCHEMA_VERSION and found not in _STEPS:
        raise StoreError(
            f"{path} has schema version {found}; this version of fleetcount knows {min(_STEPS)} to {SCHEMA_VERSION}"
        )
    return int(found)


def _bring_up(connection: sqlite3.Connection, version: int) -> None:
    """Make a store of an older version one of this version, in one transaction; its rows stay as they are."""
    connection.execute("BEGIN IMMEDIATE")
    for step in range(version, SCHEMA_VERSION):
        for statement in _STEPS[step]:
            connection.execute(statement)
    connection.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION,))
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO schema_version (version) VALUES (?)", (SCHEMA_VERSION,))
    connection.execute("COMMIT")
