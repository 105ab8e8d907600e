"""The device's durable memory: one SQLite file with the ledger, the sessions and every byte not yet receipted.

Write-ahead log, synchronous=FULL: what a method has returned survives a power cut. Decides nothing about privacy, sends
nothing, and shows no coin, secret or ciphertext.
"""

import enum
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_mechanisms.answers import Relation
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import SessionId, TaskId

from fleetcount_client.ledger import Charge
from fleetcount_client.policy import PolicyRefusal

__all__ = ["NotedRefusal", "OutboxEntry", "Phase", "Report", "SessionRow", "Spool", "SpoolFile"]

SCHEMA_VERSION: Final = 3
_WITHOUT_RELATIONS: Final = 2
"""The schema before charges had a relation; what it charged stands as it is, for any value."""
APPLICATION_ID: Final = 0x46435350
"""'FCSP' in the file's header: another program's database is refused, not adopted."""

MAX_NOTED_REFUSALS: Final = 1000
_BUSY_TIMEOUT_S: Final = 5.0
_SCHEMA: Final = """
CREATE TABLE device(name TEXT PRIMARY KEY, created_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE task(task_id BLOB PRIMARY KEY, signed BLOB NOT NULL);
CREATE TABLE ledger(device TEXT, task_id BLOB, name TEXT NOT NULL, signal TEXT NOT NULL, asked_at INTEGER NOT NULL,
    asked_until INTEGER NOT NULL, epsilon TEXT, exposure TEXT NOT NULL,
    relation TEXT NOT NULL DEFAULT 'any-value', PRIMARY KEY(device, task_id)) WITHOUT ROWID;
CREATE TABLE report(device TEXT, task_id BLOB, phase INTEGER NOT NULL, reason TEXT NOT NULL, secret BLOB NOT NULL,
    PRIMARY KEY(device, task_id)) WITHOUT ROWID;
CREATE TABLE parcel(device TEXT, task_id BLOB, round INTEGER, position INTEGER, instalment BLOB NOT NULL,
    PRIMARY KEY(device, task_id, round, position));
CREATE TABLE session(device TEXT, session_id BLOB, aggregator_id TEXT NOT NULL, hpke_key BLOB NOT NULL,
    request BLOB NOT NULL, secret BLOB NOT NULL, expiry INTEGER NOT NULL, PRIMARY KEY(device, session_id))
    WITHOUT ROWID;
CREATE TABLE refusal(device TEXT, task_id BLOB, name TEXT NOT NULL, rule TEXT NOT NULL, message TEXT NOT NULL,
    refused_at REAL NOT NULL, PRIMARY KEY(device, task_id)) WITHOUT ROWID;
"""
_ADD_RELATIONS: Final = "ALTER TABLE ledger ADD COLUMN relation TEXT NOT NULL DEFAULT 'any-value'"


class Phase(enum.Enum):
    """Where an answer stands. Nothing moves backwards; the last three are final and hold no secret any more."""

    ROUND_ONE = 1
    """The first bytes are stored, not all of them receipted. A report of one message stays here until it is done."""
    BETWEEN = 2
    """Round one is out; only the compact secret is left until round two opens."""
    ROUND_TWO = 3
    DELIVERED = 4
    """Every aggregator has receipted everything."""
    GIVEN_UP = 5
    """A window closed before every receipt was there; it counts only if all hold it even so, the charge stands."""
    REJECTED = 6
    """An aggregator refused for good; the report does not count anywhere, the charge stands."""

    @property
    def final(self) -> bool:
        """Whether there is nothing left to do."""
        return self in _FINAL


_FINAL: Final = frozenset({Phase.DELIVERED, Phase.GIVEN_UP, Phase.REJECTED})
_NEXT: Final = {
    Phase.ROUND_ONE: frozenset({Phase.BETWEEN, Phase.DELIVERED, Phase.GIVEN_UP, Phase.REJECTED}),
    Phase.BETWEEN: frozenset({Phase.ROUND_TWO, Phase.GIVEN_UP}),
    Phase.ROUND_TWO: frozenset({Phase.DELIVERED, Phase.GIVEN_UP, Phase.REJECTED}),
}
"""The one transition table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    """The exact bytes for one aggregator, kept until its receipt: `position` is 0..k-1, `round` 0, 1 or 2."""

    round: int
    position: int
    instalment: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One answer: its phase, why it ended if it did, and the compact secret (coins and seeds), empty once final."""

    task_id: TaskId
    phase: Phase
    reason: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session as stored: the request's bytes re-open it, `hpke_key` says to which key the secret was sealed."""

    session_id: SessionId
    aggregator_id: str
    hpke_key: bytes
    request: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    expiry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedRefusal:
    """A task the device did not answer, and why, for its owner to read."""

    task_id: TaskId
    name: str
    rule: str
    message: str
    refused_at: float


class SpoolFile:
    """One file of mode 0600, for one device or, in a simulation, for many under different names.

    Opened when first used, closed by `close` and opened again at the next use. `durable=False` gives up the fsync, for
    simulations only.
    """

    __slots__ = ("_connection", "_durable", "_path")

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self._connection: sqlite3.Connection | None = None

    def device(self, name: str = "") -> "Spool":
        """Return the part of the file that belongs to one device."""
        return Spool(self, name)

    def close(self) -> None:
        """Close the file; the write-ahead log is folded in, so that what was erased is gone from the disk."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
    if _is_ours(connection, path):
        return
    connection.execute("BEGIN IMMEDIATE")
    # Another process may have been faster: only who finds the file still empty, or old, under the lock fills it.
    if not _is_ours(connection, path):
        old = _version(connection) == (APPLICATION_ID, _WITHOUT_RELATIONS)
        for statement in (_ADD_RELATIONS if old else _SCHEMA).split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> tuple[int, int]:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, connection.execute("PRAGMA user_version").fetchone()[0]


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has our schema, False for an empty or older one; raises UsageError for anything else."""
    application, version = _version(connection)
    if (application, version) == (APPLICATION_ID, SCHEMA_VERSION):
        return True
    if (application, version) == (APPLICATION_ID, _WITHOUT_RELATIONS):
        return False
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if (application, version, tables) != (0, 0, 0):
        raise UsageError(f"state file {path} has schema {version}; allowed is {SCHEMA_VERSION} of this program")
    return False


class Spool:
    """The ledger and spool of one device inside a `SpoolFile`. Every change is durable when its method returns."""

    __slots__ = ("_device", "_file")

    def __init__(self, file: SpoolFile, device: str) -> None:
        self._file = file
        self._device = device

    # The ledger.

    def created_at(self, now: float) -> float:
        """Return when this device's ledger began; a new ledger begins now."""
        rows = self._file.rows("SELECT created_at FROM device WHERE name=?", (self._device,))
        if rows:
            return float(rows[0][0])
        with self._file.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO device VALUES(?,?)", (self._device, now))
        return now

    def charges(self) -> tuple[Charge, ...]:
        """Return every answered task, oldest first."""
        query = (
            "SELECT task_id,name,signal,asked_at,asked_until,epsilon,exposure,relation FROM ledger WHERE device=?"
            " ORDER BY asked_at,task_id"
        )
        return tuple(_charge(row) for row in self._file.rows(query, (self._device,)))

    def begin(
        self,
        charge: Charge,
        signed_task: bytes,
        report: Report,
        entries: Iterable[OutboxEntry],
        sessions: Iterable[SessionRow],
        judge: Callable[[tuple[Charge, ...]], PolicyRefusal | None],
    ) -> PolicyRefusal | None:
        """Charge the ledger and store coins, bytes and sessions in one transaction, if `judge` lets it.

        `judge` sees the charges inside the transaction, so that two processes cannot spend the same budget. Returns its
        refusal, or one of rule "answered" when the task has been charged before.
        """
        with self._file.transaction() as connection:
            # Read under the transaction's lock, so that no other process can charge between the judgement and the row.
            charges = self.charges()
            if any(earlier.task_id == charge.task_id for earlier in charges):
                return PolicyRefusal(rule="answered", message="the task has been answered before")
            refusal = judge(charges)
            # All or nothing: a charge without bytes would pay for no answer, bytes without a charge would be free.
            if refusal is None:
                self._insert(connection, charge, signed_task, report)
                self._insert_entries(connection, report.task_id, entries)
                self._insert_sessions(connection, sessions)
            return refusal

    def _insert(self, connection: sqlite3.Connection, charge: Charge, signed_task: bytes, report: Report) -> None:
        epsilon = None if charge.epsilon is None else str(charge.epsilon)
        named = (charge.task_id, charge.name, charge.signal, charge.asked_at, charge.asked_until)
        row = (self._device, *named, epsilon, str(charge.exposure), charge.relation.value)
        connection.execute("INSERT INTO ledger VALUES(?,?,?,?,?,?,?,?,?)", row)
        connection.execute("INSERT OR IGNORE INTO task VALUES(?,?)", (charge.task_id, signed_task))
        connection.execute(
            "INSERT INTO report VALUES(?,?,?,?,?)",
            (self._device, report.task_id, report.phase.value, report.reason, report.secret),
        )
        connection.execute("DELETE FROM refusal WHERE device=? AND task_id=?", (self._device, charge.task_id))

    def _insert_entries(self, connection: sqlite3.Connection, task_id: TaskId, entries: Iterable[OutboxEntry]) -> None:
        connection.executemany(
            "INSERT INTO parcel VALUES(?,?,?,?,?)",
            [(self._device, task_id, entry.round, entry.position, entry.instalment) for entry in entries],
        )

    def _insert_sessions(self, connection: sqlite3.Connection, sessions: Iterable[SessionRow]) -> None:
        connection.executemany(
            "INSERT OR IGNORE INTO session VALUES(?,?,?,?,?,?,?)",
            [
                (self._device, row.session_id, row.aggregator_id, row.hpke_key, row.request, row.secret, row.expiry)
                for row in sessions
            ],
        )

    # Reports.

    def report(self, task_id: TaskId) -> Report | None:
        """Return the answer to a task, None when there is none."""
        query = "SELECT task_id,phase,reason,secret FROM report WHERE device=? AND task_id=?"
        rows = self._file.rows(query, (self._device, task_id))
        return _report(rows[0]) if rows else None

    def reports(self) -> tuple[Report, ...]:
        """Return every answer, finished or not."""
        query = "SELECT task_id,phase,reason,secret FROM report WHERE device=? ORDER BY task_id"
        return tuple(_report(row) for row in self._file.rows(query, (self._device,)))

    def unfinished_tasks(self) -> tuple[bytes, ...]:
        """Return the signed tasks, encoded, whose answers are not final."""
        query = (
            "SELECT signed FROM report JOIN task USING(task_id) WHERE device=? AND phase IN (1,2,3) ORDER BY task_id"
        )
        return tuple(bytes(row[0]) for row in self._file.rows(query, (self._device,)))

    def outbox(self, task_id: TaskId, round_number: int) -> tuple[OutboxEntry, ...]:
        """Return the bytes of a round that are not receipted yet, in the aggregators' order."""
        query = (
            "SELECT round,position,instalment FROM parcel WHERE device=? AND task_id=? AND round=? ORDER BY position"
        )
        rows = self._file.rows(query, (self._device, task_id, round_number))
        return tuple(OutboxEntry(round=row[0], position=row[1], instalment=bytes(row[2])) for row in rows)

    def receipted(self, task_id: TaskId, round_number: int, positions: Iterable[int]) -> None:
        """Forget the bytes that aggregators have receipted."""
        with self._file.transaction() as connection:
            connection.executemany(
                "DELETE FROM parcel WHERE device=? AND task_id=? AND round=? AND position=?",
                [(self._device, task_id, round_number, position) for position in positions],
            )

    def advance(self, report: Report, phase: Phase, *, reason: str = "", entries: Iterable[OutboxEntry] = ()) -> Report:
        """Move a report on, with the bytes of its next round or, into a final phase, with everything of it erased.

        Raises:
            UsageError: the transition table has no such step.
            MachineError: the store failed, or another process has moved the report on.
        """
        if phase not in _NEXT.get(report.phase, frozenset()):
            raise UsageError(f"a report in phase {report.phase.name} cannot become {phase.name}")
        moved = Report(task_id=report.task_id, phase=phase, reason=reason, secret=b"" if phase.final else report.secret)
        with self._file.transaction() as connection:
            # The old phase in the condition lets one process alone make the move. The bytes of the old round go in the
            # same transaction in which those of the new one come: after a crash there is one round's, never both.
            where = (self._device, report.task_id)
            changed = connection.execute(
                "UPDATE report SET phase=?,reason=?,secret=? WHERE device=? AND task_id=? AND phase=?",
                (phase.value, reason, moved.secret, *where, report.phase.value),
            ).rowcount
            if changed != 1:
                raise MachineError(f"another process has moved the report on from phase {report.phase.name}")
            connection.execute("DELETE FROM parcel WHERE device=? AND task_id=?", where)
            self._insert_entries(connection, report.task_id, entries)
        return moved

    # Sessions.

    def sessions(self) -> tuple[SessionRow, ...]:
        """Return the stored sessions, expired ones too, the longest-lived first."""
        query = (
            "SELECT session_id,aggregator_id,hpke_key,request,secret,expiry FROM session WHERE device=?"
            " ORDER BY expiry DESC, session_id"
        )
        return tuple(_session(row) for row in self._file.rows(query, (self._device,)))

    def tidy(self, now: float) -> None:
        """Erase sessions that have expired and tasks that no unfinished answer needs; the ledger is never erased."""
        query = "SELECT count(*) FROM session WHERE device=? AND expiry<?"
        unneeded = "task_id NOT IN (SELECT task_id FROM report WHERE phase IN (1,2,3))"
        stale = self._file.rows(query, (self._device, now))[0][0]
        if stale == 0 and not self._file.rows(f"SELECT 1 FROM task WHERE {unneeded} LIMIT 1", ()):  # noqa: S608 - constant
            return
        with self._file.transaction() as connection:
            connection.execute("DELETE FROM session WHERE device=? AND expiry<?", (self._device, now))
            connection.execute(f"DELETE FROM task WHERE {unneeded}")  # noqa: S608 - constant

    def rest(self) -> None:
        """Close the file while nothing is to be done, unless other devices share it."""
        if not self._device:
            self._file.close()

    # What was not answered.

    def note_refusal(self, task_id: TaskId, name: str, refusal: PolicyRefusal, now: float) -> None:
        """Keep why a task was not answered, the latest reason only."""
        with self._file.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO refusal VALUES(?,?,?,?,?,?)",
                (self._device, task_id, name, refusal.rule, refusal.message, now),
            )
            # The oldest go, so that somebody who offers many invented tasks cannot fill the disk.
            connection.execute(
                "DELETE FROM refusal WHERE device=? AND task_id NOT IN (SELECT task_id FROM refusal WHERE device=?"
                " ORDER BY refused_at DESC LIMIT ?)",
                (self._device, self._device, MAX_NOTED_REFUSALS),
            )

    def refusals(self) -> tuple[NotedRefusal, ...]:
        """Return the tasks that were not answered, oldest first."""
        query = "SELECT task_id,name,rule,message,refused_at FROM refusal WHERE device=? ORDER BY refused_at,task_id"
        return tuple(_refusal(row) for row in self._file.rows(query, (self._device,)))


def _charge(row: tuple[Any, ...]) -> Charge:
    return Charge(
        task_id=TaskId(row[0]),
        name=row[1],
        signal=row[2],
        asked_at=row[3],
        asked_until=row[4],
        epsilon=None if row[5] is None else Decimal(row[5]),
        exposure=Fraction(row[6]),
        relation=Relation(row[7]),
    )


def _report(row: tuple[Any, ...]) -> Report:
    return Report(task_id=TaskId(row[0]), phase=Phase(row[1]), reason=row[2], secret=bytes(row[3]))


def _session(row: tuple[Any, ...]) -> SessionRow:
    return SessionRow(
        session_id=SessionId(row[0]),
        aggregator_id=row[1],
        hpke_key=bytes(row[2]),
        request=bytes(row[3]),
        secret=bytes(row[4]),
        expiry=row[5],
    )


def _refusal(row: tuple[Any, ...]) -> NotedRefusal:
    return NotedRefusal(task_id=TaskId(row[0]), name=row[1], rule=row[2], message=row[3], refused_at=row[4])
