"""The windows of questions: each is decided about once, shortly before it opens, and its window follows by rule.

Every aggregator does this alone; a crash before the decision is stored leaves nothing of it, and it is taken again. It
must not ask another aggregator, and drives no window.
"""

from collections.abc import Callable
from typing import Final

from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.release import decode_record
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import MissingReason
from fleetcount_aggregator.journal import record_here
from fleetcount_aggregator.memory.installed import InstalledQuestion, InstalledWindow, window_row
from fleetcount_aggregator.memory.questions import decided_window
from fleetcount_aggregator.storage.row_types import DecidedWindow

_LEAD_S: Final = 60
"""How long before a window opens its window is made: the clocks of devices and aggregators differ by less."""
_MOST_AT_ONCE: Final = 64
"""Windows decided in one transaction, after a long sleep; deriving one may take a millisecond."""


def opening_lead_s(schedule: Schedule) -> int:
    """Return how many seconds before it opens a window is decided about: a minute, or the pace of the question."""
    return min(_LEAD_S, schedule.every_s)


async def decide_windows(context: Context, question_id: QuestionId) -> None:
    """Decide about every window of a question that is to open soon or has passed, and put the next on the agenda.

    Raises:
        StoreError: the store failed; the question stays on the agenda.
    """
    question = context.questions[question_id]
    schedule, lead = question.asked.schedule, opening_lead_s(question.asked.schedule)
    try:
        while question.following < schedule.windows and schedule.opens(question.following) - lead <= context.host.now():
            # Orders are taken under the same lock: none names a window that is being decided about.
            async with question.lock:
                if not await _decide_some(context, question, lead):
                    break
    finally:
        if question.following < schedule.windows:
            context.questions.openings.put(
                max(schedule.opens(question.following) - lead, context.host.now() + 1), question_id
            )


async def _decide_some(context: Context, question: InstalledQuestion, lead: int) -> bool:
    """Decide about windows up to the first that has a window; what is decided is durable together.

    Return whether anything was: a later step of a drill-down waits for the record of the step before.
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
            break  # What the window before it came to is remembered first.
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
    question.is_behind = True  # Until the store has answered: what it did without an answer stands.
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
        context.windows.take_up(opened, WindowState.ANNOUNCED)
    return True


async def _catch_up(context: Context, question: InstalledQuestion) -> None:
    """Take up the windows that the store has decided about without an answer, and the window of one of them."""
    for row in await context.store.decided(question.question_id, above=question.following - 1):
        if row.window_id is not None and not row.missing:
            await context.windows.follow(row.window_id)
        question.following = row.index + 1
    question.is_behind = False


async def past_window(
    context: Context, question: InstalledQuestion, index: int
) -> tuple[DecidedWindow, InstalledWindow | None] | None:
    """Return what is remembered of a window that opened after the backup that was put back, as `_decide` does.

    It has a window unless an order skips it: that it was missed here is not known.
    """
    return await _decide(context, question, index, _not_missing)


async def _decide(
    context: Context,
    question: InstalledQuestion,
    index: int,
    why_missing: Callable[[Context, InstalledWindow], MissingReason | None],
) -> tuple[DecidedWindow, InstalledWindow | None] | None:
    """Return what is decided about a window, and its window if it has one here; None while that is not known."""
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
    elif not question.is_later_step(index):
        window = question.window(index)
    window_id = None if window is None else window.window_id
    row = DecidedWindow(
        question_id=question.question_id, index=index, window_id=window_id, missing=reason.value if reason else ""
    )
    return row, None if reason else window


def _may_come(context: Context, question: InstalledQuestion, index: int) -> bool:
    """Return whether a window that is over by this clock is not by that of a peer, and nobody knows which is right.

    A decision stands: a clock that was wrong for a minute would cost all windows up to the time it showed.
    """
    closes = question.asked.schedule.opens(index) + question.asked.schedule.round_one_s
    others = [one.aggregator_id for one in question.asked.aggregators]
    return context.host.now() >= closes and context.peers.greetings.not_yet(closes, others)


def _not_missing(_context: Context, _window: InstalledWindow) -> None:
    """Return that a window has a window."""


def _why_missing(context: Context, window: InstalledWindow) -> MissingReason | None:
    """Return why a window that no order skips has no window here, None if it has one."""
    if context.host.clock.now() >= window.asked.round_one_closes:
        return MissingReason.MISSED
    sealable = context.questions.key_lists.seals_window(window.asked.round_one_opens, window.closes)
    return None if sealable else MissingReason.NO_SEALING_KEY


# Drill-downs: which cells the record of the step before leaves for a window.


async def _survivors_before(
    context: Context, question: InstalledQuestion, index: int
) -> tuple[int, ...] | MissingReason | None:
    """Return the cells that survived the step before a window, none for what is no later step; None: not known yet.

    The record that counts is the one released here; it may come until round one of the window closes.
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
        over = context.host.clock.now() >= schedule.opens(index) + schedule.round_one_s
        return MissingReason.RECORD_LATE if over else None
    found = next_step(question.asked, decode_record(signed))
    return MissingReason(found.value) if isinstance(found, WalkEnd) else found
