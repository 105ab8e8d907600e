"""What a helper does when the leader of a task asks: verify, decide, seal, commit, open, sign, take the record, abort.

Every answer is stored before it is given and repeated verbatim. It must not start anything by itself: the
scheduler does.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fleetcount_protocol.ids import AggregatorId, SeriesId, TaskId
from fleetcount_protocol.messages import (
    AbortTask,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallSeries,
    NoisedShare,
    OpenQuery,
    RecordProposal,
    RecordSignature,
    ReleaseAnswer,
    SealSet,
    SeriesAnswer,
    SetAgreed,
    SetDiffers,
    TaskStatus,
)
from fleetcount_protocol.release.set_digest import set_root
from fleetcount_protocol.series.orders import SignedOrder
from fleetcount_protocol.shared import SharedIds

from fleetcount_aggregator.agreement.helper_batches import HelperBatches
from fleetcount_aggregator.agreement.report_set import abort_here, close_intake, seal_named, sealed_digest
from fleetcount_aggregator.agreement.verification import Verification
from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.states import AbortReason, State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import Entry, Step, once
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, guarded
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import abort_windows, adopt
from fleetcount_aggregator.roles.sharing import shared_ids, shared_series
from fleetcount_aggregator.tasks.key_lists import own_key_list
from fleetcount_aggregator.tasks.loading import task_here
from fleetcount_aggregator.tasks.rollback_guard import check_rollback
from fleetcount_aggregator.tasks.series_install import install_series_from_leader
from fleetcount_aggregator.tasks.series_orders import take_delivered_order

__all__ = ["Helper"]


class Helper:
    """Answers peers. `caller` is the aggregator the transport has authenticated."""

    def __init__(self, context: Context, verification: Verification, steps: ReleaseSteps) -> None:
        self._context = context
        self._batches = HelperBatches(context, verification)
        self._steps = steps
        self._sealing: set[TaskId] = set()

    @property
    def context(self) -> Context:
        """What this aggregator's rules see."""
        return self._context

    async def _led_by(self, caller: AggregatorId, task_id: TaskId) -> InstalledTask:
        """Return the task if the caller leads it and it has not been aborted."""
        task = await self._of_leader(caller, task_id)
        if self._context.states[task_id] is State.ABORTED:
            raise PeerRefusalError(PeerProblem.ABORTED)
        return task

    async def _of_leader(self, caller: AggregatorId, task_id: TaskId) -> InstalledTask:
        task = await task_here(self._context, task_id)
        if task is None:
            decided = await self._context.store.decided_of(task_id)
            missing = decided is not None and decided.missing
            raise PeerRefusalError(PeerProblem.ABORTED if missing else PeerProblem.UNKNOWN_TASK)
        if caller != task.leader_id or task.is_leader:
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        if self._context.states[task_id] in UNFINISHED:
            self._context.heard[task_id] = self._context.clock.now()
        return task

    # Series.

    async def install_series(self, caller: AggregatorId, request: InstallSeries) -> SeriesAnswer:
        """Check and store a series that the caller leads, with its orders; answer with the own key list."""
        return await self._ordered(await install_series_from_leader(self._context, caller, request))

    async def deliver_order(self, caller: AggregatorId, signed: SignedOrder) -> SeriesAnswer:
        """Take an order that another aggregator of the series delivers; answer with the own key list."""
        return await self._ordered(await take_delivered_order(self._context, caller, signed))

    async def _ordered(self, series: InstalledSeries) -> SeriesAnswer:
        """Answer after the orders are stored; a window that opened here before its order came ends."""
        await abort_windows(self._context, series.series_id, AbortReason.PEER_ABORTED, series.skips)
        return SeriesAnswer(series_id=series.series_id, key_list=own_key_list(self._context))

    # Agreement.

    async def propose_batch(self, caller: AggregatorId, proposal: BatchProposal) -> BatchReply:
        """Answer a proposal: the first one closes intake, and a report that is incomplete then stays out of the set."""
        task = await self._led_by(caller, proposal.task_id)
        if not self._context.is_over(task):
            raise PeerRefusalError(PeerProblem.NOT_YET)
        await close_intake(self._context, proposal.task_id)
        return await guarded(self._batches.propose(task, proposal))

    async def finish_batch(self, caller: AggregatorId, request: FinishBatch) -> BatchDecision:
        """Check the leader's messages against our own seeds; every report of the batch it leaves out is out here."""
        task = await self._led_by(caller, request.task_id)
        return await guarded(self._batches.finish(task, request))

    @asynccontextmanager
    async def sealing(self, caller: AggregatorId, task_id: TaskId) -> AsyncGenerator[int]:
        """Return how many reports of a set the caller may name that is about to do so; one set of a task at a time.

        Raises:
            PeerRefusalError: the caller does not lead the task, or sends a set of it already (BUSY).
        """
        task = await self._led_by(caller, task_id)
        state = self._context.states[task_id]
        if state not in (State.AGREEING, State.RELEASING):
            raise PeerRefusalError(PeerProblem.RELEASED if state is State.RELEASED else PeerProblem.NOT_YET)
        if task_id in self._sealing:
            raise PeerRefusalError(PeerProblem.BUSY)
        self._sealing.add(task_id)
        try:
            yield len((await self._context.store.complete_reports(task.task_id)).ids)
        finally:
            self._sealing.discard(task_id)

    async def seal_set(self, caller: AggregatorId, request: SealSet) -> SetAgreed | SetDiffers:
        """Store the one set of the task, or say in which leaves the leader has to name its reports."""
        task = await self._led_by(caller, request.task_id)
        self._context.failpoints.hit("helper.before_seal_store")
        if leaves := await guarded(seal_named(self._context, task, request)):
            return SetDiffers(task_id=request.task_id, leaves=leaves)
        self._batches.forget(request.task_id)
        self._context.failpoints.hit("helper.after_seal_store")
        return SetAgreed(task_id=request.task_id, set_digest=set_root(request.task_id, request.leaf_digests))

    # Release.

    async def commit(self, caller: AggregatorId, request: CommitQuery) -> Commitment:
        """Draw the noise, once, and return the commitment to the noised share."""
        task = await self._led_by(caller, request.task_id)
        await check_rollback(self._context, caller, request.task_id)
        return await guarded(self._steps.commit(task, request.set_digest))

    async def open_share(self, caller: AggregatorId, request: OpenQuery) -> NoisedShare:
        """Open the noised share against every commitment; only one list of commitments is ever accepted."""
        task = await self._led_by(caller, request.task_id)
        share = await guarded(self._steps.open(task, request))
        self._context.failpoints.hit("helper.after_open_store")
        return share

    async def sign_record(self, caller: AggregatorId, request: RecordProposal) -> RecordSignature:
        """Recompute the record from the opened shares and sign it if it is the same."""
        task = await self._led_by(caller, request.task_id)
        self._context.failpoints.hit("helper.before_sign_store")
        signature = await guarded(self._steps.sign(task, request))
        self._context.failpoints.hit("helper.after_sign_store")
        return signature

    async def deliver_record(self, caller: AggregatorId, request: FinishedRecord) -> State:
        """Take the finished record: the task is released here too, even where it was given up."""
        task = await self._of_leader(caller, request.task_id)
        self._context.failpoints.hit("helper.before_deliver_store")
        await guarded(adopt(self._context, self._steps, task, request))
        return self._context.states[request.task_id]

    async def abort(self, caller: AggregatorId, request: AbortTask) -> State:
        """Abort the task here; the answer "released" says it was too late."""
        task = await task_here(self._context, request.task_id)
        if task is None:
            raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
        if caller != task.leader_id:
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        self._batches.forget(request.task_id)
        state = await abort_here(self._context, request.task_id, request.reason)
        if state is State.ABORTED:
            await once(self._context, request.task_id, Step.SETTLED, b"", Entry())
        return state

    async def status(self, task_id: TaskId, caller: AggregatorId | None = None) -> TaskStatus:
        """Return where a task stands here; never a number of reports.

        To an aggregator that is not one of the task's, it is unknown: an observer of the sealed reports could tell
        from the set's digest which of them count. `caller` is None for this aggregator's own operator.
        """
        row = await self._context.store.task(task_id)
        if row is None or not await self._listed(task_id, caller):
            raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
        counts = await self._context.store.rejections(task_id)
        return TaskStatus(
            state=row.state,
            abort_reason=row.abort_reason,
            set_digest=await sealed_digest(self._context, task_id),
            rejections=tuple(sorted(counts.items(), key=lambda item: item[0].value)),
            ledger_rows=await self._context.store.ledger_rows(),
        )

    async def outcome(self, caller: AggregatorId, task_id: TaskId) -> ReleaseAnswer:
        """Return how a task ended here, or where it stands; unknown to an aggregator that is not one of its own."""
        answer = await self._steps.outcome(task_id)
        if answer is None or not await self._listed(task_id, caller):
            raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
        return answer

    # What an aggregator asks whose store was put back.

    async def shared(self, caller: AggregatorId, after: SeriesId | None) -> SharedIds:
        """Return what there is here that the caller takes part in."""
        return shared_ids(self._context, caller, after)

    async def shared_series(self, caller: AggregatorId, series_id: SeriesId) -> InstallSeries:
        """Return a series of the caller's with its seed and orders."""
        return await shared_series(self._context, caller, series_id)

    async def _listed(self, task_id: TaskId, caller: AggregatorId | None) -> bool:
        if caller is None:
            return True
        task = await task_here(self._context, task_id)
        return task is not None and caller in {one.aggregator_id for one in task.asked.aggregators}
