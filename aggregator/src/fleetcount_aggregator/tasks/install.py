"""Which tasks this aggregator takes on: signed by all, within its operator's limits, sealed to keys it holds.

It checks and stores; tasks come from `tasks.directory` at the leader, and from the leader at a helper.
"""

import asyncio
import hashlib

from fleetcount_protocol.errors import SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_TASKS_PER_LIST, VERIFY_KEY_BYTES
from fleetcount_protocol.messages import InstallTask
from fleetcount_protocol.task.signal import normal_signal
from fleetcount_protocol.task.signed_file import encode_signed_task
from fleetcount_protocol.task.signing import verify_signed_task
from fleetcount_protocol.task.task import SignedTask, Task
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.storage.store import TaskRow
from fleetcount_aggregator.tasks.budget import Charge, charge_of, charge_of_series, check_budget
from fleetcount_aggregator.tasks.loading import read_task
from fleetcount_aggregator.tasks.period_budget import PeriodCharge, check_period, period_charge, series_charge

__all__ = ["check_budgets", "check_task_here", "install", "install_from_leader"]


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
        known = context.tasks.get(signed.task.task_id)
        if known is not None:
            return known
        check_task_here(context, signed, verify_key)
        own = [task_id for task_id, task in context.live.items() if task.task.series is None]
        if sum(context.states[task_id] in UNFINISHED for task_id in own) >= MAX_TASKS_PER_LIST:
            raise TaskError(f"{MAX_TASKS_PER_LIST} tasks are open already; no more are taken")
        await check_budgets(context, charge_of(signed.task), period_charge(signed.task))
        row = await context.store.install(
            TaskRow(
                task_id=signed.task.task_id,
                signed=encode_signed_task(signed),
                verify_key=context.at_rest.seal(verify_key, b"verify key", signed.task.task_id),
                state=State.ANNOUNCED,
                abort_reason="",
                installed_at=context.now(),
            )
        )
        log.info("task_installed", task=str(row.task_id), name=signed.task.name)
        task = read_task(context, row)
        context.take_up(task, row.state)
        return task


async def check_budgets(context: Context, new: Charge, whole: PeriodCharge) -> None:
    """Refuse a task or a series that is too much beside what overlaps it, or within a period.

    What counts: every debit, every task that may still be released, and every series; a window counts with its series.

    Raises:
        TaskError: with the sum and the limit.
    """
    debited = {row.task_id for row in await context.store.ledger()}
    # Looked at first: thousands of series on other signals must not be taken apart into their windows.
    same = [task for task in context.tasks.values() if normal_signal(task.task.signal) == whole.signal]
    tasks = [
        task.task
        for task in same
        if task.task.series is None and (task.task_id in debited or context.states[task.task_id] in UNFINISHED)
    ]
    series = [one for one in context.series.values() if normal_signal(one.series.signal) == whole.signal]
    overlapping = [*map(charge_of, tasks), *(charge_of_series(one.series) for one in series)]
    check_budget(new, overlapping, context.limits)
    others = [*map(period_charge, tasks), *(series_charge(one.series, one.stopped) for one in series)]
    # A year of hours takes a second: reports go on being taken meanwhile.
    await asyncio.to_thread(check_period, whole, others, context.limits)


async def install_from_leader(context: Context, caller: AggregatorId, request: InstallTask) -> State:
    """Install a task its leader hands over; return its state here.

    Raises:
        PeerRefusalError: NOT_LEADER, or TASK_REFUSED (the reason is in this aggregator's log, not in the answer).
    """
    signed = request.signed_task
    if caller != signed.task.leader.aggregator_id:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    try:
        task = await install(context, signed, request.verify_key)
    except (TaskError, SignatureError) as error:
        log.warning("task_refused", task=str(signed.task.task_id), name=signed.task.name, reason=str(error))
        raise PeerRefusalError(PeerProblem.TASK_REFUSED) from error
    return context.states[task.task_id]
