"""The rules of the agreement on one set of reports, as functions of columns of a batch.

Pure: the answers of each party, and the reports that survive. It must not send, store or verify.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import Digest, WindowId
from fleetcount_protocol.layout import Reader, sized
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES, MAX_REPORTS_PER_PEER_BATCH
from fleetcount_protocol.messages import BatchProposal, BatchReply, Commitment, FinishBatch
from numpy.typing import NDArray

from fleetcount_aggregator.storage.report_ids import ID_BYTES, ReportIds
from fleetcount_aggregator.storage.row_types import ReportVerdict

_TARGET_BATCH_BYTES: Final = 1024 * 1024
_MISSING: Final = RejectReason.MISSING_AT_PEER.value


def batch_size(verifier_share_bytes: int) -> int:
    """Return how many reports the leader proposes at once: messages stay below 1 MiB, 1 to 512 reports."""
    return max(1, min(MAX_REPORTS_PER_PEER_BATCH, _TARGET_BATCH_BYTES // max(1, verifier_share_bytes)))


def positions_of_batch(ids: ReportIds, number: int, size: int) -> NDArray[np.int64]:
    """Return the positions of a batch's reports, int64: neighbours in the order of arrival, sorted by id.

    Neighbours lie near each other in the store. They are sorted so that no message reveals their order of arrival.
    """
    positions = np.arange(number * size, min(len(ids), (number + 1) * size))
    return positions[ReportIds(ids.at(positions)).order]


def picked(column: bytes, mask: NDArray[np.bool_]) -> bytes:
    """Return the fields of a column of n fields of one size for which the mask is true."""
    if not len(mask):
        return b""
    return np.frombuffer(column, dtype=np.uint8).reshape(len(mask), -1)[mask].tobytes()


def holding(flags: bytes) -> NDArray[np.bool_]:
    """Return a mask of bytes: true where a byte is not 0."""
    mask: NDArray[np.bool_] = np.frombuffer(flags, dtype=np.uint8) != 0
    return mask


def count_reasons(reasons: Iterable[int]) -> dict[RejectReason, int]:
    """Return how often each reason occurs; 0, no reason, is not counted."""
    counts: dict[RejectReason, int] = {}
    for reason in reasons:
        if reason:
            counts[RejectReason(reason)] = counts.get(RejectReason(reason), 0) + 1
    return counts


# Two requests are the same if these digests are equal: digests of the content, never of its wire form.


def _digest(label: bytes, fields: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256(label)
    for one in fields:
        digest.update(len(one).to_bytes(4))
        digest.update(one)
    return digest.digest()


def proposal_digest(proposal: BatchProposal) -> bytes:
    """Return the digest of a proposal that a helper stores."""
    return _digest(b"propose", (proposal.report_ids, proposal.share_digests, proposal.verifier_shares))


def finish_digest(request: FinishBatch) -> bytes:
    """Return the digest of the verifier messages of a batch that a helper stores."""
    return _digest(b"finish", (request.report_ids, request.messages))


def commitments_digest(commitments: Sequence[Commitment]) -> bytes:
    """Return the digest of the list of commitments an aggregator has opened its share against."""
    fields = (part for one in commitments for part in (one.aggregator_id.encode(), one.set_digest, one.commitment))
    return _digest(b"open", fields)


# The helper's side.


def answers(
    present: NDArray[np.bool_],
    reasons: bytes,
    own_digests: bytes,
    proposed_digests: bytes,
    denied: NDArray[np.bool_] | None = None,
) -> tuple[bytes, bytes]:
    """Return the reasons of a helper's reply, one byte per proposed report, and the verdicts of those complete here.

    `present`: which proposed reports are complete here; the other columns, except the proposed digests, have these
    only. A report is missing if it is not complete here, or has another public share than at the leader. Otherwise its
    reason is that of verification here, then that of a device in `denied` (None: no device is denied); 0 for no reason,
    and the reply must have a verifier share for it.
    """
    own = np.frombuffer(own_digests, dtype=np.uint8).reshape(-1, Digest.SIZE)
    proposed = np.frombuffer(proposed_digests, dtype=np.uint8).reshape(-1, Digest.SIZE)[present]
    verified = np.frombuffer(reasons, dtype=np.uint8)
    other = (verified == 0) & (own != proposed).any(axis=1)
    said = np.full(len(present), _MISSING, dtype=np.uint8)
    shut_out = (verified == 0) & ~other & (False if denied is None else denied)
    said[present] = np.where(other, _MISSING, np.where(shut_out, RejectReason.BAD_CERTIFICATE.value, verified))
    verdicts = np.where(
        verified != 0, ReportVerdict.REFUSED, np.where(other | shut_out, ReportVerdict.DROPPED, ReportVerdict.VERIFIED)
    )
    return said.tobytes(), verdicts.astype(np.uint8).tobytes()


def dropped_reason(aggregators: int) -> RejectReason:
    """Return the reason that a helper counts for a report that it verified and the leader dropped.

    With two aggregators both have the report, so its proof failed. With more the leader's message does not say whether
    another helper lacks the report, and that reason is counted.
    """
    return RejectReason.INVALID_PROOF if aggregators == 2 else RejectReason.MISSING_AT_PEER


# The leader's side.


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """The reason of each dropped report, 0 for a survivor; and the helpers' verifier shares of the survivors."""

    reasons: bytes
    shares: tuple[bytes, ...] = field(repr=False)

    @property
    def remaining(self) -> NDArray[np.bool_]:
        """Which proposed reports survive, shape (reports,)."""
        return ~holding(self.reasons)


def survivors(proposal: BatchProposal, replies: Sequence[BatchReply], share_size: int) -> Survivors | None:
    """Return which proposed reports survive; None if a reply does not have the proposal's ids and one share per
    survivor.

    A helper's own verdict takes precedence over "missing", which says less, and the first helper's over the others'.
    """
    if any(reply.report_ids != proposal.report_ids for reply in replies):
        return None
    said = [np.frombuffer(reply.reasons, dtype=np.uint8) for reply in replies]
    if any(len(reply.verifier_shares) != share_size * reply.reasons.count(0) for reply in replies):
        return None
    reasons = np.zeros(len(proposal.report_ids) // ID_BYTES, dtype=np.uint8)
    for own in said:
        stronger = (own != 0) & ((reasons == 0) | ((reasons == _MISSING) & (own != _MISSING)))
        reasons = np.where(stronger, own, reasons)
    shares = tuple(
        picked(reply.verifier_shares, (reasons == 0)[own == 0]) for reply, own in zip(replies, said, strict=True)
    )
    return Survivors(reasons=reasons.tobytes(), shares=shares)


# The helper's answers as it stores them.


def reply_bytes(reply: BatchReply) -> bytes:
    """Return a reply as the helper stores it: ids, reasons and shares, each with its size."""
    return sized(reply.report_ids, 4) + sized(reply.reasons, 4) + sized(reply.verifier_shares, 4)


def reply_from_bytes(window_id: WindowId, batch: int, stored: bytes) -> BatchReply:
    """Return the reply that `reply_bytes` encoded; raises DecodeError for damaged bytes."""
    reader = Reader(stored, "stored batch reply", MAX_PEER_MESSAGE_BYTES)
    ids, reasons, shares = (reader.sized(4, 0, MAX_PEER_MESSAGE_BYTES) for _ in range(3))
    reader.finish()
    return BatchReply(window_id=window_id, batch=batch, report_ids=ids, reasons=reasons, verifier_shares=shares)
