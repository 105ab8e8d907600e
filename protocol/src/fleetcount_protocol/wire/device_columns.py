"""Batches of instalments and of their answers as columns: the bytes of `device.INSTALMENTS` and `INSTALMENT_REPLIES`.

For aggregators and relays, which move thousands of reports a message. Accepts and writes exactly the bytes that
`device` does: a message that is not a series of canonical entries is left to `device`, which says what is wrong with
it.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Final, Self

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import Digest, ReportId, SessionId, TaskId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import (
    AES_GCM_TAG_BYTES,
    MAX_BATCH_BYTES,
    MAX_CIPHERTEXT_BYTES,
    MAX_INSTALMENTS_PER_BATCH,
    MAX_PUBLIC_SHARE_BYTES,
)
from fleetcount_protocol.messages import Instalment, Receipt, Refusal
from fleetcount_protocol.wire.device import INSTALMENTS

__all__ = ["InstalmentColumns", "ReplyColumns", "read_instalments", "split_entries", "write_replies"]

_ENTRY: Final = b"\x0a"
"""Tag of the one repeated field of UploadRequest and UploadResponse."""
_TASK: Final = b"\x0a\x20"
_REPORT: Final = b"\x12\x10"
_SESSION: Final = b"\x1a\x10"
_ROUND: Final = b"\x20"
_PUBLIC_SHARE: Final = b"\x2a"
_CIPHERTEXT: Final = b"\x32"
_KEY_NUMBER: Final = b"\x3a\x02"
_NUMBER_BYTES: Final = 2
_NO_NUMBER: Final = bytes(_NUMBER_BYTES)
_REASON: Final = b"\x28"
_DIGEST: Final = b"\x32\x20"
_MAC: Final = b"\x3a\x20"
_NAMES_BYTES: Final = 70
"""Task, report and session id with their tags and lengths, the first fields of an instalment and of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalmentColumns:
    """Consecutive instalments of one task and round with public shares of one size and ciphertexts of one size."""

    task_id: TaskId
    round: int
    report_ids: Sequence[bytes]
    session_ids: Sequence[bytes]
    public_shares: Sequence[bytes]
    ciphertexts: Sequence[bytes]
    key_numbers: Sequence[bytes]
    """As two bytes each, big-endian."""

    @classmethod
    def of(cls, instalments: Sequence[Instalment]) -> list[Self]:
        """Return instalments as columns, in order."""
        return [
            cls(
                task_id=TaskId(shape[0]),
                round=shape[1],
                report_ids=[one.report_id for one in run],
                session_ids=[one.session_id for one in run],
                public_shares=[one.public_share for one in run],
                ciphertexts=[one.ciphertext for one in run],
                key_numbers=[uint(one.key_number, 2) for one in run],
            )
            for shape, run in ((shape, list(run)) for shape, run in groupby(instalments, _shape_of))
        ]

    def __len__(self) -> int:
        return len(self.report_ids)

    @property
    def public_share_size(self) -> int:
        """Bytes of every public share."""
        return len(self.public_shares[0])

    @property
    def ciphertext_size(self) -> int:
        """Bytes of every ciphertext."""
        return len(self.ciphertexts[0])

    def only(self, places: Sequence[int]) -> "InstalmentColumns":
        """Return the instalments at these places, which ascend and differ."""
        if len(places) == len(self):
            return self
        return replace(
            self,
            report_ids=[self.report_ids[place] for place in places],
            session_ids=[self.session_ids[place] for place in places],
            public_shares=[self.public_shares[place] for place in places],
            ciphertexts=[self.ciphertexts[place] for place in places],
            key_numbers=[self.key_numbers[place] for place in places],
        )

    def instalments(self) -> Iterator[Instalment]:
        """Yield the instalments one by one."""
        columns = (self.report_ids, self.session_ids, self.public_shares, self.ciphertexts, self.key_numbers)
        for report_id, session_id, public_share, ciphertext, key_number in zip(*columns, strict=True):
            yield Instalment(
                task_id=self.task_id,
                report_id=ReportId(report_id),
                session_id=SessionId(session_id),
                key_number=int.from_bytes(key_number),
                round=self.round,
                public_share=public_share,
                ciphertext=ciphertext,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyColumns:
    """One answer an instalment: a reason where it was refused, else digest and MAC of its receipt."""

    instalments: InstalmentColumns
    reasons: Sequence[RejectReason | None]
    digests: Sequence[bytes]
    macs: Sequence[bytes] = field(repr=False)

    def replies(self) -> Iterator[Receipt | Refusal]:
        """Yield the answers one by one."""
        rows = zip(self.instalments.instalments(), self.reasons, self.digests, self.macs, strict=True)
        for asked, reason, digest, mac in rows:
            names = (asked.task_id, asked.report_id, asked.round, asked.session_id)
            yield _receipt(*names, digest, mac) if reason is None else _refusal(*names, reason)


def _receipt(
    task_id: TaskId, report_id: ReportId, round_number: int, session_id: SessionId, digest: bytes, mac: bytes
) -> Receipt:
    return Receipt(
        task_id=task_id,
        report_id=report_id,
        round=round_number,
        session_id=session_id,
        digest=Digest(digest),
        mac=mac,
    )


def _refusal(
    task_id: TaskId, report_id: ReportId, round_number: int, session_id: SessionId, reason: RejectReason
) -> Refusal:
    return Refusal(task_id=task_id, report_id=report_id, round=round_number, session_id=session_id, reason=reason)


def _shape_of(instalment: Instalment) -> tuple[bytes, int, int, int]:
    return instalment.task_id, instalment.round, len(instalment.public_share), len(instalment.ciphertext)


def read_instalments(data: bytes) -> list[InstalmentColumns]:
    """Return a batch of instalments as columns, in order.

    Raises:
        DecodeError: the message is one that `device.INSTALMENTS` refuses.
    """
    columns = _read_runs(data) if len(data) <= MAX_BATCH_BYTES else None
    return InstalmentColumns.of(INSTALMENTS.decode(data)) if columns is None else columns


def _read_runs(data: bytes) -> list[InstalmentColumns] | None:
    """Return the columns of a message that is certainly canonical and in range, else None."""
    found: list[InstalmentColumns] = []
    place, count = 0, 0
    while place < len(data):
        layout = _layout_at(data, place)
        if layout is None:
            return None
        repeats = layout.repeats(data, place)
        end = place + repeats * layout.stride
        count += repeats
        if not repeats or count > MAX_INSTALMENTS_PER_BATCH or not layout.holds(data, place, end, repeats):
            return None
        columns = layout.read(memoryview(data)[place:end])
        if _NO_NUMBER in columns.key_numbers:
            return None
        found.append(columns)
        place = end
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The canonical form of an entry of one task, round and size: every byte but the contents of the other fields.

    `head` is where it begins, up to the task id; `spelled` are the later bytes, by their offset; `form` is how the
    fields are cut out.
    """

    task_id: TaskId
    round: int
    stride: int
    head: bytes
    spelled: tuple[tuple[int, bytes], ...]
    form: struct.Struct

    def repeats(self, data: bytes, place: int) -> int:
        """Return how many whole entries from `place` on begin with the head."""
        count = 0
        while data.startswith(self.head, place + count * self.stride):
            count += 1
        return min(count, (len(data) - place) // self.stride)

    def holds(self, data: bytes, start: int, end: int, count: int) -> bool:
        """Return whether every byte between the fields of these entries is the layout's: one comparison a column."""
        return all(data[start + offset : end : self.stride] == byte * count for offset, byte in self.spelled)

    def read(self, entries: memoryview) -> InstalmentColumns:
        """Return the fields of entries that hold to the layout."""
        columns = zip(*self.form.iter_unpack(entries), strict=True)
        report_ids, session_ids, public_shares, ciphertexts, key_numbers = columns
        return InstalmentColumns(
            task_id=self.task_id,
            round=self.round,
            report_ids=report_ids,
            session_ids=session_ids,
            public_shares=public_shares,
            ciphertexts=ciphertexts,
            key_numbers=key_numbers,
        )


def _layout_at(data: bytes, place: int) -> _Layout | None:
    """Return the layout of the entry that begins at `place`; None when it is out of range or looks odd.

    Reads leniently: `_Layout.holds` checks afterwards that the entry's bytes are those of the layout.
    """
    try:
        body, start = _varint(data, place + 1)
        field_at, end = start + _NAMES_BYTES, start + body
        round_number, public_share = 0, 0
        if data[field_at] == _ROUND[0]:
            round_number, field_at = data[field_at + 1], field_at + 2
        if data[field_at] == _PUBLIC_SHARE[0]:
            public_share, field_at = _varint(data, field_at + 1)
            field_at += public_share
        ciphertext, field_at = _varint(data, field_at + 1)
    except IndexError:
        return None
    whole = field_at + ciphertext + len(_KEY_NUMBER) + _NUMBER_BYTES == end <= len(data)
    sizes = public_share <= MAX_PUBLIC_SHARE_BYTES and AES_GCM_TAG_BYTES < ciphertext <= MAX_CIPHERTEXT_BYTES
    if not whole or not sizes or round_number > 2 or (round_number == 1 and public_share):
        return None
    return _layout(data[start + 2 : start + 34], round_number, public_share, ciphertext)


@lru_cache(maxsize=256)
def _layout(task_id: bytes, round_number: int, public_share: int, ciphertext: int) -> _Layout:
    """Return the only layout of these sizes."""
    middle = _ROUND + bytes((round_number,)) if round_number else b""
    middle += _PUBLIC_SHARE + _spell(public_share) if public_share else b""
    last = _CIPHERTEXT + _spell(ciphertext)
    rest = len(middle) + public_share + len(last) + ciphertext + len(_KEY_NUMBER) + _NUMBER_BYTES
    head = _ENTRY + _spell(_NAMES_BYTES + rest) + _TASK + task_id
    spelled: list[tuple[int, bytes]] = []
    at = len(head)
    pieces = ((_REPORT, 16), (_SESSION, 16), (middle, public_share), (last, ciphertext), (_KEY_NUMBER, _NUMBER_BYTES))
    for piece, content in pieces:
        spelled += [(at + offset, bytes((byte,))) for offset, byte in enumerate(piece)]
        at += len(piece) + content
    form = f"{len(head) + 2}x16s2x16s{len(middle)}x{public_share}s{len(last)}x{ciphertext}s2x{_NUMBER_BYTES}s"
    return _Layout(
        task_id=TaskId(task_id),
        round=round_number,
        stride=at,
        head=head,
        spelled=tuple(spelled),
        form=struct.Struct(form),
    )


def write_replies(answered: Iterable[ReplyColumns]) -> bytes:
    """Return the bytes that `device.INSTALMENT_REPLIES` gives for these answers, in order."""
    return b"".join(piece for columns in answered for piece in _reply_pieces(columns))


def _reply_pieces(columns: ReplyColumns) -> Iterator[bytes]:
    asked = columns.instalments
    spelled_round = _ROUND + bytes((asked.round,)) if asked.round else b""
    names = _TASK + asked.task_id + _REPORT
    receipt_head = _ENTRY + _spell(_NAMES_BYTES + len(spelled_round) + 68) + names
    refusal_head = _ENTRY + _spell(_NAMES_BYTES + len(spelled_round) + 2) + names
    digest_head = spelled_round + _DIGEST
    rows = zip(asked.report_ids, asked.session_ids, columns.reasons, columns.digests, columns.macs, strict=True)
    for report_id, session_id, reason, digest, mac in rows:
        if reason is None:
            yield b"%b%b\x1a\x10%b%b%b\x3a\x20%b" % (receipt_head, report_id, session_id, digest_head, digest, mac)
        else:
            yield b"".join(
                (refusal_head, report_id, _SESSION, session_id, spelled_round, _REASON, bytes((reason.value,)))
            )


def split_entries(data: bytes) -> list[bytes]:
    """Return the entries of an UploadRequest or UploadResponse, each with its tag and length, unread.

    Raises:
        DecodeError: more bytes or entries than a batch has, another field, or a length that does not fit.
    """
    if len(data) > MAX_BATCH_BYTES:
        raise DecodeError(f"a batch has {len(data)} bytes, more than {MAX_BATCH_BYTES}")
    entries: list[bytes] = []
    place = 0
    while place < len(data):
        if data[place] != _ENTRY[0] or len(entries) == MAX_INSTALMENTS_PER_BATCH:
            raise DecodeError(f"a batch holds another field, or more than {MAX_INSTALMENTS_PER_BATCH} entries")
        try:
            size, start = _varint(data, place + 1)
        except IndexError:
            raise DecodeError("a batch ends inside a length") from None
        if start + size > len(data):
            raise DecodeError("a batch ends inside an entry")
        entries.append(data[place : start + size])
        place = start + size
    return entries


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of at most three bytes and where it ends; nothing in a batch is longer.

    Raises:
        IndexError: no such number there.
    """
    value = data[place]
    if value < 0x80:
        return value, place + 1
    value = value & 0x7F | (data[place + 1] & 0x7F) << 7
    if data[place + 1] < 0x80:
        return value, place + 2
    if data[place + 2] >= 0x80:
        raise IndexError(place)
    return value | data[place + 2] << 14, place + 3


def _spell(value: int) -> bytes:
    """Return a number's shortest form."""
    spelled = bytearray()
    while value >= 0x80:
        spelled.append(value & 0x7F | 0x80)
        value >>= 7
    spelled.append(value)
    return bytes(spelled)
