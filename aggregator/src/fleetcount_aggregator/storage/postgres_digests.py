"""What is remembered of an ended window's instalments in PostgreSQL: rows of sorted records, found without reading all.

Beside SQLite it is a file (`digest_file`). Needs psycopg.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from fleetcount_protocol.ids import ReportId, WindowId

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.digest_file import RECORD_BYTES, find_record
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import LEAVES, HeldDigest
from fleetcount_aggregator.storage.postgres import Link

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
