"""What stays of a window's reports when it has ended: digests, without any share, sorted in one file and not in memory.

With it, a late repeat of the same bytes still gets its receipt. Written once and never changed; holds no share.

    file      "FCDIGST1" | window id | u64 count | crc32 of what is before it
    record    report id | u8 round | certificate digest | instalment digest | u8 1 if the report is in the set, else 0
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_transport.durable_files import sync_directory
from numpy.typing import NDArray

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import HeldDigest

_MAGIC: Final = b"FCDIGST1"
_HEADER: Final = struct.Struct("<8s32sQ")
_CRC_BYTES: Final = 4
_HEADER_BYTES: Final = _HEADER.size + _CRC_BYTES
_KEY_BYTES: Final = ReportId.SIZE + 1
_AT_ONCE: Final = 8_192
"""Records that are read at once to be taken elsewhere."""
RECORD_BYTES: Final = _KEY_BYTES + 2 * Digest.SIZE + 1
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DigestRecords:
    """What is remembered of n reports and their instalments of r rounds, as arrays of bytes.

    `ids` n x 16, `certificates` n x 32; `held` n x r, which instalments there are; of those, digests (n x r x 32), and
    `chosen` (n x r) is 1 if the report is in the set. `rounds` ascend.
    """

    rounds: Sequence[int]
    ids: Bytes
    certificates: Bytes
    held: NDArray[np.bool_]
    digests: Bytes
    chosen: Bytes

    def encode(self) -> bytes:
        """Return the records of the instalments there are, joined, report by report and round by round."""
        records = np.empty((*self.held.shape, RECORD_BYTES), dtype=np.uint8)
        start = 0
        for column in (
            self.ids[:, np.newaxis],
            np.array(self.rounds, dtype=np.uint8).reshape(1, -1, 1),
            self.certificates[:, np.newaxis],
            self.digests,
            self.chosen[:, :, np.newaxis],
        ):
            width = column.shape[2]
            records[:, :, start : start + width] = column
            start += width
        return records[self.held].tobytes()


def find_record(
    count: int, record_at: Callable[[int], bytes], report_id: ReportId, round_number: int
) -> HeldDigest | None:
    """Return what is remembered of an instalment in so many records, which ascend, or None."""
    key = report_id + bytes((round_number,))
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        record = record_at(middle)
        if record[:_KEY_BYTES] == key:
            fields = record[_KEY_BYTES:]
            return HeldDigest(Digest(fields[: Digest.SIZE]), Digest(fields[Digest.SIZE : 2 * Digest.SIZE]))
        low, high = (middle + 1, high) if record[:_KEY_BYTES] < key else (low, middle)
    return None


def chosen_in(blocks: Iterable[bytes]) -> set[ReportId]:
    """Return the reports of joined records that were in the set."""
    return {
        ReportId(records[at : at + ReportId.SIZE])
        for records in blocks
        for at in range(0, len(records), RECORD_BYTES)
        if records[at + RECORD_BYTES - 1]
    }


class DigestFile:
    """Implements `EndedDigests` (frame_homes). Looked up in the file itself: an ended window takes no memory."""

    def __init__(self, path: Path, window_id: WindowId) -> None:
        self._path = path
        self._window_id = window_id

    def exists(self) -> bool:
        """Return whether it was written."""
        return self._path.exists()

    def write(self, count: int, blocks: Iterable[bytes]) -> None:
        """See `EndedDigests.write`; durable on return."""
        header = _HEADER.pack(_MAGIC, self._window_id, count)
        temporary = self._path.with_name(self._path.name + ".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(header + zlib.crc32(header).to_bytes(_CRC_BYTES, "little"))
                for block in blocks:
                    file.write(block)
                if file.tell() != _HEADER_BYTES + count * RECORD_BYTES:
                    raise StoreError(f"{self._path}: the digests of its instalments are not there")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreError(f"{self._path} could not be written: {error.strerror}") from error
        except StoreError:
            temporary.unlink(missing_ok=True)
            raise

    def delete(self) -> None:
        """See `EndedDigests.delete`."""
        self._path.unlink(missing_ok=True)

    def find(self, report_id: ReportId, round_number: int) -> HeldDigest | None:
        """See `EndedDigests.find`."""
        if not self.exists():
            return None
        with self._path.open("rb") as file:

            def record_at(place: int) -> bytes:
                file.seek(_HEADER_BYTES + place * RECORD_BYTES)
                return file.read(RECORD_BYTES)

            return find_record(self._count(file.read(_HEADER_BYTES)), record_at, report_id, round_number)

    def records(self) -> Iterator[bytes]:
        """See `EndedDigests.records`."""
        if not self.exists():
            return
        with self._path.open("rb") as file:
            left = self._count(file.read(_HEADER_BYTES)) * RECORD_BYTES
            while left:
                block = file.read(min(left, _AT_ONCE * RECORD_BYTES))
                if not block:
                    raise StoreError(f"{self._path} is damaged: {left} bytes are missing at its end")
                left -= len(block)
                yield block

    def _count(self, data: bytes) -> int:
        if len(data) != _HEADER_BYTES or zlib.crc32(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
            raise StoreError(f"{self._path} is damaged at byte 0")
        magic, window_id, count = _HEADER.unpack(data[:-_CRC_BYTES])
        if magic != _MAGIC or window_id != self._window_id:
            raise StoreError(f"{self._path} is of another kind or window")
        return int(count)
