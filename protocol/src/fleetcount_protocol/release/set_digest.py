"""The digest by which the aggregators of a window agree on the exact set of reports (docs/wire.md, "Set digest").

It is the root over 256 leaves: leaf n is of the reports whose ids begin with byte n. Two aggregators whose sets differ
find out where from the leaves, and tell each other no other ids. Neither root nor leaves must leave the aggregators:
with them, an observer of the sealed reports could find out which of them were accepted, and so how many.
"""

import hashlib
from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import MAX_REPORTS_PER_LEAF, MAX_REPORTS_PER_WINDOW, SET_LEAVES

_SET_LABEL: Final = b"fleetcount v2 report set"
_LEAF_LABEL: Final = b"fleetcount v2 set leaf"


def public_share_digest(public_share: bytes) -> Digest:
    """Return SHA-256 of a report's public share, which binds the shares of all aggregators to each other."""
    return Digest(hashlib.sha256(public_share).digest())


def leaf_head(window_id: WindowId, number: int, count: int) -> bytes:
    """Return what the hash of leaf `number` (0 to 255) begins with: label, window, number, count of its reports.

    Raises:
        UsageError: more than `MAX_REPORTS_PER_LEAF` reports.
    """
    if count > MAX_REPORTS_PER_LEAF:
        raise UsageError(f"{count} reports in leaf {number}, allowed: at most {MAX_REPORTS_PER_LEAF}")
    return _LEAF_LABEL + window_id + uint(number, 1) + uint(count, 4)


def leaf_digests(window_id: WindowId, items: Iterable[tuple[ReportId, Digest]]) -> bytes:
    """Return the digests of all leaves, joined: SHA-256 over `leaf_head` and each (id, share digest) by ascending id.

    A hash of the sorted list, not an exclusive or of hashes: with that, linear algebra finds within milliseconds other
    sets of 129 reports with the same digest. `items` are report ids with the digests of their public shares.

    Raises:
        UsageError: a report id that appears twice, or more reports than a leaf or a window may have.
    """
    ordered = sorted(items)
    if len(ordered) > MAX_REPORTS_PER_WINDOW:
        raise UsageError(f"{len(ordered)} reports, allowed: at most {MAX_REPORTS_PER_WINDOW}")
    if any(first[0] == second[0] for first, second in pairwise(ordered)):
        raise UsageError("a report id appears twice in a set")
    leaves = {number: list(found) for number, found in groupby(ordered, lambda item: item[0][0])}
    return b"".join(_leaf(window_id, number, leaves.get(number, [])) for number in range(SET_LEAVES))


def _leaf(window_id: WindowId, number: int, items: list[tuple[ReportId, Digest]]) -> bytes:
    records = (part for item in items for part in item)
    return hashlib.sha256(leaf_head(window_id, number, len(items)) + b"".join(records)).digest()


def set_root(window_id: WindowId, leaves: bytes) -> Digest:
    """Return the digest of a set, by the joined digests of its leaves: SHA-256 over label, window and leaves.

    Raises:
        UsageError: other than `SET_LEAVES` digests.
    """
    if len(leaves) != SET_LEAVES * Digest.SIZE:
        raise UsageError(f"the leaves of a set have {len(leaves)} bytes, allowed: {SET_LEAVES * Digest.SIZE}")
    return Digest(hashlib.sha256(_SET_LABEL + window_id + leaves).digest())


def set_digest(window_id: WindowId, items: Iterable[tuple[ReportId, Digest]]) -> Digest:
    """Return the digest of a set of reports of a window, whatever their order; see `leaf_digests`."""
    return set_root(window_id, leaf_digests(window_id, items))
