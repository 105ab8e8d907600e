"""A store's database in PostgreSQL: its transactions, who leads, and a regular check that commits are durable.

Reads and writes no rows of a store but those about itself and its processes (tables instance, coordinator,
schema_version, data_keys, and through `changes` and `Link` the tables changes and commits).

The leading process holds a lock in its writing session, and raises the epoch when it gets it. The server ends a session
whose process hangs, and with it the lock; whoever still believes to lead is refused by the epoch in each transaction.

A file of the state directory remembers how far the server's write-ahead log was seen: the log of one server on one
timeline only grows, and what was flushed stays. One that ends earlier than it was seen is that of a server put back to
a moment before, even where its own tables say nothing of it.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import psycopg
from fleetcount_transport.durable_files import replace_file
from fleetcount_transport.logs import log
from fleetcount_transport.migrations import NEW, bring_up

from fleetcount_aggregator.storage.changes import note_changes
from fleetcount_aggregator.storage.database import Change, Changed, Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.postgres import (
    FATAL,
    LOCK_KEY,
    PROCESS_LOCK,
    Link,
    LogEnd,
    PostgresDatabase,
    Server,
    ServerState,
    end_if_hung,
    one_line,
)
from fleetcount_aggregator.storage.postgres_backend import PostgresBackend
from fleetcount_aggregator.storage.schema import (
    POSTGRES,
    SERVING,
    check_known,
    check_store_state,
    check_version,
    coordinator_row,
    made_as,
    read_store_state,
)

_WRITE_S: Final = 10.0
"""How often the file is written while the log grows; a process that dies remembers that much less."""


class ServerMark:
    """The furthest end seen. `path`: its file; None: it is remembered in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen = self._kept = _read(path)
        self._written_at = -float("inf")

    def refusal(self, found: LogEnd) -> str:
        """Return why a server was put back to an earlier moment, "" if it was not, or is another server or timeline."""
        seen = self._seen
        if seen is None or _server(seen) != _server(found) or found.flushed >= seen.flushed:
            return ""
        return f"its write-ahead log ends at byte {found.flushed}, and this machine has seen it at {seen.flushed}"

    def note(self, found: LogEnd, *, instead: bool = False) -> None:
        """Remember where the log ends; `instead` of what was seen, whatever that was.

        Raises:
            StoreError: the file could not be written.
        """
        seen = self._seen
        if instead or seen is None or _server(seen) != _server(found) or found.flushed > seen.flushed:
            self._seen = found
        if instead or time.monotonic() >= self._written_at + _WRITE_S:
            self.write()

    def write(self) -> None:
        """Write the file, if there is something new; raises as `note`."""
        if self._path is None or self._seen is None or self._seen == self._kept:
            return
        try:
            replace_file(self._path, json.dumps(asdict(self._seen)).encode() + b"\n")
        except OSError as error:
            raise StoreError(f"{self._path} could not be written: {error.strerror}") from error
        self._kept, self._written_at = self._seen, time.monotonic()


def _server(end: LogEnd) -> tuple[str, int]:
    return end.system_id, end.timeline


def _read(path: Path | None) -> LogEnd | None:
    if path is None or not path.exists():
        return None
    try:
        found = LogEnd(**json.loads(path.read_bytes()))
        if [type(one) for one in (found.system_id, found.timeline, found.flushed)] == [str, int, int]:
            return found
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {type(error).__name__}; delete it to forget what it says") from error
    raise StoreError(f"{path} holds other values than it should; delete it to forget what it says")


T = TypeVar("T")
_HEARTBEAT_S: Final = 1.0
_SCHEMA_LOCK: Final = 0x4643_5343
"""Of who makes or brings up the tables, for the length of the transaction."""
LEAD_LOCK: Final = 0x4643_4C44
"""Of the one process that leads, for as long as the connection that writes is."""
_KNOWS: Final = 0x4644_0000
"""Above it the lock of each version, shared by the processes for which it is the newest they know."""
_SERVER: Final = b"SELECT system_id, timeline FROM instance"
_TABLES: Final = (
    b"SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')"
)


class PostgresEngine:
    """Implements `Engine` over one database: one connection writes, one reads; each comes back when it was lost.

    `epoch` is the one under which this process leads, None while it does not: set by `take_lead`, and gone when another
    process has the lock.
    """

    fatal = FATAL
    heartbeat_s = _HEARTBEAT_S

    def __init__(self, server: Server, mark: ServerMark, *, alone: bool, accept_failover: bool) -> None:
        self.place = server.place
        self.epoch: int | None = None
        self._server = server
        self._mark = mark
        self.alone = alone
        self._accept_failover = accept_failover
        self._writer = Link(server, self._admit_writer)
        self._reader = Link(server, self._admit)
        self._links = [self._writer, self._reader]
        self._looked_at: float | None = None
        self._problem = ""

    @classmethod
    def open(
        cls,
        server: Server,
        *,
        alone: bool = True,
        accept_failover: bool = False,
        migrate: bool = False,
        check_state: Callable[[str, str], None] = check_store_state,
        made: str = SERVING,
        mark: Path | None = None,
    ) -> Self:
        """Open the database, whose tables are made if it is new; then it stands as `made`.

        Nothing is written to a database before this is the server, and the store, that it must be.

        `migrate`: tables of an older release are brought up, which is refused while a process of that release lives;
        else those of the release before this one are served as they are.

        `alone`: this process has the database alone, and leads; any other is refused, as this one is beside others.
        `accept_failover`: go on where another server, or this one after a change of the primary, has the database.
        `check_state` judges whether the store may be used, by its place and what it says of itself. `mark`: the file
        that remembers how far the server's log was seen (`ServerMark`).

        Raises:
            StoreError: the server cannot be reached, is not as it must be (`ServerState.refusal`), holds something
                else, a schema that this program does not know or serve, is served by another process, or was moved.
        """
        engine = cls(server, ServerMark(mark), alone=alone, accept_failover=accept_failover)
        with ExitStack() as opened:
            opened.callback(engine.close)
            server.examine()
            engine._bring_up(migrate=migrate, made=made, check_state=check_state)
            engine._writer.connection()
            engine._remember_server()
            check_state(engine.place, engine.read(read_store_state))
            if alone and not engine.take_lead():
                raise StoreError(f"{engine.place} is locked: another aggregator process leads on this database")
            opened.pop_all()
        return engine

    def link(self) -> Link:
        """Return a further connection, for who works beside the store's threads; closed with the engine."""
        link = Link(self._server, self._admit)
        self._links.append(link)
        return link

    @property
    def retries(self) -> int:
        """See `Engine.retries`."""
        return sum(link.retries for link in self._links)

    def log_backend(self, path: Path) -> PostgresBackend:
        """See `Engine.log_backend`: tables, and no file."""
        return PostgresBackend(self._server, self.link())

    def key_store(self) -> "KeyRows":
        """See `Engine.key_store`: a table."""
        return KeyRows(self.place, self.link())

    def write(self, work: Callable[[Database], T]) -> T:
        """See `Engine.write`; SERIALIZABLE."""
        return self._writer.write(work)

    def write_blocking(self, work: Callable[[Database], T]) -> T:
        """See `Engine.write_blocking`."""
        return self._writer.write(work, level=b"READ COMMITTED")

    def read(self, work: Callable[[Database], T]) -> T:
        """See `Engine.read`."""
        return self._reader.read(work)

    def read_as_writer(self, work: Callable[[Database], T]) -> T:
        """See `Engine.read_as_writer`."""
        return self._writer.read(work)

    def note_changes(self, database: Database, changes: Sequence[Change]) -> None:
        """See `Engine.note_changes`."""
        note_changes(database, changes)

    def leads(self, database: Database) -> bool:
        """See `Engine.leads`: nobody raises the epoch before this transaction has ended."""
        found = coordinator_row(database.execute("SELECT epoch FROM coordinator WHERE one = 1 FOR SHARE"))
        return self.epoch is not None and bool(found[0] == self.epoch)

    def take_lead(self) -> bool:
        """Take the lead under the next epoch unless another process leads; return whether this one leads.

        Raises:
            StoreError: the server failed; this process does not lead.
        """
        if not self._writer.read(_lock_lead):
            return False
        led = False
        try:
            epoch = self.write(_next_epoch)
            # Where the answer was lost with its session, so was the lock.
            if led := self._writer.read(_lock_lead):
                self.epoch = epoch
        finally:
            if not led:
                self.release_lead()
        return led

    def release_lead(self) -> None:
        """Lead no more, and let another process lead at once: the next transaction is in a session without the lock."""
        self.epoch = None
        self._writer.close()

    def durability_problem(self) -> str:
        """See `Engine.durability_problem`; where the server cannot be reached the last answer stays.

        The caller that needs the server reports that.
        """
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < _HEARTBEAT_S:
            return self._problem
        self._looked_at = now
        try:
            state = self._writer.ask()
        except (StoreError, psycopg.Error):
            return self._problem
        found = state.refusal()
        with suppress(StoreError):  # A full disk of this machine takes nothing from what the server has.
            self._mark.note(state.log_end)
        said = f"{self.place} takes nothing: {found}" if found else ""
        if said and said != self._problem:
            log.error("store_takes_nothing", reason=said)
        elif self._problem and not said:
            log.info("store_takes_writes_again")
        self._problem = said
        return said

    def checkpoint(self) -> bool:
        """See `Engine.checkpoint`; archives and backups of the log are the operator's (docs/operating-machines.md)."""
        return True

    def release_memory(self) -> None:
        """See `Engine.release_memory`: the server has the pages."""

    def close(self) -> None:
        """See `Engine.close`."""
        with suppress(StoreError, psycopg.Error):
            if not self._writer.is_lost:
                self._mark.note(ServerState.of(self._writer.connection()).log_end)
            self._mark.write()
        for link in self._links:
            link.close()

    # A new connection.

    def _admit(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        if not self._accept_failover:
            known = connection.execute(_SERVER).fetchone()
            self._check_server(known, ServerState.of(connection))

    def _admit_writer(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self._admit(connection)
        if not self.alone:  # Who moves a store for minutes says nothing here meanwhile, and must not lose it.
            end_if_hung(connection)
        # Shared among the processes of one aggregator, so that who needs it alone, to move or repair it, has to wait.
        lock = "pg_try_advisory_lock" if self.alone else "pg_try_advisory_lock_shared"
        if not _one(connection.execute(f"SELECT {lock}({LOCK_KEY})".encode(), (PROCESS_LOCK,))):
            raise StoreError(f"{self.place} is locked: another aggregator process runs on this database")
        known = f"SELECT pg_try_advisory_lock_shared({LOCK_KEY})".encode()
        if not _one(connection.execute(known, (_KNOWS + POSTGRES.version,))):
            raise StoreError(f"{self.place} is locked: its tables are being brought up by a newer release")
        check_known(_one(connection.execute(b"SELECT version FROM schema_version")), POSTGRES.version)
        if self.epoch is not None and not _lock_lead(PostgresDatabase(connection)):
            self.epoch = None  # Where nobody took the lock meanwhile, the epoch is still valid.

    def _check_server(self, known: tuple[Any, ...] | None, state: ServerState) -> None:
        """Raise StoreError if this is not the server and timeline that the store (`known`) or this machine has seen."""
        said = self._mark.refusal(state.log_end)
        if known is not None and known not in (("", 0), (state.system_id, state.timeline)):
            said = (
                f"it is on server {state.system_id} with timeline {state.timeline}; it was on {known[0]} with"
                f" timeline {known[1]}"
            )
        if said:
            raise StoreError(
                f"{self.place}: {said}. If a standby has taken over that had all that was committed, start with"
                " --accept-failover; after a restored backup do not: its peers know more than it does"
            )

    def _remember_server(self) -> None:
        state = ServerState.of(self._writer.connection())
        self._mark.note(state.log_end, instead=self._accept_failover)
        values = (state.system_id, state.timeline)
        # Nothing is written where all is as it was: whose store it is shows only when its key is tried.
        if self.read(lambda db: db.execute(_SERVER.decode()).fetchone()) != values:
            self.write(lambda db: db.execute("UPDATE instance SET system_id = ?, timeline = ?", values))
        self._accept_failover = False

    def _bring_up(self, *, migrate: bool, made: str, check_state: Callable[[str, str], None]) -> None:
        connection = self._server.connect()
        try:
            database = PostgresDatabase(connection)

            def find() -> int:
                tables = {str(row[0]) for row in connection.execute(_TABLES).fetchall()}
                known = "schema_version" in tables
                versions = connection.execute(b"SELECT version FROM schema_version").fetchall() if known else []
                return check_version(self.place, POSTGRES, tables, [row[0] for row in versions])

            def execute(statement: str) -> None:
                database.execute(statement)
                if statement == _BEGIN:
                    connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                    if before != NEW:
                        _end_older(self.place, connection)

            def note(version: int) -> None:
                database.execute("DELETE FROM schema_version")
                database.execute("INSERT INTO schema_version (version) VALUES (?)", (version,))

            before = find()
            if not self._accept_failover:
                known = None if before == NEW else connection.execute(_SERVER).fetchone()
                self._check_server(known, ServerState.of(connection))
            if before != NEW:
                check_state(self.place, read_store_state(database))
            if before not in (NEW, POSTGRES.version) and not migrate:
                if not POSTGRES.serves(before):
                    raise StoreError(
                        f"{self.place} has schema version {before}; this version of fleetcount serves"
                        f" {POSTGRES.version - 1} and {POSTGRES.version}: run `fleetcount aggregator migrate`"
                    )
                log.warning("older_schema", version=before, newest=POSTGRES.version)
                return
            bring_up(made_as(POSTGRES, made), begin=_BEGIN, find=find, execute=execute, note=note)
        except psycopg.Error as error:
            raise StoreError(f"{self.place} cannot be opened as a store: {one_line(error)}") from error
        finally:
            connection.close()


class KeyRows:
    """Implements `KeyStore` by the table `data_keys`. A row that is deleted stays in the server's log and archives."""

    def __init__(self, place: str, link: Link) -> None:
        self._place = place
        self._link = link

    def where(self, name: str) -> str:
        """See `KeyStore.where`."""
        return f"{name} of {self._place}"

    def read(self, name: str) -> bytes | None:
        """See `KeyStore.read`."""
        query = "SELECT wrapped FROM data_keys WHERE name = ?"
        row = self._link.read(lambda db: db.execute(query, (name,)).fetchone())
        return None if row is None else bytes(row[0])

    def names(self) -> list[str]:
        """See `KeyStore.names`."""
        return [row[0] for row in self._link.read(lambda db: db.execute("SELECT name FROM data_keys").fetchall())]

    def add(self, name: str, wrapped: bytes) -> bytes:
        """See `KeyStore.add`."""

        def work(db: Database) -> bytes:
            statement = "INSERT INTO data_keys (name, wrapped) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
            db.execute(statement, (name, wrapped))
            return bytes(db.execute("SELECT wrapped FROM data_keys WHERE name = ?", (name,)).fetchone()[0])

        return self._link.write(work)

    def write(self, name: str, wrapped: bytes) -> None:
        """See `KeyStore.write`."""
        statement = (
            "INSERT INTO data_keys (name, wrapped) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET wrapped = excluded.wrapped"
        )
        self._link.write(lambda db: db.execute(statement, (name, wrapped)))

    def erase(self, name: str) -> None:
        """See `KeyStore.erase`."""

        def work(db: Database) -> None:
            db.execute("DELETE FROM data_keys WHERE name = ?", (name,))
            note_changes(db, [(Changed.DATA_KEY, b"")])

        self._link.write(work)


_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"


def _end_older(place: str, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """Make sure in a transaction that brings up the tables that no process which knows only the old ones writes later.

    Each process holds the lock of the newest version that it knows; none takes one of an older version until the end of
    this transaction, and then not without a look at the version. The epoch ends what a coordinator has under way.

    Raises:
        StoreError: a process of an older release is connected.
    """
    for version in range(1, POSTGRES.version):
        free = _one(connection.execute(f"SELECT pg_try_advisory_xact_lock({LOCK_KEY})".encode(), (_KNOWS + version,)))
        if not free:
            raise StoreError(
                f"{place} is served by processes of an older release, which know schema version {version} at most;"
                f" allowed are none before its schema is brought to version {POSTGRES.version}: end them first"
            )
    connection.execute(b"UPDATE coordinator SET epoch = epoch + 1")


_LOCK_LEAD: Final = f"SELECT pg_try_advisory_lock({LOCK_KEY})".replace("%s", "?")


def _lock_lead(database: Database) -> bool:
    """Take the lock of who leads, for this session; one that has it gets it again."""
    return bool(database.execute(_LOCK_LEAD, (LEAD_LOCK,)).fetchone()[0])


def _next_epoch(database: Database) -> int:
    update = "UPDATE coordinator SET epoch = epoch + 1 WHERE one = 1 RETURNING epoch"
    return int(coordinator_row(database.execute(update))[0])


def _one(cursor: "psycopg.Cursor[tuple[Any, ...]]") -> Any:
    row = cursor.fetchone()
    return None if row is None else row[0]
