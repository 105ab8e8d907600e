"""The decisions about a question's windows: each is opened or skipped once, shortly before it would open.

Every aggregator decides alone, by the same rules; after a crash before the decision is stored it decides again. It must
not call another aggregator, and drives no window.
"""

from collections.abc import Callable
from typing import Final

from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.durable_steps import record_here
from fleetcount_aggregator.host.states import MissingReason
from fleetcount_aggregator.memory.installed import InstalledQuestion, InstalledWindow, window_row
from fleetcount_aggregator.memory.questions import decided_window
from fleetcount_aggregator.storage.question_rows import read_decided
from fleetcount_aggregator.storage.row_types import DecidedWindow

_LEAD_S: Final = 60
"""Seconds before its opening at which a window is decided: clocks of devices and aggregators differ by less."""
_MOST_AT_ONCE: Final = 64
"""Windows decided in one transaction, after a long downtime; deriving one may take a millisecond."""


def opening_lead_s(schedule: Schedule) -> int:
    """Return how many seconds before its opening a window is decided: a minute, at most the question's period."""
    return min(_LEAD_S, schedule.every_s)


async def decide_windows(context: Context, question_id: QuestionId) -> None:
    """Decide about every window of a question that opens soon or has passed, and schedule the next decision.

    Raises:
        StoreError: the store failed; the question stays scheduled.
    """
    question = context.questions[question_id]
    schedule, lead = question.asked.schedule, opening_lead_s(question.asked.schedule)
    try:
        while question.following < schedule.windows and schedule.opens(question.following) - lead <= context.host.now():
            # Orders are accepted under the same lock, so that no order changes a window during its decision.
            async with question.lock:
                if not await _decide_some(context, question, lead):
                    break
    finally:
        if question.following < schedule.windows:
            context.questions.openings.put(
                max(schedule.opens(question.following) - lead, context.host.now() + 1), question_id
            )


async def _decide_some(context: Context, question: InstalledQuestion, lead: int) -> bool:
    """Decide about windows up to the first that opens, and store the decisions in one transaction.

    Return whether any was decided: a later step of a drill-down waits for the record of the step before.
    """
    if question.is_behind:
        await _catch_up(context, question)
    rows: list[DecidedWindow] = []
    opened: InstalledWindow | None = None
    now, schedule = context.host.now(), question.asked.schedule
    while opened is None and len(rows) < _MOST_AT_ONCE:
        index = question.following + len(rows)
        if index >= schedule.windows or schedule.opens(index) - lead > now:
            break
        if rows and question.is_later_step(index):
            break  # A later step reads the stored decision about the step before.
        if _may_come(context, question, index):
            break
        decision = await _decide(context, question, index, _why_missing)
        if decision is None:
            break
        rows.append(decision[0])
        opened = decision[1]
    if not rows:
        return False
    context.host.failpoints.hit("question.before_window_store")
    row = None if opened is None else await window_row(context.store, opened, context.host.now())
    question.is_behind = True  # Until the store answers: it may commit and its answer be lost.
    await context.store.decide_windows(rows, row)
    question.is_behind = False
    question.following = rows[-1].index + 1
    for one in rows:
        if one.missing:
            log.info("window_missing", question=str(one.question_id), index=one.index, reason=one.missing)
    context.host.failpoints.hit("question.after_window_store")
    if opened is not None:
        log.info(
            "window_announced", window=str(opened.window_id), question=str(question.question_id), index=rows[-1].index
        )
        context.windows.add(opened, WindowState.ANNOUNCED)
    return True


async def _catch_up(context: Context, question: InstalledQuestion) -> None:
    """Load decisions that the store committed while its answer was lost, and the window that one of them opened."""
    for row in await context.store.read(read_decided, question.question_id, above=question.following - 1):
        if row.window_id is not None and not row.missing:
            await context.windows.follow(row.window_id)
        question.following = row.index + 1
    question.is_behind = False


async def past_window(
    context: Context, question: InstalledQuestion, index: int
) -> tuple[DecidedWindow, InstalledWindow | None] | None:
    """Return the decision, as `_decide` does, about a window that opened after the restored backup was made.

    It was opened unless an order skips it: whether it was missed here is not known.
    """
    return await _decide(context, question, index, _not_missing)


async def _decide(
    context: Context,
    question: InstalledQuestion,
    index: int,
    why_missing: Callable[[Context, InstalledWindow], MissingReason | None],
) -> tuple[DecidedWindow, InstalledWindow | None] | None:
    """Return the decision about a window, and the window if it opens here; None while that is not known."""
    window: InstalledWindow | None = None
    reason = question.skips(index)
    if reason is None:
        survivors = await _survivors_before(context, question, index)
        if survivors is None:
            return None
        if isinstance(survivors, MissingReason):
            reason = survivors
        else:
            window = question.window(index, survivors)
            reason = why_missing(context, window)
            if reason is not None and not context.host.moment(window.others).is_confirmed:
                return None
    elif not question.is_later_step(index):
        window = question.window(index)
    window_id = None if window is None else window.window_id
    row = DecidedWindow(
        question_id=question.question_id, index=index, window_id=window_id, missing=reason.value if reason else ""
    )
    return row, None if reason else window


def _may_come(context: Context, question: InstalledQuestion, index: int) -> bool:
    """Return whether a window is over by this clock, but not by that of a peer, and either may be wrong.

    Decisions are final: a clock that was wrong for a minute would lose all windows up to the time it showed.
    """
    closes = question.asked.schedule.opens(index) + question.asked.schedule.round_one_s
    others = [one.aggregator_id for one in question.asked.aggregators]
    return context.host.now() >= closes and context.peers.greetings.not_yet(closes, others)


def _not_missing(_context: Context, _window: InstalledWindow) -> None:
    """Return None: the window is not missing."""


def _why_missing(context: Context, window: InstalledWindow) -> MissingReason | None:
    """Return why a window that no order skips cannot open here, None if it can."""
    if context.host.moment().now >= window.asked.round_one_closes:
        return MissingReason.MISSED
    sealable = context.questions.key_lists.seals_window(window.asked.round_one_opens, window.closes)
    return None if sealable else MissingReason.NO_SEALING_KEY


# Drill-downs: the cells that survive the step before a window.


async def _survivors_before(
    context: Context, question: InstalledQuestion, index: int
) -> tuple[int, ...] | MissingReason | None:
    """Return the cells that survived the step before a window, () for a first step; None: not known yet.

    They follow from the record released here, which must arrive before round one of the window closes.
    """
    if not question.is_later_step(index):
        return ()
    decided = await decided_window(context.store, question.question_id, index - 1)
    before = decided.window_id
    if before is None or decided.missing:
        nothing = decided.missing == MissingReason.NOTHING_SURVIVED.value
        return MissingReason.NOTHING_SURVIVED if nothing else MissingReason.WALK_ENDED
    state = await context.windows.state_of(before)
    if state is WindowState.ABORTED:
        return MissingReason.WALK_ENDED
    signed = await record_here(context.store, before)
    if state is not WindowState.RELEASED or signed is None:
        schedule = question.asked.schedule
        over = context.host.moment(question.others).is_past(schedule.opens(index) + schedule.round_one_s)
        return MissingReason.RECORD_LATE if over else None
    found = next_step(question.asked, decode_record(signed))
    return MissingReason(found.value) if isinstance(found, WalkEnd) else found
