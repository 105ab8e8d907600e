"""The chain of a question's records: a record names the one before it, and the reasons of the windows without a record.

It must not decide why a window is missing: the aggregators do. Digests are of records, never of a set of reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.layout import Reader, check_text, text_bytes, uint
from fleetcount_protocol.limits import MAX_QUESTION_WINDOWS, MAX_REASON_BYTES

_MAX_RUNS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingWindow:
    """A window without a record, and the reason: a word or a sentence for the public, 1 to 200 bytes."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """The part of a window's record about the windows before it.

    `previous` is the digest (`ReleaseRecord.digest`) of the question's record before this one and `previous_index` its
    window, both None in the first record; `missing` are all windows in between, ascending.
    """

    previous: Digest | None
    previous_index: int | None
    missing: tuple[MissingWindow, ...]


def check_link(link: ChainLink, index: int) -> None:
    """Refuse a link that does not account for every window before `index`.

    Raises:
        UsageError: a digest without a window or the other way round, a previous record that is not before this one,
            missing windows that are not exactly those in between, a reason that `check_text` refuses, or more than
            4,096 runs.
    """
    if (link.previous is None) != (link.previous_index is None):
        raise UsageError("a previous record needs its digest and its window, allowed: both or none")
    before = -1 if link.previous_index is None else link.previous_index
    if not -1 <= before < index:
        raise UsageError(f"the previous record is of window {before}, allowed: below {index}")
    if [one.index for one in link.missing] != list(range(before + 1, index)):
        raise UsageError(f"missing windows must be those from {before + 1} to below {index}, each once, in order")
    runs = _runs(link.missing)
    if len(runs) > _MAX_RUNS:
        raise UsageError(f"missing windows have {len(runs)} runs of one reason, allowed: at most {_MAX_RUNS}")
    for _, _, reason in runs:
        try:
            check_text(reason, 1, MAX_REASON_BYTES)
        except ValueError as error:
            raise UsageError(f"reason of a missing window: {error}") from None


def encode_link(link: ChainLink) -> bytes:
    """Return the bytes of a link in a record: the previous record, then runs of missing windows with one reason."""
    before = b""
    if link.previous is not None and link.previous_index is not None:
        before = link.previous + uint(link.previous_index, 4)
    runs = _runs(link.missing)
    parts = (uint(first, 4) + uint(count, 4) + text_bytes(reason) for first, count, reason in runs)
    return uint(bool(before), 1) + before + uint(len(runs), 2) + b"".join(parts)


def read_link(reader: Reader) -> ChainLink:
    """Return the link that these bytes encode; the caller checks it with `check_link`.

    Raises:
        DecodeError: a field out of its range, or too few bytes.
    """
    previous, previous_index = None, None
    if reader.flag():
        previous, previous_index = Digest(reader.take(Digest.SIZE)), reader.uint(4)
    missing: list[MissingWindow] = []
    for _ in range(reader.count(2, 0, _MAX_RUNS)):
        first, count = reader.uint(4), reader.count(4, 1, MAX_QUESTION_WINDOWS)
        reason = reader.text(1, MAX_REASON_BYTES)
        if len(missing) + count > MAX_QUESTION_WINDOWS:
            raise DecodeError(f"record misses more than {MAX_QUESTION_WINDOWS} windows")
        missing += (MissingWindow(index=index, reason=reason) for index in range(first, first + count))
    return ChainLink(previous=previous, previous_index=previous_index, missing=tuple(missing))


def _runs(missing: Sequence[MissingWindow]) -> list[tuple[int, int, str]]:
    grouped = ((reason, list(windows)) for reason, windows in groupby(missing, lambda one: one.reason))
    return [(windows[0].index, len(windows), reason) for reason, windows in grouped]
