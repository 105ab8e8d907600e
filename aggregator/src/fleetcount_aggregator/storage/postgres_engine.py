"""A store's database in PostgreSQL: its transactions, who leads, and a heartbeat: whether what is committed is durable.

Reads and writes no rows of a store but those about itself (tables instance, coordinator and schema_version).
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import psycopg
from fleetcount_transport.logs import log
from fleetcount_transport.migrations import NEW, bring_up

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.postgres import FATAL, Link, PostgresDatabase, Server, ServerState, one_line
from fleetcount_aggregator.storage.postgres_frames import PostgresHome
from fleetcount_aggregator.storage.schema import POSTGRES, SERVING, check_standing, check_version, made_as
from fleetcount_aggregator.storage.server_mark import ServerMark
from fleetcount_aggregator.storage.store import StoreError

T = TypeVar("T")

_HEARTBEAT_S: Final = 1.0
_SCHEMA_LOCK: Final = 0x4643_5343
"""Of who makes or brings up the tables, for the length of the transaction."""
_PROCESS_LOCK: Final = 0x4643_5052
"""Of the one process that has a database alone, or of those that share it, for as long as they are connected."""
_TABLES: Final = (
    b"SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')"
)


class PostgresEngine:
    """Implements `Engine` over one database: one connection writes, one reads; each comes back when it was lost.

    `epoch` is the one under which this process leads, None while it does not; who leads alone keeps it for its life.
    """

    fatal = FATAL
    heartbeat_s = _HEARTBEAT_S

    def __init__(self, server: Server, mark: ServerMark, *, alone: bool, accept_failover: bool, shards: int) -> None:
        self.place = server.place
        self.epoch: int | None = None
        self._server = server
        self._mark = mark
        self.alone = alone
        self._accept_failover = accept_failover
        self._shards = shards
        self._writer = Link(server, self._admit_writer)
        self._reader = Link(server, self._admit)
        self._links = [self._writer, self._reader]
        self._looked_at: float | None = None
        self._trouble = ""

    @classmethod
    def open(
        cls,
        server: Server,
        *,
        alone: bool = True,
        accept_failover: bool = False,
        shards: int = 1,
        migrate: bool = False,
        standing: Callable[[str, str], None] = check_standing,
        made: str = SERVING,
        mark: Path | None = None,
    ) -> Self:
        """Open the database, whose tables are made if it is new; then it stands as `made`.

        `migrate`: tables of an older release are brought up, which is refused while a process of that release lives;
        else those of the release before this one are served as they are.

        `alone`: this process has the database alone, and leads; any other is refused, as this one is beside others.
        `accept_failover`: go on
        where another server, or this one after a change of the primary, has the database. `shards`: into how many a
        window is cut that is installed from now on. `standing` judges whether the store may be used, by its place and
        what it says of itself. `mark`: the file that remembers how far the server's log was seen (`server_mark`).

        Raises:
            StoreError: the server cannot be reached, is not as it must be (`ServerState.refusal`), holds something
                else, a schema that this program does not know or serve, is served by another process, or was moved.
        """
        engine = cls(server, ServerMark(mark), alone=alone, accept_failover=accept_failover, shards=shards)
        with ExitStack() as opened:
            opened.callback(engine.close)
            engine._bring_up(migrate=migrate, made=made)
            engine._writer.connection()
            engine._remember_server()
            standing(engine.place, engine.read(lambda db: db.execute("SELECT standing FROM instance").fetchone()[0]))
            if alone:
                engine.epoch = engine.write(_next_epoch)
            opened.pop_all()
        return engine

    def link(self) -> Link:
        """Return a further connection, for who works beside the store's threads; closed with the engine."""
        link = Link(self._server, self._admit)
        self._links.append(link)
        return link

    @property
    def begun_again(self) -> int:
        """See `Engine.begun_again`."""
        return sum(link.begun_again for link in self._links)

    def frame_home(self, path: Path) -> PostgresHome:
        """See `Engine.frame_home`: tables, and no file."""
        return PostgresHome(self._server, self.link(), self._shards)

    def key_place(self) -> "KeyRows":
        """See `Engine.key_place`: a table."""
        return KeyRows(self.place, self.link())

    def write(self, work: Callable[[Database], T]) -> T:
        """See `Engine.write`; SERIALIZABLE."""
        return self._writer.write(work)

    def read(self, work: Callable[[Database], T]) -> T:
        """See `Engine.read`."""
        return self._reader.read(work)

    def peek(self, work: Callable[[Database], T]) -> T:
        """See `Engine.peek`."""
        return self._writer.read(work)

    def leads(self, database: Database) -> bool:
        """See `Engine.leads`: nobody raises the epoch before this transaction has ended."""
        row = database.execute("SELECT epoch FROM coordinator WHERE one = 1 FOR SHARE").fetchone()
        return self.epoch is not None and bool(row[0] == self.epoch)

    def trouble(self) -> str:
        """See `Engine.trouble`; a server that cannot be reached is said by who needs it."""
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < _HEARTBEAT_S:
            return self._trouble
        self._looked_at = now
        try:
            state = ServerState.of(self._writer.connection())
        except (StoreError, psycopg.Error):
            return self._trouble
        found = state.refusal()
        with suppress(StoreError):  # A full disk of this machine takes nothing from what the server has.
            self._mark.note(state.log_end)
        said = f"{self.place} takes nothing: {found}" if found else ""
        if said and said != self._trouble:
            log.error("store_takes_nothing", reason=said)
        elif self._trouble and not said:
            log.info("store_takes_writes_again")
        self._trouble = said
        return said

    def fold(self) -> bool:
        """See `Engine.fold`; what archives and backups hold of it is the operator's (docs/operating-machines.md)."""
        return True

    def slim(self) -> None:
        """See `Engine.slim`: the server has the pages."""

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
            self._check_server(connection, ServerState.of(connection))

    def _admit_writer(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self._admit(connection)
        # Shared among the processes of one aggregator, so that who needs it alone, to move or repair it, has to wait.
        lock = b"pg_try_advisory_lock" if self.alone else b"pg_try_advisory_lock_shared"
        if not _one(connection.execute(b"SELECT " + lock + b"(%s)", (_PROCESS_LOCK,))):
            raise StoreError(f"{self.place} is locked: another aggregator process runs on this database")

    def _check_server(self, connection: "psycopg.Connection[tuple[Any, ...]]", state: ServerState) -> None:
        known = connection.execute(b"SELECT system_id, timeline FROM instance").fetchone()
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
        self.write(lambda db: db.execute("UPDATE instance SET system_id = ?, timeline = ?", values))
        self._accept_failover = False

    def _bring_up(self, *, migrate: bool, made: str) -> None:
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
    """Implements `KeyPlace` by the table `data_keys`. A row that is deleted stays in the server's log and archives."""

    def __init__(self, place: str, link: Link) -> None:
        self._place = place
        self._link = link

    def where(self, name: str) -> str:
        """See `KeyPlace.where`."""
        return f"{name} of {self._place}"

    def read(self, name: str) -> bytes | None:
        """See `KeyPlace.read`."""
        query = "SELECT wrapped FROM data_keys WHERE name = ?"
        row = self._link.read(lambda db: db.execute(query, (name,)).fetchone())
        return None if row is None else bytes(row[0])

    def names(self) -> list[str]:
        """See `KeyPlace.names`."""
        return [row[0] for row in self._link.read(lambda db: db.execute("SELECT name FROM data_keys").fetchall())]

    def add(self, name: str, wrapped: bytes) -> bytes:
        """See `KeyPlace.add`."""

        def work(db: Database) -> bytes:
            statement = "INSERT INTO data_keys (name, wrapped) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
            db.execute(statement, (name, wrapped))
            return bytes(db.execute("SELECT wrapped FROM data_keys WHERE name = ?", (name,)).fetchone()[0])

        return self._link.write(work)

    def write(self, name: str, wrapped: bytes) -> None:
        """See `KeyPlace.write`."""
        statement = (
            "INSERT INTO data_keys (name, wrapped) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET wrapped = excluded.wrapped"
        )
        self._link.write(lambda db: db.execute(statement, (name, wrapped)))

    def erase(self, name: str) -> None:
        """See `KeyPlace.erase`."""
        self._link.write(lambda db: db.execute("DELETE FROM data_keys WHERE name = ?", (name,)))


_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"


def _end_older(place: str, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """Make sure in a transaction that brings up the tables that no process which knows only the old ones writes later.

    Nobody joins or renews until its end, and then not without a look at the version (`leases`). Who has run out and
    does not know it finds what it held taken.

    Raises:
        StoreError: a process of an older release lives.
    """
    connection.execute(b"LOCK TABLE members IN SHARE ROW EXCLUSIVE MODE")
    query = (
        b"SELECT count(*), string_agg(DISTINCT release, ', ') FROM members"
        b" WHERE until > clock_timestamp() AND newest_schema < %s"
    )
    count, releases = connection.execute(query, (POSTGRES.version,)).fetchone() or (0, "")
    if count:
        raise StoreError(
            f"{place} is served by {count} processes of an older release ({releases}); allowed are none before its"
            f" schema is brought to version {POSTGRES.version}: end them first"
        )
    for taken in (b"coordinator SET epoch = epoch", b"slots SET token = token", b"shards SET epoch = epoch"):
        connection.execute(
            b"UPDATE " + taken + b" + 1, owner = '' WHERE owner NOT IN (SELECT member FROM living) AND owner <> ''"
        )


def _next_epoch(database: Database) -> int:
    row = database.execute("UPDATE coordinator SET epoch = epoch + 1 WHERE one = 1 RETURNING epoch").fetchone()
    return int(row[0])


def _one(cursor: "psycopg.Cursor[tuple[Any, ...]]") -> Any:
    row = cursor.fetchone()
    return None if row is None else row[0]
