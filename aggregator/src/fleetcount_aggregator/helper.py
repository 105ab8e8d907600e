"""What a helper does when the leader of a task asks: verify, decide, seal, commit, open, sign, take the record, abort.

Every answer is stored before it is given and repeated verbatim. Starts nothing of its own accord (watch).
"""

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_protocol.messages import (
    AbortTask,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallTask,
    NoisedShare,
    OpenQuery,
    PeerVerifierShare,
    RecordProposal,
    RecordSignature,
    SealSet,
    SetAgreed,
    TaskStatus,
)

from fleetcount_aggregator.agreement import (
    Answer,
    answer_proposed,
    decision_bytes,
    decision_from_bytes,
    dropped_reason,
    finish_digest,
    proposal_digest,
    reply_bytes,
    reply_from_bytes,
)
from fleetcount_aggregator.installation import install_from_leader
from fleetcount_aggregator.installed import InstalledTask
from fleetcount_aggregator.logs import log
from fleetcount_aggregator.marks import check_mark
from fleetcount_aggregator.party import Party
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, guarded
from fleetcount_aggregator.release import Releasing
from fleetcount_aggregator.sealing import abort_here, all_reports, close_intake, seal_here, sealed_digest
from fleetcount_aggregator.states import State
from fleetcount_aggregator.store import ReportStatus, Step, TaskChange, Verdict
from fleetcount_aggregator.verification import Verification, open_verification
from fleetcount_aggregator.workers import finish_reports

__all__ = ["Helper"]


class Helper:
    """Answers peers. `caller` is the aggregator the transport has authenticated."""

    def __init__(self, party: Party, verification: Verification, releasing: Releasing) -> None:
        self._party = party
        self._verification = verification
        self._releasing = releasing

    def _led_by(self, caller: AggregatorId, task_id: TaskId) -> InstalledTask:
        """Return the task if the caller leads it and it has not been aborted."""
        task = self._party.tasks.get(task_id)
        if task is None:
            raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
        if caller != task.leader_id or task.is_leader:
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        if self._party.states[task_id] is State.ABORTED:
            raise PeerRefusalError(PeerProblem.ABORTED)
        return task

    async def install_task(self, caller: AggregatorId, request: InstallTask) -> State:
        """Check and store a task that the caller leads; return its state here."""
        return await install_from_leader(self._party, caller, request)

    # Agreement.

    async def propose_batch(self, caller: AggregatorId, proposal: BatchProposal) -> BatchReply:
        """Answer a proposal: intake closes with the first one, and what is missing then is missing for ever."""
        task = self._led_by(caller, proposal.task_id)
        if self._party.clock.now() < task.closes:
            raise PeerRefusalError(PeerProblem.NOT_YET)
        name, digest = f"propose/{proposal.batch}", proposal_digest(proposal)
        if (known := await self._party.store.step(proposal.task_id, name)) is not None:
            return _same_reply(proposal, known, digest)
        await close_intake(self._party, proposal.task_id)
        await self._verification.verify_all(task)
        answers = await self._answers(proposal)
        reply = BatchReply(task_id=proposal.task_id, batch=proposal.batch, answers=tuple(answers))
        step = Step(name=name, request=digest, answer=reply_bytes(reply))
        self._party.failpoints.hit("helper.before_propose_store")
        known = await self._apply(
            TaskChange(
                task_id=proposal.task_id,
                required=frozenset({State.AGREEING}),
                step=step,
                verdicts=tuple(
                    Verdict(report_id=answer.report_id, status=ReportStatus.VERIFIED, batch=proposal.batch)
                    for answer in answers
                    if isinstance(answer, PeerVerifierShare)
                ),
            )
        )
        self._party.failpoints.hit("helper.after_propose_store")
        return reply if known is None else _same_reply(proposal, known, digest)

    async def _answers(self, proposal: BatchProposal) -> list[Answer]:
        answers: list[Answer] = []
        for proposed in proposal.reports:
            row = await self._party.store.report(proposal.task_id, proposed.report_id)
            if row is not None and row.batch not in (None, proposal.batch):
                raise PeerRefusalError(PeerProblem.CONFLICT)
            share = b""
            if row is not None and row.status is ReportStatus.VERIFIED:
                opened = open_verification(self._party, proposal.task_id, row.report_id, row.verification)
                share = opened.verifier_share
            answers.append(answer_proposed(proposed, row, share))
        return answers

    async def finish_batch(self, caller: AggregatorId, request: FinishBatch) -> BatchDecision:
        """Check the leader's messages against our own states; every report of the batch it leaves out is out here."""
        self._led_by(caller, request.task_id)
        name, digest = f"finish/{request.batch}", finish_digest(request)
        if (known := await self._party.store.step(request.task_id, name)) is not None:
            return _same_decision(request, known, digest)
        if await self._party.store.step(request.task_id, f"propose/{request.batch}") is None:
            raise PeerRefusalError(PeerProblem.NOT_YET)
        verdicts = await self._finish(request)
        accepted = tuple(one.report_id for one in verdicts if one.status is ReportStatus.ACCEPTED)
        decision = BatchDecision(task_id=request.task_id, batch=request.batch, accepted=accepted)
        step = Step(name=name, request=digest, answer=decision_bytes(decision))
        self._party.failpoints.hit("helper.before_finish_store")
        known = await self._apply(
            TaskChange(
                task_id=request.task_id,
                required=frozenset({State.AGREEING}),
                step=step,
                verdicts=tuple(verdicts),
            )
        )
        self._party.failpoints.hit("helper.after_finish_store")
        return decision if known is None else _same_decision(request, known, digest)

    async def _finish(self, request: FinishBatch) -> list[Verdict]:
        task = self._party.tasks[request.task_id]
        messages = {one.report_id: one.message for one in request.messages}
        rows = [
            row
            async for row in all_reports(
                self._party, request.task_id, status=ReportStatus.VERIFIED, batch=request.batch
            )
        ]
        finished = [row for row in rows if row.report_id in messages]
        if len(finished) != len(request.messages):
            raise PeerRefusalError(PeerProblem.MALFORMED)
        states = [
            open_verification(self._party, request.task_id, row.report_id, row.verification).state for row in finished
        ]
        pairs = [(state, messages[row.report_id]) for state, row in zip(states, finished, strict=True)]
        holds = await self._party.workers.run(finish_reports, task.task.canonical, pairs)
        verdicts = [
            Verdict(report_id=row.report_id, status=ReportStatus.ACCEPTED)
            if held
            else Verdict(report_id=row.report_id, status=ReportStatus.REFUSED, reason=RejectReason.INVALID_PROOF)
            for row, held in zip(finished, holds, strict=True)
        ]
        dropped = dropped_reason(len(task.task.aggregators))
        verdicts += [
            Verdict(report_id=row.report_id, status=ReportStatus.REFUSED, reason=dropped)
            for row in rows
            if row.report_id not in messages
        ]
        return verdicts

    async def seal_set(self, caller: AggregatorId, request: SealSet) -> SetAgreed:
        """Store the one set of the task."""
        task = self._led_by(caller, request.task_id)
        self._party.failpoints.hit("helper.before_seal_store")
        await guarded(seal_here(self._party, task, request.accepted, request.set_digest))
        self._party.failpoints.hit("helper.after_seal_store")
        return SetAgreed(task_id=request.task_id, set_digest=request.set_digest)

    # Release.

    async def commit(self, caller: AggregatorId, request: CommitQuery) -> Commitment:
        """Draw the noise, once, and return the commitment to the noised share."""
        task = self._led_by(caller, request.task_id)
        await check_mark(self._party, caller, request.task_id)
        return await guarded(self._releasing.commit(task, request.set_digest))

    async def open_share(self, caller: AggregatorId, request: OpenQuery) -> NoisedShare:
        """Open the noised share against every commitment; only one list of commitments is ever accepted."""
        task = self._led_by(caller, request.task_id)
        share = await guarded(self._releasing.open(task, request))
        self._party.failpoints.hit("helper.after_open_store")
        return share

    async def sign_record(self, caller: AggregatorId, request: RecordProposal) -> RecordSignature:
        """Recompute the record from the opened shares and sign it if it is the same."""
        task = self._led_by(caller, request.task_id)
        self._party.failpoints.hit("helper.before_sign_store")
        signature = await guarded(self._releasing.sign(task, request))
        self._party.failpoints.hit("helper.after_sign_store")
        return signature

    async def deliver_record(self, caller: AggregatorId, request: FinishedRecord) -> State:
        """Take the finished record: the task is released here too."""
        task = self._led_by(caller, request.task_id)
        self._party.failpoints.hit("helper.before_deliver_store")
        await guarded(self._releasing.finish(task, request))
        self._party.failpoints.hit("helper.after_deliver_store")
        await self._party.store.purge(request.task_id)
        log.info("task_released", task=str(request.task_id), name=task.task.name)
        return self._party.states[request.task_id]

    async def abort(self, caller: AggregatorId, request: AbortTask) -> State:
        """Abort the task here; the answer "released" says it was too late."""
        task = self._party.tasks.get(request.task_id)
        if task is None:
            raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
        if caller != task.leader_id:
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        return await abort_here(self._party, request.task_id, request.reason)

    async def status(self, task_id: TaskId, caller: AggregatorId | None = None) -> TaskStatus:
        """Return where a task stands here; never a number of reports.

        To an aggregator that is not one of the task's, it is unknown: whoever saw the sealed reports pass could tell
        from the set's digest which of them count. Without a caller it is this aggregator's own operator that asks.
        """
        row = await self._party.store.task(task_id)
        if row is None or not self._listed(task_id, caller):
            raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
        counts = await self._party.store.rejections(task_id)
        return TaskStatus(
            state=row.state,
            abort_reason=row.abort_reason,
            set_digest=await sealed_digest(self._party, task_id),
            rejections=tuple(sorted(counts.items(), key=lambda item: item[0].value)),
            ledger_rows=len(await self._party.store.ledger()),
        )

    def _listed(self, task_id: TaskId, caller: AggregatorId | None) -> bool:
        if caller is None:
            return True
        task = self._party.tasks.get(task_id)
        return task is not None and caller in {one.aggregator_id for one in task.task.aggregators}

    async def _apply(self, change: TaskChange) -> Step | None:
        return await guarded(self._party.apply(change))


def _same_reply(proposal: BatchProposal, known: Step, digest: bytes) -> BatchReply:
    if known.request != digest:
        raise PeerRefusalError(PeerProblem.CONFLICT)
    return reply_from_bytes(proposal.task_id, proposal.batch, known.answer)


def _same_decision(request: FinishBatch, known: Step, digest: bytes) -> BatchDecision:
    if known.request != digest:
        raise PeerRefusalError(PeerProblem.CONFLICT)
    return decision_from_bytes(request.task_id, request.batch, known.answer)
