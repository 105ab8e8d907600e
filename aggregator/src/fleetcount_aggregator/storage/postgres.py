"""How a PostgreSQL server is reached, what it must be like before anything is promised on it, and a connection that
comes back.

A commit whose answer was lost is asked for, by a number that it wrote itself, and never tried blindly again. Knows no
other table.
"""

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from fleetcount_protocol.errors import FleetcountError
from fleetcount_transport.key_files import read_secret
from psycopg.conninfo import conninfo_to_dict

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import SchemaMovedError, StatementRefusedError, StoreAwayError, StoreError


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a server's log ended, in bytes, when it was looked at; `flushed` is 0 where it was not said."""

    system_id: str
    timeline: int
    flushed: int


T = TypeVar("T")
FATAL: Final = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
"""What ends a transaction whole; other errors of the server are a statement's own."""
_AGAIN: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_OLDEST: Final = 140_000
HANGS_S: float = 8.0
"""After so long without a word the server ends a session that holds a lock: its process hangs, or is cut off."""
_MARK: Final = (
    b"INSERT INTO commits (link, number) VALUES (%s, 0)"
    b" ON CONFLICT (link) DO UPDATE SET number = commits.number + 1, at = now() RETURNING number"
)
_MAKE_MARK: Final = b"INSERT INTO commits (link, number) VALUES (%s, 0) ON CONFLICT DO NOTHING"
_OLD_MARKS: Final = b"DELETE FROM commits WHERE at < now() - interval '1 day'"
_SELECT_MARK: Final = b"SELECT number FROM commits WHERE link = %s FOR UPDATE NOWAIT"
_MARK_BYTES: Final = 16
_RETRY_S: Final = 10.0
"""How long a transaction is tried again: restarts of a server take seconds."""
_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25
_SETTINGS: Final = (
    # It overrides what a role or database says; what a pooler drops of it is seen by `ServerState.refusal`.
    "-c synchronous_commit=on",
    # That a wait for the standby was cancelled is told by a warning, which a role or database may have turned off.
    "-c client_min_messages=warning",
    # A plan made for the values copies them, and a frame is a megabyte: a fifth of the time of an append.
    "-c plan_cache_mode=force_generic_plan",
    # A process that hangs in the middle of a transaction must not keep the next coordinator waiting for ever.
    "-c idle_in_transaction_session_timeout=30s",
    # A machine that is gone holds no lock for hours.
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000",
)
_WAIT_OF_SERVER: Final = "SyncRepWaitForLSN"
"""Where the server warns that nobody waits any more for the standby to have a commit, in whatever language."""
LOCK_KEY: Final = "hashtext(current_schema())::bigint << 32 | %s::bigint"
"""Of a lock, whose name is a server's: each schema of a database may hold a store, and has locks of its own."""
GRANTED: Final = (
    "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid::bigint = hashtext(current_schema())::bigint & 4294967295"
)
"""Of the locks that sessions hold; objid is the number that `LOCK_KEY` was made of."""
PROCESS_LOCK: Final = 0x4643_5052
"""Of the one process that has a database alone, or of those that share it, for as long as they are connected."""
ENDED_IF_HUNG: Final = (
    b"SELECT set_config('idle_session_timeout', %s, false),"
    b" set_config('idle_in_transaction_session_timeout', %s, false)"
)
"""For `hung_after`, on a new session that is to hold a lock."""
_UNREACHABLE: Final = (psycopg.Error, FleetcountError, UnicodeDecodeError)
_TCP: Final = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
_STATE: Final = b"""
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
    current_setting('transaction_read_only') = 'on', current_setting('synchronous_commit'),
    current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication
        WHERE application_name IS NULL OR application_name NOT IN ('pg_basebackup', 'pg_receivewal')),
    (SELECT system_identifier::text FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery() THEN 0
        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END,
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint END,
    extract(epoch FROM clock_timestamp())::float8, pg_backend_pid()
"""
_LARGEST_SKEW_S: Final = 30.0
_ROUNDS: Final = 4
"""In which a pooler is seen to give one session to two clients, whatever order it gives them in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a database is: a `postgresql://` URL without a password, and the file of one if it needs it."""

    url: str
    password_file: Path | None = None
    settings: Sequence[str] = field(default=_SETTINGS, repr=False)

    @property
    def place(self) -> str:
        """How an error names it; nothing secret is in a URL."""
        return self.url.partition("?")[0]

    def connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """Return a new connection; every statement by itself is a transaction until one is begun.

        Raises:
            StoreError: it cannot be reached, does not let us in, or nothing may be promised on it; one line, without
                the password.
        """
        try:
            connection = psycopg.connect(**self._given(), autocommit=True)
        except _UNREACHABLE as error:
            raise StoreAwayError(f"{self.place} cannot be opened as a store: {one_line(error)}") from None
        try:
            self._check(ServerState.of(connection))
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise StoreAwayError(f"{self.place} cannot be opened as a store: {one_line(error)}") from error
            raise
        return connection

    def examine(self) -> "ServerState":
        """Return what the server says of itself, once more is certain of it than `connect` sees: run before a start.

        Raises:
            StoreError: its clock is off, or a pooler stands before it that gives one session to several clients; writes
                nothing.
        """
        with closing(self.connect()) as connection:
            before = time.time()
            state = ServerState.of(connection)
            off_s = max(before - state.clock, state.clock - time.time())
            if off_s > _LARGEST_SKEW_S:
                raise StoreError(
                    f"{self.place} is refused: its clock is {off_s:.0f} s away from this machine's; allowed are"
                    f" {_LARGEST_SKEW_S:.0f}"
                )
            # What the connection was told at its beginning is of who answers it, which is the server itself or not.
            if connection.info.backend_pid != state.session and self._is_shared(connection, state.session):
                raise StoreError(
                    f"{self.place} is refused: a pooler gives one session of the server to several clients; allowed is"
                    " the server itself, or a pooler that keeps sessions: locks are a session's"
                )
            return state

    def _is_shared(self, connection: "psycopg.Connection[tuple[Any, ...]]", session: int) -> bool:
        """Whether a session is not kept while another connection is in a transaction."""
        with closing(self.connect()) as other:
            for _ in range(_ROUNDS):
                # Twice, and then beside a transaction: it is the session that was free for longest, or for shortest.
                if {ServerState.of(connection).session for _ in range(2)} != {session}:
                    return True
                other.execute(b"BEGIN")
                if ServerState.of(other).session == session or ServerState.of(connection).session != session:
                    return True
                other.execute(b"COMMIT")
        return False

    async def connect_async(self) -> "psycopg.AsyncConnection[tuple[Any, ...]]":
        """Return a connection for an event loop, as `connect` does."""
        try:
            connection = await psycopg.AsyncConnection.connect(**self._given(), autocommit=True)
        except _UNREACHABLE as error:
            raise StoreAwayError(f"{self.place} cannot be opened as a store: {one_line(error)}") from None
        try:
            row = await (await connection.execute(_STATE)).fetchone()
            self._check(ServerState(*(row or ())))
        except BaseException as error:
            await connection.close()
            if isinstance(error, psycopg.Error):
                raise StoreAwayError(f"{self.place} cannot be opened as a store: {one_line(error)}") from error
            raise
        return connection

    async def connect_unsure(self) -> "psycopg.AsyncConnection[tuple[Any, ...]]":
        """Return a connection whose commits wait for no disk, for what is asked for again when it is lost."""
        connection = await self.connect_async()
        await connection.execute(b"SET synchronous_commit = off")
        return connection

    def _given(self) -> dict[str, Any]:
        asked = conninfo_to_dict(self.url)
        options = " ".join([str(asked.pop("options", "") or ""), *self.settings]).strip()
        given = {"connect_timeout": 5, "application_name": "fleetcount", "client_encoding": "utf8", **_TCP, **asked}
        if self.password_file is not None:
            given["password"] = read_secret(self.password_file).decode().rstrip("\n")
        return {**given, "options": options}

    def _check(self, state: "ServerState") -> None:
        if refusal := state.refusal():
            raise StoreError(f"{self.place} is refused: {refusal}")


def end_if_hung(connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """Have the server end a session that is not heard of for `HANGS_S`, in a transaction or not, with all its locks."""
    connection.execute(ENDED_IF_HUNG, hung_after())


def let_go(connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """Close a connection whose session's locks are others' when this returns; alone it would end some time later."""
    if not connection.closed:
        with suppress(psycopg.Error):
            connection.execute(b"SELECT pg_advisory_unlock_all()")
    connection.close()


def hung_after() -> tuple[str, str]:
    """Return what `ENDED_IF_HUNG` sets, for a session in a transaction and outside of one."""
    return f"{HANGS_S:g}s", f"{HANGS_S:g}s"


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server says of itself; `standbys` are those that take its log, without backups that are under way."""

    version: int
    in_recovery: bool
    read_only: bool
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    synchronous_standby_names: str
    standbys: int
    system_id: str
    timeline: int
    flushed: int = 0
    """Where what of its log is on the disk ends, in bytes since the cluster was made."""
    clock: float = 0.0
    """Its time, Unix seconds."""
    session: int = 0
    """Which of its processes serves this connection."""

    @classmethod
    def of(cls, connection: "psycopg.Connection[tuple[Any, ...]]") -> "ServerState":
        """Ask a server; raises psycopg's errors."""
        return cls(*(connection.execute(_STATE).fetchone() or ()))

    @property
    def log_end(self) -> LogEnd:
        """Where the server's log ends."""
        return LogEnd(self.system_id, self.timeline, self.flushed)

    def refusal(self) -> str:
        """Return why nothing may be promised on this server, with the value and what is allowed; "" if it may."""
        if self.version < _OLDEST:
            return f"server version is {self.version // 10_000}; allowed is {_OLDEST // 10_000} or newer"
        if self.in_recovery or self.read_only:
            return "the server takes no writes (in recovery, or read-only); allowed is the primary server"
        for name in ("fsync", "full_page_writes"):
            if (value := getattr(self, name)) != "on":
                return f"{name} is {value}; allowed is on: a power cut would take what has receipts"
        if self.synchronous_commit not in ("on", "remote_apply"):
            return f"synchronous_commit is {self.synchronous_commit}; allowed are on and remote_apply"
        if self.standbys and not self.synchronous_standby_names:
            return (
                f"synchronous_standby_names is empty with {self.standbys} standby; allowed is to name it: what an"
                " asynchronous one lacks when it takes over has receipts (grant pg_monitor to tell backups apart)"
            )
        return ""


class PostgresDatabase:
    """Implements `Database` over a connection."""

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> "psycopg.Cursor[tuple[Any, ...]]":
        """See `Database.execute`."""
        return self._connection.execute(_in_postgres(statement), values, binary=True)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """See `Database.executemany`."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_in_postgres(statement), rows)
        return None


@lru_cache(maxsize=512)
def _in_postgres(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()


class Link:
    """One connection that is made again when it is lost; for one thread at a time, others wait.

    `admit` is called with each new connection before it is used, and raises StoreError if it must not be.
    """

    def __init__(self, server: Server, admit: Callable[["psycopg.Connection[tuple[Any, ...]]"], None]) -> None:
        self._server = server
        self._admit = admit
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._marked: psycopg.Connection[tuple[Any, ...]] | None = None
        self._mark = secrets.token_bytes(_MARK_BYTES)
        self.retries = 0
        """How many transactions were retried after conflicts with others."""
        self._unkept = False
        """Whether the server has said that the standby may not have what was committed last."""
        self._lock = threading.RLock()

    def close(self) -> None:
        """Let go of the connection and of the locks of its session; the link may be used again."""
        with self._lock:
            if self._connection is not None:
                let_go(self._connection)
                self._connection = None

    def connection(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """Return the connection, made again if it was lost; raises StoreError if that fails."""
        if self._connection is None or self._connection.closed:
            self.close()
            connection = self._server.connect()
            try:
                self._admit(connection)
            except psycopg.Error as error:
                let_go(connection)
                raise self._failure(error) from error
            except BaseException:
                let_go(connection)
                raise
            connection.add_notice_handler(self._hear)
            self._connection, self._unkept = connection, False
        return self._connection

    def _hear(self, said: psycopg.errors.Diagnostic) -> None:
        self._unkept = self._unkept or said.source_function == _WAIT_OF_SERVER

    def _check_kept(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        """Take a commit whose wait for the standby was cancelled, by a timeout or by hand, for one without an answer.

        Raises:
            psycopg.OperationalError: it is one, and the connection is closed.
        """
        if self._unkept:
            connection.close()
            raise psycopg.OperationalError("a commit did not wait for the standby to have it")

    def read(self, work: Callable[[Database], T]) -> T:
        """Run work that only reads; on a lost connection once more. Raises StoreError."""
        with self._lock:
            for last in (False, True):
                connection = self.connection()
                try:
                    result = work(PostgresDatabase(connection))
                    self._check_kept(connection)
                    return result
                except psycopg.Error as error:
                    if not connection.closed:
                        raise StatementRefusedError(str(self._failure(error))) from error
                    if last:
                        raise self._failure(error) from error
        raise AssertionError("one of two")

    def ask(self) -> ServerState:
        """Return what the server says of itself; raises StoreError and psycopg's errors."""
        with self._lock:
            return ServerState.of(self.connection())

    def write(self, work: Callable[[Database], T], *, level: bytes = b"SERIALIZABLE") -> T:
        """Run work in one transaction of this isolation level, again from its beginning until it is committed once.

        Raises:
            StoreError: nothing was committed, or the server stays away and what became of it cannot be learned.
        """
        with self._lock:
            deadline, pause_s = time.monotonic() + _RETRY_S, _PAUSE_S
            transaction = _Transaction(self._server.place, self._mark, self._check_kept, level)
            while True:
                try:
                    connection = self.connection()
                    if transaction.was_committed(connection):
                        committed: T = transaction.result
                        return committed
                    self._have_mark(connection)
                    return transaction.run(connection, work)
                except _AGAIN as error:
                    self.retries += 1
                    failure: Exception = self._failure(error)
                except psycopg.Error as error:
                    failure = self._failure(error)
                    if not self.is_lost:
                        raise failure from error
                except StoreError as error:
                    if not self.is_lost or isinstance(error, SchemaMovedError):
                        raise
                    failure = error
                if time.monotonic() > deadline:
                    raise failure
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - so that two do not meet again
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _have_mark(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        """Make the row that the link's transactions count themselves in."""
        if self._marked is not connection:
            connection.execute(_MAKE_MARK, (self._mark,))
            connection.execute(_OLD_MARKS)
            self._marked = connection

    @property
    def is_lost(self) -> bool:
        """Whether there is no connection now."""
        return self._connection is None or self._connection.closed

    def _failure(self, error: Exception) -> StoreError:
        return StoreAwayError(f"{self._server.place} could not be used: {one_line(error)}")


class _Transaction:
    """One piece of work that is to be committed once, over as many tries as it takes.

    Each try counts itself in the link's row, so that the row says afterwards whether it was committed. The server's own
    number of a transaction does not: what died with the server before it was on the disk leaves its number to another.
    """

    def __init__(
        self, place: str, mark: bytes, check_kept: "Callable[[psycopg.Connection[tuple[Any, ...]]], None]", level: bytes
    ) -> None:
        self._begin = b"BEGIN ISOLATION LEVEL " + level
        self._place = place
        self._mark = mark
        self._check_kept = check_kept
        self._number = 0
        """Of the try whose commit was sent and not answered."""
        self.result: Any = None

    def run(self, connection: "psycopg.Connection[tuple[Any, ...]]", work: Callable[[Database], T]) -> T:
        """Try it; raises what the server raises, and what work raises, and then nothing of it is committed."""
        self._number = 0
        try:
            connection.execute(self._begin)
            number = _one(connection.execute(_MARK, (self._mark,)))
            if not number:  # A row made only now could not be asked for while its transaction is under way.
                connection.close()
                raise StoreError(f"{self._place} had no row any more for what this connection commits")
            result = self.result = work(PostgresDatabase(connection))
            self._number = number
            ended = connection.execute(b"COMMIT").statusmessage
            self._check_kept(connection)
        except BaseException:
            if not connection.closed:
                self._number = 0
                with suppress(psycopg.Error):
                    connection.execute(b"ROLLBACK")
            raise
        self._number = 0
        if ended != "COMMIT":
            raise StoreError(f"{self._place} could not commit: a statement of the transaction had failed")
        return result

    def was_committed(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> bool:
        """Return what became of a commit without an answer, False where every one had its answer.

        Raises:
            StoreError: the server still has it under way, for example until a standby has it, or has lost its row.
        """
        if not self._number:
            return False
        try:
            number = _one(connection.execute(_SELECT_MARK, (self._mark,)))
        except psycopg.errors.LockNotAvailable:
            connection.close()
            raise StoreError(f"{self._place} has not said yet what became of a transaction") from None
        self._check_kept(connection)
        if number is None:
            raise StoreError(f"{self._place} does not know any more what became of a transaction")
        return bool(number == self._number)


def _one(cursor: "psycopg.Cursor[tuple[Any, ...]]") -> Any:
    row = cursor.fetchone()
    return None if row is None else row[0]


def one_line(error: Exception) -> str:
    """Return what the server says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
