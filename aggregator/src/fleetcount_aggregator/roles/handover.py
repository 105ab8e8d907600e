"""Hands the other aggregators of a question what they lack: a leader the question and all orders, others their own
stops.

What is given is noted, so that it is given once, also after a crash; what fails is tried again. It must not decide
what an aggregator takes (`windows`).
"""

import asyncio
from typing import Final

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.messages import InstallQuestion, QuestionAnswer
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, SignedOrder, sign_order
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.memory.peers import Peers
from fleetcount_aggregator.memory.questions import QUESTION, Questions, order_name, was_given
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.roles.outcomes import abort_windows
from fleetcount_aggregator.windows.question_orders import take_own_order

_REFRESH_S: Final = 600
"""How old the leader's copy of another aggregator's key list becomes while they have a question together."""


class Handover:
    """Looks after the agenda of hand-overs."""

    def __init__(self, questions: Questions, peers: Peers, windows: Windows) -> None:
        self._questions = questions
        self._peers = peers
        self._windows = windows
        self._host = questions.host
        self._waits: dict[QuestionId, float] = {}
        self._heard: dict[AggregatorId, float] = {}
        self._asking: dict[AggregatorId, QuestionId] = {}
        """The question that asks an aggregator for its key list: one for all that it has, also while it is away."""

    async def run_due(self) -> None:
        """Give what is due, everything once.

        Raises:
            StoreError: the store failed; the question is on the agenda again.
        """
        known, due = self._questions, self._questions.handovers.take(self._host.moment().now)
        done = await asyncio.gather(
            *(self._look_after(known[one]) for one in due if one in known), return_exceptions=True
        )
        for error in done:
            if error is not None:
                raise error

    async def _look_after(self, question: InstalledQuestion) -> None:
        """Give everybody what is lacking; put the question on the agenda again while something is, or keys may
        change.
        """
        question_id, limits = question.question_id, self._host.limits
        wait = min(2 * self._waits.get(question_id, limits.first_retry_s / 2), limits.longest_retry_s)
        self._waits[question_id] = wait
        try:
            given = await asyncio.gather(*(self._give_all(question, other) for other in question.others))
            if all(given):
                del self._waits[question_id]
                self._asking = {other: one for other, one in self._asking.items() if one != question_id}
                wait = _REFRESH_S
        finally:
            if question_id in self._waits or self._host.now() < question.asked.schedule.end:
                self._questions.handovers.put(self._host.moment().now + wait, question_id)

    async def _give_all(self, question: InstalledQuestion, other: AggregatorId) -> bool:
        """Give one aggregator what it lacks; return whether it lacks nothing after that."""
        try:
            if question.is_leader and not await self._give_question(question, other):
                return True
            for signed in question.orders:
                if question.is_leader or signed.order.aggregator_id == self._host.aggregator_id:
                    await self._give_order(question, other, signed)
        except PeerUnreachableError:
            return False
        except PeerRefusalError as refusal:
            if refusal.problem is PeerProblem.UNKNOWN_WINDOW:
                self._questions.forget_given(question, other)
            log.info("question_not_handed_over", peer=other, question=str(question.question_id), reason=str(refusal))
            return not refusal.problem.transient
        return True

    async def _give_question(self, question: InstalledQuestion, other: AggregatorId) -> bool:
        """Give the question, and again when the other's key list is old; return False if the other does not take it."""
        known, now = was_given(question, other, QUESTION), self._host.moment().now
        if known and (now - self._heard.get(other, 0) < _REFRESH_S or not self._asks(question, other)):
            return True
        if question.refused_by and not known:
            await self._end(question)
            return False
        request = InstallQuestion(signed=question.signed, seed=question.seed, orders=question.orders)
        try:
            answer = await self._peers.call(other, lambda peer: peer.install_question(request))
        except PeerRefusalError as refusal:
            if refusal.problem.transient or known:
                raise
            log.warning("question_install_failed", question=str(question.question_id), peer=other)
            await self._questions.note_refusal(question, other)
            await self._end(question)
            return False
        self._heard[other] = now
        await self._note(question, other, QUESTION, answer)
        for signed in request.orders:
            await self._note(question, other, order_name(signed), answer)
        return True

    def _asks(self, question: InstalledQuestion, other: AggregatorId) -> bool:
        """Return whether this question asks another aggregator for its key list; it does if no questions here does."""
        if self._asking.get(other) not in self._questions:
            self._asking[other] = question.question_id
        return self._asking[other] == question.question_id

    async def _give_order(self, question: InstalledQuestion, other: AggregatorId, signed: SignedOrder) -> None:
        if was_given(question, other, order_name(signed)):
            return
        answer = await self._peers.call(other, lambda peer: peer.deliver_order(signed))
        await self._note(question, other, order_name(signed), answer)

    async def _note(self, question: InstalledQuestion, other: AggregatorId, what: str, answer: QuestionAnswer) -> None:
        if answer.key_list.key_list.aggregator_id == other:
            await self._questions.note_key_list(question, answer.key_list)
        if not was_given(question, other, what):
            await self._questions.note_given(question, other, what)
            self._host.failpoints.hit("question.after_hand_over")

    async def _end(self, question: InstalledQuestion) -> None:
        """Stop a question that one of its aggregators does not take, once: nothing of it could ever be opened.

        Windows that are open here already end; that costs nothing, since nothing of them was debited.
        """
        await self._stop(question)
        await abort_windows(self._windows, question.question_id, AbortReason.INSTALL_FAILED)

    async def _stop(self, question: InstalledQuestion) -> None:
        own = [one.order for one in question.orders if one.order.aggregator_id == self._host.aggregator_id]
        if question.following >= question.asked.schedule.windows or any(one.action is OrderAction.STOP for one in own):
            return
        order = QuestionOrder(
            question_id=question.question_id,
            number=max((one.number for one in own), default=0) + 1,
            action=OrderAction.STOP,
            aggregator_id=self._host.aggregator_id,
            from_window=question.following,
        )
        await take_own_order(self._questions, sign_order(order, self._host.identity.signing_key))
