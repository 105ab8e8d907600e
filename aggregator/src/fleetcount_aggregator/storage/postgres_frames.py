"""The frames of all windows in PostgreSQL: a table a window, and a row a lane that says what is appended next.

A lane is what one process has written; it is made with the first frame and never taken over. One statement appends a
group: it moves the lane's row on from its sequence, and only what it moved is inserted. So a closed lane takes nothing,
and the same group sent again after a lost connection is stored once. Sealed bytes only; needs psycopg.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fleetcount_protocol.ids import WindowId
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import (
    DamagedFrameError,
    StatementRefusedError,
    StoreAwayError,
    StoreBusyError,
    StoreError,
    UnknownWriteError,
)
from fleetcount_aggregator.storage.frames import FRAME_BITS, FrameRange, ReadFrame, checked_frame
from fleetcount_aggregator.storage.log_format import HEAD_BYTES, NewFrame, decode_file_header, encode_file_header
from fleetcount_aggregator.storage.postgres import Link, Server

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
# Who closes the window waits for this row, or this for it: no lane is made that is not seen then.
_MAKE: Final = (
    "WITH made AS (UPDATE intakes SET lanes = lanes + 1 WHERE window_id = ? AND NOT closed AND lanes < 32767"
    " RETURNING window_id, lanes - 1 AS lane)"
    " INSERT INTO lanes (window_id, lane) SELECT window_id, lane FROM made RETURNING lane"
)
# One statement: only what moved the lane's row on is inserted.
_APPEND: Final = (
    "WITH mine AS (UPDATE lanes SET seq = seq + ?, rows = rows + ?, header = ?"
    " WHERE window_id = ? AND lane = ? AND seq = ? AND NOT closed RETURNING lane)"
    " INSERT INTO TABLE_OF_WINDOW (lane, seq, round, n, head, cols, parts)"
    " SELECT mine.lane, new.* FROM mine, (VALUES "
)
_NEW: Final = "(?::bigint, ?::smallint, ?::integer, ?::bytea, ?::bytea, ?::bytea)"
_APPEND_END: Final = ") AS new RETURNING head"
# Whose connection is cut while a commit waits for a standby leaves it where it is seen, and the standby without it. To
# lock the row is to commit something behind it, and so this is answered only when a standby has both.
_SELECT_HEAD: Final = "SELECT head FROM TABLE_OF_WINDOW WHERE lane = ? AND seq = ? FOR UPDATE"
_SELECT_COLUMNS: Final = "SELECT seq, head, cols FROM TABLE_OF_WINDOW WHERE lane = ? AND seq >= ? AND seq < ?"
# Range by range by the key, in one of the columns; not in order, since the server would sort bytes with rows, on disk.
_SELECT: Final = (
    "SELECT r.place, (SELECT CASE WHEN r.start < HEAD_BYTES THEN substring(head FROM r.start + 1 FOR r.size)"
    " WHEN r.start < HEAD_BYTES + octet_length(cols)"
    " THEN substring(cols FROM r.start - HEAD_BYTES + 1 FOR r.size)"
    " ELSE substring(parts FROM r.start - HEAD_BYTES - octet_length(cols) + 1 FOR r.size) END"
    " FROM TABLE_OF_WINDOW f WHERE f.lane = r.lane AND f.seq = r.seq)"
    " FROM unnest(?::integer[], ?::bigint[], ?::integer[], ?::integer[]) WITH ORDINALITY"
    " AS r(lane, seq, start, size, place)"
).replace("HEAD_BYTES", str(HEAD_BYTES))
Result = TypeVar("Result")


def for_window(statement: str, window_id: WindowId) -> str:
    """Return a statement about the table of a window, whose name has of the window's id as much as a name may be
    long.
    """
    return statement.replace(_TABLE, f"frames_{window_id[:_NAME_BYTES].hex()}")


def _at_once(rows: Sequence[tuple[int, bytes, bytes]]) -> int:
    """Return how many frames the next answer has, by the size of those of the last."""
    least, most = _FRAMES_AT_ONCE
    size = sum(len(columns) for _, _, columns in rows)
    return min(max(least, _BYTES_AT_ONCE * len(rows) // max(1, size)), most)


class RetryingLink:
    """A link that waits once for a server that is away, at most `PATIENCE_S`; later callers fail at once."""

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

    def __init__(self, link: RetryingLink, window_id: WindowId) -> None:
        self._link = link
        self._window_id = window_id
        self._select = for_window(_SELECT, window_id)

    def read(self, ranges: Sequence[FrameRange]) -> list[bytes | memoryview]:
        """See `FrameReads.read`."""
        if not ranges:
            return []
        lanes, sequences = zip(*(_place(one.frame) for one in ranges), strict=True)
        columns = lanes, sequences, [one.start for one in ranges], [one.size for one in ranges]
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
        lane, sequence = _place(frame)
        return DamagedFrameError(f"window {self._window_id.hex()}: frame {sequence} of lane {lane} is damaged: {why}")


def _place(frame: int) -> tuple[int, int]:
    """Return the lane and the sequence number that a frame's number joins."""
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
            link = _LINKS.setdefault(self.server, RetryingLink(Link(self.server, _leave_bytes)))
        yield _Reads(link, self.window_id)


class _InPlace(Loader):
    """Leaves bytes where the client library has them, for as long as somebody looks at them."""

    format = Format.BINARY

    def load(self, data: Buffer) -> Buffer:
        """Return what it is given, which is no copy where psycopg is compiled."""
        return data


def _leave_bytes(connection: "Connection[tuple[Any, ...]]") -> None:
    connection.adapters.register_loader("bytea", _InPlace)


_LINKS: Final[dict[Server, RetryingLink]] = {}
_LINKS_LOCK: Final = threading.Lock()


def close_reader(server: Server) -> None:
    """Close the connection that the readers of this process share, if there is one."""
    with _LINKS_LOCK:
        link = _LINKS.pop(server, None)
    if link is not None:
        link.link.close()


class PostgresFrames(_Reads):
    """Implements `Frames`: those of a lane, to be read; without one a lane is made with the first that is appended."""

    def __init__(
        self, link: RetryingLink, reader: PostgresReader, window_id: WindowId, log_key: bytes, lane: int | None
    ) -> None:
        super().__init__(link, window_id)
        self.expected = 0
        self.length = 0
        """In bytes of a file that has them, so that a store may move."""
        self._sequence = 0
        self.reader = reader
        self._log_key = log_key
        self._lane = lane
        self._select_columns = for_window(_SELECT_COLUMNS, window_id)
        self._select_head = for_window(_SELECT_HEAD, window_id)

    def columns(self) -> Iterator[ReadFrame]:
        """See `Frames.columns`."""
        where = bytes(self._window_id), self._lane
        query = "SELECT header, seq FROM lanes WHERE window_id = ? AND lane = ?"
        header, end = self._link.run(lambda db: db.execute(query, where).fetchone()) or (b"", 0)
        start, self._sequence = self._sequence, end
        if header:
            try:
                self.expected = decode_file_header(header, self._log_key, self._window_id)
            except ValueError as error:
                place = f"window {self._window_id.hex()}: lane {self._lane}"
                raise DamagedFrameError(f"{place} cannot be used: {error}") from error
        self.length = self.length or len(header)
        stop = min(start + _FRAMES_AT_ONCE[0], end)
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
        values = (self._lane, start, end)
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
        if self._lane is None:
            self._lane = self._made()
        first, lane = self._sequence, self._lane
        header = encode_file_header(self._log_key, self._window_id, expected)
        values: list[Any] = [len(frames), sum(frame.head.count for frame in frames), header]
        values += [bytes(self._window_id), lane, first]
        heads = [frame.head_bytes for frame in frames]
        for at, (frame, head) in enumerate(zip(frames, heads, strict=True)):
            values += [first + at, frame.head.round, frame.head.count, head, frame.columns, frame.parts()]
        statement = for_window(_APPEND + ", ".join([_NEW] * len(frames)) + _APPEND_END, self._window_id)

        def work(db: Database) -> bool:
            # Nothing returned: it is closed, or it is there, of which the answer was lost. Each frame has its own salt.
            stored = db.execute(statement, values).fetchall()
            stored = stored or db.execute(self._select_head, (lane, first)).fetchall()
            return bool(stored) and stored[0][0] in heads

        try:
            written = self._link.run(work)
        except StatementRefusedError:
            raise
        except StoreError as error:
            raise UnknownWriteError(str(error)) from error
        if not written:
            raise self._closed()
        self.expected = expected
        self.length = (self.length or len(header)) + sum(frame.head.frame_bytes for frame in frames)
        self._sequence += len(frames)
        return [self._number(at) for at in range(first, self._sequence)]

    def _made(self) -> int:
        """Make a lane; one whose answer was lost stays empty."""
        made = self._link.run(lambda db: db.execute(_MAKE, (bytes(self._window_id),)).fetchone())
        if made is None:
            raise self._closed()
        return int(made[0])

    def _number(self, sequence: int) -> int:
        return ((self._lane or 0) << FRAME_BITS) + sequence

    def _closed(self) -> StoreBusyError:
        return StoreBusyError(
            f"lane {self._lane} of window {self._window_id.hex()} takes nothing: the window is closed, or the end of"
            " the lane is not where this process has left it"
        )

    def close(self) -> None:
        """See `Frames.close`: the connection is shared."""
