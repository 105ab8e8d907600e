"""Instalments of one window and round as columns, as they are stored together. Pure."""

import enum
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest, ReportId, SessionId, WindowId
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
