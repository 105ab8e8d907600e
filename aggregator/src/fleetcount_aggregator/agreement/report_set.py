"""Sealing the set: each aggregator for itself checks the one set of a task, stores its digest, and refuses every other.

Shared by leader and helper; works on columns of all reports, so that a million take no loop. It must not add up
reports (`release`).
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import Digest, TaskId
from numpy.typing import NDArray

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import AbortReason, State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import Entry, Step, move, once, taken
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.storage.report_ids import ReportIds, sorted_set_digest
from fleetcount_aggregator.storage.store import ReportVerdict, every_batch

__all__ = ["abort_here", "accepted_set", "close_intake", "of_denied", "seal_here", "sealed_digest"]


@dataclass(frozen=True, slots=True)
class _Standing:
    """Every complete report by position: its verdict, `_NONE` without one, and its public share's digest (n x 32)."""

    ids: ReportIds
    verdicts: NDArray[np.uint8]
    share_digests: NDArray[np.uint8] = field(repr=False)


_NONE: Final = 255


async def _standing(context: Context, task_id: TaskId) -> _Standing:
    ids = (await context.store.complete_reports(task_id)).ids
    verdicts = np.full(len(ids), _NONE, dtype=np.uint8)
    digests = np.zeros((len(ids), Digest.SIZE), dtype=np.uint8)
    async for row in every_batch(context.store, task_id):
        verdicts[row.positions] = np.frombuffer(row.verdicts, dtype=np.uint8)
        digests[row.positions] = np.frombuffer(row.share_digests, dtype=np.uint8).reshape(-1, Digest.SIZE)
    return _Standing(ids, verdicts, digests)


async def of_denied(context: Context, task_id: TaskId, ids: ReportIds) -> NDArray[np.bool_]:
    """Return, by position, which reports are of devices that the deny list names now."""
    denied = np.zeros(len(ids), dtype=np.bool_)
    if keys := context.denials.keys:
        found = ids.find(await context.store.reports_of(task_id, b"".join(keys)))
        denied[found[found >= 0]] = True
    return denied


async def accepted_set(context: Context, task: InstalledTask) -> tuple[bytes, Digest]:
    """Return the ids of the reports accepted here, ascending and joined, and the digest of the set they make.

    Reports of devices that are denied by now are left out; once the set is sealed it stays what it is.
    """
    standing = await _standing(context, task.task_id)
    sealed = await context.store.chosen(task.task_id)
    if sealed is None:
        wanted = (standing.verdicts == ReportVerdict.ACCEPTED) & ~await of_denied(context, task.task_id, standing.ids)
    else:
        wanted = np.frombuffer(sealed, dtype=np.uint8) != 0

    def collect() -> tuple[bytes, Digest]:
        order = standing.ids.order
        positions = order[wanted[order]]
        ids = standing.ids.at(positions)
        return ids, sorted_set_digest(ids, standing.share_digests, positions)

    return await asyncio.to_thread(collect)


async def close_intake(context: Context, task_id: TaskId) -> None:
    """Close intake, which cannot open again; incomplete reports count as half pairs. Does nothing if it is closed."""
    await move(context, task_id, State.AGREEING)


async def abort_here(context: Context, task_id: TaskId, reason: AbortReason | str) -> State:
    """Abort a task at this aggregator, publicly, unless it has ended; return the state it is in after that."""
    text = reason.value if isinstance(reason, AbortReason) else reason
    state = await move(context, task_id, State.ABORTED, reason=text)
    if state is State.ABORTED:
        await context.store.purge(task_id)
    return state


async def sealed_digest(context: Context, task_id: TaskId) -> Digest | None:
    """Return the digest of the task's one set, or None before it is sealed."""
    step = await taken(context, task_id, Step.SET)
    return Digest(step.answer) if step else None


async def seal_here(context: Context, task: InstalledTask, accepted: bytes, digest: Digest) -> None:
    """Store the set of a task and move on to releasing; repeating it with the same set changes nothing.

    `accepted` are joined ids that ascend. Every report must be accepted here, the digest must follow from this
    aggregator's own public shares, and there must be at least `min_batch_size` reports, counted here, after the last
    removal.

    Raises:
        PeerRefusalError: CONFLICT for a second set, DISAGREES for one that differs from ours, TOO_FEW (then the task is
            aborted here).
        StateConflictError: no set is sealed and the task is not agreeing.
    """
    await once(context, task.task_id, Step.SET, digest, lambda: _chosen(context, task, accepted, digest))


async def _chosen(context: Context, task: InstalledTask, accepted: bytes, digest: Digest) -> Entry:
    standing = await _standing(context, task.task_id)
    positions = await asyncio.to_thread(_find, standing, accepted, digest)
    if positions is None:
        raise PeerRefusalError(PeerProblem.DISAGREES)
    if len(positions) < task.task.min_batch_size:
        await abort_here(context, task.task_id, AbortReason.TOO_FEW_REPORTS)
        raise PeerRefusalError(PeerProblem.TOO_FEW)
    chosen = np.zeros(len(standing.ids), dtype=np.uint8)
    chosen[positions] = 1
    left_out = (chosen == 0) & ~np.isin(standing.verdicts, (ReportVerdict.DROPPED, ReportVerdict.REFUSED))
    denied = await of_denied(context, task.task_id, standing.ids)
    rejections = Counter({RejectReason.BAD_CERTIFICATE: int((left_out & denied).sum())})
    rejections[RejectReason.MISSING_AT_PEER] = int((left_out & ~denied).sum())
    return Entry(answer=digest, chosen=chosen.tobytes(), rejections=+rejections)


def _find(standing: _Standing, accepted: bytes, digest: Digest) -> NDArray[np.int64] | None:
    """Return where the reports of a set are; None if it is not a set of reports accepted here, or not the digest's."""
    positions = standing.ids.match(accepted, standing.verdicts == ReportVerdict.ACCEPTED)
    if positions is None or sorted_set_digest(accepted, standing.share_digests, positions) != digest:
        return None
    return positions
