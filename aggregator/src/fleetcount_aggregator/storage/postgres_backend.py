"""The report logs of a store in PostgreSQL: the place of each window's frames, and the digests of windows that ended.

Digests are rows of sorted records, found without reading all. Beside SQLite both are files (`file_backend`). Needs
psycopg.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import ReportId, WindowId

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import LEAVES, RECORD_BYTES, HeldDigest, LogState, RawFrame, find_record
from fleetcount_aggregator.storage.log_format import FrameHead
from fleetcount_aggregator.storage.postgres import Link, Server
from fleetcount_aggregator.storage.postgres_frames import (
    PatientLink,
    PostgresFrames,
    PostgresReader,
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
            return bytes(self._one(select, (place * RECORD_BYTES + 1, RECORD_BYTES, *where)))

        return find_record(size // RECORD_BYTES, record_at, report_id, round_number)

    def _one(self, select: str, values: Sequence[Any]) -> Any:
        row = self._link.read(lambda db: db.execute(select, values).fetchone())
        return None if row is None else row[0]


_MAKE: Final = (
    # Nothing in it is ever changed and all of it goes at once, so that cleaning it would only read it again.
    "CREATE TABLE IF NOT EXISTS TABLE_OF_WINDOW (shard integer NOT NULL, seq bigint NOT NULL, round smallint NOT NULL,"
    " n integer NOT NULL, head bytea NOT NULL, cols bytea NOT NULL, parts bytea NOT NULL, PRIMARY KEY (shard, seq))"
    " WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)",
    # Sealed bytes do not shrink, and of what lies outside uncompressed a piece is read without the rest.
    "ALTER TABLE TABLE_OF_WINDOW ALTER cols SET STORAGE EXTERNAL, ALTER parts SET STORAGE EXTERNAL",
)
_SELECT_WHOLE: Final = "SELECT head, cols, parts FROM TABLE_OF_WINDOW WHERE shard = ? AND seq = ?"
_INSERT: Final = "INSERT INTO TABLE_OF_WINDOW (shard, seq, round, n, head, cols, parts) VALUES (?, ?, ?, ?, ?, ?, ?)"
_MOVE_ON: Final = "UPDATE shards SET seq = seq + 1, rows = rows + ?, header = ? WHERE window_id = ? AND shard = ?"


def install_shards(db: Database, window_id: WindowId, shards: int) -> None:
    """Make the place of a window that is installed in this transaction, cut into `shards`; one that is there stays.

    A table of its own and not a partition: making and dropping a partition locks the others too.
    """
    for statement in _MAKE:
        db.execute(for_window(statement, window_id))
    rows = [(bytes(window_id), shard) for shard in range(shards)]
    db.executemany("INSERT INTO shards (window_id, shard) VALUES (?, ?) ON CONFLICT DO NOTHING", rows)


def close_shards(db: Database, window_id: WindowId) -> None:
    """Take no instalment of a window any more, from the commit of this transaction on."""
    db.execute("UPDATE shards SET closed_seq = seq WHERE window_id = ? AND closed_seq IS NULL", (bytes(window_id),))


class PostgresBackend:
    """Implements `LogBackend` over a link of its own; a window that is installed is cut into `shards`.

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
        """See `LogBackend.know`: the rows of shards know."""

    def given_up(self, states: Sequence[LogState]) -> list[WindowId]:
        """See `LogBackend.given_up`."""
        return []

    def leaves(self, window_id: WindowId) -> bool:
        """See `LogBackend.leaves`."""
        return self.holds(window_id)

    def install(self, db: Database, window_id: WindowId) -> None:
        """See `LogBackend.install`."""
        install_shards(db, window_id, self._shards)

    def close_window(self, db: Database, window_id: WindowId) -> None:
        """See `LogBackend.close_window`."""
        close_shards(db, window_id)

    def seize(self, window_id: WindowId) -> Mapping[int, int]:
        """See `LogBackend.seize`."""
        statement = "UPDATE shards SET epoch = epoch + 1 WHERE window_id = ? RETURNING shard, epoch"
        return dict(self._link.write(lambda db: db.execute(statement, (bytes(window_id),)).fetchall()))

    def shard_count(self, window_id: WindowId) -> int:
        """See `LogBackend.shard_count`."""
        query = "SELECT count(*) FROM shards WHERE window_id = ?"
        return int(self._link.read(lambda db: db.execute(query, (bytes(window_id),)).fetchone())[0])

    def frames(self, window_id: WindowId, log_key: bytes, shard: int, epoch: int | None) -> PostgresFrames:
        """See `LogBackend.frames`."""
        return PostgresFrames(self._patient, self.reader(window_id), window_id, log_key, shard, epoch)

    def reader(self, window_id: WindowId) -> PostgresReader:
        """See `LogBackend.reader`."""
        return PostgresReader(window_id, self._server)

    def ended(self, window_id: WindowId) -> PostgresDigests:
        """See `LogBackend.ended`."""
        return PostgresDigests(self._link, window_id)

    def holds(self, window_id: WindowId) -> bool:
        """See `LogBackend.holds`."""
        return self.shard_count(window_id) > 0

    def drop(self, window_id: WindowId) -> None:
        """See `LogBackend.drop`."""

        def both(db: Database) -> None:
            db.execute("DELETE FROM shards WHERE window_id = ?", (bytes(window_id),))
            db.execute(for_window("DROP TABLE IF EXISTS TABLE_OF_WINDOW", window_id))

        self._link.write(both)

    def windows(self) -> set[WindowId]:
        """See `LogBackend.windows`."""
        query = "SELECT window_id FROM shards UNION SELECT window_id FROM ended"
        return {WindowId(bytes(window)) for (window,) in self._link.read(lambda db: db.execute(query).fetchall())}

    def unload(self, window_id: WindowId) -> Iterator[RawFrame]:
        """See `LogBackend.unload`."""
        query = "SELECT shard, header, seq FROM shards WHERE window_id = ? ORDER BY shard"
        for shard, header, end in self._link.read(lambda db: db.execute(query, (bytes(window_id),)).fetchall()):
            for sequence in range(end):
                yield RawFrame(shard, header, *self._whole(window_id, shard, sequence))

    def _whole(self, window_id: WindowId, shard: int, sequence: int) -> tuple[bytes, bytes, bytes]:
        select, where = for_window(_SELECT_WHOLE, window_id), (shard, sequence)
        row = self._link.read(lambda db: db.execute(select, where).fetchone())
        if row is None:
            raise StoreError(f"window {window_id.hex()}: frame {sequence} of shard {shard} is missing")
        head, columns, parts = map(bytes, row)
        return head, columns, parts

    def load(self, window_id: WindowId, shards: int, frames: Iterable[RawFrame], *, closed: bool) -> None:
        """See `LogBackend.load`."""
        self.drop(window_id)
        self._link.write(lambda db: install_shards(db, window_id, shards))
        insert, ends = for_window(_INSERT, window_id), dict.fromkeys(range(shards), 0)
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
        """See `LogBackend.close`; what this process read with by itself is closed too."""
        self._link.close()
        close_reader(self._server)
