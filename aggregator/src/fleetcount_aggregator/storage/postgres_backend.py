"""The report logs of a store in PostgreSQL: the place of each window's frames, and the digests of windows that ended.

Digests are rows of sorted records, found without reading all. Beside SQLite both are files (`file_backend`). Needs
psycopg.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from fleetcount_protocol.ids import ReportId, WindowId

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import LEAVES, RECORD_BYTES, HeldDigest, LogState, RawFrame, find_record
from fleetcount_aggregator.storage.log_format import FrameHead
from fleetcount_aggregator.storage.postgres import Link, Server
from fleetcount_aggregator.storage.postgres_frames import (
    PostgresFrames,
    PostgresReader,
    RetryingLink,
    close_reader,
    for_window,
)

_FORGET: Final = "DELETE FROM ended WHERE window_id = ?"


class PostgresDigests:
    """Implements `EndedDigests`: one row of sorted records for each first byte of report ids."""

    def __init__(self, link: Link, window_id: WindowId) -> None:
        self._link = link
        self._window = bytes(window_id)

    def write(self, count: int, blocks: Iterable[bytes]) -> None:
        """See `EndedDigests.write`."""
        leaves: dict[int, list[bytes]] = {}
        for block in blocks:
            first = np.frombuffer(block, dtype=np.uint8)[::RECORD_BYTES]
            bounds = (np.searchsorted(first, np.arange(LEAVES + 1)) * RECORD_BYTES).tolist()
            for leaf in np.unique(first).tolist():
                leaves.setdefault(leaf, []).append(block[bounds[leaf] : bounds[leaf + 1]])
        rows = [(self._window, leaf, b"".join(parts)) for leaf, parts in leaves.items()]
        if sum(len(row[2]) for row in rows) != count * RECORD_BYTES:
            raise StoreError(f"window {self._window.hex()}: the digests of its instalments are not there")

        def replace(db: Database) -> None:
            db.execute(_FORGET, (self._window,))
            db.executemany("INSERT INTO ended (window_id, leaf, digests) VALUES (?, ?, ?)", rows)

        self._link.write(replace)

    def delete(self) -> None:
        """See `EndedDigests.delete`."""
        self._link.write(lambda db: db.execute(_FORGET, (self._window,)))

    def records(self) -> Iterator[bytes]:
        """See `EndedDigests.records`."""
        for leaf in range(LEAVES):
            found = self._one("SELECT digests FROM ended WHERE window_id = ? AND leaf = ?", (self._window, leaf))
            if found is not None:
                yield bytes(found)

    def find(self, report_id: ReportId, round_number: int) -> HeldDigest | None:
        """See `EndedDigests.find`."""
        where = (self._window, report_id[0])
        size = self._one("SELECT octet_length(digests) FROM ended WHERE window_id = ? AND leaf = ?", where)
        if size is None:
            return None
        if size % RECORD_BYTES:
            raise StoreError(
                f"window {self._window.hex()}: the digests of leaf {report_id[0]} are damaged: part of a record"
            )

        def record_at(place: int) -> bytes:
            select = "SELECT substring(digests FROM ? FOR ?) FROM ended WHERE window_id = ? AND leaf = ?"
            # Where the row was deleted since its size was read, no record is found: b"" comes before each.
            return bytes(self._one(select, (place * RECORD_BYTES + 1, RECORD_BYTES, *where)) or b"")

        return find_record(size // RECORD_BYTES, record_at, report_id, round_number)

    def _one(self, select: str, values: Sequence[Any]) -> Any:
        row = self._link.read(lambda db: db.execute(select, values).fetchone())
        return None if row is None else row[0]


_MAKE: Final = (
    # Nothing in it is ever changed and all of it goes at once, so that cleaning it would only read it again.
    "CREATE TABLE IF NOT EXISTS TABLE_OF_WINDOW (lane integer NOT NULL, seq bigint NOT NULL, round smallint NOT NULL,"
    " n integer NOT NULL, head bytea NOT NULL, cols bytea NOT NULL, parts bytea NOT NULL, PRIMARY KEY (lane, seq))"
    " WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)",
    # Sealed bytes do not shrink, and of what lies outside uncompressed a piece is read without the rest.
    "ALTER TABLE TABLE_OF_WINDOW ALTER cols SET STORAGE EXTERNAL, ALTER parts SET STORAGE EXTERNAL",
)
_SELECT_WHOLE: Final = "SELECT head, cols, parts FROM TABLE_OF_WINDOW WHERE lane = ? AND seq = ?"
_INSERT: Final = "INSERT INTO TABLE_OF_WINDOW (lane, seq, round, n, head, cols, parts) VALUES (?, ?, ?, ?, ?, ?, ?)"
_MOVE_ON: Final = "UPDATE lanes SET seq = seq + 1, rows = rows + ?, header = ? WHERE window_id = ? AND lane = ?"


def install_lanes(db: Database, window_id: WindowId) -> None:
    """Make the place of a window that is installed in this transaction; one that is there stays.

    A table of its own and not a partition: making and dropping a partition locks the others too.
    """
    for statement in _MAKE:
        db.execute(for_window(statement, window_id))
    db.execute("INSERT INTO intakes (window_id) VALUES (?) ON CONFLICT DO NOTHING", (bytes(window_id),))


def close_lanes(db: Database, window_id: WindowId) -> None:
    """Take no instalment of a window any more, from the commit of this transaction on."""
    # This row first: who is making a lane has it, and only who looks for lanes after that sees the new one.
    db.execute("UPDATE intakes SET closed = true WHERE window_id = ? AND NOT closed", (bytes(window_id),))
    db.execute("UPDATE lanes SET closed = true WHERE window_id = ? AND NOT closed", (bytes(window_id),))


class PostgresBackend:
    """Implements `LogBackend` over a link of its own."""

    counts_bytes = False
    shared = True

    def __init__(self, server: Server, link: Link) -> None:
        self._server = server
        self._link = link
        self._retrying = RetryingLink(link)

    def expect_lengths(self, states: Sequence[LogState]) -> None:
        """See `LogBackend.expect_lengths`: the rows of lanes know."""

    def put_aside(self, states: Sequence[LogState]) -> list[WindowId]:
        """See `LogBackend.put_aside`."""
        return []

    def has_leftovers(self, window_id: WindowId) -> bool:
        """See `LogBackend.has_leftovers`."""
        return self.holds(window_id)

    def install(self, db: Database, window_id: WindowId) -> None:
        """See `LogBackend.install`."""
        install_lanes(db, window_id)

    def close_window(self, db: Database, window_id: WindowId) -> None:
        """See `LogBackend.close_window`."""
        close_lanes(db, window_id)

    def is_closed(self, window_id: WindowId) -> bool:
        """See `LogBackend.is_closed`."""
        query = (
            "SELECT closed AND NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.window_id = intakes.window_id"
            " AND NOT lanes.closed) FROM intakes WHERE window_id = ?"
        )
        row = self._retrying.run(lambda db: db.execute(query, (bytes(window_id),)).fetchone())
        return row is not None and bool(row[0])

    def lanes(self, window_id: WindowId) -> list[int]:
        """See `LogBackend.lanes`."""
        query = "SELECT lane FROM lanes WHERE window_id = ? ORDER BY lane"
        return [lane for (lane,) in self._retrying.run(lambda db: db.execute(query, (bytes(window_id),)).fetchall())]

    def frames(self, window_id: WindowId, log_key: bytes, lane: int | None = None) -> PostgresFrames:
        """See `LogBackend.frames`."""
        return PostgresFrames(self._retrying, self.reader(window_id), window_id, log_key, lane)

    def reader(self, window_id: WindowId) -> PostgresReader:
        """See `LogBackend.reader`."""
        return PostgresReader(window_id, self._server)

    def ended(self, window_id: WindowId) -> PostgresDigests:
        """See `LogBackend.ended`."""
        return PostgresDigests(self._link, window_id)

    def holds(self, window_id: WindowId) -> bool:
        """See `LogBackend.holds`."""
        query = "SELECT count(*) FROM intakes WHERE window_id = ?"
        return bool(self._link.read(lambda db: db.execute(query, (bytes(window_id),)).fetchone())[0])

    def drop(self, window_id: WindowId) -> None:
        """See `LogBackend.drop`."""

        def work(db: Database) -> None:
            for table in ("lanes", "intakes"):
                db.execute(f"DELETE FROM {table} WHERE window_id = ?", (bytes(window_id),))  # noqa: S608 - of two
            db.execute(for_window("DROP TABLE IF EXISTS TABLE_OF_WINDOW", window_id))

        self._link.write(work)

    def windows(self) -> set[WindowId]:
        """See `LogBackend.windows`."""
        query = "SELECT window_id FROM intakes UNION SELECT window_id FROM ended"
        return {WindowId(bytes(window)) for (window,) in self._link.read(lambda db: db.execute(query).fetchall())}

    def unload(self, window_id: WindowId) -> Iterator[RawFrame]:
        """See `LogBackend.unload`."""
        query = "SELECT lane, header, seq FROM lanes WHERE window_id = ? ORDER BY lane"
        for lane, header, end in self._link.read(lambda db: db.execute(query, (bytes(window_id),)).fetchall()):
            for sequence in range(end):
                yield RawFrame(lane, header, *self._whole(window_id, lane, sequence))

    def _whole(self, window_id: WindowId, lane: int, sequence: int) -> tuple[bytes, bytes, bytes]:
        select, where = for_window(_SELECT_WHOLE, window_id), (lane, sequence)
        row = self._link.read(lambda db: db.execute(select, where).fetchone())
        if row is None:
            raise StoreError(f"window {window_id.hex()}: frame {sequence} of lane {lane} is missing")
        head, columns, parts = map(bytes, row)
        return head, columns, parts

    def load(self, window_id: WindowId, lanes: int, frames: Iterable[RawFrame], *, closed: bool) -> None:
        """See `LogBackend.load`."""
        self.drop(window_id)
        self._link.write(lambda db: _install_many(db, window_id, lanes))
        insert, ends = for_window(_INSERT, window_id), Counter[int]()
        for frame in frames:
            head = FrameHead.unchecked(frame.head)
            if head is None:
                raise StoreError(f"window {window_id.hex()}: frame {ends[frame.lane]} of lane {frame.lane} is no frame")
            row = (frame.lane, ends[frame.lane], head.round, head.count, *frame[2:])
            moved = (head.count, frame.header, bytes(window_id), frame.lane)

            def one(db: Database, row: tuple[Any, ...] = row, moved: tuple[Any, ...] = moved) -> None:
                db.execute(insert, row)
                db.execute(_MOVE_ON, moved)

            self._link.write(one)
            ends[frame.lane] += 1
        if closed:
            self._link.write(lambda db: close_lanes(db, window_id))

    def close(self) -> None:
        """See `LogBackend.close`; what this process read with by itself is closed too."""
        self._link.close()
        close_reader(self._server)


def _install_many(db: Database, window_id: WindowId, lanes: int) -> None:
    install_lanes(db, window_id)
    db.execute("UPDATE intakes SET lanes = ? WHERE window_id = ?", (lanes, bytes(window_id)))
    rows = [(bytes(window_id), lane) for lane in range(lanes)]
    db.executemany("INSERT INTO lanes (window_id, lane) VALUES (?, ?)", rows)
