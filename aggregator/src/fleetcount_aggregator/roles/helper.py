"""What a helper does when the leader of a window asks: verify, decide, seal, commit, open, sign, take the record,
abort.

Every answer is stored before it is given and repeated verbatim. It must not start anything by itself: the
scheduler does.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.messages import (
    AbortWindow,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallQuestion,
    NoisedShare,
    OpenQuery,
    QuestionAnswer,
    RecordProposal,
    RecordSignature,
    ReleaseAnswer,
    SealSet,
    SetAgreed,
    SetDiffers,
    WindowState,
    WindowStatus,
)
from fleetcount_protocol.question.orders import SignedOrder
from fleetcount_protocol.release.commitments import set_root
from fleetcount_protocol.shared import SharedIds

from fleetcount_aggregator.agreement.helper_batches import HelperBatches
from fleetcount_aggregator.agreement.report_set import abort_here, close_intake, seal_named, sealed_digest
from fleetcount_aggregator.agreement.verification import Verification
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.durable_steps import Entry, Step, once
from fleetcount_aggregator.greetings import Greetings
from fleetcount_aggregator.host.states import UNFINISHED, AbortReason
from fleetcount_aggregator.memory.installed import InstalledQuestion, InstalledWindow
from fleetcount_aggregator.peers import PeerRefusalError, refusing_conflicts
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import abort_windows, adopt, shared_ids, shared_question
from fleetcount_aggregator.storage.question_rows import read_decided_of
from fleetcount_aggregator.storage.rows import read_ledger_rows, read_rejections, read_window
from fleetcount_aggregator.windows.question_install import install_question_from_leader
from fleetcount_aggregator.windows.question_orders import take_delivered_order


class Helper:
    """Answers peers. `caller` is the aggregator the transport has authenticated."""

    def __init__(self, context: Context, verification: Verification, steps: ReleaseSteps) -> None:
        self._context = context
        self._windows = context.windows
        self._questions = context.questions
        self._peers = context.peers
        self._store = context.store
        self._failpoints = context.host.failpoints
        self._batches = HelperBatches(context.windows, verification, len(context.peers))
        self._steps = steps
        self._sealing: set[WindowId] = set()

    @property
    def greetings(self) -> Greetings:
        """What this aggregator says of itself beside a call or an answer."""
        return self._context.peers.greetings

    async def _led_by(self, caller: AggregatorId, window_id: WindowId) -> InstalledWindow:
        """Return the window if the caller leads it and it has not been aborted."""
        window = await self._of_leader(caller, window_id)
        if self._windows.states[window_id] is WindowState.ABORTED:
            raise PeerRefusalError(PeerProblem.ABORTED)
        return window

    async def _of_leader(self, caller: AggregatorId, window_id: WindowId) -> InstalledWindow:
        window = await self._windows.find(window_id)
        if window is None:
            decided = await self._store.read(read_decided_of, window_id)
            missing = decided is not None and decided.missing
            raise PeerRefusalError(PeerProblem.ABORTED if missing else PeerProblem.UNKNOWN_WINDOW)
        if caller != window.leader_id or window.is_leader:
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        if self._windows.states[window_id] in UNFINISHED:
            self._peers.note_contact(window_id)
        return window

    # Question.

    async def install_question(self, caller: AggregatorId, request: InstallQuestion) -> QuestionAnswer:
        """Check and store a question that the caller leads, with its orders; answer with the own key list."""
        return await self._ordered(await install_question_from_leader(self._context, caller, request))

    async def deliver_order(self, caller: AggregatorId, signed: SignedOrder) -> QuestionAnswer:
        """Take an order that another aggregator of the question delivers; answer with the own key list."""
        return await self._ordered(await take_delivered_order(self._questions, caller, signed))

    async def _ordered(self, question: InstalledQuestion) -> QuestionAnswer:
        """Answer after the orders are stored; a window that opened here before its order came ends."""
        await abort_windows(self._windows, question.question_id, AbortReason.PEER_ABORTED, question.skips)
        return QuestionAnswer(question_id=question.question_id, key_list=self._questions.key_lists.own())

    # Agreement.

    async def propose_batch(self, caller: AggregatorId, proposal: BatchProposal) -> BatchReply:
        """Answer a proposal: the first one closes intake, and a report that is incomplete then stays out of the set."""
        window = await self._led_by(caller, proposal.window_id)
        if not self._windows.is_over(window):
            raise PeerRefusalError(PeerProblem.NOT_YET)
        await close_intake(self._windows, proposal.window_id)
        with refusing_conflicts():
            return await self._batches.propose(window, proposal)

    async def finish_batch(self, caller: AggregatorId, request: FinishBatch) -> BatchDecision:
        """Check the leader's messages against our own seeds; every report of the batch it leaves out is out here."""
        window = await self._led_by(caller, request.window_id)
        with refusing_conflicts():
            return await self._batches.finish(window, request)

    @asynccontextmanager
    async def sealing(self, caller: AggregatorId, window_id: WindowId) -> AsyncGenerator[int]:
        """Return how many reports of a set the caller may name that is about to do so; one set of a window at a time.

        Raises:
            PeerRefusalError: the caller does not lead the window, or sends a set of it already (BUSY).
        """
        window = await self._led_by(caller, window_id)
        state = self._windows.states[window_id]
        if state not in (WindowState.AGREEING, WindowState.RELEASING):
            raise PeerRefusalError(PeerProblem.RELEASED if state is WindowState.RELEASED else PeerProblem.NOT_YET)
        if window_id in self._sealing:
            raise PeerRefusalError(PeerProblem.BUSY)
        self._sealing.add(window_id)
        try:
            yield len((await self._store.complete_reports(window.window_id)).ids)
        finally:
            self._sealing.discard(window_id)

    async def seal_set(self, caller: AggregatorId, request: SealSet) -> SetAgreed | SetDiffers:
        """Store the one set of the window, or say in which leaves the leader has to name its reports."""
        window = await self._led_by(caller, request.window_id)
        self._failpoints.hit("helper.before_seal_store")
        with refusing_conflicts():
            leaves = await seal_named(self._windows, window, request)
        if leaves:
            return SetDiffers(window_id=request.window_id, leaves=leaves)
        self._batches.forget(request.window_id)
        self._failpoints.hit("helper.after_seal_store")
        return SetAgreed(window_id=request.window_id, set_digest=set_root(request.window_id, request.leaf_digests))

    # Release.

    async def commit(self, caller: AggregatorId, request: CommitQuery) -> Commitment:
        """Draw the noise, once, and return the commitment to the noised share."""
        window = await self._led_by(caller, request.window_id)
        await self._peers.check_rollback(caller, request.window_id)
        with refusing_conflicts():
            return await self._steps.commit(window, request.set_digest)

    async def open_share(self, caller: AggregatorId, request: OpenQuery) -> NoisedShare:
        """Open the noised share against every commitment; only one list of commitments is ever accepted."""
        window = await self._led_by(caller, request.window_id)
        with refusing_conflicts():
            share = await self._steps.open(window, request)
        self._failpoints.hit("helper.after_open_store")
        return share

    async def sign_record(self, caller: AggregatorId, request: RecordProposal) -> RecordSignature:
        """Recompute the record from the opened shares and sign it if it is the same."""
        window = await self._led_by(caller, request.window_id)
        self._failpoints.hit("helper.before_sign_store")
        with refusing_conflicts():
            signature = await self._steps.sign(window, request)
        self._failpoints.hit("helper.after_sign_store")
        return signature

    async def deliver_record(self, caller: AggregatorId, request: FinishedRecord) -> WindowState:
        """Take the finished record: the window is released here too, even where it was given up."""
        window = await self._of_leader(caller, request.window_id)
        self._failpoints.hit("helper.before_deliver_store")
        with refusing_conflicts():
            await adopt(self._windows, self._steps, window, request)
        return self._windows.states[request.window_id]

    async def abort(self, caller: AggregatorId, request: AbortWindow) -> WindowState:
        """Abort the window here; the answer "released" says it was too late."""
        window = await self._windows.find(request.window_id)
        if window is None:
            raise PeerRefusalError(PeerProblem.UNKNOWN_WINDOW)
        if caller != window.leader_id:
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        self._batches.forget(request.window_id)
        state = await abort_here(self._windows, request.window_id, request.reason)
        if state is WindowState.ABORTED:
            await once(self._windows, request.window_id, Step.SETTLED, b"", Entry())
        return state

    async def status(self, window_id: WindowId, caller: AggregatorId | None = None) -> WindowStatus:
        """Return where a window stands here; never a number of reports.

        To an aggregator that is not one of the window's, it is unknown: an observer of the sealed reports could tell
        from the set's digest which of them count. `caller` is None for this aggregator's own operator.
        """
        row = await self._store.read(read_window, window_id)
        if row is None or not await self._listed(window_id, caller):
            raise PeerRefusalError(PeerProblem.UNKNOWN_WINDOW)
        counts = await self._store.read(read_rejections, window_id)
        return WindowStatus(
            state=row.state,
            abort_reason=row.abort_reason,
            set_digest=await sealed_digest(self._store, window_id),
            rejections=tuple(sorted(counts.items(), key=lambda item: item[0].value)),
            ledger_rows=await self._store.read(read_ledger_rows),
        )

    async def outcome(self, caller: AggregatorId, window_id: WindowId) -> ReleaseAnswer:
        """Return how a window ended here, or where it stands; unknown to an aggregator that is not one of its own."""
        answer = await self._steps.outcome(window_id)
        if answer is None or not await self._listed(window_id, caller):
            raise PeerRefusalError(PeerProblem.UNKNOWN_WINDOW)
        return answer

    # What an aggregator asks whose store was put back.

    async def shared(self, caller: AggregatorId, after: QuestionId | None) -> SharedIds:
        """Return what there is here that the caller takes part in."""
        return shared_ids(self._questions, caller, after)

    async def shared_question(self, caller: AggregatorId, question_id: QuestionId) -> InstallQuestion:
        """Return a question of the caller's with its seed and orders."""
        return shared_question(self._questions, caller, question_id)

    async def _listed(self, window_id: WindowId, caller: AggregatorId | None) -> bool:
        if caller is None:
            return True
        window = await self._windows.find(window_id)
        return window is not None and caller in {one.aggregator_id for one in window.asked.aggregators}
