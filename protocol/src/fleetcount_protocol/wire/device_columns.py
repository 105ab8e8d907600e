"""Uploads and their answers as columns, encoded in protobuf (protos/…/device.proto).

A column is one field of n parts of reports, concatenated. The length of the ids gives the number of parts, and the
length of a column the size of its shares or ciphertexts; a column is split only after every length is checked.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby, pairwise
from struct import unpack
from typing import Any, Final, Self

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import (
    AES_GCM_TAG_BYTES,
    MAX_BATCH_BYTES,
    MAX_CIPHERTEXT_BYTES,
    MAX_INSTALMENTS_PER_BATCH,
    MAX_PUBLIC_SHARE_BYTES,
)
from fleetcount_protocol.messages import Instalment, InstalmentReply, Receipt, Refusal
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.wire.codec import (
    Bounds,
    Count,
    Joined,
    Range,
    Size,
    WireMessage,
    check_count,
    check_size,
    conversion,
)

_MOST: Final = MAX_INSTALMENTS_PER_BATCH
_NUMBER_BYTES: Final = 2
_NO_NUMBER: Final = bytes(_NUMBER_BYTES)
_MAC_BYTES: Final = 32
_RUN_BYTES: Final = 80
"""An upper bound of the bytes of the window id, the round and all tags and lengths of one run of columns."""
_COLUMNS: Final = ("report_ids", "session_ids", "key_numbers", "public_shares", "ciphertexts")
_REASONS: Final = bytes((0, *(reason.value for reason in RejectReason)))
"""The allowed bytes of `reasons`: 0 means that there is a receipt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalmentColumns:
    """n parts of reports of one window and round, with public shares of one size and ciphertexts of one size.

    n `report_ids` and `session_ids` of 16 bytes, `key_numbers` of 2 (big-endian), `public_shares` and `ciphertexts` of
    one size each; all in one order.
    """

    window_id: WindowId
    round: int
    report_ids: Sequence[bytes]
    session_ids: Sequence[bytes]
    key_numbers: Sequence[bytes]
    public_shares: Sequence[bytes]
    ciphertexts: Sequence[bytes]

    @classmethod
    def of(cls, instalments: Iterable[Instalment]) -> list[Self]:
        """Return instalments as columns, in order and in the smallest number of runs."""
        return [
            cls(
                window_id=WindowId(key[0]),
                round=key[1],
                report_ids=[one.report_id for one in run],
                session_ids=[one.session_id for one in run],
                key_numbers=[uint(one.key_number, _NUMBER_BYTES) for one in run],
                public_shares=[one.public_share for one in run],
                ciphertexts=[one.ciphertext for one in run],
            )
            for key, run in ((key, list(run)) for key, run in groupby(instalments, _shape_of))
        ]

    @classmethod
    def joined(cls, runs: Sequence["InstalmentColumns"]) -> "InstalmentColumns":
        """Return one or more runs of one shape as one run."""
        columns: dict[str, Any] = {name: [one for run in runs for one in getattr(run, name)] for name in _COLUMNS}
        return replace(runs[0], **columns)

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

    @property
    def shape(self) -> tuple[bytes, int, int, int]:
        """Window, round and sizes: runs of one shape can be joined."""
        return self.window_id, self.round, self.public_share_size, self.ciphertext_size

    @property
    def most_bytes(self) -> int:
        """An upper bound of the run's bytes in a message."""
        each = ReportId.SIZE + SessionId.SIZE + _NUMBER_BYTES + self.public_share_size + self.ciphertext_size
        return _RUN_BYTES + len(self) * each

    def only(self, places: Sequence[int]) -> "InstalmentColumns":
        """Return the instalments at these positions, which must ascend without duplicates."""
        if len(places) == len(self):
            return self
        columns: dict[str, Any] = {name: list(map(getattr(self, name).__getitem__, places)) for name in _COLUMNS}
        return replace(self, **columns)

    def instalments(self) -> Iterator[Instalment]:
        """Yield the instalments one by one."""
        columns = (getattr(self, name) for name in _COLUMNS)
        for report_id, session_id, key_number, public_share, ciphertext in zip(*columns, strict=True):
            yield Instalment(
                window_id=self.window_id,
                report_id=ReportId(report_id),
                session_id=SessionId(session_id),
                key_number=int.from_bytes(key_number),
                round=self.round,
                public_share=public_share,
                ciphertext=ciphertext,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalmentReplyColumns:
    """The answers to one run of n instalments, in its order.

    `reasons` n bytes, 0 with a receipt; `digests` and `macs` of the receipts alone, 32 bytes each.
    """

    window_id: WindowId
    round: int
    report_ids: bytes
    session_ids: bytes
    reasons: bytes
    digests: bytes
    macs: bytes = field(repr=False)

    @classmethod
    def refused(cls, asked: InstalmentColumns, reason: RejectReason) -> Self:
        """Return a refusal of every instalment of a run."""
        return cls.answering(asked, bytes((reason.value,)) * len(asked), b"", b"")

    @classmethod
    def answering(cls, asked: InstalmentColumns, reasons: bytes, digests: bytes, macs: bytes) -> Self:
        """Return the answers to a run."""
        return cls(
            window_id=asked.window_id,
            round=asked.round,
            report_ids=b"".join(asked.report_ids),
            session_ids=b"".join(asked.session_ids),
            reasons=reasons,
            digests=digests,
            macs=macs,
        )

    @classmethod
    def of(cls, reply: InstalmentReply) -> Self:
        """Return the columns of one answer."""
        reason, digest, mac = (
            (0, reply.digest, reply.mac) if isinstance(reply, Receipt) else (reply.reason.value, b"", b"")
        )
        return cls(
            window_id=reply.window_id,
            round=reply.round,
            report_ids=reply.report_id,
            session_ids=reply.session_id,
            reasons=bytes((reason,)),
            digests=digest,
            macs=mac,
        )

    def __len__(self) -> int:
        return len(self.reasons)

    def split(self, counts: Iterable[int]) -> Iterator["InstalmentReplyColumns"]:
        """Yield the answers in groups of these sizes, in order."""
        start, first = 0, 0
        for count in counts:
            end = start + count
            reasons = self.reasons[start:end]
            last = first + reasons.count(0)
            yield replace(
                self,
                report_ids=self.report_ids[start * ReportId.SIZE : end * ReportId.SIZE],
                session_ids=self.session_ids[start * SessionId.SIZE : end * SessionId.SIZE],
                reasons=reasons,
                digests=self.digests[first * Digest.SIZE : last * Digest.SIZE],
                macs=self.macs[first * _MAC_BYTES : last * _MAC_BYTES],
            )
            start, first = end, last

    def replies(self) -> Iterator[InstalmentReply]:
        """Yield the answers one by one."""
        digests, macs = _parts(self.digests, Digest.SIZE), _parts(self.macs, _MAC_BYTES)
        names = zip(
            _parts(self.report_ids, ReportId.SIZE), _parts(self.session_ids, SessionId.SIZE), self.reasons, strict=True
        )
        for report, session, reason in names:
            report_id, session_id = ReportId(report), SessionId(session)
            if reason:
                yield Refusal(
                    window_id=self.window_id,
                    report_id=report_id,
                    round=self.round,
                    session_id=session_id,
                    reason=RejectReason(reason),
                )
            else:
                yield Receipt(
                    window_id=self.window_id,
                    report_id=report_id,
                    round=self.round,
                    session_id=session_id,
                    digest=Digest(next(digests)),
                    mac=next(macs),
                )


def _parts(column: bytes, size: int) -> Iterator[bytes]:
    return (column[at : at + size] for at in range(0, len(column), size))


def _shape_of(instalment: Instalment) -> tuple[bytes, int, int, int]:
    return instalment.window_id, instalment.round, len(instalment.public_share), len(instalment.ciphertext)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Device to aggregator: parts of reports, all for this one aggregator; neighbouring runs differ in shape."""

    aggregator_id: AggregatorId
    runs: tuple[InstalmentColumns, ...]

    @classmethod
    def of(cls, aggregator_id: AggregatorId, instalments: Iterable[Instalment]) -> Self:
        """Return the upload of instalments, in order."""
        return cls(aggregator_id=aggregator_id, runs=tuple(InstalmentColumns.of(instalments)))

    def instalments(self) -> list[Instalment]:
        """Return the instalments, in order."""
        return [one for run in self.runs for one in run.instalments()]

    @property
    def only_one(self) -> InstalmentColumns:
        """The run of an upload of one instalment, as it is published on a report topic.

        Raises:
            DecodeError: the upload has no instalment, or several.
        """
        check_count("instalments", sum(map(len, self.runs)), 1, 1)
        return self.runs[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadAnswer:
    """Aggregator to device: the answers to one upload, run by run."""

    runs: tuple[InstalmentReplyColumns, ...]

    @classmethod
    def of(cls, replies: Iterable[InstalmentReply]) -> Self:
        """Return the answer of these replies, in order, each a run of its own."""
        return cls(runs=tuple(map(InstalmentReplyColumns.of, replies)))

    def replies(self) -> list[InstalmentReply]:
        """Return the answers, in order."""
        return [one for run in self.runs for one in run.replies()]

    @property
    def only_one(self) -> InstalmentReply:
        """The answer to an upload of one, as it is published on a receipt topic.

        Raises:
            DecodeError: there is no answer, or several.
        """
        check_count("answers", sum(map(len, self.runs)), 1, 1)
        return self.replies()[0]


_BOUNDS: Final[Bounds] = {
    InstalmentColumns: {
        "round": Range(0, 2),
        **dict.fromkeys(_COLUMNS, Joined()),
    },
    InstalmentReplyColumns: {
        "round": Range(0, 2),
        "report_ids": Size(ReportId.SIZE, _MOST * ReportId.SIZE),
        "session_ids": Size(SessionId.SIZE, _MOST * SessionId.SIZE),
        "reasons": Size(1, _MOST),
        "digests": Size(0, _MOST * Digest.SIZE),
        "macs": Size(0, _MOST * _MAC_BYTES),
    },
}


def _columns(
    window_id: WindowId,
    round: int,  # noqa: A002 the field's name
    report_ids: bytes,
    session_ids: bytes,
    key_numbers: bytes,
    public_shares: bytes,
    ciphertexts: bytes,
) -> InstalmentColumns:
    """Return the columns of one run, each split after its length is checked."""
    sizes = _part_sizes(
        round, len(report_ids), len(session_ids), len(key_numbers), len(public_shares), len(ciphertexts)
    )
    reports, sessions, numbers, shares, sealed = (
        [report_ids],
        [session_ids],
        [key_numbers],
        [public_shares],
        [ciphertexts],
    )
    if len(report_ids) > ReportId.SIZE:  # The column of an only part is that part.
        columns = (report_ids, session_ids, key_numbers, public_shares, ciphertexts)
        # One call of `struct` takes a third of as many slices.
        forms = (f"{size}s" * (len(report_ids) // ReportId.SIZE) for size in sizes)
        reports, sessions, numbers, shares, sealed = (list(unpack(*one)) for one in zip(forms, columns, strict=True))
    if _NO_NUMBER in numbers:
        raise DecodeError("the number of a window key is 0, not 1 to 65535")
    return InstalmentColumns(
        window_id=window_id,
        round=round,
        report_ids=reports,
        session_ids=sessions,
        key_numbers=numbers,
        public_shares=shares,
        ciphertexts=sealed,
    )


@lru_cache(maxsize=256)
def _part_sizes(round_number: int, *lengths: int) -> tuple[int, ...]:
    """Return the size of a part of each column, by the columns' lengths; a question's reports have the same lengths.

    Raises:
        DecodeError: the number is out of range, or a length is not that number of parts of one size within its range.
    """
    count = lengths[0] // ReportId.SIZE
    check_count("instalments", count, 1, _MOST)
    ranges = (
        ("report id", ReportId.SIZE, ReportId.SIZE),
        ("session id", SessionId.SIZE, SessionId.SIZE),
        ("key number", _NUMBER_BYTES, _NUMBER_BYTES),
        ("public share", 0, 0 if round_number == 1 else MAX_PUBLIC_SHARE_BYTES),
        ("ciphertext", AES_GCM_TAG_BYTES + 1, MAX_CIPHERTEXT_BYTES),
    )
    for length, (what, smallest, largest) in zip(lengths, ranges, strict=True):
        size, rest = divmod(length, count)
        if rest or not smallest <= size <= largest:
            raise DecodeError(
                f"a column of {count} {what}s has {length} bytes, not {count} times one size, {smallest} to {largest}"
            )
    return tuple(length // count for length in lengths)


def _check_replies(run: InstalmentReplyColumns) -> None:
    count = len(run)
    check_size("report ids", run.report_ids, ReportId.SIZE * count, ReportId.SIZE * count)
    check_size("session ids", run.session_ids, SessionId.SIZE * count, SessionId.SIZE * count)
    if unknown := run.reasons.translate(None, _REASONS):
        raise DecodeError(f"{unknown[0]} is no reason of the list")
    receipts = count - len(run.reasons.translate(None, b"\0"))
    check_size("digests", run.digests, Digest.SIZE * receipts, Digest.SIZE * receipts)
    check_size("macs", run.macs, _MAC_BYTES * receipts, _MAC_BYTES * receipts)


def _check_upload(upload: Upload) -> None:
    if len(upload.runs) == 1:
        return  # Whose number of parts is checked with its columns.
    _check_total(upload.runs)
    for one, other in pairwise(upload.runs):
        if one.shape == other.shape:
            raise DecodeError("an upload has two neighbouring runs that are one")


def _check_total(runs: Sequence[InstalmentColumns] | Sequence[InstalmentReplyColumns]) -> None:
    check_count("instalments", sum(map(len, runs)), 1, _MOST)


_INSTALMENTS: Final = conversion(pb.InstalmentColumns, InstalmentColumns, _BOUNDS, make=_columns)
_REPLIES: Final = conversion(pb.InstalmentReplyColumns, InstalmentReplyColumns, _BOUNDS, check=_check_replies)

UPLOAD_FIELDS: Final = conversion(
    pb.UploadRequest, Upload, {Upload: {"runs": Count(1, _MOST, _INSTALMENTS)}}, check=_check_upload
)
UPLOAD_ANSWER_FIELDS: Final = conversion(
    pb.UploadResponse,
    UploadAnswer,
    {UploadAnswer: {"runs": Count(1, _MOST, _REPLIES)}},
    check=lambda answer: _check_total(answer.runs),
)
UPLOAD: Final = WireMessage("upload", pb.UploadRequest, UPLOAD_FIELDS.to_pb, UPLOAD_FIELDS.read, MAX_BATCH_BYTES)
"""A batch of parts of reports."""
UPLOAD_ANSWER: Final = WireMessage(
    "upload answer", pb.UploadResponse, UPLOAD_ANSWER_FIELDS.to_pb, UPLOAD_ANSWER_FIELDS.read, MAX_BATCH_BYTES
)
"""The answers to a batch."""


def batches(aggregator_id: AggregatorId, instalments: Iterable[Instalment]) -> Iterator[Upload]:
    """Yield the instalments in order, in the largest uploads that fit one message."""
    group: list[Instalment] = []
    size = 0
    for instalment in instalments:
        # Ids, tags and lengths of one instalment in a run of its own have less than 128 bytes.
        needed = len(instalment.public_share) + len(instalment.ciphertext) + 128
        if group and (size + needed > MAX_BATCH_BYTES or len(group) == MAX_INSTALMENTS_PER_BATCH):
            yield Upload.of(aggregator_id, group)
            group, size = [], 0
        group.append(instalment)
        size += needed
    if group:
        yield Upload.of(aggregator_id, group)
