"""The bytes of a report log: its header, and frames of instalments in columns with the share parts sealed behind them.

Pure layout and sealing; opens no file and decides about no report (report_log).

    file    FILE_MAGIC | u8 instalments a report | 7 zero bytes | task id | key check (16) | crc32 of what is before it
    frame   head | report ids | certificate digests | instalment digests | public shares | sealed parts
    head    FRAME_MAGIC | u8 round | 3 zero bytes | u64 sequence | u64 group | u32 count | u32 public share bytes
            | u32 part bytes | salt (32) | crc32 of the columns | crc32 of the sealed parts
            | first 8 bytes of the HMAC-SHA256, under the log's key, of the head before it

Numbers are little-endian. `group` is the sequence number of the first frame of the same write: what a crash tears is in
the last group. The head's check is keyed because devices choose ids and public shares, which lie open in the columns:
none can put there what looks like a frame. Each part is sealed with AES-256-GCM under the frame's own key, nonce = its
place in the frame, bound to task, report id, round and public share; so single parts can be read, and no key ever sees
a nonce twice.
"""

import hmac
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES, MAX_CIPHERTEXT_BYTES, MAX_PUBLIC_SHARE_BYTES

__all__ = [
    "FILE_HEADER_BYTES",
    "FRAME_MAGIC",
    "HEAD_BYTES",
    "MOST_ROWS",
    "FrameHead",
    "FrameRow",
    "build_frame",
    "decode_file_header",
    "encode_file_header",
    "frame_cipher",
    "part_context",
    "part_nonce",
]

FILE_MAGIC: Final = b"FCREPLG1"
FRAME_MAGIC: Final = b"FCFR"
MOST_ROWS: Final = 65_535
"""Instalments a frame holds at most."""

_FILE: Final = struct.Struct("<8sB7x32s16sI")
_HEAD: Final = struct.Struct("<4sB3xQQIII32sII")
_HEAD_CHECK_BYTES: Final = 8
FILE_HEADER_BYTES: Final = _FILE.size
HEAD_BYTES: Final = _HEAD.size + _HEAD_CHECK_BYTES
SALT_BYTES: Final = 32
_CRC_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_FRAME_INFO: Final = b"fleetcount report log frame 1"
_CHECK_INFO: Final = b"fleetcount report log check 1"
_HEAD_INFO: Final = b"fleetcount report log head 1"
_PART_LABEL: Final = b"part"
_FIXED_COLUMN_BYTES: Final = ReportId.SIZE + Digest.SIZE + Digest.SIZE


def encode_file_header(log_key: bytes, task_id: TaskId, expected: int) -> bytes:
    """Return the first bytes of a task's log; `expected` instalments (1 or 2) make a report complete."""
    data = _FILE.pack(FILE_MAGIC, expected, task_id, _key_check(log_key, task_id), 0)[:-_CRC_BYTES]
    return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "little")


def decode_file_header(data: bytes, log_key: bytes, task_id: TaskId) -> int:
    """Return `expected` of a log's first bytes.

    Raises:
        ValueError: it is damaged, of another kind or task, or written under another signing key; the text says which.
    """
    if len(data) != FILE_HEADER_BYTES:
        raise ValueError(f"the header has {len(data)} bytes, not {FILE_HEADER_BYTES}")
    magic, expected, owner, check, crc = _FILE.unpack(data)
    if magic != FILE_MAGIC or crc != zlib.crc32(data[:-_CRC_BYTES]):
        raise ValueError("the header is damaged or of another kind of file")
    if owner != task_id:
        raise ValueError("the log of another task")
    if not hmac.compare_digest(check, _key_check(log_key, task_id)):
        raise ValueError("written under another signing key")
    return int(expected)


def _key_check(log_key: bytes, task_id: TaskId) -> bytes:
    return hmac.digest(log_key, _CHECK_INFO + task_id, "sha256")[:16]


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
    columns_crc: int
    parts_crc: int

    @classmethod
    def decode(cls, data: bytes, log_key: bytes) -> Self | None:
        """Return the head these bytes are, or None if they are none under this key."""
        head_bytes, check = data[: _HEAD.size], data[_HEAD.size :]
        if len(data) != HEAD_BYTES or not hmac.compare_digest(check, _head_check(log_key, head_bytes)):
            return None
        magic, round_number, sequence, group, count, public, part, salt, columns, parts = _HEAD.unpack(head_bytes)
        head = cls(
            round=round_number,
            sequence=sequence,
            group=group,
            count=count,
            public_bytes=public,
            part_bytes=part,
            salt=salt,
            columns_crc=columns,
            parts_crc=parts,
        )
        sane = magic == FRAME_MAGIC and round_number <= 2 and 0 < count <= MOST_ROWS and group <= sequence
        return head if sane and public <= MAX_PUBLIC_SHARE_BYTES and part <= MAX_CIPHERTEXT_BYTES else None

    def encode(self, log_key: bytes) -> bytes:
        """Return the head's bytes."""
        data = _HEAD.pack(
            FRAME_MAGIC,
            self.round,
            self.sequence,
            self.group,
            self.count,
            self.public_bytes,
            self.part_bytes,
            self.salt,
            self.columns_crc,
            self.parts_crc,
        )
        return data + _head_check(log_key, data)

    @property
    def columns_bytes(self) -> int:
        """Bytes of all columns before the parts."""
        return self.count * (_FIXED_COLUMN_BYTES + self.public_bytes)

    @property
    def sealed_bytes(self) -> int:
        """Bytes of one sealed part."""
        return self.part_bytes + AES_GCM_TAG_BYTES

    @property
    def frame_bytes(self) -> int:
        """Bytes of the whole frame, head included."""
        return self.parts_at + self.count * self.sealed_bytes

    @property
    def parts_at(self) -> int:
        """Where the parts begin, from the frame's first byte."""
        return HEAD_BYTES + self.columns_bytes

    def digest_at(self, place: int) -> int:
        """Where the instalment digest of one row lies, from the frame's first byte."""
        return HEAD_BYTES + self.count * (ReportId.SIZE + Digest.SIZE) + place * Digest.SIZE

    def public_at(self, place: int) -> int:
        """Where the public share of one row lies, from the frame's first byte."""
        return HEAD_BYTES + self.count * _FIXED_COLUMN_BYTES + place * self.public_bytes

    def part_at(self, place: int) -> int:
        """Where the sealed part of one row lies, from the frame's first byte."""
        return self.parts_at + place * self.sealed_bytes

    def split_columns(self, columns: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the columns of report ids, certificates and instalment digests."""
        ids = self.count * ReportId.SIZE
        certificates = ids + self.count * Digest.SIZE
        return columns[:ids], columns[ids:certificates], columns[certificates : certificates + self.count * Digest.SIZE]


class FrameRow(Protocol):
    """One instalment on its way into a frame; all rows of a frame have parts of one size and public shares of one."""

    @property
    def report_id(self) -> ReportId:
        """Which report."""
        ...

    @property
    def certificate(self) -> Digest:
        """Whose."""
        ...

    @property
    def digest(self) -> Digest:
        """Of the instalment as it came."""
        ...

    @property
    def public_share(self) -> bytes:
        """In clear."""
        ...

    @property
    def part(self) -> bytes:
        """The share part, opened; it is sealed before it is written."""
        ...


def build_frame(
    rows: Sequence[FrameRow],
    *,
    task_id: TaskId,
    round_number: int,
    sequence: int,
    group: int,
    log_key: bytes,
    salt: bytes,
) -> bytearray:
    """Return the bytes of a frame of 1 to `MOST_ROWS` rows of one round. `salt` is 32 fresh bytes of the system.

    Raises:
        ValueError: public shares or parts longer than a task can have.
    """
    public_bytes, part_bytes = len(rows[0].public_share), len(rows[0].part)
    if public_bytes > MAX_PUBLIC_SHARE_BYTES or part_bytes > MAX_CIPHERTEXT_BYTES:
        raise ValueError(f"a public share of {public_bytes} or a part of {part_bytes} bytes is too long")
    columns = b"".join(
        [
            *[row.report_id for row in rows],
            *[row.certificate for row in rows],
            *[row.digest for row in rows],
            *[row.public_share for row in rows],
        ]
    )
    frame = bytearray(HEAD_BYTES + len(columns) + len(rows) * (part_bytes + AES_GCM_TAG_BYTES))
    view = memoryview(frame)
    view[HEAD_BYTES : HEAD_BYTES + len(columns)] = columns
    parts = view[HEAD_BYTES + len(columns) :]
    _seal_parts(rows, parts, frame_cipher(log_key, salt), _PART_LABEL + task_id, bytes((round_number,)))
    head = FrameHead(
        round=round_number,
        sequence=sequence,
        group=group,
        count=len(rows),
        public_bytes=public_bytes,
        part_bytes=part_bytes,
        salt=salt,
        columns_crc=zlib.crc32(columns),
        parts_crc=zlib.crc32(parts),
    )
    view[:HEAD_BYTES] = head.encode(log_key)
    return frame


def _seal_parts(rows: Sequence[FrameRow], into: memoryview, cipher: AESGCM, label: bytes, round_byte: bytes) -> None:
    seal, sealed, start = cipher.encrypt_into, len(rows[0].part) + AES_GCM_TAG_BYTES, 0
    for place, row in enumerate(rows):
        context = label + row.report_id + round_byte + row.public_share
        seal(place.to_bytes(_NONCE_BYTES, "little"), row.part, context, into[start : start + sealed])
        start += sealed


def frame_cipher(log_key: bytes, salt: bytes) -> AESGCM:
    """Return the cipher of a frame: HKDF-SHA256 of the log key with the frame's salt, one block (RFC 5869)."""
    extracted = hmac.digest(salt, log_key, "sha256")
    return AESGCM(hmac.digest(extracted, _FRAME_INFO + b"\x01", "sha256"))


def part_nonce(place: int) -> bytes:
    """Return the nonce of the part in this place of its frame."""
    return place.to_bytes(_NONCE_BYTES, "little")


def part_context(task_id: TaskId, report_id: bytes, round_number: int, public_share: bytes) -> bytes:
    """Return what a sealed part is bound to."""
    return b"".join((_PART_LABEL, task_id, report_id, bytes((round_number,)), public_share))
