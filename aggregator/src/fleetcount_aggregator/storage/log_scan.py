"""Reads a report log from its first byte to its last: which frames are whole, and where a torn end begins.

A crash can tear only the last group, for which no receipt was given; damage before it is an error that names the place.
Reads heads and columns, not parts (but those of the last group). Changes nothing.
"""

import hmac
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES

from fleetcount_aggregator.storage.errors import DamagedFrameError, StoreError
from fleetcount_aggregator.storage.frames import ReadFrame
from fleetcount_aggregator.storage.log_format import (
    FILE_HEADER_BYTES,
    FRAME_MAGIC,
    HEAD_BYTES,
    FrameHead,
    FrameSeal,
    decode_file_header,
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

    Raises:
        StoreError: on entering, if the file is of another kind, window or key; from `frames`, if it is damaged.
    """

    def __init__(self, path: Path, window_id: WindowId, log_key: bytes) -> None:
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
            if (
                head.group == last_group
                and not self._parts_open(offset, head, seal, columns)
                and (is_short or self._lacks_a_sector(offset))
            ):
                return
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
