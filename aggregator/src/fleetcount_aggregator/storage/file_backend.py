"""The logs beside a SQLite file: one of frames a window under way, and one of digests a window that has ended.

The digests stay of a window's reports: without any share, sorted in one file and not in memory. With them, a late
repeat of the same bytes still gets its receipt. Written once and never changed.

    file      "FCDIGST2" | window id | u64 count | crc32 of what is before it
    record    report id | u8 round | certificate digest | instalment digest | u8 1 if the report is in the set, else 0
    end       crc32 of the records; a file that begins with "FCDIGST1" has none
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from fleetcount_protocol.ids import ReportId, WindowId
from fleetcount_transport.durable_files import sync_directory

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.file_frames import FileFrames, FileReader, load_file, unload_file
from fleetcount_aggregator.storage.frames import RECORD_BYTES, HeldDigest, LogState, RawFrame, find_record

_MAGIC: Final = b"FCDIGST2"
_WITHOUT_END: Final = b"FCDIGST1"
_HEADER: Final = struct.Struct("<8s32sQ")
_CRC_BYTES: Final = 4
_HEADER_BYTES: Final = _HEADER.size + _CRC_BYTES
_AT_ONCE: Final = 8_192
"""Records that are read at once to be taken elsewhere."""


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
                crc = 0
                for block in blocks:
                    crc = zlib.crc32(block, crc)
                    file.write(block)
                if file.tell() != _HEADER_BYTES + count * RECORD_BYTES:
                    raise StoreError(f"{self._path}: the digests of its instalments are not there")
                file.write(crc.to_bytes(_CRC_BYTES, "little"))
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

    def check(self) -> str:
        """Return what is damaged of the file, "" for nothing."""
        crc, at = 0, 0
        try:
            for block in self.records():
                crc, at = zlib.crc32(block, crc), at + len(block)
            with self._path.open("rb") as file:
                has_end = file.read(len(_MAGIC)) == _MAGIC
                file.seek(_HEADER_BYTES + at)
                end = file.read(_CRC_BYTES + 1)
        except (OSError, StoreError) as error:
            return str(error)
        is_whole = end == (crc.to_bytes(_CRC_BYTES, "little") if has_end else b"")
        return "" if is_whole else f"{self._path} is not what was written"

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
        if magic not in (_MAGIC, _WITHOUT_END) or window_id != self._window_id:
            raise StoreError(f"{self._path} is of another kind or window")
        return int(count)


_ENDS: Final = (".log", ".digests", ".log.lost")


class FileBackend:
    """Implements `LogBackend` beside a database file: one log and one digest file a window, and no lanes."""

    counts_bytes = True
    shared = False

    def __init__(self, database: Path) -> None:
        self._directory = database.parent
        self._stem = database.stem
        self._states: Mapping[WindowId, LogState] = {}

    def expect_lengths(self, states: Sequence[LogState]) -> None:
        """See `LogBackend.expect_lengths`."""
        self._states = {state.window_id: state for state in states if not state.ended}

    def install(self, db: "Database", window_id: WindowId) -> None:
        """See `LogBackend.install`: the first instalment makes the file."""

    def close_window(self, db: "Database", window_id: WindowId) -> None:
        """See `LogBackend.close_window`: the one writer knows."""

    def is_closed(self, window_id: WindowId) -> bool:
        """See `LogBackend.is_closed`: nobody else writes."""
        return False

    def put_aside(self, states: Sequence[LogState]) -> list[WindowId]:
        """See `LogBackend.put_aside`."""
        return [
            state.window_id
            for state in states
            if not state.ended
            and not state.set_sealed
            and not self._log_path(state.window_id).exists()
            and self._lost_path(state.window_id).exists()
        ]

    def lanes(self, window_id: WindowId) -> Sequence[int]:
        """See `LogBackend.lanes`: the one file."""
        return (0,)

    def frames(self, window_id: WindowId, log_key: bytes, lane: int | None = None) -> FileFrames:
        """See `LogBackend.frames`."""
        state = self._states.get(window_id)
        closed, durable = (None, 0) if state is None else (state.closed_length, state.durable_length)
        return FileFrames(self._log_path(window_id), window_id, log_key, closed, durable)

    def reader(self, window_id: WindowId) -> FileReader:
        """See `LogBackend.reader`."""
        return FileReader(self._log_path(window_id))

    def ended(self, window_id: WindowId) -> DigestFile:
        """See `LogBackend.ended`."""
        return DigestFile(self._directory / f"{self._stem}.{window_id.hex()}.digests", window_id)

    def holds(self, window_id: WindowId) -> bool:
        """See `LogBackend.holds`."""
        return self._log_path(window_id).exists()

    def has_leftovers(self, window_id: WindowId) -> bool:
        """See `LogBackend.has_leftovers`."""
        return self.holds(window_id) or self._lost_path(window_id).exists()

    def drop(self, window_id: WindowId) -> None:
        """See `LogBackend.drop`."""
        self._lost_path(window_id).unlink(missing_ok=True)
        if self.holds(window_id):
            self._log_path(window_id).unlink()
            sync_directory(self._directory)

    def windows(self) -> set[WindowId]:
        """See `LogBackend.windows`."""
        names = [path.name.removeprefix(f"{self._stem}.") for path in self._directory.glob(f"{self._stem}.*")]
        found = [name.removesuffix(end) for name in names for end in _ENDS if name.endswith(end)]
        return {WindowId(bytes.fromhex(name)) for name in found}

    def unload(self, window_id: WindowId) -> Iterator[RawFrame]:
        """See `LogBackend.unload`."""
        lost = self._lost_path(window_id)
        if lost.exists():
            raise StoreError(f"{lost} was put aside: start the aggregator once, so that its window ends")
        return unload_file(self._log_path(window_id))

    def load(self, window_id: WindowId, lanes: int, frames: Iterable[RawFrame], *, closed: bool) -> None:
        """See `LogBackend.load`."""
        if lanes > 1:
            raise StoreError(f"window {window_id.hex()} has {lanes} lanes; allowed beside a file is 1")
        load_file(self._log_path(window_id), frames)

    def close(self) -> None:
        """See `LogBackend.close`."""

    def _log_path(self, window_id: WindowId) -> Path:
        return self._directory / f"{self._stem}.{window_id.hex()}.log"

    def _lost_path(self, window_id: WindowId) -> Path:
        """Where the operator puts a log that is lost, to end its window."""
        return self._directory / f"{self._stem}.{window_id.hex()}.log.lost"
