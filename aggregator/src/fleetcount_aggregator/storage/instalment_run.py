"""Instalments of one window and round as columns, as they are stored together, and as bytes between processes.

The bytes go from the process that opened the instalments to the owner of their shard: typed, versioned, refused unless
whole; between processes of one aggregator alone, under TLS. Pure.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import Digest, ReportId, SessionId, WindowId
from fleetcount_protocol.layout import Reader, sized, uint
from numpy.typing import NDArray

USE_BYTES: Final = SessionId.SIZE + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalmentRun:
    """Instalments of one window and round, opened, in joined columns of one order; the store seals the parts again.

    All public shares have one size, and all parts. `expected` instalments (1 or 2) make a report complete. Raises
    UsageError for columns that do not fit each other, or none at all.
    """

    window_id: WindowId
    round: int
    expected: int
    report_ids: bytes
    certificates: bytes
    digests: bytes
    public_shares: bytes = field(repr=False)
    parts: bytes = field(repr=False)
    key_uses: bytes = b""
    """Which key opened each: `USE_BYTES` an instalment, the session's id and the key's number. Empty: not known."""

    def __post_init__(self) -> None:
        count = len(self)
        whole = len(self.report_ids) == count * ReportId.SIZE and count
        digests = {len(self.certificates), len(self.digests)} == {count * Digest.SIZE}
        uses = len(self.key_uses) in (0, count * USE_BYTES)
        if not whole or not digests or not uses or len(self.public_shares) % count or len(self.parts) % count:
            raise UsageError(f"columns of {count} instalments that do not fit each other")

    def __len__(self) -> int:
        return len(self.report_ids) // ReportId.SIZE

    @property
    def public_bytes(self) -> int:
        """Bytes of every public share."""
        return len(self.public_shares) // len(self)

    @property
    def part_bytes(self) -> int:
        """Bytes of every part."""
        return len(self.parts) // len(self)

    @property
    def use_bytes(self) -> int:
        """Bytes of every key use, 0 where they are not known."""
        return len(self.key_uses) // len(self)

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        named = len(self.report_ids) + len(self.certificates) * 2 + len(self.key_uses)
        return named + len(self.public_shares) + len(self.parts)

    def only(self, places: NDArray[np.integer]) -> "InstalmentRun":
        """Return the instalments at these places, one at least, which ascend and differ."""
        if len(places) == len(self):
            return self

        def cut(column: bytes) -> bytes:
            if not column:
                return column
            rows = np.frombuffer(column, dtype=np.uint8).reshape(len(self), -1)
            return np.take(rows, places, axis=0).tobytes()

        return replace(
            self,
            report_ids=cut(self.report_ids),
            certificates=cut(self.certificates),
            digests=cut(self.digests),
            public_shares=cut(self.public_shares),
            parts=cut(self.parts),
            key_uses=cut(self.key_uses),
        )


class StoreOutcome(enum.IntEnum):
    """What became of one instalment; the value is a byte of what `Store.add_instalments` returns."""

    STORED = 0
    SAME = 1
    """The same bytes are held already: the same receipt is due."""
    OTHER_BYTES = 2
    """Another instalment holds this (window, report id, round), or another device the report: the first one wins."""
    SECOND_REPORT = 3
    """This device already has a report with another id in this window."""
    CLOSED = 4
    """The window takes no instalments any more."""
    FULL = 5
    """The window has as many reports as a window can have; a second instalment of one of them is still taken."""
    BUSY = 6
    """Who decides about it cannot be reached at present; it is to be sent again."""


MOST_RUN_BYTES: Final = 64 << 20
"""The largest message; a batch of a device is much smaller (`MAX_BATCH_BYTES`)."""
_RUNS: Final = b"fc runs 1"
_OUTCOMES: Final = b"fc outcomes 1"
_QUERY: Final = b"fc digest query 1"
_DIGESTS: Final = b"fc digests 1"
_MOST_RUNS: Final = 4096
_MOST_ROWS: Final = 2**20
_MOST_ROUND: Final = 2
_HIGHEST: Final = max(StoreOutcome)


def encode_runs(runs: Sequence[InstalmentRun]) -> bytes:
    """Return runs as bytes."""
    return _RUNS + uint(len(runs), 2) + b"".join(map(_encoded, runs))


def _encoded(run: InstalmentRun) -> bytes:
    head = run.window_id + uint(run.round, 1) + uint(run.expected, 1) + uint(len(run), 4) + uint(bool(run.key_uses), 1)
    fixed = run.report_ids + run.certificates + run.digests + run.key_uses
    return head + fixed + sized(run.public_shares, 4) + sized(run.parts, 4)


def decode_runs(data: bytes) -> list[InstalmentRun]:
    """Return the runs of some bytes; raises DecodeError unless they are what `encode_runs` writes."""
    reader = Reader(data, "forwarded instalments", MOST_RUN_BYTES)
    reader.expect(_RUNS)
    runs = [_decoded(reader) for _ in range(reader.count(2, 1, _MOST_RUNS))]
    reader.finish()
    return runs


def _decoded(reader: Reader) -> InstalmentRun:
    window_id = WindowId(reader.take(WindowId.SIZE))
    round_number, expected = reader.count(1, 0, _MOST_ROUND), reader.count(1, 1, _MOST_ROUND)
    count, used = reader.count(4, 1, _MOST_ROWS), reader.flag()
    ids, certificates, digests, uses = (
        reader.take(count * size) for size in (ReportId.SIZE, Digest.SIZE, Digest.SIZE, USE_BYTES if used else 0)
    )
    public_shares, parts = (reader.sized(4, 0, MOST_RUN_BYTES) for _ in range(2))
    if len(public_shares) % count or len(parts) % count:
        raise DecodeError(f"forwarded columns of {count} instalments that do not fit each other")
    return InstalmentRun(
        window_id=window_id,
        round=round_number,
        expected=expected,
        report_ids=ids,
        certificates=certificates,
        digests=digests,
        public_shares=public_shares,
        parts=parts,
        key_uses=uses,
    )


def encode_outcomes(outcomes: Sequence[bytes]) -> bytes:
    """Return what became of each run's instalments as bytes."""
    return _OUTCOMES + b"".join(sized(one, 4) for one in outcomes)


def decode_outcomes(data: bytes, counts: Sequence[int]) -> list[bytes]:
    """Return what became of runs of so many instalments each; raises DecodeError for anything else."""
    reader = Reader(data, "outcomes of instalments", MOST_RUN_BYTES)
    reader.expect(_OUTCOMES)
    found = [reader.sized(4, count, count) for count in counts]
    reader.finish()
    if any(one and max(one) > _HIGHEST for one in found):
        raise DecodeError(f"an outcome above {_HIGHEST}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestQuery:
    """Instalments of one window and round whose digests are asked for; `report_ids` are joined."""

    window_id: WindowId
    round: int
    report_ids: bytes

    @property
    def ids(self) -> list[bytes]:
        """The report ids, one by one."""
        return [self.report_ids[at : at + ReportId.SIZE] for at in range(0, len(self.report_ids), ReportId.SIZE)]


def encode_query(query: DigestQuery) -> bytes:
    """Return a query as bytes."""
    return _QUERY + query.window_id + uint(query.round, 1) + sized(query.report_ids, 4)


def decode_query(data: bytes) -> DigestQuery:
    """Return the query of some bytes; raises DecodeError unless they are what `encode_query` writes."""
    reader = Reader(data, "a query for digests", MOST_RUN_BYTES)
    reader.expect(_QUERY)
    window_id, round_number = WindowId(reader.take(WindowId.SIZE)), reader.count(1, 0, _MOST_ROUND)
    report_ids = reader.sized(4, ReportId.SIZE, _MOST_ROWS * ReportId.SIZE)
    reader.finish()
    if len(report_ids) % ReportId.SIZE:
        raise DecodeError(f"{len(report_ids)} bytes are no whole report ids")
    return DigestQuery(window_id=window_id, round=round_number, report_ids=report_ids)


def encode_digests(digests: Sequence[Digest | None]) -> bytes:
    """Return digests as bytes."""
    return _DIGESTS + b"".join(b"\0" if one is None else b"\1" + one for one in digests)


def decode_digests(data: bytes, count: int) -> list[Digest | None]:
    """Return so many digests; raises DecodeError for anything else."""
    reader = Reader(data, "digests of instalments", MOST_RUN_BYTES)
    reader.expect(_DIGESTS)
    found = [Digest(reader.take(Digest.SIZE)) if reader.flag() else None for _ in range(count)]
    reader.finish()
    return found
