"""What stays of a task's reports when it has ended: digests, without any share, sorted in one file and not in memory.

So a late repeat of the same bytes still gets its receipt. Written once and never changed; holds no part of a share.

    file      "FCDIGST1" | task id | u64 count | crc32 of what is before it
    record    report id | u8 round | certificate digest | instalment digest | u8 1 if the report is in the set, else 0
"""

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from numpy.typing import NDArray

from fleetcount_aggregator.storage.store import StoreError

__all__ = ["DigestFile", "DigestRecords", "HeldDigest"]

_MAGIC: Final = b"FCDIGST1"
_HEADER: Final = struct.Struct("<8s32sQ")
_CRC_BYTES: Final = 4
_HEADER_BYTES: Final = _HEADER.size + _CRC_BYTES
_KEY_BYTES: Final = ReportId.SIZE + 1
_BLOCK: Final = 8_192
"""Records written at once."""
_RECORD_BYTES: Final = _KEY_BYTES + 2 * Digest.SIZE + 1


@dataclass(frozen=True, slots=True)
class HeldDigest:
    """What is remembered of one instalment."""

    certificate: Digest
    digest: Digest


@dataclass(frozen=True, slots=True)
class DigestRecords:
    """Columns of n instalments of one round: ids n x 16, certificates and digests n x 32, chosen n bytes of 0 or 1."""

    round: int
    ids: bytes
    certificates: bytes
    digests: bytes
    chosen: bytes

    def write_to(self, records: NDArray[np.uint8]) -> None:
        """Write the records into the rows of an array."""
        start, count = 0, len(self.chosen)
        for column in (self.ids, bytes((self.round,)) * count, self.certificates, self.digests, self.chosen):
            width = len(column) // count
            records[:, start : start + width] = np.frombuffer(column, dtype=np.uint8).reshape(count, width)
            start += width


def _order(records: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the order of records by report id and round."""
    words = np.ascontiguousarray(records[:, : ReportId.SIZE]).view(">u8")
    return np.lexsort((records[:, ReportId.SIZE], words[:, 1], words[:, 0]))


class DigestFile:
    """The digests of one ended task. Looked up in the file itself: an ended task takes no memory."""

    def __init__(self, path: Path, task_id: TaskId) -> None:
        self._path = path
        self._task_id = task_id

    def exists(self) -> bool:
        """Return whether it was written."""
        return self._path.exists()

    def write(self, count: int, columns: Iterable[DigestRecords]) -> None:
        """Write `count` records in all; durable, but for its name (`sync_directory`), when it returns.

        Raises:
            StoreError: the disk is full or failed; then there is no file.
        """
        records = np.empty((count, _RECORD_BYTES), dtype=np.uint8)
        start = 0
        for one in columns:
            one.write_to(records[start : start + len(one.chosen)])
            start += len(one.chosen)
        order = _order(records)
        header = _HEADER.pack(_MAGIC, self._task_id, count)
        temporary = self._path.with_name(self._path.name + ".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(header + zlib.crc32(header).to_bytes(_CRC_BYTES, "little"))
                for first in range(0, count, _BLOCK):
                    file.write(np.take(records, order[first : first + _BLOCK], axis=0).data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreError(f"{self._path} could not be written: {error.strerror}") from error

    def find(self, report_id: ReportId, round_number: int) -> HeldDigest | None:
        """Return what is remembered of an instalment, or None.

        Raises:
            StoreError: the file is damaged.
        """
        if not self.exists():
            return None
        key = report_id + bytes((round_number,))
        with self._path.open("rb") as file:
            low, high = 0, self._count(file.read(_HEADER_BYTES))
            while low < high:
                middle = (low + high) // 2
                file.seek(_HEADER_BYTES + middle * _RECORD_BYTES)
                record = file.read(_RECORD_BYTES)
                if record[:_KEY_BYTES] == key:
                    fields = record[_KEY_BYTES:]
                    return HeldDigest(Digest(fields[: Digest.SIZE]), Digest(fields[Digest.SIZE : 2 * Digest.SIZE]))
                low, high = (middle + 1, high) if record[:_KEY_BYTES] < key else (low, middle)
        return None

    def chosen(self) -> set[ReportId]:
        """Return the reports that were in the set."""
        data = self._path.read_bytes()
        count = self._count(data[:_HEADER_BYTES])
        starts = range(_HEADER_BYTES, _HEADER_BYTES + count * _RECORD_BYTES, _RECORD_BYTES)
        return {ReportId(data[at : at + ReportId.SIZE]) for at in starts if data[at + _RECORD_BYTES - 1]}

    def _count(self, data: bytes) -> int:
        if len(data) != _HEADER_BYTES or zlib.crc32(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
            raise StoreError(f"{self._path} is damaged at byte 0")
        magic, task_id, count = _HEADER.unpack(data[:-_CRC_BYTES])
        if magic != _MAGIC or task_id != self._task_id:
            raise StoreError(f"{self._path} is of another kind or task")
        return int(count)
