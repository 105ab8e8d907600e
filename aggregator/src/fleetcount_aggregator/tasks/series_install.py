"""Which series this aggregator takes on: signed by all, within its operator's limits, with keys for its windows.

Judged once, whole: its windows are not judged again. It checks and stores; windows are opened by `tasks.windows`.
"""

from fleetcount_protocol.errors import SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_SERIES
from fleetcount_protocol.messages import InstallSeries
from fleetcount_protocol.series.derive import check_verify_seed
from fleetcount_protocol.series.key_list import key_for
from fleetcount_protocol.series.series import SignedSeries
from fleetcount_protocol.series.signed_file import decode_signed_series, encode_signed_series
from fleetcount_protocol.series.signing import verify_signed_series
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.storage.store import SeriesRow
from fleetcount_aggregator.tasks.budget import charge_of_series
from fleetcount_aggregator.tasks.install import check_budgets
from fleetcount_aggregator.tasks.key_lists import own_key_list
from fleetcount_aggregator.tasks.period_budget import series_charge
from fleetcount_aggregator.tasks.series_notes import take_up_notes
from fleetcount_aggregator.tasks.series_orders import take_delivered_order
from fleetcount_aggregator.tasks.windows import remember_window

__all__ = ["check_series_here", "install_series", "install_series_from_leader", "load_series"]


def check_series_here(context: Context, signed: SignedSeries, seed: bytes) -> None:
    """Refuse a series this aggregator does not take on; `install_series` checks the budget.

    Raises:
        TaskError: which field, its value and what is allowed.
        SignatureError: a signature that is missing or does not verify.
    """
    series, identity, limits = signed.series, context.identity, context.limits
    if series.deployment != identity.deployment:
        raise TaskError(f"deployment is {series.deployment!r}, this aggregator serves {identity.deployment!r}")
    position_in(signed, identity.aggregator_id)
    verify_signed_series(signed, identity.trusted)
    check_verify_seed(series, seed)
    if series.min_batch_size < limits.smallest_min_batch_size:
        raise TaskError(
            f"min_batch_size is {series.min_batch_size}, allowed: at least {limits.smallest_min_batch_size}"
        )
    _check_next_window(context, signed)


def position_in(signed: SignedSeries, aggregator_id: AggregatorId) -> int:
    """Return an aggregator's share number in a series.

    Raises:
        TaskError: the series does not list it.
    """
    ids = [one.aggregator_id for one in signed.series.aggregators]
    if aggregator_id not in ids:
        raise TaskError(f"series {signed.series.name!r} does not list aggregator {aggregator_id!r}")
    return ids.index(aggregator_id)


def _check_next_window(context: Context, signed: SignedSeries) -> None:
    """Refuse a series that is over, or whose next window nobody could seal to.

    Keys of later windows may be announced while the series runs; a window whose key is missing then is skipped.
    """
    schedule, now = signed.series.schedule, context.now()
    following = max(0, -(-(now + 1 - schedule.round_one_s - schedule.first) // schedule.every_s))
    if following >= schedule.windows:
        raise TaskError(f"round one of the last window closed before {now}, which is past")
    key_for(own_key_list(context).key_list, schedule.opens(following), schedule.closes(following))


def _say_when_keys_run_out(context: Context, signed: SignedSeries) -> None:
    until = max(one.not_after for one in own_key_list(context).key_list.keys)
    if until < signed.series.schedule.end:
        log.warning("sealing_keys_run_out", series=str(signed.series.series_id), until=until)


async def install_series(context: Context, signed: SignedSeries, seed: bytes) -> InstalledSeries:
    """Check a series against the budget and store it; one that is installed already is returned as it is.

    Raises:
        TaskError, SignatureError: it is refused.
    """
    series_id = signed.series.series_id
    async with context.install_lock:
        if series_id in context.series:
            return context.series[series_id]
        check_series_here(context, signed, seed)
        if len(context.series) >= MAX_SERIES:
            raise TaskError(f"{MAX_SERIES} series are installed already; no more are taken")
        await check_budgets(context, charge_of_series(signed.series), series_charge(signed.series))
        row = SeriesRow(
            series_id=series_id,
            signed=encode_signed_series(signed),
            seed=context.at_rest.seal(seed, b"verify seed", series_id),
            installed_at=context.now(),
        )
        stored = await context.store.install_series(row)
        context.failpoints.hit("series.after_install_store")
        await _remember(context, stored)
        log.info("series_installed", series=str(series_id), name=signed.series.name)
        _say_when_keys_run_out(context, signed)
        return context.series[series_id]


async def install_series_from_leader(context: Context, caller: AggregatorId, request: InstallSeries) -> InstalledSeries:
    """Install a series its leader hands over, and take the orders that come with it.

    Raises:
        PeerRefusalError: NOT_LEADER, or TASK_REFUSED (the reason is in this aggregator's log, not in the answer); or
            as `take_delivered_order`.
    """
    series = request.signed.series
    if caller != series.aggregators[0].aggregator_id:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    try:
        installed = await install_series(context, request.signed, request.seed)
    except (TaskError, SignatureError) as error:
        log.warning("series_refused", series=str(series.series_id), name=series.name, reason=str(error))
        raise PeerRefusalError(PeerProblem.TASK_REFUSED) from error
    for order in request.orders:
        await take_delivered_order(context, caller, order)
    return installed


async def load_series(context: Context) -> None:
    """Take up every series of the store with its orders and windows, when the process starts.

    Raises:
        FleetcountError: a stored series cannot be read (another signing key, a damaged file).
    """
    for row in await context.store.series():
        await _remember(context, row)


async def _remember(context: Context, row: SeriesRow) -> None:
    signed = decode_signed_series(row.signed)
    series = InstalledSeries(
        signed=signed,
        seed=context.at_rest.open(row.seed, b"verify seed", row.series_id),
        position=position_in(signed, context.aggregator_id),
    )
    take_up_notes(context, series, await context.store.series_notes(row.series_id))
    for window in await context.store.windows(row.series_id):
        remember_window(context, series, window)
    context.series[row.series_id] = series
    context.openings.put(0, row.series_id)
    context.handovers.put(0, row.series_id)
