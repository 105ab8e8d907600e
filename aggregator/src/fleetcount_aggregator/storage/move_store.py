"""A store moves to another place, between SQLite and PostgreSQL, both ways, while no aggregator runs on it.

What ends the process leaves the source whole and the target refusing to serve, or, once every row was read back and
found the same, both refusing until the move is run again: never two stores that serve. Knows no table by name but
`windows`.

Frames and digests move sealed as they are. A key is needed only where the lanes of a window become the one log that
lies beside a file: frames get numbers that go on from lane to lane, so their heads are written again under the log's
key. Positions of complete reports run through the lanes in this order too, so none changes.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.data_keys import DataKeys, StoreKeys
from fleetcount_aggregator.storage.database import WINDOWS, Database, SealedDatabase
from fleetcount_aggregator.storage.engine import Engine, SealedEngine
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import RECORD_BYTES, LogBackend, RawFrame
from fleetcount_aggregator.storage.log_format import FrameHead
from fleetcount_aggregator.storage.opening import open_engine, reading
from fleetcount_aggregator.storage.report_index import ReportIndex
from fleetcount_aggregator.storage.schema import (
    MOVED,
    MOVING,
    RESTORED,
    SERVING,
    TABLES,
    TableColumns,
    read_store_state,
)


class LaneJoiner:
    """Joins lanes on the way into a store whose rows and data keys are there already; `keys` are asked for once."""

    def __init__(self, target: Engine, keys: Callable[[], StoreKeys]) -> None:
        self._target = target
        self._load = keys
        self._loaded: StoreKeys | None = None

    @property
    def _keys(self) -> StoreKeys:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def joined(self, window_id: WindowId, frames: Iterable[RawFrame]) -> Iterator[RawFrame]:
        """Yield the frames of all lanes, which come lane by lane, as those of one.

        Raises:
            StoreError: a frame is damaged, the window has no data key, or what one device sent lies in two lanes, which
                only their joining sorts out.
        """
        log_key = DataKeys(self._keys.at_rest, self._target.key_store(), self._keys.former).of(window_id).log_key
        first, header, index = 0, b"", ReportIndex(2)
        for lane, alike in groupby(frames, lambda frame: frame.lane):
            before = first
            for frame in alike:
                head = FrameHead.decode(frame.head, log_key)
                header = header or frame.header
                if head is None or head.sequence != first - before or frame.header != header:
                    place = f"frame {first - before} of lane {lane}"
                    raise StoreError(f"window {window_id.hex()}: {place} is damaged; run `fleetcount aggregator check`")
                ids, certificates, _ = head.split_columns(frame.columns)
                if not index.load(ids, certificates, head.round):
                    raise StoreError(
                        f"window {window_id.hex()} has reports of one device in two lanes; allowed beside a file is one"
                        ": move the store when the window has ended"
                    )
                moved = replace(head, sequence=first, group=before + head.group)
                yield RawFrame(0, header, moved.encode(log_key), frame.columns, frame.parts)
                first += 1

    def note_length(self, window_id: WindowId, length: int) -> None:
        """Remember how long the log of a closed window is: it has one header now, and not one a lane.

        Raises:
            StoreError: the row of the window is damaged.
        """

        def work(db: SealedDatabase) -> None:
            found = db.execute(f"{WINDOWS.select} WHERE window_id = ?", (window_id,)).fetchone()
            key, *values = WINDOWS.checked(db, found)[:-1]
            values[WINDOWS.columns.index("log_bytes")] = length
            db.execute(WINDOWS.update, WINDOWS.updating(db, bytes(key), *values))

        SealedEngine(self._target, self._keys.row_seal).write(work)


@dataclass(frozen=True, slots=True)
class KnownLog:
    """What the rows say of a window: whether it has ended, or its intake is closed, and of how many bytes its log
    was.
    """

    length: int
    closed: bool
    ended: bool


@dataclass(slots=True)
class _Passed:
    """Counts and hashes what passes."""

    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    """A SHA-256; its type has no public name."""

    def frames(self, frames: Iterable[RawFrame]) -> Iterator[RawFrame]:
        """Yield frames."""
        for frame in frames:
            self.size = self.size or len(frame.header)
            for piece in frame[1:]:
                self.digest.update(len(piece).to_bytes(8) + piece)
            self.size += sum(map(len, frame[2:]))
            yield frame

    def records(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield blocks, however they are cut."""
        for block in blocks:
            self.digest.update(block)
            self.size += len(block)
            yield block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Passed) and (self.size, self.digest.digest()) == (other.size, other.digest.digest())

    __hash__ = None  # type: ignore[assignment] # it changes


def move_frames(old: LogBackend, new: LogBackend, known: Mapping[WindowId, KnownLog], joiner: LaneJoiner) -> None:
    """Copy the frames and digests of every window, and compare what is read back.

    Raises:
        StoreError: something is damaged, did not arrive as it was, or lies behind what is `known`: a crash may have
            torn it, and a start of the aggregator looks.
    """
    under_way = {window_id for window_id, log in known.items() if not log.ended}
    for window_id in sorted(old.windows() | under_way):
        # What is under way needs its place also where nothing has come yet.
        if window_id in under_way or old.holds(window_id):
            _move_log(old, new, window_id, known.get(window_id), joiner)
        _move_digests(old, new, window_id)


def _move_log(
    old: LogBackend, new: LogBackend, window_id: WindowId, known: KnownLog | None, joiner: LaneJoiner
) -> None:
    lanes = max(old.lanes(window_id), default=-1) + 1
    there, arrived = _Passed(), _Passed()
    frames, closed = old.unload(window_id), known is not None and known.closed
    joins = lanes > 1 and not new.shared
    if joins:
        lanes, frames = 1, joiner.joined(window_id, frames)
    new.load(window_id, lanes, there.frames(frames), closed=closed)
    if old.counts_bytes and known is not None and not known.ended and there.size != known.length:
        raise StoreError(
            f"the log of window {window_id.hex()} has {there.size} bytes, not the {known.length} that were noted when"
            " the aggregator stopped: start it and stop it once, and move then"
        )
    for _ in arrived.frames(new.unload(window_id)):
        pass
    if there != arrived:
        raise StoreError(f"the log of window {window_id.hex()} did not arrive as it was")
    if joins and closed:
        joiner.note_length(window_id, there.size)


def _move_digests(old: LogBackend, new: LogBackend, window_id: WindowId) -> None:
    counted, there, arrived = _Passed(), _Passed(), _Passed()
    for _ in counted.records(old.ended(window_id).records()):
        pass
    if not counted.size:
        return
    new.ended(window_id).write(counted.size // RECORD_BYTES, there.records(old.ended(window_id).records()))
    for _ in arrived.records(new.ended(window_id).records()):
        pass
    if there != arrived:
        raise StoreError(f"the digests of window {window_id.hex()} did not arrive as they were")


_AT_ONCE: Final = 500
_FINAL: Final = {state.value for state in FINAL_STATES}


def move_store(source: StorePlace, target: StorePlace, keys: Callable[[], StoreKeys]) -> bool:
    """Move a store; return False if it had been moved there already. Run by an operator, who serves the target then.

    Rows are compared by number and digest, read back from the target. Keys of windows leave the source once the target
    serves. Run again after whatever ended it, it begins anew or finishes. `keys` loads what the store lies under, which
    a window needs whose lanes become one log beside a file, and no other.

    Raises:
        UsageError: both are the same place.
        StoreError: one cannot be opened or is in use, the target holds another store, or a row did not arrive.
    """
    if (source.url, source.url or source.file) == (target.url, target.url or target.file):
        raise UsageError(f"{source.name} is source and target; allowed are two places")
    if source.url is None and not source.file.is_file():
        raise StoreError(f"{source.file} does not exist: there is nothing to move")
    with reading(source) as plain:  # To open an empty database would make a store there.
        plain.execute("SELECT version FROM schema_version")
    with closing(open_engine(source, check_state=_any_store_state)) as old:
        number = _number(_store_state(old), MOVED)
        if number is None and _store_state(old) == RESTORED:
            raise StoreError(
                f"{source.name} was put back from a backup and has not heard yet what it missed: start it, and"
                " move it when the other aggregators have answered"
            )
        if number is None and _store_state(old) != SERVING:
            raise StoreError(f"{source.name} is the target of a move itself, which has not ended")
        # What is new here is never one that may be served, however this ends.
        with closing(open_engine(target, check_state=_any_store_state, made=MOVING)) as new:
            return _move(old, new, source, target, keys, number)


def _move(
    old: Engine,
    new: Engine,
    source: StorePlace,
    target: StorePlace,
    keys: Callable[[], StoreKeys],
    number: str | None,
) -> bool:
    """Move from a source that may be moved, or has been under this number; as `move_store`."""
    if number is None:
        number = _copy(old, new, source, target, keys)
        _set_store_state(old, f"{MOVED} {number}")
    elif _store_state(new) in (SERVING, MOVING) and _is_empty(new):
        raise StoreError(f"{source.name} was moved elsewhere, not to {target.name}")
    moves = _number(_store_state(new), MOVING) == number
    if not moves and _store_state(new) != SERVING:
        raise StoreError(f"{source.name} was moved elsewhere: {target.name} is the target of another move")
    if moves:
        _set_store_state(new, SERVING)
    left, backend = old.key_store(), old.log_backend(source.file)
    for name in left.names():
        left.erase(name)
    for window_id in backend.windows():
        backend.drop(window_id)
    return moves


def _any_store_state(_place: str, _store_state: str) -> None:
    """Take a store as it stands."""


def _store_state(engine: Engine) -> str:
    return engine.read(read_store_state)


def _set_store_state(engine: Engine, store_state: str) -> None:
    engine.write(lambda db: db.execute("UPDATE instance SET store_state = ?", (store_state,)))


def _number(store_state: str, word: str) -> str | None:
    """Return a move's number if the state begins with this word."""
    first, _, number = store_state.partition(" ")
    return number if first == word else None


def _is_empty(engine: Engine) -> bool:
    return not any(rows for table in TABLES for rows in _pages(engine, table))


def _copy(old: Engine, new: Engine, source: StorePlace, target: StorePlace, keys: Callable[[], StoreKeys]) -> str:
    """Copy everything and compare it; return the number of the move. The target refuses to serve from here on."""
    if _number(_store_state(new), MOVING) is None and not (_store_state(new) == SERVING and _is_empty(new)):
        raise StoreError(f"{target.name} holds a store already; allowed is an empty one")
    number = secrets.token_hex(8)
    _set_store_state(new, f"{MOVING} {number}")
    for table in TABLES:
        _copy_table(old, new, table)
        if _summed(old, table) != _summed(new, table):
            raise StoreError(f"table {table.name} did not arrive as it was; {source.name} serves on")
    from_keys, to_keys = old.key_store(), new.key_store()
    for name in from_keys.names():
        wrapped = from_keys.read(name)
        to_keys.write(name, wrapped or b"")
        if to_keys.read(name) != wrapped:
            raise StoreError(f"{to_keys.where(name)} did not arrive as it was; {source.name} serves on")
    known = old.read(lambda db: db.execute("SELECT window_id, durable_bytes, log_bytes, state FROM windows").fetchall())
    logs = {
        WindowId(bytes(window)): KnownLog(durable if closed is None else closed, closed is not None, state in _FINAL)
        for window, durable, closed, state in known
    }
    move_frames(old.log_backend(source.file), new.log_backend(target.file), logs, LaneJoiner(new, keys))
    return number


def _copy_table(old: Engine, new: Engine, table: TableColumns) -> None:
    new.write(lambda db: db.execute(f"DELETE FROM {table.name}"))  # noqa: S608 - constant
    for rows in _pages(old, table):
        new.write(partial(_insert, table=table, rows=rows))


def _pages(engine: Engine, table: TableColumns) -> Iterator[list[Any]]:
    """Yield the rows of a table, a page at a time, in the order of their key."""
    above: tuple[Any, ...] | None = None
    places = [table.columns.index(name) for name in table.key]
    while rows := engine.read(partial(_page, table=table, above=above)):
        yield rows
        above = tuple(rows[-1][place] for place in places)


def _page(db: Database, table: TableColumns, above: tuple[Any, ...] | None) -> list[Any]:
    columns, key, marks = ", ".join(table.columns), ", ".join(table.key), ", ".join("?" for _ in table.key)
    after = "" if above is None else f" WHERE ({key}) > ({marks})"
    query = f"SELECT {columns} FROM {table.name}{after} ORDER BY {key} LIMIT {_AT_ONCE}"  # noqa: S608 - constant
    return db.execute(query, above or ()).fetchall()


def _insert(db: Database, table: TableColumns, rows: list[Any]) -> None:
    columns, marks = ", ".join(table.columns), ", ".join("?" for _ in table.columns)
    db.executemany(f"INSERT INTO {table.name} ({columns}) VALUES ({marks})", rows)  # noqa: S608 - constant


def _summed(engine: Engine, table: TableColumns) -> tuple[int, int]:
    """Return the number of rows and the sum of their SHA-256, which no order changes: other engines sort otherwise."""
    count = total = 0
    for rows in _pages(engine, table):
        count += len(rows)
        total += sum(int.from_bytes(_digest(row)) for row in rows)
    return count, total % 2**256


def _digest(row: tuple[Any, ...]) -> bytes:
    digest = hashlib.sha256()
    for value in row:
        data = bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
        digest.update(f"{type(value).__name__ if value is None else ''}{len(data)}:".encode() + data)
    return digest.digest()
