"""The frames of one window in one append-only file, with one sync a group: `Frames` of an aggregator on one machine.

A frame's number is the byte at which it begins. Written by one thread; other threads and processes may read. A crash
can tear only the last group, for which no receipt was given; damage before it is an error that names the place.
"""

import hmac
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES
from fleetcount_transport.durable_files import sync_directory

from fleetcount_aggregator.storage.errors import DamagedFrameError, StoreError
from fleetcount_aggregator.storage.frames import FrameRange, RawFrame, ReadFrame
from fleetcount_aggregator.storage.log_format import (
    FILE_HEADER_BYTES,
    FRAME_MAGIC,
    HEAD_BYTES,
    FrameHead,
    FrameSeal,
    NewFrame,
    decode_file_header,
    encode_file_header,
)

_BLOCK_BYTES: Final = 1024 * 1024
_SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""
_LEAST_BYTES: Final = 8
"""Fewer bytes of a group in a sector do not tell whether that was written."""


def damaged_at(path: Path, offset: int, why: str) -> DamagedFrameError:
    """Return the error that says where a file is damaged."""
    return DamagedFrameError(f"{path} is damaged at byte {offset}: {why}")


def read_at(descriptor: int, path: Path, offset: int, count: int) -> bytes:
    """Return `count` bytes at an offset.

    Raises:
        StoreError: the file is shorter, or cannot be read.
    """
    try:
        data = os.pread(descriptor, count, offset)
    except OSError as error:
        raise DamagedFrameError(f"{path} could not be read at byte {offset}: {error.strerror}") from error
    if len(data) != count:
        raise damaged_at(path, offset, "it ends inside a frame")
    return data


class LogScan:
    """One reading of a log, as a context: `expected`, then `frames` once through, then `end`.

    With `parts` those of every frame are opened: else they are where they are loaded.

    Raises:
        StoreError: on entering, if the file is of another kind, window or key; from `frames`, if it is damaged.
    """

    def __init__(self, path: Path, window_id: WindowId, log_key: bytes, *, parts: bool = False) -> None:
        self._parts = parts
        self.expected = 0
        """Instalments that make a report complete; 0 if not even the file's header is whole."""
        self.end = 0
        """The offset behind the last whole frame; what follows is torn."""
        self._path = path
        self._window_id = window_id
        self._log_key = log_key
        self._descriptor = -1
        self._size = 0

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise DamagedFrameError(f"{self._path} cannot be opened: {error.strerror}") from error
        try:
            self._read_header()
        except StoreError:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _read_header(self) -> None:
        data = read_at(self._descriptor, self._path, 0, min(FILE_HEADER_BYTES, self._size))
        try:
            self.expected = decode_file_header(data, self._log_key, self._window_id)
            self.end = FILE_HEADER_BYTES
        except ValueError as error:
            # The header travels with the first group: torn together with it, it is no loss.
            torn = len(data) < FILE_HEADER_BYTES or not any(data)
            if not torn or self._later_group(0, 0):
                raise DamagedFrameError(f"{self._path} cannot be used: {error}") from error

    def frames(self) -> Iterator[ReadFrame]:
        """Yield the whole frames in their order."""
        if not self.expected:
            return
        heads = list(self._heads())
        last_group = heads[-1][1].group if heads else 0
        is_short = not heads or heads[-1][0] + heads[-1][1].frame_bytes < self._size
        for offset, head in heads:
            columns = read_at(self._descriptor, self._path, offset + HEAD_BYTES, head.columns_bytes)
            seal = FrameSeal(self._log_key, head.salt, self._window_id, head.round)
            if not hmac.compare_digest(seal.of_columns(columns), head.columns_seal):
                self._check_torn(offset, head.sequence, is_short=is_short)
                return
            # Parts that are damaged, and not torn, are named when they are loaded, as in the groups before.
            is_last = head.group == last_group
            if (is_last or self._parts) and not self._parts_open(offset, head, seal, columns):
                if is_last and (is_short or self._lacks_a_sector(offset)):
                    return
                if self._parts:
                    what = f"the parts of frame {head.sequence} are not what was written"
                    raise damaged_at(self._path, offset, what)
            self.end = offset + head.frame_bytes
            yield ReadFrame(offset, head, columns)

    def _heads(self) -> Iterator[tuple[int, FrameHead]]:
        """Yield the frames that follow from the heads and the file's size, without reading their content."""
        offset, sequence, group = FILE_HEADER_BYTES, 0, 0
        while offset < self._size:
            head = FrameHead.decode(os.pread(self._descriptor, HEAD_BYTES, offset), self._log_key)
            fits = head is not None and offset + head.frame_bytes <= self._size
            if head is None or not fits or head.sequence != sequence or head.group not in (group, sequence):
                self._check_torn(offset, sequence, is_short=head is not None or self._size - offset < HEAD_BYTES)
                return
            yield offset, head
            offset, sequence, group = offset + head.frame_bytes, sequence + 1, head.group

    def _parts_open(self, offset: int, head: FrameHead, seal: FrameSeal, columns: bytes) -> bool:
        """Return whether every block of a frame's parts is as it was sealed."""
        for block in range(head.block_count):
            start, end = head.block_at(block), head.block_at(block + 1)
            sealed = read_at(self._descriptor, self._path, offset + start, end - start)
            room = memoryview(bytearray(len(sealed) - AES_GCM_TAG_BYTES))
            if not seal.open_block(block, sealed, head.bound(columns, block), room):
                return False
        return True

    def _check_torn(self, offset: int, sequence: int, *, is_short: bool) -> None:
        """Return if the frame at an offset may be what a crash left of the last group.

        Raises:
            StoreError: a later group was written, or all of this one, so that somebody may hold its receipt.
        """
        if self._later_group(offset, sequence) or not (is_short or self._lacks_a_sector(offset)):
            raise damaged_at(self._path, offset, f"frame {sequence} is not what was written")

    def _lacks_a_sector(self, offset: int) -> bool:
        """Return whether a sector behind an offset was never written: after a power failure it is empty.

        Sealed bytes and ids never look so. Where all sectors came, what does not fit its seal has changed since.
        """
        while offset < self._size:
            until = min(self._size, (offset // _SECTOR_BYTES + 1) * _SECTOR_BYTES)
            piece = read_at(self._descriptor, self._path, offset, until - offset)
            if len(piece) >= _LEAST_BYTES and (not piece.strip(b"\0") or not piece.strip(b"\xff")):
                return True
            offset = until
        return False

    def _later_group(self, offset: int, sequence: int) -> bool:
        """Return whether a frame of a group that began after `sequence` lies behind an offset."""
        while offset < self._size:
            block = os.pread(self._descriptor, _BLOCK_BYTES, offset)
            place = block.find(FRAME_MAGIC)
            while place >= 0:
                head = FrameHead.decode(os.pread(self._descriptor, HEAD_BYTES, offset + place), self._log_key)
                if head is not None and head.group > sequence:
                    return True
                place = block.find(FRAME_MAGIC, place + 1)
            offset += max(1, len(block) - len(FRAME_MAGIC) + 1)
        return False


@dataclass(frozen=True, slots=True)
class FileReader:
    """Implements `FrameReader`."""

    path: Path

    @contextmanager
    def opened(self) -> Generator["_Reads"]:
        """See `FrameReader.opened`."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            yield _Reads(self.path, descriptor)
        finally:
            os.close(descriptor)


class _Reads:
    """Implements `FrameReads` over an open file."""

    def __init__(self, path: Path, descriptor: int = -1) -> None:
        self.path = path
        self._descriptor = descriptor

    def read(self, ranges: Sequence[FrameRange]) -> list[bytes]:
        """See `FrameReads.read`."""
        return [read_at(self._descriptor, self.path, frame + start, size) for frame, start, size in ranges]

    def damaged(self, frame: int, why: str) -> DamagedFrameError:
        """See `FrameReads.damaged`."""
        return damaged_at(self.path, frame, why)


class FileFrames(_Reads):
    """Implements `Frames`. The file is made with the first group, and deleted where not even that is whole.

    `closed_length`: its bytes when intake closed, None before; `durable_length`: bytes known to have been durable.
    """

    def __init__(
        self,
        path: Path,
        window_id: WindowId,
        log_key: bytes,
        closed_length: int | None = None,
        durable_length: int = 0,
    ) -> None:
        super().__init__(path)
        self.expected = 0
        self.length = 0
        self._window_id = window_id
        self._log_key = log_key
        self._closed_length = closed_length
        self._durable_length = durable_length
        self._is_cut = True
        """False when what a failed write left could not be cut off."""

    @property
    def reader(self) -> FileReader:
        """See `Frames.reader`."""
        return FileReader(self.path)

    def columns(self) -> Iterator[ReadFrame]:
        """See `Frames.columns`: then what the last write left torn is cut, and a damaged file is left as it is."""
        if not self.path.exists():
            self._check_missing()
            return
        with LogScan(self.path, self._window_id, self._log_key) as scan:
            self.expected = scan.expected
            yield from scan.frames()
        if self._closed_length is not None and scan.end != self._closed_length:
            # Of how many bytes it was is how many reports there are, and this is shown and logged.
            raise damaged_at(self.path, scan.end, "intake closed with another length")
        if scan.end < self._durable_length:
            raise damaged_at(self.path, scan.end, "bytes behind that were durable, and have receipts")
        if not self.expected:
            self.path.unlink()
            return
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        # What was read may still be on its way to the disk, and from now on receipts are given for it.
        os.ftruncate(self._descriptor, scan.end)
        os.fdatasync(self._descriptor)
        self.length = scan.end

    def _check_missing(self) -> None:
        if self._closed_length:
            raise DamagedFrameError(f"{self.path} is missing: intake closed with instalments in it")
        if self._durable_length:
            raise DamagedFrameError(f"{self.path} is missing: bytes of it were durable, and have receipts")

    def append(self, frames: Sequence[NewFrame], expected: int) -> list[int]:
        """See `Frames.append`."""
        # A flag and not `except`: what was written must also be cut off when the process is interrupted here.
        written = False
        try:
            self._write(frames, expected)
            written = True
        except OSError as error:
            raise StoreError(f"{self.path} could not be written: {error}") from error
        finally:
            if not written:
                self._take_back()
        numbers: list[int] = []
        self.length = self.length or FILE_HEADER_BYTES
        for frame in frames:
            numbers.append(self.length)
            self.length += frame.head.frame_bytes
        self.expected = expected
        return numbers

    def _write(self, frames: Sequence[NewFrame], expected: int) -> None:
        """Write frames, before them the file's header if it is new, with one sync."""
        created = self._descriptor < 0
        if created:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._cut()
        offset = self.length
        if not offset:
            offset = self._put(encode_file_header(self._log_key, self._window_id, expected), 0)
        for frame in frames:
            for piece in frame.pieces():
                offset = self._put(piece, offset)
        # fdatasync also makes the new length durable. A new file's name is in its directory, which has its own sync.
        os.fdatasync(self._descriptor)
        if created:
            sync_directory(self.path.parent)

    def _put(self, piece: bytes | memoryview, offset: int) -> int:
        """Write bytes at an offset, and return where they end."""
        view = memoryview(piece)
        while view:  # The system may write fewer bytes than it is given.
            count = os.pwrite(self._descriptor, view, offset)
            view, offset = view[count:], offset + count
        return offset

    def _take_back(self) -> None:
        """Cut what could not be written off the file."""
        if self._descriptor < 0:
            return
        self._is_cut = False
        # If even this fails, the next write tries it again, or the next start cuts what is torn.
        with suppress(OSError):
            self._cut()
        if not self.length:
            self.close()

    def _cut(self) -> None:
        """Cut off what a failed write left: its whole frames must not follow a shorter group that is written next."""
        if not self._is_cut:
            os.ftruncate(self._descriptor, self.length)
            self._is_cut = True

    def close(self) -> None:
        """See `Frames.close`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def unload_file(path: Path) -> Iterator[RawFrame]:
    """See `LogBackend.unload`."""
    if not path.exists():
        return
    with path.open("rb") as file:
        header, at = file.read(FILE_HEADER_BYTES), FILE_HEADER_BYTES
        while data := file.read(HEAD_BYTES):
            head = FrameHead.unchecked(data)
            if head is None:
                raise damaged_at(path, at, "no frame begins there")
            columns = file.read(head.columns_bytes)
            parts = file.read(head.frame_bytes - head.parts_at)
            at += len(data) + len(columns) + len(parts)
            if len(data) + len(columns) + len(parts) != head.frame_bytes:
                raise damaged_at(path, at, "it ends inside a frame")
            yield RawFrame(0, header, data, columns, parts)


def load_file(path: Path, frames: Iterable[RawFrame]) -> None:
    """See `LogBackend.load`; a log without frames is no file."""
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for number, frame in enumerate(frames):
                file.writelines(frame[2:] if number else frame[1:])
            file.flush()
            os.fsync(file.fileno())
            empty = not file.tell()
        temporary.replace(path)
        if empty:
            path.unlink()
        sync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path} could not be written: {error.strerror}") from error
