"""Which series this aggregator takes on: signed by all, within its operator's limits, with keys for its windows.

Judged once, whole: its windows are not judged again. It checks and stores; windows are opened by `tasks.windows`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fleetcount_protocol.errors import DecodeError, SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId, SeriesId
from fleetcount_protocol.limits import MAX_SERIES
from fleetcount_protocol.messages import InstallSeries
from fleetcount_protocol.series.derive import check_verify_seed
from fleetcount_protocol.series.key_list import key_for
from fleetcount_protocol.series.orders import OrderAction, SeriesOrder, SignedOrder, sign_order, verify_orders
from fleetcount_protocol.series.series import Series, SignedSeries
from fleetcount_protocol.series.signed_file import encode_signed_series
from fleetcount_protocol.series.signing import verify_signed_series
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.storage.row_seal import Damage, DamagedError
from fleetcount_aggregator.storage.store import SeriesRow, StoreError
from fleetcount_aggregator.tasks.budget import charge_of_series
from fleetcount_aggregator.tasks.charges import check_budgets
from fleetcount_aggregator.tasks.decided import count_decided
from fleetcount_aggregator.tasks.key_lists import own_key_list
from fleetcount_aggregator.tasks.period_budget import series_charge
from fleetcount_aggregator.tasks.series_notes import start_note, stored_series, take_up_notes
from fleetcount_aggregator.tasks.series_orders import take_delivered_order

__all__ = [
    "adopt_series",
    "check_series_here",
    "follow_series",
    "install_series",
    "install_series_from_leader",
    "load_series",
]


def check_series_here(context: Context, signed: SignedSeries, seed: bytes) -> None:
    """Refuse a series, with its start, that this aggregator does not take on; `install_series` checks the budget.

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
    if far := context.greetings.far_clock(one.aggregator_id for one in series.aggregators):
        raise TaskError(far)
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
    following = max(0, -(-(now + 1 - schedule.round_one_s - schedule.opens(0)) // schedule.every_s))
    if following >= schedule.windows:
        raise TaskError(f"round one of the last window closed before {now}, which is past")
    key_for(own_key_list(context).key_list, schedule.opens(following), schedule.closes(following))


def _say_when_keys_run_out(context: Context, signed: SignedSeries) -> None:
    if context.keys.rotates:
        return
    until = max(one.not_after for one in own_key_list(context).key_list.keys)
    if until < signed.series.schedule.end:
        log.warning("sealing_keys_run_out", series=str(signed.series.series_id), until=until)


def _with_start(
    context: Context, signed: SignedSeries, orders: Sequence[SignedOrder]
) -> tuple[SignedSeries, SignedOrder | None]:
    """Return a series with its start, and the order among `orders` that fixes it; as it is where times are fixed.

    Raises:
        TaskError, SignatureError: a start that the series does not take, or none where it needs one.
    """
    start = next((one for one in orders if one.order.action is OrderAction.START), None)
    series = verify_orders([] if start is None else [start], signed.series, context.identity.trusted)
    if series.schedule.first is None:
        raise TaskError(f"series {series.name!r} is counted from submission, and its leader's start is not with it")
    return replace(signed, series=series), start


def _new_start(context: Context, series: Series) -> tuple[SignedOrder, ...]:
    """Return the leader's start of a series that it takes now; nothing where times are fixed.

    Raises:
        TaskError: the latest start has passed.
    """
    limits, step = series.schedule.submission, series.time_precision_s
    if limits is None:
        return ()
    soonest = max(limits.earliest, -(-(context.now() + limits.delay_s) // step) * step)
    if soonest > limits.latest:
        raise TaskError(
            f"the question would start {soonest}, {limits.delay_s} s after now, allowed: at most {limits.latest}, the"
            " latest start that all signed"
        )
    order = SeriesOrder(
        series_id=series.series_id,
        number=1,
        action=OrderAction.START,
        aggregator_id=context.aggregator_id,
        start=soonest,
    )
    return (sign_order(order, context.identity.signing_key),)


async def install_series(
    context: Context, signed: SignedSeries, seed: bytes, orders: Sequence[SignedOrder] = ()
) -> InstalledSeries:
    """Check a series against the budget and store it; one that is installed already is returned as it is.

    A start is taken from `orders`, or made by the leader, and stored with the series in one transaction: no party has a
    series that is counted from submission without its start, and asked again the leader has the same one.

    Raises:
        TaskError, SignatureError: it is refused.
    """
    series_id = signed.series.series_id
    async with context.install_lock:
        await context.hear()
        if series_id in context.series:
            return context.series[series_id]
        if not orders and signed.series.aggregators[0].aggregator_id == context.aggregator_id:
            orders = _new_start(context, signed.series)
        signed, start = _with_start(context, signed, orders)
        check_series_here(context, signed, seed)
        # Those that are over and count in a period's budget are in no list for devices.
        if sum(context.now() < one.asked.schedule.end for one in context.series.values()) >= MAX_SERIES:
            raise TaskError(f"{MAX_SERIES} series are not over yet; no more are taken")
        await check_budgets(context, charge_of_series(signed.series), series_charge(signed.series))
        context.unheard[series_id] = partial(follow_series, context, series_id)
        stored = await context.store.install_series(_series_row(context, signed, seed), start_note(start))
        del context.unheard[series_id]
        context.failpoints.hit("series.after_install_store")
        await _remember(context, stored)
        log.info("series_installed", series=str(series_id), name=signed.series.name)
        _say_when_keys_run_out(context, signed)
        return context.series[series_id]


def _series_row(context: Context, signed: SignedSeries, seed: bytes) -> SeriesRow:
    series_id = signed.series.series_id
    return SeriesRow(
        series_id=series_id,
        signed=encode_signed_series(signed),
        seed=context.store.data_keys.at_rest.seal(seed, b"verify seed", series_id),
        installed_at=context.now(),
    )


async def adopt_series(context: Context, signed: SignedSeries, seed: bytes, orders: Sequence[SignedOrder] = ()) -> None:
    """Take up a series that this aggregator has signed and its store, put back from a backup, may not know.

    It was judged when it was installed; one that is known stays as it is. Its start is the one among `orders`, also at
    the leader that once made it. The caller has checked the seed.

    Raises:
        TaskError, SignatureError: it is of another deployment, does not list this aggregator, or is not signed by all.
    """
    series, identity = signed.series, context.identity
    if series.deployment != identity.deployment:
        raise TaskError(f"deployment is {series.deployment!r}, this aggregator serves {identity.deployment!r}")
    position_in(signed, identity.aggregator_id)
    verify_signed_series(signed, identity.trusted)
    async with context.install_lock:
        if series.series_id not in context.series:
            started, start = _with_start(context, signed, orders)
            row = _series_row(context, started, seed)
            await _remember(context, await context.store.install_series(row, start_note(start)))
            log.info("series_taken_up_again", series=str(series.series_id), name=series.name)


async def install_series_from_leader(context: Context, caller: AggregatorId, request: InstallSeries) -> InstalledSeries:
    """Install a series its leader hands over, and take the orders that come with it.

    Raises:
        PeerRefusalError: NOT_LEADER, or TASK_REFUSED (the reason is in this aggregator's log, not in the answer); BUSY,
            the store was put back and lacks what the others know; or as `take_delivered_order`.
    """
    series = request.signed.series
    if caller != series.aggregators[0].aggregator_id:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    if context.adopting and series.series_id not in context.series:
        raise PeerRefusalError(PeerProblem.BUSY)
    try:
        installed = await install_series(context, request.signed, request.seed, request.orders)
    except (TaskError, SignatureError) as error:
        log.warning("series_refused", series=str(series.series_id), name=series.name, reason=str(error))
        raise PeerRefusalError(PeerProblem.TASK_REFUSED) from error
    for order in request.orders:
        await take_delivered_order(context, caller, order)
    return installed


async def load_series(context: Context) -> None:
    """Take up every series in work with its orders and windows, and those that still count in a period's budget.

    Who is elected lets go of those that count no more: another process may have put them to rest, and forgotten them.
    One that is damaged, or of which a window or note is, is named and left out; so is what was charged for it.

    Raises:
        FleetcountError: a stored series cannot be read (another at-rest key).
    """
    counts_from = context.now() - context.limits.budget_period_s
    rows = await context.store.series(ended_after=counts_from)
    for gone in context.series.keys() - {row.series_id for row in rows}:
        if context.series[gone].asked.schedule.end <= counts_from:
            del context.series[gone]
    for row in rows:
        try:
            await _remember(context, row)
        except (StoreError, DecodeError, TaskError) as error:
            log.error("series_not_served", series=str(row.series_id), reason=str(error))
            context.quarantine(
                Damage(
                    table="series", what=f"series {row.series_id.hex()} or a row of it is damaged", hides_charge=True
                )
            )


async def follow_series(context: Context, series_id: SeriesId) -> None:
    """Take up what the store has of one series that another process of this aggregator installed or decided about.

    Raises:
        FleetcountError: the store failed, or the series cannot be read.
    """
    known = context.series.get(series_id)
    if known is None:
        row = await context.store.one_series(series_id)
        if row is not None:
            await _remember(context, row)
        return
    take_up_notes(context, known, await context.store.series_notes(series_id))
    decided = await count_decided(context, series_id, known.following)
    known.following = max(known.following, decided)


async def _remember(context: Context, row: SeriesRow) -> None:
    notes = await context.store.series_notes(row.series_id)
    signed = stored_series(row.signed, notes)
    if signed.series.series_id != row.series_id:
        raise DamagedError(
            Damage(table="series", what=f"what was signed of series {row.series_id.hex()} is another series")
        )
    if signed.series.schedule.first is None:
        raise DamagedError(Damage(table="series_notes", what=f"the start of series {row.series_id.hex()} is gone"))
    series = InstalledSeries(
        signed=signed,
        seed=context.store.data_keys.at_rest.open(row.seed, b"verify seed", row.series_id),
        position=position_in(signed, context.aggregator_id),
    )
    take_up_notes(context, series, notes)
    series.following = await count_decided(context, row.series_id)
    context.series[row.series_id] = series
    context.openings.put(0, row.series_id)
    context.handovers.put(0, row.series_id)
