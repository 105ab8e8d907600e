"""What a helper does with one batch: verify what is proposed, answer, and check the leader's messages afterwards.

Every answer is stored before it is given and repeated verbatim. A report is in one batch for ever, so that no sum holds
it twice. Asks nobody (helper).
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.messages import BatchDecision, BatchProposal, BatchReply, FinishBatch
from fleetcount_protocol.vdaf.xof import SEED_SIZE
from numpy.typing import NDArray

from fleetcount_aggregator.agreement.rules import (
    answers,
    count_reasons,
    decision_from_bytes,
    dropped_reason,
    finish_digest,
    holding,
    picked,
    proposal_digest,
    reply_bytes,
    reply_from_bytes,
)
from fleetcount_aggregator.agreement.verification import Verification, kept_seeds, matching, seal_kept
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.single_flight import SingleFlight
from fleetcount_aggregator.host.states import State, StateConflictError
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_aggregator.storage.store import BatchRow, CompleteReports, Step, TaskChange, Verdict, every_batch
from fleetcount_aggregator.verification.workers import VerifiedReports

__all__ = ["HelperBatches"]

_AGREEING: Final = frozenset({State.AGREEING})
_FREE: Final = -1
_MOST_RUNNING: Final = 64
"""Batches under way at once, over all tasks: each peer may have its share, and is told to come again beyond it."""


class HelperBatches:
    """The batches of tasks that others lead."""

    def __init__(self, context: Context, verification: Verification) -> None:
        self._context = context
        self._verification = verification
        self._owners: dict[TaskId, NDArray[np.int64]] = {}
        self._running: SingleFlight[tuple[TaskId, str], Step] = SingleFlight()

    async def propose(self, task: InstalledTask, proposal: BatchProposal) -> BatchReply:
        """Answer a proposal; intake must be closed.

        Raises:
            PeerRefusalError: CONFLICT, another proposal has this number or a report is in another batch; or the task
                is not agreeing.
        """
        name, digest = f"propose/{proposal.batch}", proposal_digest(proposal)
        known = await self._context.store.step(task.task_id, name)
        if known is None:
            known = await self._once(task, name, lambda: self._propose(task, proposal))
        if known.request != digest:
            raise PeerRefusalError(PeerProblem.CONFLICT)
        return reply_from_bytes(task.task_id, proposal.batch, known.answer)

    async def _once(self, task: InstalledTask, name: str, work: Callable[[], Coroutine[Any, Any, Step]]) -> Step:
        """Return what the work that is under way under this name gives, or begin it.

        It goes on when the caller gives up waiting: a leader that asks again finds it further on, and not begun anew.

        Raises:
            PeerRefusalError: BUSY, too many of this leader's are under way.
        """
        key = (task.task_id, name)
        share = max(1, _MOST_RUNNING // max(1, len(self._context.peers)))
        if key not in self._running and self._running_of(task) >= share:
            raise PeerRefusalError(PeerProblem.BUSY)
        return await self._running.once(key, work)

    def _running_of(self, task: InstalledTask) -> int:
        """Return how many batches of this task's leader are under way."""
        tasks = self._context.tasks
        return sum(tasks[task_id].leader_id == task.leader_id for task_id, _ in self._running)

    async def _propose(self, task: InstalledTask, proposal: BatchProposal) -> Step:
        """Verify what is proposed and held here, and store the answer."""
        self._check_state(task)
        reports = await self._context.store.complete_reports(task.task_id)
        found = reports.ids.find(proposal.report_ids)
        present = found >= 0
        positions = found[present]
        owners = await self._claim(task.task_id, len(reports.ids), positions, proposal.batch)
        stored = False
        try:
            verified = await self._verification.verify(task, reports, positions)
            step = await self._store_answer(task, proposal, present, positions, verified)
            stored = True
        finally:
            if not stored:
                owners[positions] = _FREE
        return step

    async def _claim(self, task_id: TaskId, count: int, positions: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Give the reports to a batch; return to which batch every complete report belongs."""
        owners = self._owners.get(task_id)
        if owners is None:
            owners = np.full(count, _FREE, dtype=np.int64)
            async for row in every_batch(self._context.store, task_id):
                owners[row.positions] = row.number
            owners = self._owners.setdefault(task_id, owners)
        if not np.isin(owners[positions], (_FREE, number)).all():
            raise PeerRefusalError(PeerProblem.CONFLICT)
        owners[positions] = number
        return owners

    async def _store_answer(
        self,
        task: InstalledTask,
        proposal: BatchProposal,
        present: NDArray[np.bool_],
        positions: NDArray[np.int64],
        verified: VerifiedReports,
    ) -> Step:
        """Store the batch and the reply about it, and count what is out here."""
        said, verdicts = answers(present, verified.reasons, verified.share_digests, proposal.share_digests)
        reply = BatchReply(
            task_id=task.task_id,
            batch=proposal.batch,
            report_ids=proposal.report_ids,
            reasons=said,
            verifier_shares=picked(verified.verifier_shares, _with(verdicts, Verdict.VERIFIED)),
        )
        row = BatchRow(
            number=proposal.batch,
            positions=positions,
            verdicts=verdicts,
            share_digests=verified.share_digests,
            kept=seal_kept(self._context, task, proposal.batch, verified.output_sum, verified.seeds),
        )
        step = Step(
            name=f"propose/{proposal.batch}",
            request=proposal_digest(proposal),
            answer=reply_bytes(reply),
            passing=True,
        )
        self._context.failpoints.hit("helper.before_propose_store")
        rejections = count_reasons(picked(said, present))
        known = await self._apply(task.task_id, step, row, rejections)
        self._context.failpoints.hit("helper.after_propose_store")
        return known

    async def finish(self, task: InstalledTask, request: FinishBatch) -> BatchDecision:
        """Check the leader's messages against our own seeds; every report of the batch it leaves out is out here.

        Raises:
            PeerRefusalError: CONFLICT, other messages were finished under this number; NOT_YET, nothing was proposed
                under it; MALFORMED, messages for reports that are not in it.
        """
        name, digest = f"finish/{request.batch}", finish_digest(request)
        known = await self._context.store.step(task.task_id, name)
        if known is None:
            known = await self._once(task, name, lambda: self._finish(task, request))
        if known.request != digest:
            raise PeerRefusalError(PeerProblem.CONFLICT)
        return decision_from_bytes(task.task_id, request.batch, known.answer)

    async def _finish(self, task: InstalledTask, request: FinishBatch) -> Step:
        """Decide about a batch and store what was decided."""
        self._check_state(task)
        reports = await self._context.store.complete_reports(task.task_id)
        row = await self._context.store.batch(task.task_id, request.batch)
        if row is None:
            raise PeerRefusalError(PeerProblem.NOT_YET)
        verdicts = self._judge(task, reports, row, request)
        accepted = reports.ids.at(row.positions[_with(verdicts, Verdict.ACCEPTED)])
        step = Step(name=f"finish/{request.batch}", request=finish_digest(request), answer=accepted, passing=True)
        pending = _with(row.verdicts, Verdict.VERIFIED)
        named = ReportIds(request.report_ids).find(reports.ids.at(row.positions)) >= 0
        failed = int((pending & named & ~_with(verdicts, Verdict.ACCEPTED)).sum())
        left_out = int((pending & ~named).sum())
        rejections = Counter({RejectReason.INVALID_PROOF: failed})
        rejections[dropped_reason(len(task.task.aggregators))] += left_out
        self._context.failpoints.hit("helper.before_finish_store")
        finished = replace(row, verdicts=verdicts)
        known = await self._apply(task.task_id, step, finished, +rejections)
        self._context.failpoints.hit("helper.after_finish_store")
        return known

    def _judge(self, task: InstalledTask, reports: CompleteReports, row: BatchRow, request: FinishBatch) -> bytes:
        """Return the batch's verdicts after the leader's messages."""
        places = ReportIds(reports.ids.at(row.positions)).find(request.report_ids)
        if len(request.messages) != SEED_SIZE * len(places):
            raise PeerRefusalError(PeerProblem.MALFORMED)
        verdicts = np.frombuffer(row.verdicts, dtype=np.uint8).copy()
        if (places < 0).any() or (verdicts[places] != Verdict.VERIFIED).any():
            raise PeerRefusalError(PeerProblem.MALFORMED)
        seeds = np.frombuffer(kept_seeds(self._context, task, row), dtype=np.uint8).reshape(-1, SEED_SIZE)
        holds = holding(matching(seeds[places].tobytes(), request.messages))
        verdicts[verdicts == Verdict.VERIFIED] = Verdict.DROPPED
        verdicts[places[holds]] = Verdict.ACCEPTED
        return verdicts.tobytes()

    def forget(self, task_id: TaskId) -> None:
        """Let go of what is remembered of a task whose set is sealed."""
        self._owners.pop(task_id, None)

    def _check_state(self, task: InstalledTask) -> None:
        state = self._context.states[task.task_id]
        if state is not State.AGREEING:
            raise StateConflictError(state, "a batch")

    async def _apply(self, task_id: TaskId, step: Step, row: BatchRow, rejections: Mapping[RejectReason, int]) -> Step:
        change = TaskChange(task_id=task_id, required=_AGREEING, step=step, batch=row, rejections=rejections)
        known = await self._context.apply(change)
        return step if known is None else known


def _with(verdicts: bytes, verdict: Verdict) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.frombuffer(verdicts, dtype=np.uint8) == verdict
    return mask
