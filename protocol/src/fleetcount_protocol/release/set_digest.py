"""The digest by which the aggregators of a task agree on the exact set of reports (docs/wire.md, "Set digest").

It must not leave the aggregators: with it, an observer of the sealed reports could find out which of them were
accepted, and so how many.
"""

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import MAX_REPORTS_PER_TASK

__all__ = ["public_share_digest", "set_digest"]

SET_LABEL: Final = b"fleetcount v1 report set"


def public_share_digest(public_share: bytes) -> Digest:
    """Return SHA-256 of a report's public share, which binds the shares of all aggregators to each other."""
    return Digest(hashlib.sha256(public_share).digest())


def set_digest(items: Iterable[tuple[ReportId, Digest]]) -> Digest:
    """Return SHA-256 over the label, the count (8 bytes) and each (report id, public share digest) by ascending id.

    A hash of the sorted list, not an exclusive or of hashes: with that, linear algebra finds within milliseconds other
    sets of 129 reports with the same digest.

    Raises:
        UsageError: a report id that appears twice, or more than `MAX_REPORTS_PER_TASK` items.
    """
    ordered = sorted(items)
    if len(ordered) > MAX_REPORTS_PER_TASK:
        raise UsageError(f"{len(ordered)} reports, allowed: at most {MAX_REPORTS_PER_TASK}")
    if any(first[0] == second[0] for first, second in pairwise(ordered)):
        raise UsageError("a report id appears twice in a set")
    digest = hashlib.sha256(SET_LABEL + uint(len(ordered), 8))
    for report_id, share_digest in ordered:
        digest.update(report_id + share_digest)
    return Digest(digest.digest())
