"""Which question this aggregator takes on: signed by all, within its operator's limits, with keys for its windows.

Judged once, whole: its windows are not judged again. It checks and stores; windows are opened by `windows.windows`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fleetcount_protocol.errors import DecodeError, PeerProblem, QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.limits import MAX_QUESTIONS
from fleetcount_protocol.messages import InstallQuestion
from fleetcount_protocol.question.derive import check_verify_seed
from fleetcount_protocol.question.key_list import key_for
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, SignedOrder, sign_order, verify_orders
from fleetcount_protocol.question.question import Question, SignedQuestion
from fleetcount_protocol.question.signing import encode_signed_question, verify_signed_question
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_question import InstalledQuestion
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreError
from fleetcount_aggregator.storage.row_types import QuestionRow
from fleetcount_aggregator.windows.budget import charge_of_question
from fleetcount_aggregator.windows.charges import check_budgets
from fleetcount_aggregator.windows.decided import count_decided
from fleetcount_aggregator.windows.key_lists import own_key_list
from fleetcount_aggregator.windows.period_budget import question_charge
from fleetcount_aggregator.windows.question_notes import start_note, stored_question, take_up_notes
from fleetcount_aggregator.windows.question_orders import take_delivered_order


def check_question_here(context: Context, signed: SignedQuestion, seed: bytes) -> None:
    """Refuse a question, with its start, that this aggregator does not take on; `install_question` checks the budget.

    Raises:
        QuestionError: which field, its value and what is allowed.
        SignatureError: a signature that is missing or does not verify.
    """
    question, identity, limits = signed.question, context.identity, context.limits
    if question.deployment != identity.deployment:
        raise QuestionError(f"deployment is {question.deployment!r}, this aggregator serves {identity.deployment!r}")
    position_in(signed, identity.aggregator_id)
    verify_signed_question(signed, identity.trusted)
    check_verify_seed(question, seed)
    if question.min_batch_size < limits.smallest_min_batch_size:
        raise QuestionError(
            f"min_batch_size is {question.min_batch_size}, allowed: at least {limits.smallest_min_batch_size}"
        )
    if far := context.greetings.far_clock(one.aggregator_id for one in question.aggregators):
        raise QuestionError(far)
    _check_next_window(context, signed)


def position_in(signed: SignedQuestion, aggregator_id: AggregatorId) -> int:
    """Return an aggregator's share number in a question.

    Raises:
        QuestionError: the question does not list it.
    """
    ids = [one.aggregator_id for one in signed.question.aggregators]
    if aggregator_id not in ids:
        raise QuestionError(f"question {signed.question.name!r} does not list aggregator {aggregator_id!r}")
    return ids.index(aggregator_id)


def _check_next_window(context: Context, signed: SignedQuestion) -> None:
    """Refuse a question that is over, or whose next window nobody could seal to.

    Keys of later windows may be announced while the question runs; a window whose key is missing then is skipped.
    """
    schedule, now = signed.question.schedule, context.now()
    following = max(0, -(-(now + 1 - schedule.round_one_s - schedule.opens(0)) // schedule.every_s))
    if following >= schedule.windows:
        raise QuestionError(f"round one of the last window closed before {now}, which is past")
    key_for(own_key_list(context).key_list, schedule.opens(following), schedule.closes(following))


def _say_when_keys_run_out(context: Context, signed: SignedQuestion) -> None:
    if context.keys.rotates:
        return
    until = max(one.not_after for one in own_key_list(context).key_list.keys)
    if until < signed.question.schedule.end:
        log.warning("sealing_keys_run_out", question=str(signed.question.question_id), until=until)


def _with_start(
    context: Context, signed: SignedQuestion, orders: Sequence[SignedOrder]
) -> tuple[SignedQuestion, SignedOrder | None]:
    """Return a question with its start, and the order among `orders` that fixes it; as it is where times are fixed.

    Raises:
        QuestionError, SignatureError: a start that the question does not take, or none where it needs one.
    """
    start = next((one for one in orders if one.order.action is OrderAction.START), None)
    question = verify_orders([] if start is None else [start], signed.question, context.identity.trusted)
    if question.schedule.first is None:
        raise QuestionError(
            f"question {question.name!r} is counted from submission, and its leader's start is not with it"
        )
    return replace(signed, question=question), start


def _new_start(context: Context, question: Question) -> tuple[SignedOrder, ...]:
    """Return the leader's start of a question that it takes now; nothing where times are fixed.

    Raises:
        QuestionError: the latest start has passed.
    """
    limits, step = question.schedule.submission, question.time_precision_s
    if limits is None:
        return ()
    soonest = max(limits.earliest, -(-(context.now() + limits.delay_s) // step) * step)
    if soonest > limits.latest:
        raise QuestionError(
            f"the question would start {soonest}, {limits.delay_s} s after now, allowed: at most {limits.latest}, the"
            " latest start that all signed"
        )
    order = QuestionOrder(
        question_id=question.question_id,
        number=1,
        action=OrderAction.START,
        aggregator_id=context.aggregator_id,
        start=soonest,
    )
    return (sign_order(order, context.identity.signing_key),)


async def install_question(
    context: Context, signed: SignedQuestion, seed: bytes, orders: Sequence[SignedOrder] = ()
) -> InstalledQuestion:
    """Check a question against the budget and store it; one that is installed already is returned as it is.

    A start is taken from `orders`, or made by the leader, and stored with the question in one transaction: no party has
    a question that is counted from submission without its start, and asked again the leader has the same one.

    Raises:
        QuestionError, SignatureError: it is refused.
    """
    question_id = signed.question.question_id
    async with context.install_lock:
        await context.hear()
        if question_id in context.questions:
            return context.questions[question_id]
        if not orders and signed.question.aggregators[0].aggregator_id == context.aggregator_id:
            orders = _new_start(context, signed.question)
        signed, start = _with_start(context, signed, orders)
        check_question_here(context, signed, seed)
        # Those that are over and count in a period's budget are in no list for devices.
        if sum(context.now() < one.asked.schedule.end for one in context.questions.values()) >= MAX_QUESTIONS:
            raise QuestionError(f"{MAX_QUESTIONS} questions are not over yet; no more are taken")
        await check_budgets(context, charge_of_question(signed.question), question_charge(signed.question))
        context.unheard[question_id] = partial(follow_question, context, question_id)
        stored = await context.store.install_question(_question_row(context, signed, seed), start_note(start))
        del context.unheard[question_id]
        context.failpoints.hit("question.after_install_store")
        await _remember(context, stored)
        log.info("question_installed", question=str(question_id), name=signed.question.name)
        _say_when_keys_run_out(context, signed)
        return context.questions[question_id]


def _question_row(context: Context, signed: SignedQuestion, seed: bytes) -> QuestionRow:
    question_id = signed.question.question_id
    return QuestionRow(
        question_id=question_id,
        signed=encode_signed_question(signed),
        seed=context.store.data_keys.at_rest.seal(seed, b"verify seed", question_id),
        installed_at=context.now(),
    )


async def adopt_question(
    context: Context, signed: SignedQuestion, seed: bytes, orders: Sequence[SignedOrder] = ()
) -> None:
    """Take up a question that this aggregator has signed and its store, put back from a backup, may not know.

    It was judged when it was installed; one that is known stays as it is. Its start is the one among `orders`, also at
    the leader that once made it. The caller has checked the seed.

    Raises:
        QuestionError, SignatureError: it is of another deployment, does not list this aggregator, or is not signed by
        all.
    """
    question, identity = signed.question, context.identity
    if question.deployment != identity.deployment:
        raise QuestionError(f"deployment is {question.deployment!r}, this aggregator serves {identity.deployment!r}")
    position_in(signed, identity.aggregator_id)
    verify_signed_question(signed, identity.trusted)
    async with context.install_lock:
        if question.question_id not in context.questions:
            started, start = _with_start(context, signed, orders)
            row = _question_row(context, started, seed)
            await _remember(context, await context.store.install_question(row, start_note(start)))
            log.info("question_taken_up_again", question=str(question.question_id), name=question.name)


async def install_question_from_leader(
    context: Context, caller: AggregatorId, request: InstallQuestion
) -> InstalledQuestion:
    """Install a question its leader hands over, and take the orders that come with it.

    Raises:
        PeerRefusalError: NOT_LEADER, or WINDOW_REFUSED (the reason is in this aggregator's log, not in the answer);
            BUSY, the store was put back and lacks what the others know; or as `take_delivered_order`.
    """
    question = request.signed.question
    if caller != question.aggregators[0].aggregator_id:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    if context.adopting and question.question_id not in context.questions:
        raise PeerRefusalError(PeerProblem.BUSY)
    try:
        installed = await install_question(context, request.signed, request.seed, request.orders)
    except (QuestionError, SignatureError) as error:
        log.warning("question_refused", question=str(question.question_id), name=question.name, reason=str(error))
        raise PeerRefusalError(PeerProblem.WINDOW_REFUSED) from error
    for order in request.orders:
        await take_delivered_order(context, caller, order)
    return installed


async def load_question(context: Context) -> None:
    """Take up every question in work with its orders and windows, and those that still count in a period's budget.

    Who is elected lets go of those that count no more: another process may have put them to rest, and forgotten them.
    One that is damaged, or of which a window or note is, is named and left out; so is what was charged for it.

    Raises:
        FleetcountError: a stored question cannot be read (another at-rest key).
    """
    counts_from = context.now() - context.limits.budget_period_s
    rows = await context.store.questions(ended_after=counts_from)
    for gone in context.questions.keys() - {row.question_id for row in rows}:
        if context.questions[gone].asked.schedule.end <= counts_from:
            del context.questions[gone]
    for row in rows:
        try:
            await _remember(context, row)
        except (StoreError, DecodeError, QuestionError) as error:
            log.error("question_not_served", question=str(row.question_id), reason=str(error))
            context.quarantine(
                Damage(
                    table="questions",
                    what=f"question {row.question_id.hex()} or a row of it is damaged",
                    hides_charge=True,
                )
            )


async def follow_question(context: Context, question_id: QuestionId) -> None:
    """Take up what the store has of one question that another process of this aggregator installed or decided about.

    Raises:
        FleetcountError: the store failed, or the question cannot be read.
    """
    known = context.questions.get(question_id)
    if known is None:
        row = await context.store.one_question(question_id)
        if row is not None:
            await _remember(context, row)
        return
    take_up_notes(context, known, await context.store.question_notes(question_id))
    decided = await count_decided(context, question_id, known.following)
    known.following = max(known.following, decided)


async def _remember(context: Context, row: QuestionRow) -> None:
    notes = await context.store.question_notes(row.question_id)
    signed = stored_question(row.signed, notes)
    if signed.question.question_id != row.question_id:
        raise DamagedError(
            Damage(table="questions", what=f"what was signed of question {row.question_id.hex()} is another question")
        )
    if signed.question.schedule.first is None:
        raise DamagedError(
            Damage(table="question_notes", what=f"the start of question {row.question_id.hex()} is gone")
        )
    question = InstalledQuestion(
        signed=signed,
        seed=context.store.data_keys.at_rest.open(row.seed, b"verify seed", row.question_id),
        position=position_in(signed, context.aggregator_id),
    )
    take_up_notes(context, question, notes)
    question.following = await count_decided(context, row.question_id)
    context.questions[row.question_id] = question
    context.openings.put(0, row.question_id)
    context.handovers.put(0, row.question_id)
