"""Orders about questions: the leader's operator may pause and resume, every operator may stop; which ones are accepted.

An order changes only windows that are not decided yet. It must not deliver orders (`roles`).
"""

from fleetcount_protocol.errors import PeerProblem, QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_ORDERS_PER_QUESTION
from fleetcount_protocol.question.orders import OrderAction, SignedOrder, check_follows, verify_order
from fleetcount_transport.logs import log

from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.peers import PeerRefusalError


async def take_own_order(questions: Questions, signed: SignedOrder) -> None:
    """Accept an order of this aggregator's own operator; the same one again changes nothing.

    Raises:
        QuestionError, SignatureError: it is refused; the message says why.
    """
    order = signed.order
    question = questions.get(order.question_id)
    if question is None:
        raise QuestionError(f"question {order.question_id} is not installed here")
    if order.aggregator_id != questions.host.aggregator_id:
        raise QuestionError(
            f"the order is by {order.aggregator_id!r}, this is {questions.host.aggregator_id!r}: drop it there"
        )
    if order.action is OrderAction.START:
        raise QuestionError("a start is made by the leader's aggregator as it installs the question; no file orders it")
    async with question.lock:
        if signed in question.orders:
            return
        last = question.asked.schedule.windows - 1
        if not question.following <= order.from_window <= last:
            raise QuestionError(
                f"from_window is {order.from_window}, allowed: {question.following} to {last}; those before are decided"
            )
        await _keep(questions, question, signed)


async def take_delivered_order(questions: Questions, caller: AggregatorId, signed: SignedOrder) -> InstalledQuestion:
    """Accept an order that another aggregator of the question delivers; return the question.

    Windows that are already decided here are not changed, although the other aggregator may have changed them: the
    clocks of aggregators differ.

    Raises:
        PeerRefusalError: UNKNOWN_WINDOW, no such question; NOT_LEADER, the caller is not in it; CONFLICT, its number
            is not above those before; MALFORMED, a signature is missing or does not verify.
    """
    question = questions.get(signed.order.question_id)
    if question is None:
        raise PeerRefusalError(PeerProblem.UNKNOWN_WINDOW)
    if caller not in question.others:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    async with question.lock:
        if signed in question.orders:
            return question
        try:
            await _keep(questions, question, signed)
        except SignatureError:
            raise PeerRefusalError(PeerProblem.MALFORMED) from None
        except QuestionError:
            raise PeerRefusalError(PeerProblem.CONFLICT) from None
    return question


async def _keep(questions: Questions, question: InstalledQuestion, signed: SignedOrder) -> None:
    order = signed.order
    verify_order(signed, question.asked, questions.host.identity.trusted)
    check_follows(order, [one.order for one in question.orders])
    if len(question.orders) >= MAX_ORDERS_PER_QUESTION:
        raise QuestionError(f"the question has {MAX_ORDERS_PER_QUESTION} orders already; no more are taken")
    await questions.note_order(question, signed)
    log.info("order_taken", question=str(question.question_id), action=order.name, window=order.from_window)
