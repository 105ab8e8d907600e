"""The frames of all windows in PostgreSQL: a table a window, and a row a shard that says who may append what next.

One statement appends a group: it moves the shard's row on from its epoch and sequence, and only what it moved is
inserted. So two owners cannot both write, a closed shard takes nothing, and the same group sent again after a lost
connection is stored once. Sealed bytes only; needs psycopg.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import WindowId
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import (
    DamagedFrameError,
    FencedError,
    StoreAwayError,
    StoreError,
    UnknownWriteError,
)
from fleetcount_aggregator.storage.frames import FRAME_BITS, FrameRange, LogState, RawFrame, ReadFrame, checked_frame
from fleetcount_aggregator.storage.log_format import (
    HEAD_BYTES,
    FrameHead,
    NewFrame,
    decode_file_header,
    encode_file_header,
)
from fleetcount_aggregator.storage.postgres import Link, Server
from fleetcount_aggregator.storage.postgres_digests import PostgresDigests

PATIENCE_S: float = 10.0
"""How long a write or a read waits for a server that comes back; a killed one takes one to four seconds."""
REST_S: float = 1.0
"""How long after that it is not asked again."""
_PAUSE_S: Final = 0.1
_FRAMES_AT_ONCE: Final = (64, 8_192)
"""Fewest and most frames read back in one answer, which has `_BYTES_AT_ONCE` of columns where it may."""
_BYTES_AT_ONCE: Final = 4 * 2**20
_NAME_BYTES: Final = 24

_TABLE: Final = "TABLE_OF_WINDOW"
"""Stands in a statement for the name of a window's table."""
_MAKE: Final = (
    # Nothing in it is ever changed and all of it goes at once, so that cleaning it would only read it again.
    "CREATE TABLE IF NOT EXISTS TABLE_OF_WINDOW (shard integer NOT NULL, seq bigint NOT NULL, round smallint NOT NULL,"
    " n integer NOT NULL, head bytea NOT NULL, cols bytea NOT NULL, parts bytea NOT NULL, PRIMARY KEY (shard, seq))"
    " WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)",
    # Sealed bytes do not shrink, and of what lies outside uncompressed a piece is read without the rest.
    "ALTER TABLE TABLE_OF_WINDOW ALTER cols SET STORAGE EXTERNAL, ALTER parts SET STORAGE EXTERNAL",
)
# One statement: only what moved the shard's row on is inserted.
_APPEND: Final = (
    "WITH mine AS (UPDATE shards SET seq = seq + ?, rows = rows + ?, header = ?"
    " WHERE window_id = ? AND shard = ? AND epoch = ? AND seq = ? AND closed_seq IS NULL RETURNING shard)"
    " INSERT INTO TABLE_OF_WINDOW (shard, seq, round, n, head, cols, parts)"
    " SELECT mine.shard, new.* FROM mine, (VALUES "
)
_NEW: Final = "(?::bigint, ?::smallint, ?::integer, ?::bytea, ?::bytea, ?::bytea)"
_APPEND_END: Final = ") AS new RETURNING head"
# Whose connection is cut while a commit waits for a standby leaves it where it is seen, and the standby without it. To
# lock the row is to commit something behind it, and so this is answered only when a standby has both.
_SELECT_HEAD: Final = "SELECT head FROM TABLE_OF_WINDOW WHERE shard = ? AND seq = ? FOR UPDATE"
_SELECT_WHOLE: Final = "SELECT head, cols, parts FROM TABLE_OF_WINDOW WHERE shard = ? AND seq = ?"
_INSERT: Final = "INSERT INTO TABLE_OF_WINDOW (shard, seq, round, n, head, cols, parts) VALUES (?, ?, ?, ?, ?, ?, ?)"
_MOVE_ON: Final = "UPDATE shards SET seq = seq + 1, rows = rows + ?, header = ? WHERE window_id = ? AND shard = ?"
_SELECT_COLUMNS: Final = "SELECT seq, head, cols FROM TABLE_OF_WINDOW WHERE shard = ? AND seq >= ? AND seq < ?"
# Range by range by the key, in one of the columns; not in order, since the server would sort bytes with rows, on disk.
_SELECT: Final = (
    "SELECT r.place, (SELECT CASE WHEN r.start < HEAD_BYTES THEN substring(head FROM r.start + 1 FOR r.size)"
    " WHEN r.start < HEAD_BYTES + octet_length(cols)"
    " THEN substring(cols FROM r.start - HEAD_BYTES + 1 FOR r.size)"
    " ELSE substring(parts FROM r.start - HEAD_BYTES - octet_length(cols) + 1 FOR r.size) END"
    " FROM TABLE_OF_WINDOW f WHERE f.shard = r.shard AND f.seq = r.seq)"
    " FROM unnest(?::integer[], ?::bigint[], ?::integer[], ?::integer[]) WITH ORDINALITY"
    " AS r(shard, seq, start, size, place)"
).replace("HEAD_BYTES", str(HEAD_BYTES))

Result = TypeVar("Result")


def _for_window(statement: str, window_id: WindowId) -> str:
    """Return a statement about the table of a window, whose name has of the window's id as much as a name may be
    long.
    """
    return statement.replace(_TABLE, f"frames_{window_id[:_NAME_BYTES].hex()}")


def _at_once(rows: Sequence[tuple[int, bytes, bytes]]) -> int:
    """Return how many frames the next answer has, by the size of those of the last."""
    least, most = _FRAMES_AT_ONCE
    size = sum(len(columns) for _, _, columns in rows)
    return min(max(least, _BYTES_AT_ONCE * len(rows) // max(1, size)), most)


def install_shards(db: Database, window_id: WindowId, shards: int) -> None:
    """Make the place of a window that is installed in this transaction, cut into `shards`; one that is there stays.

    A table of its own and not a partition: making and dropping a partition locks the others too.
    """
    for statement in _MAKE:
        db.execute(_for_window(statement, window_id))
    rows = [(bytes(window_id), shard) for shard in range(shards)]
    db.executemany("INSERT INTO shards (window_id, shard) VALUES (?, ?) ON CONFLICT DO NOTHING", rows)


def close_shards(db: Database, window_id: WindowId) -> None:
    """Take no instalment of a window any more, from the commit of this transaction on."""
    db.execute("UPDATE shards SET closed_seq = seq WHERE window_id = ? AND closed_seq IS NULL", (bytes(window_id),))


class PatientLink:
    """A link that waits for a server that is away, once for all that ask: who comes after that is told at once."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._away: StoreError | None = None
        self._again_at = 0.0

    def run(self, work: Callable[[Database], Result]) -> Result:
        """Return what the work does, each statement a transaction; it runs again from its beginning after a loss.

        Raises:
            StoreError: the server refused it, or did not come back within `PATIENCE_S`.
        """
        if self._away is not None and time.monotonic() < self._again_at:
            raise StoreAwayError(str(self._away))
        ends = time.monotonic() + (PATIENCE_S if self._away is None else 0)
        while True:
            try:
                result = self.link.read(work)
            except StoreError as error:
                if not self.link.is_lost:
                    raise
                if time.monotonic() >= ends:
                    self._away, self._again_at = error, time.monotonic() + REST_S
                    raise
            else:
                self._away = None
                return result
            time.sleep(_PAUSE_S)


class _Reads:
    """Implements `FrameReads` of one window."""

    def __init__(self, link: PatientLink, window_id: WindowId) -> None:
        self._link = link
        self._window_id = window_id
        self._select = _for_window(_SELECT, window_id)

    def read(self, ranges: Sequence[FrameRange]) -> list[bytes | memoryview]:
        """See `FrameReads.read`."""
        if not ranges:
            return []
        shards, sequences = zip(*(_place(one.frame) for one in ranges), strict=True)
        columns = shards, sequences, [one.start for one in ranges], [one.size for one in ranges]
        # As text: the client library takes several times as long over lists of numbers.
        values = ["{" + ",".join(map(str, column)) + "}" for column in columns]
        found = self._link.run(lambda db: dict(db.execute(self._select, values).fetchall()))
        read = [found[place] for place in range(1, len(ranges) + 1)]
        for data, one in zip(read, ranges, strict=True):
            if data is None or len(data) != one.size:
                raise self.damaged(one.frame, "it is missing" if data is None else "it is too short")
        return read

    def damaged(self, frame: int, why: str) -> DamagedFrameError:
        """See `FrameReads.damaged`."""
        shard, sequence = _place(frame)
        return DamagedFrameError(f"window {self._window_id.hex()}: frame {sequence} of shard {shard} is damaged: {why}")


def _place(frame: int) -> tuple[int, int]:
    """Return the shard and the sequence number that a frame's number joins."""
    return frame >> FRAME_BITS, frame & ((1 << FRAME_BITS) - 1)


@dataclass(frozen=True, slots=True)
class PostgresReader:
    """Implements `FrameReader`; a process has one connection to a server for all of its readers.

    What is read over it is not copied: a batch is megabytes.
    """

    window_id: WindowId
    server: Server

    @contextmanager
    def opened(self) -> Generator[_Reads]:
        """See `FrameReader.opened`."""
        with _LINKS_LOCK:
            link = _LINKS.setdefault(self.server, PatientLink(Link(self.server, _leave_bytes)))
        yield _Reads(link, self.window_id)


class _InPlace(Loader):
    """Leaves bytes where the client library has them, for as long as somebody looks at them."""

    format = Format.BINARY

    def load(self, data: Buffer) -> Buffer:
        """Return what it is given, which is no copy where psycopg is compiled."""
        return data


def _leave_bytes(connection: "Connection[tuple[Any, ...]]") -> None:
    connection.adapters.register_loader("bytea", _InPlace)


_LINKS: Final[dict[Server, PatientLink]] = {}
_LINKS_LOCK: Final = threading.Lock()


class PostgresFrames(_Reads):
    """Implements `Frames`: those of one shard, written under an epoch, or with None only read."""

    def __init__(
        self,
        link: PatientLink,
        reader: PostgresReader,
        window_id: WindowId,
        log_key: bytes,
        shard: int,
        epoch: int | None,
    ) -> None:
        super().__init__(link, window_id)
        self.expected = 0
        self.length = 0
        """In bytes of a file that has them, so that a store may move."""
        self._sequence = 0
        self.is_final = False
        self.reader = reader
        self._log_key = log_key
        self._shard = shard
        self._epoch = epoch
        self._where = (bytes(window_id), shard)
        self._select_columns = _for_window(_SELECT_COLUMNS, window_id)
        self._select_head = _for_window(_SELECT_HEAD, window_id)

    def ends_elsewhere(self) -> bool:
        """See `Frames.ends_elsewhere`."""
        if self.is_final:
            return False
        query, where = "SELECT closed_seq FROM shards WHERE window_id = ? AND shard = ?", self._where
        row = self._link.run(lambda db: db.execute(query, where).fetchone())
        closed = None if row is None else row[0]
        self.is_final = closed is not None and closed == self._sequence
        return closed is not None and not self.is_final

    def columns(self) -> Iterator[ReadFrame]:
        """See `Frames.columns`; raises FencedError if another epoch is in force."""
        query, where = (
            "SELECT epoch, seq, header, closed_seq FROM shards WHERE window_id = ? AND shard = ?",
            self._where,
        )
        row = self._link.run(lambda db: db.execute(query, where).fetchone())
        if row is None:
            raise StoreError(f"window {self._window_id.hex()} has no shard {self._shard}")
        epoch, end, header, closed = row
        self.is_final = closed is not None
        if self._epoch is not None and epoch != self._epoch:
            raise self._fenced()
        self._sequence, self.length = end, len(header)
        if header:
            try:
                self.expected = decode_file_header(header, self._log_key, self._window_id)
            except ValueError as error:
                place = f"window {self._window_id.hex()}: shard {self._shard}"
                raise DamagedFrameError(f"{place} cannot be used: {error}") from error
        start, stop = 0, min(_FRAMES_AT_ONCE[0], end)
        # The server, a process of its own, reads on while what it gave is looked through.
        with ThreadPoolExecutor(1, "frames-ahead") as ahead:
            coming = ahead.submit(self._rows, start, stop)
            while start < stop:
                rows = coming.result()
                first, start = start, stop
                stop = min(start + _at_once(rows), end)
                if start < stop:
                    coming = ahead.submit(self._rows, start, stop)
                yield from self._checked(rows, range(first, start))

    def _rows(self, start: int, end: int) -> list[tuple[int, bytes, bytes]]:
        values = (self._shard, start, end)
        return self._link.run(lambda db: db.execute(self._select_columns, values).fetchall())

    def _checked(self, rows: Sequence[tuple[int, bytes, bytes]], sequences: Iterable[int]) -> Iterator[ReadFrame]:
        found = {sequence: (head, columns) for sequence, head, columns in rows}
        for sequence in sequences:
            number = self._number(sequence)
            if sequence not in found:
                raise self.damaged(number, "it is missing")
            frame = checked_frame(self, number, *found[sequence], sequence, self._window_id, self._log_key)
            self.length += frame.head.frame_bytes
            yield frame

    def append(self, frames: Sequence[NewFrame], expected: int) -> list[int]:
        """See `Frames.append`. After a lost connection the same statement says whether the first one was done."""
        if self._epoch is None:
            raise self._fenced()
        first = self._sequence
        header = encode_file_header(self._log_key, self._window_id, expected)
        values: list[Any] = [len(frames), sum(frame.head.count for frame in frames), header]
        values += [*self._where, self._epoch, first]
        heads = [frame.head_bytes for frame in frames]
        for at, (frame, head) in enumerate(zip(frames, heads, strict=True)):
            values += [first + at, frame.head.round, frame.head.count, head, frame.columns, frame.parts()]
        statement = _for_window(_APPEND + ", ".join([_NEW] * len(frames)) + _APPEND_END, self._window_id)

        def work(db: Database) -> bool:
            # Nothing returned: somebody else's, or ours, of which the answer was lost. Every frame has its own salt.
            stored = db.execute(statement, values).fetchall()
            stored = stored or db.execute(self._select_head, (self._shard, first)).fetchall()
            return bool(stored) and stored[0][0] in heads

        try:
            written = self._link.run(work)
        except StoreError as error:
            raise UnknownWriteError(str(error)) from error
        if not written:
            raise self._fenced()
        self.expected = expected
        self.length = (self.length or len(header)) + sum(frame.head.frame_bytes for frame in frames)
        self._sequence += len(frames)
        return [self._number(at) for at in range(first, self._sequence)]

    def _number(self, sequence: int) -> int:
        return (self._shard << FRAME_BITS) + sequence

    def _fenced(self) -> FencedError:
        return FencedError(
            f"shard {self._shard} of window {self._window_id.hex()} is not written under epoch {self._epoch}: another"
            " process has taken it, it is closed, or its end is further than this process knows"
        )

    def close(self) -> None:
        """See `Frames.close`: the connection is shared."""


class PostgresHome:
    """Implements `FrameHome` over a link of its own; a window that is installed is cut into `shards`.

    Raises UsageError unless `shards` is a power of two, 1 to 256.
    """

    counts_bytes = False
    cuts = True

    def __init__(self, server: Server, link: Link, shards: int = 1) -> None:
        if shards not in {2**power for power in range(9)}:
            raise UsageError(f"shards = {shards}, allowed: a power of two, 1 to 256")
        self._server = server
        self._link = link
        self._patient = PatientLink(link)
        self._shards = shards

    def know(self, states: Sequence[LogState]) -> None:
        """See `FrameHome.know`: the rows of shards know."""

    def given_up(self, states: Sequence[LogState]) -> list[WindowId]:
        """See `FrameHome.given_up`."""
        return []

    def leaves(self, window_id: WindowId) -> bool:
        """See `FrameHome.leaves`."""
        return self.holds(window_id)

    def install(self, db: Database, window_id: WindowId) -> None:
        """See `FrameHome.install`."""
        install_shards(db, window_id, self._shards)

    def close_window(self, db: Database, window_id: WindowId) -> None:
        """See `FrameHome.close_window`."""
        close_shards(db, window_id)

    def seize(self, window_id: WindowId) -> Mapping[int, int]:
        """See `FrameHome.seize`."""
        statement = "UPDATE shards SET epoch = epoch + 1 WHERE window_id = ? RETURNING shard, epoch"
        return dict(self._link.write(lambda db: db.execute(statement, (bytes(window_id),)).fetchall()))

    def shard_count(self, window_id: WindowId) -> int:
        """See `FrameHome.shard_count`."""
        query = "SELECT count(*) FROM shards WHERE window_id = ?"
        return int(self._link.read(lambda db: db.execute(query, (bytes(window_id),)).fetchone())[0])

    def frames(self, window_id: WindowId, log_key: bytes, shard: int, epoch: int | None) -> PostgresFrames:
        """See `FrameHome.frames`."""
        return PostgresFrames(self._patient, self.reader(window_id), window_id, log_key, shard, epoch)

    def reader(self, window_id: WindowId) -> PostgresReader:
        """See `FrameHome.reader`."""
        return PostgresReader(window_id, self._server)

    def ended(self, window_id: WindowId) -> PostgresDigests:
        """See `FrameHome.ended`."""
        return PostgresDigests(self._link, window_id)

    def holds(self, window_id: WindowId) -> bool:
        """See `FrameHome.holds`."""
        return self.shard_count(window_id) > 0

    def drop(self, window_id: WindowId) -> None:
        """See `FrameHome.drop`."""

        def both(db: Database) -> None:
            db.execute("DELETE FROM shards WHERE window_id = ?", (bytes(window_id),))
            db.execute(_for_window("DROP TABLE IF EXISTS TABLE_OF_WINDOW", window_id))

        self._link.write(both)

    def windows(self) -> set[WindowId]:
        """See `FrameHome.windows`."""
        query = "SELECT window_id FROM shards UNION SELECT window_id FROM ended"
        return {WindowId(bytes(window)) for (window,) in self._link.read(lambda db: db.execute(query).fetchall())}

    def unload(self, window_id: WindowId) -> Iterator[RawFrame]:
        """See `FrameHome.unload`."""
        query = "SELECT shard, header, seq FROM shards WHERE window_id = ? ORDER BY shard"
        for shard, header, end in self._link.read(lambda db: db.execute(query, (bytes(window_id),)).fetchall()):
            for sequence in range(end):
                yield RawFrame(shard, header, *self._whole(window_id, shard, sequence))

    def _whole(self, window_id: WindowId, shard: int, sequence: int) -> tuple[bytes, bytes, bytes]:
        select, where = _for_window(_SELECT_WHOLE, window_id), (shard, sequence)
        row = self._link.read(lambda db: db.execute(select, where).fetchone())
        if row is None:
            raise StoreError(f"window {window_id.hex()}: frame {sequence} of shard {shard} is missing")
        head, columns, parts = map(bytes, row)
        return head, columns, parts

    def load(self, window_id: WindowId, shards: int, frames: Iterable[RawFrame], *, closed: bool) -> None:
        """See `FrameHome.load`."""
        self.drop(window_id)
        self._link.write(lambda db: install_shards(db, window_id, shards))
        insert, ends = _for_window(_INSERT, window_id), dict.fromkeys(range(shards), 0)
        for frame in frames:
            head = FrameHead.unchecked(frame.head)
            if head is None:
                raise StoreError(
                    f"window {window_id.hex()}: frame {ends[frame.shard]} of shard {frame.shard} is no frame"
                )
            row = (frame.shard, ends[frame.shard], head.round, head.count, *frame[2:])
            moved = (head.count, frame.header, bytes(window_id), frame.shard)

            def one(db: Database, row: tuple[Any, ...] = row, moved: tuple[Any, ...] = moved) -> None:
                db.execute(insert, row)
                db.execute(_MOVE_ON, moved)

            self._link.write(one)
            ends[frame.shard] += 1
        if closed:
            self._link.write(lambda db: close_shards(db, window_id))

    def close(self) -> None:
        """See `FrameHome.close`; what this process read with by itself is closed too."""
        self._link.close()
        with _LINKS_LOCK:
            link = _LINKS.pop(self._server, None)
        if link is not None:
            link.link.close()
