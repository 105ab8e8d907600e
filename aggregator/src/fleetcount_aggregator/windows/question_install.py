"""The installation of questions: signed by all, within the operator's limits, with keys for their windows.

A question is judged once, as a whole; its windows are not judged again. `windows.windows` opens them.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fleetcount_protocol.errors import PeerProblem, QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_QUESTIONS
from fleetcount_protocol.messages import InstallQuestion
from fleetcount_protocol.question.key_list import key_for
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, SignedOrder, sign_order, verify_orders
from fleetcount_protocol.question.question import Question, SignedQuestion, check_verify_seed, verify_signed_question
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.memory.questions import Questions, position_in
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.windows.budget import check_budgets, on_signals_of, order_for, question_charge
from fleetcount_aggregator.windows.question_orders import take_delivered_order


class UnconfirmedError(QuestionError):
    """A question is neither taken nor refused as long as it is not known which clock is right."""


def check_question_here(context: Context, signed: SignedQuestion, seed: bytes) -> None:
    """Check that this aggregator may install a question with its start; `install_question` checks the budget.

    Raises:
        UnconfirmedError: it is not known which clock is right, so that it has to wait.
        QuestionError: a field is not allowed; the message names it, its value and what is allowed.
        SignatureError: a signature is missing or does not verify.
    """
    question, identity, limits = signed.question, context.host.identity, context.host.limits
    if question.deployment != identity.deployment:
        raise QuestionError(f"deployment is {question.deployment!r}, this aggregator serves {identity.deployment!r}")
    position_in(signed, identity.aggregator_id)
    verify_signed_question(signed, identity.trusted)
    check_verify_seed(question, seed)
    if question.min_batch_size < limits.smallest_min_batch_size:
        raise QuestionError(
            f"min_batch_size is {question.min_batch_size}, allowed: at least {limits.smallest_min_batch_size}"
        )
    others = [one.aggregator_id for one in question.aggregators if one.aggregator_id != identity.aggregator_id]
    if far := context.peers.greetings.far_clock(others):
        raise UnconfirmedError(far)
    if not context.host.moment(others).is_confirmed:
        raise UnconfirmedError(context.host.moments.complaint())
    _check_next_window(context.questions, signed)


def _check_next_window(questions: Questions, signed: SignedQuestion) -> None:
    """Refuse a question that is over, or for whose next window there is no sealing key.

    Keys of later windows may be announced while the question runs; a window whose key is missing is skipped.
    """
    schedule, now = signed.question.schedule, questions.host.now()
    following = max(0, -(-(now + 1 - schedule.round_one_s - schedule.opens(0)) // schedule.every_s))
    if following >= schedule.windows:
        raise QuestionError(f"round one of the last window closed before {now}, which is past")
    key_for(questions.key_lists.own().key_list, schedule.opens(following), schedule.closes(following))


def _say_when_keys_run_out(questions: Questions, signed: SignedQuestion) -> None:
    if questions.host.keys.rotates:
        return
    until = max(one.not_after for one in questions.key_lists.own().key_list.keys)
    if until < signed.question.schedule.end:
        log.warning("sealing_keys_run_out", question=str(signed.question.question_id), until=until)


def _with_start(
    host: Host, signed: SignedQuestion, orders: Sequence[SignedOrder]
) -> tuple[SignedQuestion, SignedOrder | None]:
    """Return a question with its start, and the order among `orders` that fixes it; unchanged where times are fixed.

    Raises:
        QuestionError, SignatureError: the start is not allowed by the question, or missing where it needs one.
    """
    start = next((one for one in orders if one.order.action is OrderAction.START), None)
    question = verify_orders([] if start is None else [start], signed.question, host.identity.trusted)
    if question.schedule.first is None:
        raise QuestionError(
            f"question {question.name!r} is counted from submission, and its leader's start is not with it"
        )
    return replace(signed, question=question), start


def _new_start(host: Host, question: Question) -> tuple[SignedOrder, ...]:
    """Return the leader's order that starts a question now; () where times are fixed.

    Raises:
        QuestionError: the latest start has passed.
    """
    limits, step = question.schedule.submission, question.time_precision_s
    if limits is None:
        return ()
    soonest = max(limits.earliest, -(-(host.now() + limits.delay_s) // step) * step)
    if soonest > limits.latest:
        raise QuestionError(
            f"the question would start {soonest}, {limits.delay_s} s after now, allowed: at most {limits.latest}, the"
            " latest start that all signed"
        )
    order = QuestionOrder(
        question_id=question.question_id,
        number=1,
        action=OrderAction.START,
        aggregator_id=host.aggregator_id,
        start=soonest,
    )
    return (sign_order(order, host.identity.signing_key),)


async def install_question(
    context: Context, signed: SignedQuestion, seed: bytes, orders: Sequence[SignedOrder] = ()
) -> InstalledQuestion:
    """Check a question against the budget and store it; return an installed one unchanged.

    The start comes from `orders`, or the leader makes it; it is stored with the question in one transaction: so no
    party has a question that is counted from submission without its start, and a repetition finds the same start.

    Raises:
        QuestionError, SignatureError: it is refused.
    """
    host, questions, question_id = context.host, context.questions, signed.question.question_id
    async with questions.lock:
        await questions.reconcile()
        if question_id in questions:
            return questions[question_id]
        if not orders and signed.question.aggregators[0].aggregator_id == host.aggregator_id:
            orders = _new_start(host, signed.question)
        signed, start = _with_start(host, signed, orders)
        check_question_here(context, signed, seed)
        # Questions that are over stay loaded while they count in a budget, but devices do not get them: do not count
        # these.
        if sum(host.now() < one.asked.schedule.end for one in questions.values()) >= MAX_QUESTIONS:
            raise QuestionError(f"{MAX_QUESTIONS} questions are not over yet; no more are taken")
        order = await check_budgets(questions, context.windows, signed.question)
        stored = await questions.add(signed, seed, start, order)
        host.failpoints.hit("question.after_install_store")
        installed = await questions.load_row(stored)
        log.info("question_installed", question=str(question_id), name=signed.question.name)
        _say_when_keys_run_out(questions, signed)
        return installed


async def adopt_question(
    questions: Questions, signed: SignedQuestion, seed: bytes, orders: Sequence[SignedOrder] = ()
) -> None:
    """Install again a question that this aggregator had installed and its restored store may lack.

    It was judged when it was first installed; a known one stays unchanged. Its start is the one among `orders`, also at
    the leader, which made it. The caller has checked the seed.

    Raises:
        QuestionError, SignatureError: it is of another deployment, does not list this aggregator, or is not signed by
            all.
    """
    question, identity = signed.question, questions.host.identity
    if question.deployment != identity.deployment:
        raise QuestionError(f"deployment is {question.deployment!r}, this aggregator serves {identity.deployment!r}")
    position_in(signed, identity.aggregator_id)
    verify_signed_question(signed, identity.trusted)
    async with questions.lock:
        if question.question_id not in questions:
            started, start = _with_start(questions.host, signed, orders)
            order = None
            near = on_signals_of(questions, started.question)
            held = [question_charge(one.asked, one.stopped, one.order) for one in near]
            with suppress(QuestionError):  # Then at the usual order: it was judged, and counts on.
                order = order_for(started.question, held, questions.host.limits)
            await questions.load_row(await questions.add(started, seed, start, order))
            log.info("question_taken_up_again", question=str(question.question_id), name=question.name)


async def install_question_from_leader(
    context: Context, caller: AggregatorId, request: InstallQuestion
) -> InstalledQuestion:
    """Install a question that its leader delivers, and the orders that come with it.

    Raises:
        PeerRefusalError: NOT_LEADER, or WINDOW_REFUSED (the reason is in this aggregator's log, not in the answer);
            BUSY, the store was restored and has not caught up with the peers, or clocks differ; or as
            `take_delivered_order`.
    """
    question = request.signed.question
    if caller != question.aggregators[0].aggregator_id:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    if context.questions.adopting and question.question_id not in context.questions:
        raise PeerRefusalError(PeerProblem.BUSY)
    try:
        installed = await install_question(context, request.signed, request.seed, request.orders)
    except UnconfirmedError as error:
        log.info("question_waits", question=str(question.question_id), name=question.name, reason=str(error))
        raise PeerRefusalError(PeerProblem.BUSY) from error
    except (QuestionError, SignatureError) as error:
        log.warning("question_refused", question=str(question.question_id), name=question.name, reason=str(error))
        raise PeerRefusalError(PeerProblem.WINDOW_REFUSED) from error
    for order in request.orders:
        await take_delivered_order(context.questions, caller, order)
    return installed
