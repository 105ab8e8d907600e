"""The device's durable memory: one SQLite file with the ledger, the sessions and every byte not yet receipted.

The file is its owner's alone, opened when needed, its schema checked or brought up to date. Write-ahead log,
synchronous=FULL: what a method has returned survives a power cut. Decides nothing about privacy, sends nothing, and
shows no coin, secret or ciphertext.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fleetcount_protocol.errors import DecodeError, MachineError, UsageError
from fleetcount_protocol.ids import SessionId, WindowId
from fleetcount_protocol.limits import MAX_KEY_NUMBER, SESSION_SECRET_BYTES
from fleetcount_transport.migrations import NEW, Schema, bring_up

from fleetcount_client.charges import Charge, LedgerAge
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.spool_rows import (
    NEXT,
    Answer,
    Beginning,
    NotedRefusal,
    OutboxEntry,
    Phase,
    Report,
    SessionRow,
    charge_of_row,
    loss_text,
    outbox_bytes,
    outbox_of,
    refusal_of_row,
    report_of_row,
    session_of_row,
)

if TYPE_CHECKING:
    from fleetcount_client.ledger import Ledger

APPLICATION_ID: Final = 0x46435350
"""'FCSP' in the file's header: another program's database is refused, not adopted."""

_BUSY_TIMEOUT_S: Final = 5.0
_KEPT_CHARGES: Final = 200_000
"""The charges that devices of one file keep in memory, 170 MB: of a simulation each its equal part."""
_TABLES: Final = (
    "CREATE TABLE device(name TEXT PRIMARY KEY, created_at REAL NOT NULL, first_valid INTEGER, secret BLOB)"
    " WITHOUT ROWID",
    "CREATE TABLE windows(window_id BLOB PRIMARY KEY, canonical BLOB NOT NULL)",
    "CREATE TABLE ledger(device TEXT, charge_id BLOB, name TEXT NOT NULL, signal TEXT NOT NULL,"
    " asked_at INTEGER NOT NULL, asked_until INTEGER NOT NULL, epsilon TEXT, exposure TEXT NOT NULL,"
    " relation TEXT NOT NULL, answers TEXT NOT NULL, promise TEXT NOT NULL, loss TEXT, question_id BLOB,"
    " sent INTEGER NOT NULL, counts_until INTEGER, PRIMARY KEY(device, charge_id)) WITHOUT ROWID",
    "CREATE TABLE report(device TEXT, window_id BLOB, phase INTEGER NOT NULL, reason TEXT NOT NULL,"
    " secret BLOB NOT NULL, charge_id BLOB, asked_at INTEGER NOT NULL, outbox BLOB NOT NULL,"
    " PRIMARY KEY(device, window_id))",
    "CREATE TABLE questions(device TEXT, question_id BLOB, name TEXT NOT NULL, offer BLOB NOT NULL,"
    " state INTEGER NOT NULL, changed_at REAL NOT NULL, reason TEXT NOT NULL, rule TEXT NOT NULL,"
    " PRIMARY KEY(device, question_id))",
    "CREATE TABLE change(device TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE session(device TEXT, session_id BLOB, aggregator_id TEXT NOT NULL, hpke_key BLOB NOT NULL,"
    " secret BLOB NOT NULL, receipt_key BLOB NOT NULL, number INTEGER NOT NULL, expiry INTEGER NOT NULL,"
    " PRIMARY KEY(device, session_id)) WITHOUT ROWID",
)
SCHEMA: Final = Schema(version=1, tables=_TABLES, steps={})
"""A step to a next version leaves what was charged as it stands, and adds to the tables above what it adds."""
_LEDGER: Final = (
    "device,charge_id,name,signal,asked_at,asked_until,epsilon,exposure,relation,answers,promise,loss,question_id,sent,"
    "counts_until"
)


class StateFile:
    """One file of mode 0600, for one device or, in a simulation, for many under different names.

    Opened when first used, closed by `close` and opened again at the next use. `durable=False` gives up the fsync, and
    `alone` lets no other process open it meanwhile, which saves locking it at every step: for simulations only.
    """

    __slots__ = ("_alone", "_connection", "_durable", "_path", "devices")

    def __init__(self, path: Path, *, durable: bool = True, alone: bool = False) -> None:
        self._path = path
        self._durable = durable
        self._alone = alone
        self._connection: sqlite3.Connection | None = None
        self.devices = 0

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

    def rows(self, query: str, values: Sequence[object], read: Callable[[Any], Any] = tuple) -> list[Any]:
        """Return what `read` makes of each row of one query.

        Raises:
            MachineError: the file cannot be read, or a row of it is damaged.
        """
        try:
            return [read(row) for row in self._open().execute(query, values)]
        except (sqlite3.Error, OSError, DecodeError, ValueError, TypeError, ArithmeticError) as error:
            raise MachineError(f"state file {self._path}: {error}") from error

    def changed(self, statement: str, *rows: Sequence[object]) -> int:
        """Run a statement for each row of values; return how many rows of the file it has changed.

        Each is a part of the open transaction; outside of one it is a durable transaction of its own.

        Raises:
            MachineError: as for `transaction`.
        """
        try:
            return self._open().executemany(statement, rows).rowcount
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
            if self._alone:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            _version(connection, self._path)  # A file of another program stays as it is.
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


class Spool:
    """The ledger and spool of one device inside its file. Every change is durable when its method returns."""

    __slots__ = ("_device", "_file", "_kept")

    def __init__(self, file: StateFile, device: str) -> None:
        self._file = file
        file.devices += 1
        self._device = device
        self._kept: tuple[int, Ledger] | None = None

    @property
    def file(self) -> StateFile:
        """The file, for other tables of the same device."""
        return self._file

    @property
    def name(self) -> str:
        """The device's name in the file."""
        return self._device

    # The ledger.

    def age(self, now: float, first_valid: int | None) -> LedgerAge:
        """Return when this device's ledger began, and with which certificate; a new ledger begins now, with this."""
        if (known := self.known_age()) is not None:
            return known
        row = (self._device, now, first_valid)
        self._file.changed("INSERT OR IGNORE INTO device(name,created_at,first_valid) VALUES(?,?,?)", row)
        return LedgerAge(created_at=now, first_valid=first_valid)

    def known_age(self) -> LedgerAge | None:
        """Return when this device's ledger began, None if it has not; nothing is stored."""
        rows = self._file.rows("SELECT created_at,first_valid FROM device WHERE name=?", (self._device,))
        return LedgerAge(created_at=float(rows[0][0]), first_valid=rows[0][1]) if rows else None

    def ledger(self) -> "Ledger":
        """Return the charges with their sums, for reading; kept in memory until another process changes them."""
        return self._numbered()[1]

    def _numbered(self) -> "tuple[int, Ledger]":
        """Return the number of the last change, which says whether the sums in memory are the file's, and the sums."""
        from fleetcount_client.ledger import Ledger  # Its filter: only with the first judgement.

        rows = self._file.rows("SELECT number FROM change WHERE device=?", (self._device,))
        number: int = rows[0][0] if rows else 0
        if self._kept is not None and self._kept[0] == number:
            return self._kept
        # The number was read before the rows: should they be newer, they are read again next time.
        return self._keep(number, Ledger(self._read_charges()))

    def _keep(self, number: int, ledger: "Ledger") -> "tuple[int, Ledger]":
        self._kept = (number, ledger) if len(ledger) * self._file.devices <= _KEPT_CHARGES else None
        return number, ledger

    def charges(self) -> tuple[Charge, ...]:
        """Return every unit of a question that was answered in or is reserved, oldest first."""
        return self.ledger().charges

    def _read_charges(self) -> Iterable[Charge]:
        query = (
            "SELECT charge_id,name,signal,asked_at,asked_until,epsilon,exposure,relation,answers,promise,loss,"
            "question_id,sent,counts_until FROM ledger WHERE device=?"
        )
        return self._file.rows(query, (self._device,), charge_of_row)

    def begin(
        self,
        charge: Charge,
        window_id: WindowId,
        window: bytes,
        sessions: Sequence[SessionRow],
        form: Callable[[Sequence[SessionRow]], Beginning],
        judge: "Callable[[Ledger], PolicyRefusal | None]",
    ) -> Beginning | PolicyRefusal | None:
        """Mark a charge as sent and store coins, bytes and sessions in one transaction, if `judge` lets it.

        `form` gets the sessions as they are stored, if they are, and makes the answer with their keys: inside the
        transaction, so that two processes never seal under one key, and what it returns overwrites them.
        `window` is the window as it is written. `judge` sees the ledger inside the transaction, so that two
        processes cannot spend the same budget. Returns what is stored, or `judge`'s refusal, one of rule "answered"
        when the window has been answered before, or of rule "reserved" when its unit is not reserved; None when a
        session was forgotten or used up since it was opened.

        Raises:
            MachineError: the store failed; nothing was changed.
        """
        with self.change() as ledger:
            held = ledger.get(charge.charge_id)
            if held is None:
                return PolicyRefusal(
                    rule="reserved", message="nothing is reserved for this window: its question was left"
                )
            # Where nothing was sent for the unit, none of its windows has an answer.
            if held.sent and self.report(window_id) is not None:
                return PolicyRefusal(rule="answered", message="the window has been answered before")
            refusal = judge(ledger)
            # All or nothing: a charge without bytes would pay for no answer, bytes without a charge would be free.
            if refusal is not None:
                return refusal
            stored = {row.session_id: row for row in self.sessions()}
            current = [stored.get(row.session_id, row) for row in sessions]
            if any(row.number > (MAX_KEY_NUMBER if row.session_id in stored else 1) for row in current):
                return None
            begun = form(current)
            self._mark_sent(ledger, ledger.dated(held))
            self._insert(charge, window, begun)
            return begun

    def _mark_sent(self, ledger: "Ledger", charge: Charge) -> None:
        row = charge.asked_until, charge.counts_until, self._device, charge.charge_id
        self._file.changed("UPDATE ledger SET sent=1,asked_until=?,counts_until=? WHERE device=? AND charge_id=?", row)
        ledger.sent(charge)

    @contextmanager
    def change(self) -> "Generator[Ledger]":
        """Run the block as one transaction that may change rows of the ledger and, alike, the sums in memory."""
        count = "INSERT INTO change VALUES(?,1) ON CONFLICT(device) DO UPDATE SET number=number+1"
        try:
            with self._file.transaction():
                # Under the transaction's lock no other process can charge between the judgement and the row.
                number, ledger = self._numbered()
                before = ledger.changes
                yield ledger
                if ledger.changes != before:  # A transaction that writes nothing waits for no disk.
                    self._file.changed(count, (self._device,))
                    self._keep(number + 1, ledger)
        except BaseException:
            # What the block has changed in memory did not become durable: the sums are read anew.
            self._kept = None
            raise

    def insert_charge(self, charge: Charge) -> None:
        """Write the row of a charge inside a `change`; the sums in memory are the caller's."""
        epsilon = None if charge.epsilon is None else str(charge.epsilon)
        named = (charge.charge_id, charge.name, charge.signal, charge.asked_at, charge.asked_until)
        cost = (epsilon, str(charge.exposure), charge.relation.value, str(charge.answers), charge.promise)
        row = (
            self._device,
            *named,
            *cost,
            loss_text(charge.loss),
            charge.question_id,
            charge.sent,
            charge.counts_until,
        )
        self._file.changed(f"INSERT INTO ledger({_LEDGER}) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", row)

    def _insert(self, charge: Charge, window: bytes, begun: Beginning) -> None:
        report = begun.report
        self._file.changed("INSERT OR IGNORE INTO windows VALUES(?,?)", (report.window_id, window))
        self._file.changed(
            "INSERT INTO report VALUES(?,?,?,?,?,?,?,?)",
            (
                *(self._device, report.window_id, report.phase.value, report.reason, report.secret),
                *(charge.charge_id, charge.asked_at, outbox_bytes(begun.entries)),
            ),
        )
        self._file.changed(
            "INSERT OR REPLACE INTO session VALUES(?,?,?,?,?,?,?,?)",
            *(
                (
                    *(self._device, row.session_id, row.aggregator_id, row.hpke_key),
                    *(row.secret, row.receipt_key, row.number, row.expiry),
                )
                for row in begun.sessions
            ),
        )

    # Reports.

    def report(self, window_id: WindowId) -> Report | None:
        """Return the answer to a window, None when there is none."""
        query = "SELECT window_id,phase,reason,secret FROM report WHERE device=? AND window_id=?"
        rows = self._file.rows(query, (self._device, window_id), report_of_row)
        return rows[0] if rows else None

    def reports(self) -> tuple[Report, ...]:
        """Return every answer, finished or not."""
        query = "SELECT window_id,phase,reason,secret FROM report WHERE device=? ORDER BY window_id"
        return tuple(self._file.rows(query, (self._device,), report_of_row))

    def answers(self) -> tuple[Answer, ...]:
        """Return what was answered, oldest first, in the words of its charge; nothing of what was said."""
        query = (
            "SELECT report.asked_at,name,signal,phase,reason FROM report JOIN ledger USING(device,charge_id)"
            " WHERE device=? ORDER BY report.asked_at,window_id"
        )
        rows = self._file.rows(query, (self._device,))
        return tuple(
            Answer(asked_at=row[0], name=row[1], signal=row[2], phase=Phase(row[3]), reason=row[4]) for row in rows
        )

    def unfinished_windows(self) -> tuple[bytes, ...]:
        """Return the windows, as they are written, whose answers are not final."""
        query = "SELECT canonical FROM report JOIN windows USING(window_id) WHERE device=? AND phase IN (1,2,3)"
        query += " ORDER BY window_id"
        return tuple(bytes(row[0]) for row in self._file.rows(query, (self._device,)))

    def outbox(self, window_id: WindowId, round_number: int) -> tuple[OutboxEntry, ...]:
        """Return the bytes of a round that are not receipted yet, in the aggregators' order."""
        query = "SELECT outbox FROM report WHERE device=? AND window_id=?"
        rows = self._file.rows(query, (self._device, window_id), lambda row: outbox_of(row[0]))
        return tuple(entry for entries in rows for entry in entries if entry.round == round_number)

    def receipted(self, window_id: WindowId, left: Collection[OutboxEntry]) -> None:
        """Keep of a round only what is `left` without a receipt, one part at least; nothing if the round is over."""
        phase = Phase.ROUND_TWO if any(one.round == 2 for one in left) else Phase.ROUND_ONE
        row = outbox_bytes(left), self._device, window_id, phase.value
        # The same bytes again are not written again.
        self._file.changed("UPDATE report SET outbox=? WHERE device=? AND window_id=? AND phase=?", row)

    def advance(
        self,
        report: Report,
        phase: Phase,
        *,
        reason: str = "",
        entries: Iterable[OutboxEntry] = (),
        end: "Callable[[Ledger], object] | None" = None,
    ) -> Report:
        """Move a report on, with the bytes of its next round or, into a final phase, with everything of it erased.

        Once the bytes of the last round are there, coins and keys are erased; after a final phase the disk holds none.
        `end` may end the question with its last answer, in the same transaction.

        Raises:
            UsageError: the transition table has no such step.
            MachineError: the store failed, or another process has moved the report on.
        """
        if phase not in NEXT.get(report.phase, frozenset()):
            raise UsageError(f"a report in phase {report.phase.name} cannot become {phase.name}")
        secret = report.secret if phase is Phase.BETWEEN else b""
        moved = Report(window_id=report.window_id, phase=phase, reason=reason, secret=secret)
        if end is None:
            self._move(report.phase, moved, entries)
        else:
            with self.change() as ledger:
                self._move(report.phase, moved, entries)
                end(ledger)
        if phase.final and not self._device:
            self._file.erase()
        return moved

    def _move(self, before: Phase, moved: Report, entries: Iterable[OutboxEntry]) -> None:
        # The old phase in the condition lets one process alone make the move. The bytes of the new round take the
        # place of those of the old one: after a crash there is one round's, never both.
        row = moved.phase.value, moved.reason, moved.secret, outbox_bytes(entries)
        where = self._device, moved.window_id, before.value
        if not self._file.changed(
            "UPDATE report SET phase=?,reason=?,secret=?,outbox=? WHERE device=? AND window_id=? AND phase=?",
            (*row, *where),
        ):
            raise MachineError(f"another process has moved the report on from phase {before.name}")

    # Sessions.

    def sessions(self) -> tuple[SessionRow, ...]:
        """Return the stored sessions, expired ones too, the longest-lived first."""
        query = (
            "SELECT session_id,aggregator_id,hpke_key,secret,receipt_key,number,expiry FROM session WHERE device=?"
            " ORDER BY expiry DESC, session_id"
        )
        return tuple(self._file.rows(query, (self._device,), session_of_row))

    def forget_session(self, session_id: SessionId) -> None:
        """Erase the keys of a session, as if all were used; what is left checks the receipts of answers under way."""
        used_up = bytes(SESSION_SECRET_BYTES), MAX_KEY_NUMBER + 1
        row = *used_up, self._device, session_id
        self._file.changed("UPDATE session SET secret=?,number=? WHERE device=? AND session_id=?", row)

    def tidy(self, now: float) -> None:
        """Erase sessions that have expired and windows that no unfinished answer needs; the ledger is never erased."""
        query = "SELECT count(*) FROM session WHERE device=? AND expiry<?"
        unneeded = "window_id NOT IN (SELECT window_id FROM report WHERE phase IN (1,2,3))"
        stale = self._file.rows(query, (self._device, now))[0][0]
        if stale == 0 and not self._file.rows(f"SELECT 1 FROM windows WHERE {unneeded} LIMIT 1", ()):  # noqa: S608 - constant
            return
        with self._file.transaction() as connection:
            connection.execute("DELETE FROM session WHERE device=? AND expiry<?", (self._device, now))
            connection.execute(f"DELETE FROM windows WHERE {unneeded}")  # noqa: S608 - constant

    def rest(self) -> None:
        """Close the file while nothing is to be done, unless other devices share it."""
        if not self._device:
            self._file.close()

    def refusals(self) -> tuple[NotedRefusal, ...]:
        """Return the questions that were refused, or a window of which was, with the latest reason, oldest first."""
        query = (
            "SELECT question_id,name,rule,reason,changed_at FROM questions WHERE device=? AND rule<>''"
            " ORDER BY changed_at,question_id"
        )
        return tuple(self._file.rows(query, (self._device,), refusal_of_row))


class SpoolFile(StateFile):
    """The state file of one device or, in a simulation, of many under different names."""

    __slots__ = ()

    def device(self, name: str = "") -> Spool:
        """Return the part of the file that belongs to one device."""
        return Spool(self, name)
