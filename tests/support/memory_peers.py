"""Peers in the same process: every call goes straight to the other aggregator's `Helper`.

`before` and `after` let a test drop requests or replies, as a network does.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fleetcount_aggregator.greetings import Greetings
from fleetcount_aggregator.roles.helper import Helper
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
from fleetcount_protocol.shared import SharedIds

Result = TypeVar("Result")
Hook = Callable[[str], None]


def _nothing(_: str) -> None:
    return


class MemoryPeer:
    """Implements `Peer`. `find` returns the other side, or raises PeerUnreachableError while it is down.

    `greetings` returns the caller's, if it greets.

    `before` sees a call's name when the request leaves, `after` when the reply comes back; each may raise
    PeerUnreachableError, so that a test can lose either.
    """

    def __init__(
        self,
        caller: AggregatorId,
        find: Callable[[], Helper],
        *,
        before: Hook = _nothing,
        after: Hook = _nothing,
        greetings: Callable[[], Greetings | None] = lambda: None,
    ) -> None:
        self._caller = caller
        self._find = find
        self._greetings = greetings
        self._before = before
        self._after = after

    async def _send(self, name: str, ask: Callable[[Helper], Awaitable[Result]]) -> Result:
        self._before(name)
        helper, own = self._find(), self._greetings()
        result = await (ask(helper) if own is None else self._greeted(own, helper, ask))
        self._after(name)
        return result

    async def _greeted(self, own: Greetings, helper: Helper, ask: Callable[[Helper], Awaitable[Result]]) -> Result:
        there, asked = helper.greetings, own.now()
        said = own.say(there.own_id)
        try:
            await there.hear_call(self._caller, said)
            return await ask(helper)
        finally:
            await own.hear_answer(there.own_id, there.say(self._caller, answers=said), asked, said)

    async def install_question(self, request: InstallQuestion) -> QuestionAnswer:
        """See `Peer.install_question`."""
        return await self._send("install_question", lambda helper: helper.install_question(self._caller, request))

    async def deliver_order(self, signed: SignedOrder) -> QuestionAnswer:
        """See `Peer.deliver_order`."""
        return await self._send("deliver_order", lambda helper: helper.deliver_order(self._caller, signed))

    async def propose_batch(self, request: BatchProposal) -> BatchReply:
        """See `Peer.propose_batch`."""
        return await self._send("propose_batch", lambda helper: helper.propose_batch(self._caller, request))

    async def finish_batch(self, request: FinishBatch) -> BatchDecision:
        """See `Peer.finish_batch`."""
        return await self._send("finish_batch", lambda helper: helper.finish_batch(self._caller, request))

    async def seal_set(self, request: SealSet) -> SetAgreed | SetDiffers:
        """See `Peer.seal_set`."""
        return await self._send("seal_set", lambda helper: helper.seal_set(self._caller, request))

    async def commit(self, request: CommitQuery) -> Commitment:
        """See `Peer.commit`."""
        return await self._send("commit", lambda helper: helper.commit(self._caller, request))

    async def open_share(self, request: OpenQuery) -> NoisedShare:
        """See `Peer.open_share`."""
        return await self._send("open_share", lambda helper: helper.open_share(self._caller, request))

    async def sign_record(self, request: RecordProposal) -> RecordSignature:
        """See `Peer.sign_record`."""
        return await self._send("sign_record", lambda helper: helper.sign_record(self._caller, request))

    async def deliver_record(self, request: FinishedRecord) -> WindowState:
        """See `Peer.deliver_record`."""
        return await self._send("deliver_record", lambda helper: helper.deliver_record(self._caller, request))

    async def abort(self, request: AbortWindow) -> WindowState:
        """See `Peer.abort`."""
        return await self._send("abort", lambda helper: helper.abort(self._caller, request))

    async def status(self, window_id: WindowId) -> WindowStatus:
        """See `Peer.status`."""
        return await self._send("status", lambda helper: helper.status(window_id, self._caller))

    async def shared(self, after: QuestionId | None) -> SharedIds:
        """See `Peer.shared`."""
        return await self._send("shared", lambda helper: helper.shared(self._caller, after))

    async def shared_question(self, question_id: QuestionId) -> InstallQuestion:
        """See `Peer.shared_question`."""
        return await self._send("shared_question", lambda helper: helper.shared_question(self._caller, question_id))

    async def outcome(self, window_id: WindowId) -> ReleaseAnswer:
        """See `Peer.outcome`."""
        return await self._send("outcome", lambda helper: helper.outcome(self._caller, window_id))
