"""The windows of series: each is decided about once, shortly before it opens, and its task follows by rule.

Every aggregator does this alone; a crash before the decision is stored leaves nothing of it, and it is taken again. It
must not ask another aggregator, and drives no task.
"""

from collections.abc import Callable
from typing import Final

from fleetcount_protocol.ids import SeriesId
from fleetcount_protocol.series.fields import Schedule
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import MissingReason, State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.storage.store import DecidedWindow
from fleetcount_aggregator.tasks.key_lists import seals_window
from fleetcount_aggregator.tasks.loading import follow_task, task_row
from fleetcount_aggregator.tasks.walks import survivors_before

__all__ = ["decide_windows", "opening_lead_s", "past_window"]

_LEAD_S: Final = 60
"""How long before a window opens its task is made: the clocks of devices and aggregators differ by less."""
_MOST_AT_ONCE: Final = 64
"""Windows decided in one transaction, after a long sleep; deriving one may take a millisecond."""


def opening_lead_s(schedule: Schedule) -> int:
    """Return how many seconds before it opens a window is decided about: a minute, or the pace of the series."""
    return min(_LEAD_S, schedule.every_s)


async def decide_windows(context: Context, series_id: SeriesId) -> None:
    """Decide about every window of a series that is to open soon or has passed, and put the next on the agenda.

    Raises:
        StoreError: the store failed; the series stays on the agenda.
    """
    series = context.series[series_id]
    schedule, lead = series.asked.schedule, opening_lead_s(series.asked.schedule)
    try:
        while series.following < schedule.windows and schedule.opens(series.following) - lead <= context.now():
            # Orders are taken under the same lock: none names a window that is being decided about.
            async with series.lock:
                if not await _decide_some(context, series, lead):
                    break
    finally:
        if series.following < schedule.windows:
            context.openings.put(max(schedule.opens(series.following) - lead, context.now() + 1), series_id)


async def _decide_some(context: Context, series: InstalledSeries, lead: int) -> bool:
    """Decide about windows up to the first that has a task; what is decided is durable together.

    Return whether anything was: a later step of a drill-down waits for the record of the step before.
    """
    if series.is_behind:
        await _catch_up(context, series)
    rows: list[DecidedWindow] = []
    opened: InstalledTask | None = None
    now, schedule = context.now(), series.asked.schedule
    while opened is None and len(rows) < _MOST_AT_ONCE:
        index = series.following + len(rows)
        if index >= schedule.windows or schedule.opens(index) - lead > now:
            break
        if rows and series.is_later_step(index):
            break  # What the window before it came to is remembered first.
        if _may_come(context, series, index):
            break
        decision = await _decide(context, series, index, _why_missing)
        if decision is None:
            break
        rows.append(decision[0])
        opened = decision[1]
    if not rows:
        return False
    context.failpoints.hit("series.before_window_store")
    row = None if opened is None else await task_row(context, opened)
    series.is_behind = True  # Until the store has answered: what it did without an answer stands.
    await context.store.decide_windows(rows, row)
    series.is_behind = False
    series.following = rows[-1].index + 1
    for one in rows:
        if one.missing:
            log.info("window_missing", series=str(one.series_id), index=one.index, reason=one.missing)
    context.failpoints.hit("series.after_window_store")
    if opened is not None:
        log.info("window_announced", task=str(opened.task_id), series=str(series.series_id), index=rows[-1].index)
        context.take_up(opened, State.ANNOUNCED)
    return True


async def _catch_up(context: Context, series: InstalledSeries) -> None:
    """Take up the windows that the store has decided about without an answer, and the task of one of them."""
    for row in await context.store.decided(series.series_id, above=series.following - 1):
        if row.task_id is not None and not row.missing:
            await follow_task(context, row.task_id)
        series.following = row.index + 1
    series.is_behind = False


async def past_window(
    context: Context, series: InstalledSeries, index: int
) -> tuple[DecidedWindow, InstalledTask | None] | None:
    """Return what is remembered of a window that opened after the backup that was put back, as `_decide` does.

    It has a task unless an order skips it: that it was missed here is not known.
    """
    return await _decide(context, series, index, _not_missing)


async def _decide(
    context: Context,
    series: InstalledSeries,
    index: int,
    why_missing: Callable[[Context, InstalledTask], MissingReason | None],
) -> tuple[DecidedWindow, InstalledTask | None] | None:
    """Return what is decided about a window, and its task if it has one here; None while that is not known."""
    task: InstalledTask | None = None
    reason = series.skips(index)
    if reason is None:
        survivors = await survivors_before(context, series, index)
        if survivors is None:
            return None
        if isinstance(survivors, MissingReason):
            reason = survivors
        else:
            task = series.window(index, survivors)
            reason = why_missing(context, task)
    elif not series.is_later_step(index):
        task = series.window(index)
    task_id = None if task is None else task.task_id
    row = DecidedWindow(
        series_id=series.series_id, index=index, task_id=task_id, missing=reason.value if reason else ""
    )
    return row, None if reason else task


def _may_come(context: Context, series: InstalledSeries, index: int) -> bool:
    """Return whether a window that is over by this clock is not by that of a peer, and nobody knows which is right.

    A decision stands: a clock that was wrong for a minute would cost all windows up to the time it showed.
    """
    closes = series.asked.schedule.opens(index) + series.asked.schedule.round_one_s
    others = [one.aggregator_id for one in series.asked.aggregators]
    return context.now() >= closes and context.greetings.not_yet(closes, others)


def _not_missing(_context: Context, _task: InstalledTask) -> None:
    """Return that a window has a task."""


def _why_missing(context: Context, task: InstalledTask) -> MissingReason | None:
    """Return why a window that no order skips has no task here, None if it has one."""
    if context.clock.now() >= task.asked.round_one_closes:
        return MissingReason.MISSED
    sealable = seals_window(context, task.asked.round_one_opens, task.closes)
    return None if sealable else MissingReason.NO_SEALING_KEY
