"""Orders about series: pause and resume of the leader's operator, stop of anybody's; which an aggregator takes.

An order changes windows that are not decided about yet, never one that is. It must not deliver orders (`roles`).
"""

from fleetcount_protocol.errors import SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_ORDERS_PER_SERIES
from fleetcount_protocol.series.orders import OrderAction, SignedOrder, check_follows, verify_order
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.tasks.series_notes import note_order

__all__ = ["take_delivered_order", "take_own_order"]


async def take_own_order(context: Context, signed: SignedOrder) -> None:
    """Take an order of this aggregator's own operator; the same one again changes nothing.

    Raises:
        TaskError, SignatureError: it is refused, and why.
    """
    order = signed.order
    series = context.series.get(order.series_id)
    if series is None:
        raise TaskError(f"series {order.series_id} is not installed here")
    if order.aggregator_id != context.aggregator_id:
        raise TaskError(f"the order is by {order.aggregator_id!r}, this is {context.aggregator_id!r}: drop it there")
    if order.action is OrderAction.START:
        raise TaskError("a start is made by the leader's aggregator as it installs the question; no file orders it")
    async with series.lock:
        if signed in series.orders:
            return
        last = series.asked.schedule.windows - 1
        if not series.following <= order.from_window <= last:
            raise TaskError(
                f"from_window is {order.from_window}, allowed: {series.following} to {last}; those before are decided"
            )
        await _keep(context, series, signed)


async def take_delivered_order(context: Context, caller: AggregatorId, signed: SignedOrder) -> InstalledSeries:
    """Take an order that another aggregator of the series delivers, whose own windows it held for; return the series.

    Windows that are decided here already are not changed: the clocks of aggregators differ.

    Raises:
        PeerRefusalError: UNKNOWN_TASK, no such series; NOT_LEADER, the caller is not in it; CONFLICT, its number is not
            above those before; MALFORMED, not signed as it must be.
    """
    series = context.series.get(signed.order.series_id)
    if series is None:
        raise PeerRefusalError(PeerProblem.UNKNOWN_TASK)
    if caller not in series.others:
        raise PeerRefusalError(PeerProblem.NOT_LEADER)
    async with series.lock:
        if signed in series.orders:
            return series
        try:
            await _keep(context, series, signed)
        except SignatureError:
            raise PeerRefusalError(PeerProblem.MALFORMED) from None
        except TaskError:
            raise PeerRefusalError(PeerProblem.CONFLICT) from None
    return series


async def _keep(context: Context, series: InstalledSeries, signed: SignedOrder) -> None:
    order = signed.order
    verify_order(signed, series.asked, context.identity.trusted)
    check_follows(order, [one.order for one in series.orders])
    if len(series.orders) >= MAX_ORDERS_PER_SERIES:
        raise TaskError(f"the series has {MAX_ORDERS_PER_SERIES} orders already; no more are taken")
    await note_order(context, series, signed)
    context.failpoints.hit("series.after_order_store")
    context.handovers.put(0, series.series_id)
    log.info("order_taken", series=str(series.series_id), action=order.name, window=order.from_window)
