"""Which tasks this aggregator takes on: signed by all, within its operator's limits, sealed to keys it holds.

It checks and stores; tasks come from `tasks.directory` at the leader, and from the leader at a helper.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from fleetcount_mechanisms.design import Design
from fleetcount_protocol.errors import DecodeError, SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_protocol.limits import MAX_TASK_LIST_BYTES, VERIFY_KEY_BYTES
from fleetcount_protocol.messages import InstallTask
from fleetcount_protocol.task.signal import normal_signal
from fleetcount_protocol.task.signed_file import decode_signed_task
from fleetcount_protocol.task.signing import verify_signed_task
from fleetcount_protocol.task.task import SignedTask, Task
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.storage.store import TaskRow
from fleetcount_aggregator.tasks.budget import Charge, charge_of, charge_of_series, check_budget
from fleetcount_aggregator.tasks.loading import follow_task, task_here, task_row
from fleetcount_aggregator.tasks.period_budget import PeriodCharge, check_period, period_charge, series_charge

__all__ = ["check_budgets", "check_task_here", "install", "install_from_leader"]

_CHARGES: Final[dict[TaskId, tuple[Charge, PeriodCharge]]] = {}
"""What debited tasks are charged, which follows from their ids, for as long as a period looks back to them.

Every look at a signal goes through all of its tasks in a period; of a store it reads those that came since the last.
"""


def check_task_here(context: Context, signed: SignedTask, verify_key: bytes) -> None:
    """Refuse a task this aggregator does not take on, from the directory or a leader; `install` checks the budget.

    Raises:
        TaskError: which field, its value and what is allowed.
        SignatureError: a signature that is missing or does not verify.
    """
    task, identity, limits = signed.task, context.identity, context.limits
    if task.deployment != identity.deployment:
        raise TaskError(f"deployment is {task.deployment!r}, this aggregator serves {identity.deployment!r}")
    task.position_of(identity.aggregator_id)
    verify_signed_task(signed, identity.trusted)
    _check_keys(context, task, verify_key)
    if task.min_batch_size < limits.smallest_min_batch_size:
        raise TaskError(f"min_batch_size is {task.min_batch_size}, allowed: at least {limits.smallest_min_batch_size}")
    if far := context.greetings.far_clock(one.aggregator_id for one in task.aggregators):
        raise TaskError(far)
    if context.clock.now() >= task.round_one_closes:
        raise TaskError(f"round one closed at {task.round_one_closes}, which is past")


def _check_keys(context: Context, task: Task, verify_key: bytes) -> None:
    if len(verify_key) != VERIFY_KEY_BYTES or hashlib.sha256(verify_key).digest() != task.verify_key_digest:
        raise TaskError("the verify key is not the one the task commits to")
    own = task.aggregators[task.position_of(context.aggregator_id)]
    for key in own.hpke_keys:
        if context.keys.public_key(key.key_id) != key.public_key:
            raise TaskError(f"the task names sealing key {key.key_id}, which is not in [keys] hpke_key_directory")


async def install(context: Context, signed: SignedTask, verify_key: bytes) -> InstalledTask:
    """Check a task against the budget and store it; a task that is installed already is returned as it is.

    Raises:
        TaskError, SignatureError: it is refused.
    """
    async with context.install_lock:
        await context.hear()
        known = await task_here(context, signed.task.task_id)
        if known is not None:
            return known
        check_task_here(context, signed, verify_key)
        position = signed.task.position_of(context.aggregator_id)
        task = InstalledTask(signed=signed, verify_key=verify_key, position=position)
        _check_room(context, task)
        await check_budgets(context, charge_of(signed.task), period_charge(signed.task))
        new = await task_row(context, task)
        context.unheard[new.task_id] = partial(follow_task, context, new.task_id)
        row = await context.store.install(new)
        del context.unheard[new.task_id]
        log.info("task_installed", task=str(row.task_id), name=signed.task.name)
        context.take_up(task, row.state)
        return task


def _check_room(context: Context, new: InstalledTask) -> None:
    """Refuse a task beyond those that may be open, or that the list given to devices has no room for.

    Raises:
        TaskError: with the number, or the bytes, and the limit.
    """
    own = [one for one in context.live.values() if one.task.series is None and _is_unfinished(context, one)]
    if len(own) >= context.limits.open_tasks:
        raise TaskError(
            f"{len(own)} tasks are open already, allowed: {context.limits.open_tasks} ([limits] open_tasks)"
        )
    listed = sum(one.listed_bytes for one in own) + new.listed_bytes
    if listed > MAX_TASK_LIST_BYTES:
        raise TaskError(f"the list of open tasks would have {listed} bytes, allowed: at most {MAX_TASK_LIST_BYTES}")


def _is_unfinished(context: Context, task: InstalledTask) -> bool:
    return context.states[task.task_id] in UNFINISHED


async def check_budgets(context: Context, new: Charge, whole: PeriodCharge) -> None:
    """Refuse a task or a series that is too much beside what overlaps it, or within a period.

    What counts: every debit, every task that may still be released, and every series but those that cost nothing; a
    window counts with its series.

    Raises:
        TaskError: with the sum and the limit.
    """
    _check_charges_known(context)
    # Looked at first: thousands of series on other signals must not be taken apart into their windows.
    on_signal = [one for one in context.series.values() if normal_signal(one.series.signal) == whole.signal]
    series = [one for one in on_signal if not await costs_nothing(context, one)]
    tasks = await _charged(context, new, whole, [charge_of_series(one.series) for one in series])
    overlapping = [*(charge for charge, _ in tasks), *(charge_of_series(one.series) for one in series)]
    check_budget(new, overlapping, context.limits)
    others = [*(one for _, one in tasks), *(series_charge(one.series, one.stopped) for one in series)]
    # A year of hours takes a second: reports go on being taken meanwhile.
    await asyncio.to_thread(check_period, whole, others, context.limits)


async def costs_nothing(context: Context, series: InstalledSeries) -> bool:
    """Return whether a series was not debited and never will be: one that a party refused, or whose only window failed.

    Windows of others that failed give nothing back: those that follow count from the unit that they began.
    """
    if not series.refused_by and (series.series.schedule.windows > 1 or series.following == 0):
        return False
    windows = await context.store.windows(series.series_id)
    asked = [one.task_id for one in windows if one.task_id is not None and not one.missing]
    for task_id in asked:
        # Whether one in quarantine was released may be what is damaged.
        if task_id in context.quarantined or await context.state_of(task_id) is not State.ABORTED:
            return False
        if await context.store.debit(task_id) is not None:
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


async def _charged(
    context: Context, new: Charge, whole: PeriodCharge, series: Sequence[Charge]
) -> Sequence[tuple[Charge, PeriodCharge]]:
    """Return what the tasks on a signal are charged that may count beside a new charge, debited or still in work.

    Of those debited only what shares a period with the charge, overlaps it, or overlaps what does: the rest of years
    stays in the store.
    """
    open_ones = [one.task for one in context.live.values() if _is_unfinished(context, one)]
    # Whether one in quarantine was released may be what is damaged.
    set_aside = [one.task for one in context.quarantined.values() if one.task is not None]
    found = {
        task.task_id: (charge_of(task), period_charge(task))
        for task in (*open_ones, *set_aside)
        if task.series is None and normal_signal(task.signal) == whole.signal
    }
    since = min((unit.first for unit in whole.units), default=new.opens) - context.limits.budget_period_s
    since = min([since, new.opens, *(one.opens for one in series if one.opens < new.closes and new.opens < one.closes)])
    for _ in range(2):  # What overlaps the charge may have opened long before it.
        known = dict(_CHARGES)  # Another signal's look may let go of some meanwhile.
        ids, rows = await context.store.charged_on(whole.signal, since, known)
        read = await asyncio.to_thread(_stored_charges, rows)
        _CHARGES.update(read)
        known |= read
        found |= {task_id: known[task_id] for task_id in ids if task_id in known and task_id not in found}
        earlier = min([since, *(charge.opens for charge, _ in found.values() if new.opens < charge.closes)])
        if earlier == since:
            break
        since = earlier
    for task_id in [task_id for task_id, (charge, _) in _CHARGES.items() if charge.closes <= since]:
        del _CHARGES[task_id]
    return list(found.values())


def _stored_charges(rows: Sequence[TaskRow]) -> dict[TaskId, tuple[Charge, PeriodCharge]]:
    """Return what stored tasks are charged.

    Raises:
        TaskError: this version cannot read one of them, and so not say what it counts.
    """
    try:
        return {row.task_id: _charges_of(decode_signed_task(row.signed).task) for row in rows}
    except DecodeError as error:
        raise TaskError(f"a task that was debited on this signal cannot be read: {error}") from error


def _charges_of(task: Task) -> tuple[Charge, PeriodCharge]:
    charge, whole = charge_of(task), period_charge(task)
    design = _shared(whole.design)
    return replace(charge, loss=design.ledger_loss), replace(whole, design=design)


@lru_cache(maxsize=64)
def _shared(design: Design) -> Design:
    """Return the first of equal designs: with what follows from it, each would take three times as much as the rest."""
    return design


async def install_from_leader(context: Context, caller: AggregatorId, request: InstallTask) -> State:
    """Install a task its leader hands over; return its state here.

    Raises:
        PeerRefusalError: NOT_LEADER, or TASK_REFUSED (the reason is in this aggregator's log, not in the answer); BUSY,
            the store was put back and lacks what the others know.
        DamagedError: it is installed already, and in quarantine.
    """
    signed = request.signed_task
    if caller != signed.task.leader.aggregator_id:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    context.check_whole(signed.task.task_id)
    if context.adopting and await task_here(context, signed.task.task_id) is None:
        raise PeerRefusalError(PeerProblem.BUSY)
    try:
        task = await install(context, signed, request.verify_key)
    except (TaskError, SignatureError) as error:
        log.warning("task_refused", task=str(signed.task.task_id), name=signed.task.name, reason=str(error))
        raise PeerRefusalError(PeerProblem.TASK_REFUSED) from error
    return context.states[task.task_id]
