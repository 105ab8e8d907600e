"""Sealing the set: each aggregator for itself checks the one set of a task, stores its digest, and refuses every other.

Shared by leader and helper; adds up nothing (release).
"""

from collections.abc import AsyncIterator, Collection
from typing import Final

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from fleetcount_protocol.set_digest import set_digest

from fleetcount_aggregator.installed import InstalledTask
from fleetcount_aggregator.party import UNFINISHED, Party
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.states import AbortReason, State, StateConflictError
from fleetcount_aggregator.store import PAGE, ReportRow, ReportStatus, Step, TaskChange, Verdict

__all__ = ["SET_STEP", "abort_here", "all_reports", "close_intake", "seal_here", "sealed_digest"]

SET_STEP: Final = "set"


async def all_reports(
    party: Party, task_id: TaskId, *, status: ReportStatus | None = None, batch: int | None = None
) -> AsyncIterator[ReportRow]:
    """Yield a task's reports by id, a page at a time."""
    after = b""
    while rows := await party.store.reports(task_id, status=status, batch=batch, after=after):
        for row in rows:
            yield row
        if len(rows) < PAGE:
            return
        after = rows[-1].report_id


async def close_intake(party: Party, task_id: TaskId) -> None:
    """Close intake for ever; incomplete reports become refused half pairs. Does nothing if it is closed already."""
    try:
        await party.apply(
            TaskChange(
                task_id=task_id,
                required=frozenset({State.ANNOUNCED, State.COLLECTING}),
                new_state=State.AGREEING,
                refuse_incomplete=True,
            )
        )
    except StateConflictError:
        return


async def abort_here(party: Party, task_id: TaskId, reason: AbortReason | str) -> State:
    """Abort a task at this aggregator, publicly, unless it has ended; return the state it is in after that."""
    text = reason.value if isinstance(reason, AbortReason) else reason
    try:
        await party.apply(TaskChange(task_id=task_id, required=UNFINISHED, new_state=State.ABORTED, abort_reason=text))
    except StateConflictError as conflict:
        return conflict.state
    await party.store.purge(task_id)
    return State.ABORTED


async def sealed_digest(party: Party, task_id: TaskId) -> Digest | None:
    """Return the digest of the task's one set, or None before it is sealed."""
    step = await party.store.step(task_id, SET_STEP)
    return Digest(step.answer) if step else None


async def seal_here(party: Party, task: InstalledTask, accepted: Collection[ReportId], digest: Digest) -> None:
    """Store the set of a task and move on to verifying; repeating it with the same set changes nothing.

    Every report must be accepted here, the digest must follow from this aggregator's own public shares, and there must
    be at least `min_batch_size` reports, counted here, after the last removal.

    Raises:
        PeerRefusalError: CONFLICT for a second set, DISAGREES for one that is not ours, TOO_FEW (then the task is
            aborted here), NOT_YET while reports are unfinished.
    """
    known = await sealed_digest(party, task.task_id)
    if known is not None:
        if known != digest:
            raise PeerRefusalError(PeerProblem.CONFLICT)
        return
    chosen = set(accepted)
    rows = [row async for row in all_reports(party, task.task_id) if row.status is not ReportStatus.REFUSED]
    accepted_here = [row for row in rows if row.status is ReportStatus.ACCEPTED]
    items = [(row.report_id, row.public_share_digest) for row in accepted_here if row.report_id in chosen]
    if len(items) != len(chosen) or len(chosen) != len(accepted):
        raise PeerRefusalError(PeerProblem.DISAGREES)
    if set_digest((report_id, share) for report_id, share in items if share is not None) != digest:
        raise PeerRefusalError(PeerProblem.DISAGREES)
    if len(chosen) < task.task.min_batch_size:
        await abort_here(party, task.task_id, AbortReason.TOO_FEW_REPORTS)
        raise PeerRefusalError(PeerProblem.TOO_FEW)
    await _store(party, task, digest, [row.report_id for row in rows if row.report_id not in chosen])


async def _store(party: Party, task: InstalledTask, digest: Digest, left_out: Collection[ReportId]) -> None:
    change = TaskChange(
        task_id=task.task_id,
        required=frozenset({State.AGREEING}),
        new_state=State.VERIFYING,
        step=Step(name=SET_STEP, request=digest, answer=digest),
        verdicts=tuple(
            Verdict(report_id=report_id, status=ReportStatus.REFUSED, reason=RejectReason.MISSING_AT_PEER)
            for report_id in left_out
        ),
    )
    known = await party.apply(change)
    if known is not None and known.answer != digest:
        raise PeerRefusalError(PeerProblem.CONFLICT)
