"""What this aggregator's series were charged, and whether one more fits beside them.

Reads what is known of them; the rules are those of `budget` and `period_budget`. It must not install.
"""

import asyncio

from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.task.signal import normal_signal

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.tasks.budget import Charge, charge_of_series, check_budget
from fleetcount_aggregator.tasks.period_budget import PeriodCharge, check_period, series_charge

__all__ = ["check_budgets", "costs_nothing"]


async def check_budgets(context: Context, new: Charge, whole: PeriodCharge) -> None:
    """Refuse a series that is too much beside what overlaps it, or within a period.

    What counts: every series but those that cost nothing; a window counts with its series.

    Raises:
        TaskError: with the sum and the limit.
    """
    _check_charges_known(context)
    # Looked at first: thousands of series on other signals must not be taken apart into their windows.
    on_signal = [one for one in context.series.values() if normal_signal(one.series.signal) == whole.signal]
    series = [one for one in on_signal if not await costs_nothing(context, one)]
    check_budget(new, [charge_of_series(one.series) for one in series], context.limits)
    others = [series_charge(one.series, one.stopped) for one in series]
    # A year of hours takes a second: reports go on being taken meanwhile.
    await asyncio.to_thread(check_period, whole, others, context.limits)


async def costs_nothing(context: Context, series: InstalledSeries) -> bool:
    """Return whether a series was not debited and never will be: one that a party refused, or whose only window failed.

    Windows of others that failed give nothing back: those that follow count from the unit that they began.
    """
    if series.was_debited:
        return False
    if not series.refused_by and (series.series.schedule.windows > 1 or series.following == 0):
        return False
    windows = await context.store.decided(series.series_id)
    asked = [one.task_id for one in windows if one.task_id is not None and not one.missing]
    for task_id in asked:
        # Whether one in quarantine was released may be what is damaged.
        if task_id in context.quarantined:
            return False
        series.was_debited = await context.store.debit(task_id) is not None
        if series.was_debited or await context.state_of(task_id) is not State.ABORTED:
            return False
    return True


def _check_charges_known(context: Context) -> None:
    """Take nothing on while something is damaged or lacking that may have been charged for.

    Raises:
        TaskError: something is.
    """
    if context.adopting:
        raise TaskError(
            "the store was put back from a backup, and what was charged since is not known; allowed again once every"
            " configured peer has shown what it knows"
        )
    unknown = [*context.unknown_charges, *(one.damage for one in context.quarantined.values() if one.task is None)]
    if unknown:
        raise TaskError(
            f"what was charged is not known, since in the store {unknown[0]}, {len(unknown)} in all; allowed again"
            " after `fleetcount aggregator repair`"
        )
