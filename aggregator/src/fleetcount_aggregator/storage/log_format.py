"""The bytes of a report log: its header, and frames of instalments in columns with the share parts sealed behind them.

Pure layout and sealing; opens no file and decides about no report (report_log).

    file    FILE_MAGIC | u8 instalments a report | 7 zero bytes | window id | key check (16) | crc32 of what is before
    it frame   head | report ids | certificate digests | instalment digests | key uses | public shares
            | sealed blocks of parts
    head    FRAME_MAGIC | u8 round | u8 bytes of a key use | 2 zero bytes | u64 sequence | u64 group | u32 count
            | u32 public share bytes | u32 part bytes | salt (32) | seal of the columns (16)
            | first 8 bytes of the HMAC-SHA256, under the log's key, of the head before it

Numbers are little-endian. A key use says which session's key of which number opened the instalment; a run
that names none has none. `group` is the sequence number of the first frame of the same write: what a crash tears is in
the last group. The head's check is keyed because devices choose ids and public shares, which lie open in the columns:
none can put there what looks like a frame. Everything else of a frame is sealed with AES-256-GCM under the frame's own
key, which comes from the log's key, salt, window and round: parts in blocks of as many as fit `BLOCK_BYTES`, one at
least, nonce = the block's place, bound to the block's report ids and public shares; the columns as a seal of nothing
that is bound to them, under the nonce of all ones. So a few parts can be read without the others, and no key ever sees
a nonce twice.
"""

import hmac
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES, MAX_CIPHERTEXT_BYTES, MAX_PUBLIC_SHARE_BYTES

from fleetcount_aggregator.storage.instalment_run import USE_BYTES, InstalmentRun

FILE_MAGIC: Final = b"FCREPLG2"
FRAME_MAGIC: Final = b"FCFR"
MOST_ROWS: Final = 65_535
"""A frame holds at most this many instalments."""
BLOCK_BYTES: Final = 4096
"""Most bytes of parts that are sealed together (unless one part has more): a damaged sector costs at most these."""
_PIECE_BYTES: Final = 256 * 1024
"""Bytes sealed and written at once: few enough to stay in the processor's cache."""

_FILE: Final = struct.Struct("<8sB7x32s16sI")
_HEAD: Final = struct.Struct("<4sBB2xQQIII32s16s")
_HEAD_CHECK_BYTES: Final = 8
FILE_HEADER_BYTES: Final = _FILE.size
HEAD_BYTES: Final = _HEAD.size + _HEAD_CHECK_BYTES
_CRC_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_COLUMNS_NONCE: Final = b"\xff" * _NONCE_BYTES
_FRAME_INFO: Final = b"fleetcount report log frame 2"
_CHECK_INFO: Final = b"fleetcount report log check 2"
_HEAD_INFO: Final = b"fleetcount report log head 2"
_FIXED_COLUMN_BYTES: Final = ReportId.SIZE + Digest.SIZE + Digest.SIZE


def encode_file_header(log_key: bytes, window_id: WindowId, expected: int) -> bytes:
    """Return the first bytes of a window's log; `expected` instalments (1 or 2) make a report complete."""
    # Packed with an empty check sum at the end, which gives way to the real one.
    data = _FILE.pack(FILE_MAGIC, expected, window_id, _key_check(log_key, window_id), 0)[:-_CRC_BYTES]
    return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "little")


def decode_file_header(data: bytes, log_key: bytes, window_id: WindowId) -> int:
    """Return `expected` of a log's first bytes.

    Raises:
        ValueError: it is damaged, of another kind or window, or written under another key; the text says which.
    """
    if len(data) != FILE_HEADER_BYTES:
        raise ValueError(f"the header has {len(data)} bytes, not {FILE_HEADER_BYTES}")
    magic, expected, owner, check, crc = _FILE.unpack(data)
    if magic != FILE_MAGIC or crc != zlib.crc32(data[:-_CRC_BYTES]):
        raise ValueError("the header is damaged or of another kind of file")
    if owner != window_id:
        raise ValueError("the log of another window")
    if not hmac.compare_digest(check, _key_check(log_key, window_id)):
        raise ValueError("written under another key")
    return int(expected)


def _key_check(log_key: bytes, window_id: WindowId) -> bytes:
    return hmac.digest(log_key, _CHECK_INFO + window_id, "sha256")[:16]


def _head_check(log_key: bytes, head: bytes) -> bytes:
    return hmac.digest(log_key, _HEAD_INFO + head, "sha256")[:_HEAD_CHECK_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHead:
    """The head of one frame. Sizes are bytes of one row; `part_bytes` without the seal's tag."""

    round: int
    sequence: int
    group: int
    count: int
    public_bytes: int
    part_bytes: int
    salt: bytes = field(repr=False)
    columns_seal: bytes
    use_bytes: int = 0

    @classmethod
    def decode(cls, data: bytes, log_key: bytes) -> Self | None:
        """Return the head that these bytes encode, or None if they are not a head under this key."""
        head_bytes, check = data[: _HEAD.size], data[_HEAD.size :]
        if len(data) != HEAD_BYTES or not hmac.compare_digest(check, _head_check(log_key, head_bytes)):
            return None
        # Only now is anything of it interpreted: devices choose bytes that lie in the file, so a head may be forged.
        return cls.unchecked(data)

    @classmethod
    def unchecked(cls, data: bytes) -> Self | None:
        """Return the head that these bytes seem to be, whoever wrote them, or None."""
        if len(data) != HEAD_BYTES:
            return None
        found = _HEAD.unpack(data[: _HEAD.size])
        magic, round_number, uses, sequence, group, count, public, part, salt, columns_seal = found
        head = cls(
            round=round_number,
            sequence=sequence,
            group=group,
            count=count,
            public_bytes=public,
            part_bytes=part,
            salt=salt,
            columns_seal=columns_seal,
            use_bytes=uses,
        )
        sane = magic == FRAME_MAGIC and round_number <= 2 and uses in (0, USE_BYTES)
        sane = sane and 0 < count <= MOST_ROWS and group <= sequence
        return head if sane and public <= MAX_PUBLIC_SHARE_BYTES and part <= MAX_CIPHERTEXT_BYTES else None

    def encode(self, log_key: bytes) -> bytes:
        """Return the head's bytes."""
        data = _HEAD.pack(
            FRAME_MAGIC,
            self.round,
            self.use_bytes,
            self.sequence,
            self.group,
            self.count,
            self.public_bytes,
            self.part_bytes,
            self.salt,
            self.columns_seal,
        )
        return data + _head_check(log_key, data)

    @property
    def columns_bytes(self) -> int:
        """Bytes of all columns before the parts."""
        return self._public_at + self.count * self.public_bytes

    @property
    def _public_at(self) -> int:
        """Where the public shares begin, from the first byte of the columns."""
        return self.count * (_FIXED_COLUMN_BYTES + self.use_bytes)

    @property
    def block_rows(self) -> int:
        """Parts that are sealed together, but for fewer in the last block."""
        return max(1, BLOCK_BYTES // max(1, self.part_bytes))

    @property
    def block_count(self) -> int:
        """Blocks of parts."""
        return -(-self.count // self.block_rows)

    @property
    def frame_bytes(self) -> int:
        """Bytes of the whole frame, head included."""
        return self.parts_at + self.count * self.part_bytes + self.block_count * AES_GCM_TAG_BYTES

    @property
    def parts_at(self) -> int:
        """Where the parts begin, from the frame's first byte."""
        return HEAD_BYTES + self.columns_bytes

    def id_at(self, place: int) -> int:
        """Where the report id of one row lies, from the frame's first byte."""
        return HEAD_BYTES + place * ReportId.SIZE

    def digest_at(self, place: int) -> int:
        """Where the instalment digest of one row lies, from the frame's first byte."""
        return HEAD_BYTES + self.count * (ReportId.SIZE + Digest.SIZE) + place * Digest.SIZE

    @property
    def uses_at(self) -> int:
        """Where the key uses begin, from the frame's first byte."""
        return HEAD_BYTES + self.count * _FIXED_COLUMN_BYTES

    def public_at(self, place: int) -> int:
        """Where the public share of one row lies, from the frame's first byte."""
        return HEAD_BYTES + self._public_at + place * self.public_bytes

    def block_at(self, block: int) -> int:
        """Where a sealed block of parts lies, from the frame's first byte; behind the last, the frame's end."""
        return min(self.parts_at + block * (self.block_rows * self.part_bytes + AES_GCM_TAG_BYTES), self.frame_bytes)

    def bound(self, columns: bytes, block: int) -> bytes:
        """Return what a block of parts is bound to: of the frame's columns its report ids and public shares."""
        start, end = block * self.block_rows, min((block + 1) * self.block_rows, self.count)
        public = self._public_at
        ids = columns[start * ReportId.SIZE : end * ReportId.SIZE]
        return ids + columns[public + start * self.public_bytes : public + end * self.public_bytes]

    def split_columns(self, columns: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the columns of report ids, certificates and instalment digests."""
        ids = self.count * ReportId.SIZE
        certificates = ids + self.count * Digest.SIZE
        return columns[:ids], columns[ids:certificates], columns[certificates : certificates + self.count * Digest.SIZE]


class FrameSeal:
    """The cipher of one frame, by the salt in its head."""

    def __init__(self, log_key: bytes, salt: bytes, window_id: WindowId, round_number: int) -> None:
        # HKDF-SHA256 of the log key with the frame's salt, one block (RFC 5869).
        extracted = hmac.digest(salt, log_key, "sha256")
        info = _FRAME_INFO + window_id + bytes((round_number,))
        self._cipher = AESGCM(hmac.digest(extracted, info + b"\x01", "sha256"))

    def of_columns(self, columns: bytes) -> bytes:
        """Return the seal of a frame's columns."""
        # Blocks count from 0 and never reach the nonce of all ones.
        return self._cipher.encrypt(_COLUMNS_NONCE, b"", columns)

    def seal_block(self, block: int, parts: bytes | memoryview, bound: bytes, into: memoryview) -> None:
        """Seal a block of joined parts; `bound` are its joined report ids and public shares."""
        self._cipher.encrypt_into(block.to_bytes(_NONCE_BYTES, "little"), parts, bound, into)

    def open_block(self, block: int, sealed: bytes | memoryview, bound: bytes, into: memoryview) -> bool:
        """Put the joined parts of a block into `into`, which is as long; return whether it is not damaged."""
        try:
            self._cipher.decrypt_into(block.to_bytes(_NONCE_BYTES, "little"), sealed, bound, into)
        except InvalidTag:
            return False
        return True


class NewFrame:
    """A frame of runs with 1 to `MOST_ROWS` instalments, alike in window, round and sizes, on its way into a file.

    `salt` is 32 fresh bytes of the system. Raises ValueError for public shares or parts longer than a window can have.
    """

    def __init__(
        self, runs: Sequence[InstalmentRun], *, sequence: int, group: int, log_key: bytes, salt: bytes
    ) -> None:
        first = runs[0]
        public_bytes, part_bytes = first.public_bytes, first.part_bytes
        if public_bytes > MAX_PUBLIC_SHARE_BYTES or part_bytes > MAX_CIPHERTEXT_BYTES:
            raise ValueError(f"a public share of {public_bytes} or a part of {part_bytes} bytes is too long")
        self._runs = runs
        # Column by column, not row by row: ids and digests can then be read and compared without the rest.
        self.columns = b"".join(
            [
                *[run.report_ids for run in runs],
                *[run.certificates for run in runs],
                *[run.digests for run in runs],
                *[run.key_uses for run in runs],
                *[run.public_shares for run in runs],
            ]
        )
        self._seal = FrameSeal(log_key, salt, first.window_id, first.round)
        self._log_key = log_key
        self.head = FrameHead(
            round=first.round,
            sequence=sequence,
            group=group,
            count=sum(map(len, runs)),
            public_bytes=public_bytes,
            part_bytes=part_bytes,
            salt=salt,
            columns_seal=self._seal.of_columns(self.columns),
            use_bytes=first.use_bytes,
        )

    @property
    def head_bytes(self) -> bytes:
        """The head as it is stored."""
        return self.head.encode(self._log_key)

    def parts(self) -> bytes | memoryview:
        """Return all parts, sealed."""
        return next(self._sealed(self.head.frame_bytes - self.head.parts_at))

    def joined(self) -> bytes:
        """Return all bytes of the frame."""
        return b"".join((self.head_bytes, self.columns, self.parts()))

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the frame's bytes; each piece is good until the next, so that few are in memory twice."""
        yield self.head_bytes
        yield self.columns
        most = max(_PIECE_BYTES, self.head.block_rows * self.head.part_bytes + AES_GCM_TAG_BYTES)
        # Devices that come one by one leave frames of a few hundred bytes: no piece is larger than what there is.
        yield from self._sealed(min(most, self.head.frame_bytes - self.head.parts_at))

    def _sealed(self, size: int) -> Iterator[memoryview]:
        """Yield the sealed parts, as many blocks at once as fit into `size` bytes."""
        buffer = memoryview(bytearray(size))
        filled = 0
        for block, parts in enumerate(_blocks(self._runs, self.head.block_rows * self.head.part_bytes)):
            sealed = len(parts) + AES_GCM_TAG_BYTES
            if filled + sealed > len(buffer):
                yield buffer[:filled]
                filled = 0
            bound = self.head.bound(self.columns, block)
            self._seal.seal_block(block, parts, bound, buffer[filled : filled + sealed])
            filled += sealed
        yield buffer[:filled]


def _blocks(runs: Sequence[InstalmentRun], size: int) -> Iterator[bytes | memoryview]:
    """Yield the joined parts of all runs in pieces of one size, the last of which may be shorter."""
    rest = b""
    for run in runs:
        parts = memoryview(run.parts)
        if rest:
            missing = size - len(rest)
            rest, parts = rest + parts[:missing], parts[missing:]
            if len(rest) < size:
                continue
            yield rest
        whole = len(parts) - len(parts) % size
        for start in range(0, whole, size):
            yield parts[start : start + size]
        rest = bytes(parts[whole:])
    if rest:
        yield rest
