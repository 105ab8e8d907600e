"""The windows of series: each is decided about once, shortly before it opens, and its task follows by rule.

Every aggregator does this alone; a crash before the decision is stored leaves nothing of it, and it is taken again. It
must not ask another aggregator, and drives no task.
"""

from typing import Final

from fleetcount_protocol.ids import SeriesId
from fleetcount_protocol.series.fields import Schedule
from fleetcount_protocol.task.signed_file import encode_signed_task
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import MissingReason, State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.storage.store import TaskRow, WindowRow
from fleetcount_aggregator.tasks.key_lists import seals_window
from fleetcount_aggregator.tasks.walks import survivors_before

__all__ = ["decide_windows", "opening_lead_s", "remember_window"]

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
    schedule, lead = series.series.schedule, opening_lead_s(series.series.schedule)
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
    rows: list[WindowRow] = []
    opened: InstalledTask | None = None
    now, schedule = context.now(), series.series.schedule
    while opened is None and len(rows) < _MOST_AT_ONCE:
        index = series.following + len(rows)
        if index >= schedule.windows or schedule.opens(index) - lead > now:
            break
        if rows and series.is_later_step(index):
            break  # What the window before it came to is remembered first.
        decision = await _decide(context, series, index)
        if decision is None:
            break
        rows.append(decision[0])
        opened = decision[1]
    if not rows:
        return False
    context.failpoints.hit("series.before_window_store")
    await context.store.decide_windows(rows, None if opened is None else _task_row(context, opened))
    for row in rows:
        remember_window(context, series, row)
        if row.missing:
            log.info("window_missing", series=str(row.series_id), window=row.index, reason=row.missing)
    context.failpoints.hit("series.after_window_store")
    if opened is not None:
        context.take_up(opened, State.ANNOUNCED)
    return True


async def _decide(
    context: Context, series: InstalledSeries, index: int
) -> tuple[WindowRow, InstalledTask | None] | None:
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
            reason = _why_missing(context, task)
    elif not series.is_later_step(index):
        task = series.window(index)
    task_id = None if task is None else task.task_id
    row = WindowRow(series_id=series.series_id, index=index, task_id=task_id, missing=reason.value if reason else "")
    return row, None if reason else task


def _why_missing(context: Context, task: InstalledTask) -> MissingReason | None:
    """Return why a window that no order skips has no task here, None if it has one."""
    if context.clock.now() >= task.task.round_one_closes:
        return MissingReason.MISSED
    sealable = seals_window(context, task.task.round_one_opens, task.closes)
    return None if sealable else MissingReason.NO_SEALING_KEY


def _task_row(context: Context, task: InstalledTask) -> TaskRow:
    return TaskRow(
        task_id=task.task_id,
        signed=encode_signed_task(task.signed),
        verify_key=context.at_rest.seal(task.verify_key, b"verify key", task.task_id),
        state=State.ANNOUNCED,
        abort_reason="",
        installed_at=context.now(),
    )


def remember_window(context: Context, series: InstalledSeries, row: WindowRow) -> None:
    """Take into memory what the store has about the next window."""
    series.windows.append(row.task_id)
    series.following = row.index + 1
    if row.missing:
        series.missing[row.index] = row.missing
        if row.task_id is not None:
            context.missing.add(row.task_id)
