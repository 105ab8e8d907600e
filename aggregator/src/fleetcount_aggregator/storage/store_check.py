"""What of a store is damaged or missing, what that means, and what a repair would do; for an operator. Changes nothing.

Rows by their tags and by others that name or count them, data keys and sessions' keys by whether they open, report logs
of windows under way frame by frame and part by part, digests of ended ones by their sum.
"""

import fcntl
import os
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import rows as sql
from fleetcount_aggregator.storage.data_keys import ChainSeal, DataKeys, StoreKeys
from fleetcount_aggregator.storage.database import Database, SealedDatabase
from fleetcount_aggregator.storage.errors import Damage, DamagedFrameError, StoreError
from fleetcount_aggregator.storage.file_backend import DigestFile
from fleetcount_aggregator.storage.file_frames import LogScan
from fleetcount_aggregator.storage.frames import LogBackend, LogState
from fleetcount_aggregator.storage.opening import reading, server_of
from fleetcount_aggregator.storage.row_repair import every_damage, is_restored
from fleetcount_aggregator.storage.schema import COORDINATOR_GONE, check_readable
from fleetcount_aggregator.storage.sqlite_engine import KeyFiles

if TYPE_CHECKING:
    from fleetcount_aggregator.storage.postgres import ServerState


def damaged_frames(db: SealedDatabase, place: StorePlace, keys: StoreKeys) -> Iterator[Damage]:
    """Yield what is damaged of data keys, and of heads and columns of frames; parts are looked at when they are loaded.

    Raises:
        StoreError: the server cannot be reached.
    """
    server = server_of(place)
    from fleetcount_aggregator.storage.postgres import Link
    from fleetcount_aggregator.storage.postgres_backend import PostgresBackend
    from fleetcount_aggregator.storage.postgres_engine import KeyRows

    class Unwritten(KeyRows):
        """Keys that are only read: one that lies under a former key stays so."""

        def write(self, name: str, wrapped: bytes) -> None:
            """Write nothing."""

    link = Link(server, lambda _: None)
    with closing(PostgresBackend(server, link)) as backend:
        states = [one for one in sql.read_log_states(db) if not one.ended]
        data_keys = DataKeys(keys.at_rest, Unwritten(place.name, link), keys.former)
        missing = data_keys.take_up([one.window_id for one in states])
        yield from missing
        yield from _chains(db, data_keys)
        without = {one.window_id for one in missing}
        yield from _of_windows(backend, data_keys, [one for one in states if one.window_id not in without])


def _chains(db: SealedDatabase, keys: DataKeys) -> Iterator[Damage]:
    """Yield the sessions whose keys do not open."""
    seal = ChainSeal(keys.chain_keys, SystemRandom())
    for session_id, chain in db.execute("SELECT session_id, chain FROM chains").fetchall():
        try:
            seal.open(session_id, chain)
        except (StoreError, DecodeError, TypeError):
            named = session_id.hex() if isinstance(session_id, bytes) else str(session_id)[:80]
            yield Damage(table="sessions", what=f"the keys of session {named} do not open")


def _beside(db: SealedDatabase, database: Path) -> Iterator[Damage]:
    """Yield what is damaged or missing of the digests of ended windows, and what else lies beside the rows."""
    there = sorted(database.parent.glob(f"{database.stem}.*.digests"))
    for path in there:
        if said := _digests(path):
            yield Damage(table="digests", what=said)
    # A log that was closed has left its digests, until they are deleted when the window is retired.
    closed = "SELECT window_id FROM windows WHERE state IN ('released', 'aborted') AND length(verify_key) = 0"
    for (window_id,) in db.execute(f"{closed} AND rest < 2 AND log_bytes > 0").fetchall():
        path = database.with_name(f"{database.stem}.{window_id.hex()}.digests")
        if path not in there:
            yield Damage(table="digests", what=f"{path} is missing")
    path = database.with_name(f"{database.stem}.key-check")
    if not path.exists() and _count(db, "epochs"):
        yield Damage(table="key-check", what=f"{path} is missing")
    if not _count(db, "counters WHERE name = 'time'") and _count(db, "epochs"):
        yield Damage(table="time", what="when the store was last acted on is missing")


def _count(db: SealedDatabase, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - names of this module


def _digests(path: Path) -> str:
    try:
        window_id = WindowId(bytes.fromhex(path.name.split(".")[-2]))
    except (ValueError, DecodeError):
        return f"{path} is of no window"
    return DigestFile(path, window_id).check()


def _of_windows(backend: LogBackend, keys: DataKeys, states: Sequence[LogState]) -> Iterator[Damage]:
    for state in states:
        for lane in backend.lanes(state.window_id):
            frames = backend.frames(state.window_id, keys.of(state.window_id).log_key, lane)
            try:
                for _ in frames.columns():
                    pass
            except DamagedFrameError as error:
                yield Damage(table="log", what=str(error), window_id=state.window_id)


_WINDOW: Final = (
    "the window is in quarantine: it takes part in nothing, and what it was charged goes on to count",
    "asks the other aggregators for the window's record and adopts one that all have signed; without one ends it here",
)
_QUESTION: Final = (
    "the question is not served, its open windows are in quarantine, and no new question is taken on",
    "nothing: put back a backup",
)
_VERDICTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "ledger": (
            "what was charged is not known, so nothing new is taken on",
            "writes the debit again, from its window",
        ),
        "marks": ("a peer's ledger may have been longer than is remembered", "forgets it; the peer's next is its mark"),
        "counters": ("how many debits there have ever been is not known", "counts those that are there"),
        "epochs": ("which start of an aggregator is the newest is not known", "nothing: the next start notes it again"),
        "sessions": ("a device opens another session", "forgets the session"),
        "key-check": ("a wrong store key would be seen late", "nothing: the next start writes it"),
        "time": ("the next start believes its clock", "nothing: the next start notes it"),
        "digests": (
            "what comes late to an ended window gets no receipt again, or a wrong refusal",
            "nothing: they are deleted `keep_digests_s` after the window expires",
        ),
        "questions": _QUESTION,
        "question_notes": _QUESTION,
        "decided": _QUESTION,
        "database": ("the file itself is damaged, beyond single rows", "nothing: put back a backup"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One thing that is damaged, what it means while it is, and what `fleetcount aggregator repair` does about it."""

    damage: Damage
    means: str
    repair: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """What was found. While the aggregator `runs`, its logs in files are written to, and are not read."""

    runs: bool
    verdicts: tuple[Verdict, ...]


_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, struct.error)


def check_store(place: StorePlace, keys: StoreKeys) -> StoreCheck:
    """Look at everything a store has; some seconds for a million reports under way.

    Raises:
        StoreError: there is none, or it lies under another key.
    """
    try:
        return _checked(place, keys)
    except _UNREADABLE as error:
        # Of a database that is damaged in its pages or its schema whatever was expected may be otherwise.
        damage = Damage(table="database", what=f"it cannot be read: {type(error).__name__}")
        return StoreCheck(runs=False, verdicts=(_verdict(damage),))


def _checked(place: StorePlace, keys: StoreKeys) -> StoreCheck:
    with _held(place) as held, reading(place) as plain:
        check_readable(place, plain)
        if place.url is None:
            plain.execute("BEGIN")  # What an aggregator writes between two reads would look like damage.
        db = SealedDatabase(plain, keys.row_seal)
        found = [*_database(plain, place), *every_damage(db)]
        if place.url is None:
            beside = [*_files(db, place.file, keys, logs=not held)]
        else:
            beside = [*damaged_frames(db, place, keys)]
        runs = held or (place.url is not None and _is_served(plain))
    found += _of_unended(place, keys, beside) if beside else []
    return StoreCheck(runs=runs, verdicts=tuple(_verdict(one) for one in dict.fromkeys(found)))


def examine_server(place: StorePlace, keys: StoreKeys) -> "ServerState":
    """Return what the server of a store says of itself, if it may hold it, and holds no other; writes nothing.

    Raises:
        StoreError: it may not, cannot be reached, or has the store of another aggregator.
    """
    server = server_of(place)
    state = server.examine()
    from fleetcount_aggregator.storage.postgres import Link
    from fleetcount_aggregator.storage.postgres_engine import KeyRows

    link = Link(server, lambda _: None)
    try:
        if link.read(lambda db: db.execute("SELECT to_regclass('data_keys') IS NOT NULL").fetchone()[0]):
            DataKeys(keys.at_rest, KeyRows(place.name, link), keys.former).seals_store()
    finally:
        link.close()
    return state


def check_key(place: StorePlace, keys: StoreKeys) -> None:
    """Return unless a store in a file lies under another key, as that file's neighbour says: every row seems damaged.

    Raises:
        StoreError: it does.
    """
    DataKeys(keys.at_rest, _Unwritten(place.file), keys.former).seals_store()


def _of_unended(place: StorePlace, keys: StoreKeys, beside: Sequence[Damage]) -> list[Damage]:
    """Return what is damaged of windows that have not ended by now either: what lies beside the rows goes at the
    end.
    """
    with reading(place) as later:
        states = sql.read_log_states(SealedDatabase(later, keys.row_seal))
    unended = {one.window_id for one in states if not one.ended}
    return [one for one in beside if one.window_id is None or one.window_id in unended]


def _verdict(damage: Damage) -> Verdict:
    means, repair = _VERDICTS.get(damage.table, _WINDOW)
    return Verdict(damage=damage, means=means, repair=repair)


@contextmanager
def _held(place: StorePlace) -> Generator[bool]:
    """Keep an aggregator from starting meanwhile; give whether one runs."""
    lock = place.file.with_name(place.file.name + ".lock")
    if place.url is not None or not lock.exists():
        yield False
        return
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        runs = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            runs = True
        yield runs
    finally:
        os.close(descriptor)


def _database(db: Database, place: StorePlace) -> Iterable[Damage]:
    """Return what SQLite itself says of its file; PostgreSQL has checksums of its own, and one row more."""
    if place.url is not None:
        there = db.execute("SELECT count(*) FROM coordinator").fetchone()[0] == 1
        return [] if there else [Damage(table="database", what=COORDINATOR_GONE)]
    said = [str(row[0]) for row in db.execute("PRAGMA integrity_check(10)").fetchall()]
    return [Damage(table="database", what=one) for one in said if one != "ok"]


class _Unwritten(KeyFiles):
    """Key files that are only read: a key that lies under a former key stays so."""

    def write(self, name: str, wrapped: bytes) -> None:
        """Write nothing."""


def _files(db: SealedDatabase, database: Path, keys: StoreKeys, *, logs: bool) -> Iterator[Damage]:
    states = [one for one in sql.read_log_states(db) if not one.ended]
    data_keys = DataKeys(keys.at_rest, _Unwritten(database), keys.former)
    missing = data_keys.take_up([one.window_id for one in states])
    if not is_restored(db):  # A backup has no data keys: the next start asks the others how such windows have ended.
        yield from missing
    yield from _chains(db, data_keys)
    yield from _beside(db, database)
    without = {one.window_id for one in missing}
    for state in states if logs else ():
        path = database.with_name(f"{database.stem}.{state.window_id.hex()}.log")
        if state.window_id not in without and (said := _log(path, state, data_keys)):
            yield Damage(table="log", what=said, window_id=state.window_id)


def _log(path: Path, state: LogState, data_keys: DataKeys) -> str:
    """Return what is damaged of a log, "" for nothing."""
    promised = state.closed_length or state.durable_length
    if not path.exists():
        return f"{path} is missing: {promised} bytes of it have receipts" if promised else ""
    try:
        with LogScan(path, state.window_id, data_keys.of(state.window_id).log_key, parts=True) as scan:
            for _ in scan.frames():
                pass
    except StoreError as error:
        return str(error)
    if scan.end < promised or (state.closed_length is not None and scan.end != state.closed_length):
        return f"{path} is damaged at byte {scan.end}: {promised} bytes of it have receipts"
    return ""


def _is_served(database: Database) -> bool:
    """Return whether a process serves a store in PostgreSQL."""
    from fleetcount_aggregator.storage.postgres import GRANTED, PROCESS_LOCK  # As above.

    held = f"SELECT count(*) {GRANTED} AND objid::bigint = ?"
    return bool(database.execute(held, (PROCESS_LOCK,)).fetchone()[0])
