"""Hands the other aggregators of a series what they lack: a leader the series and all orders, others their own stops.

What is given is noted, so that it is given once, also after a crash; what fails is tried again. It must not decide
what an aggregator takes (`tasks`).
"""

import asyncio
from typing import Final

from fleetcount_protocol.ids import AggregatorId, SeriesId
from fleetcount_protocol.messages import InstallSeries, SeriesAnswer
from fleetcount_protocol.series.orders import OrderAction, SeriesOrder, SignedOrder, sign_order
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.roles.calling import call_peer
from fleetcount_aggregator.roles.outcomes import abort_windows
from fleetcount_aggregator.tasks.series_notes import (
    SERIES,
    forget_given,
    note_given,
    note_key_list,
    note_refusal,
    order_name,
    was_given,
)
from fleetcount_aggregator.tasks.series_orders import take_own_order

__all__ = ["Handover"]

_REFRESH_S: Final = 600
"""How old the leader's copy of another aggregator's key list becomes while they have a series together."""


class Handover:
    """Looks after the agenda of hand-overs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waits: dict[SeriesId, float] = {}
        self._heard: dict[AggregatorId, float] = {}
        self._asking: dict[AggregatorId, SeriesId] = {}
        """The series that asks an aggregator for its key list: one for all that it has, also while it is away."""

    async def run_due(self) -> None:
        """Give what is due, everything once.

        Raises:
            StoreError: the store failed; the series is on the agenda again.
        """
        known, due = self._context.series, self._context.handovers.take(self._context.clock.now())
        done = await asyncio.gather(
            *(self._look_after(known[one]) for one in due if one in known), return_exceptions=True
        )
        for error in done:
            if error is not None:
                raise error

    async def _look_after(self, series: InstalledSeries) -> None:
        """Give everybody what is lacking; put the series on the agenda again while something is, or keys may change."""
        series_id, limits = series.series_id, self._context.limits
        wait = min(2 * self._waits.get(series_id, limits.first_retry_s / 2), limits.longest_retry_s)
        self._waits[series_id] = wait
        try:
            given = await asyncio.gather(*(self._give_all(series, other) for other in series.others))
            if all(given):
                del self._waits[series_id]
                self._asking = {other: one for other, one in self._asking.items() if one != series_id}
                wait = _REFRESH_S
        finally:
            if series_id in self._waits or self._context.now() < series.asked.schedule.end:
                self._context.handovers.put(self._context.clock.now() + wait, series_id)

    async def _give_all(self, series: InstalledSeries, other: AggregatorId) -> bool:
        """Give one aggregator what it lacks; return whether it lacks nothing after that."""
        try:
            if series.is_leader and not await self._give_series(series, other):
                return True
            for signed in series.orders:
                if series.is_leader or signed.order.aggregator_id == self._context.aggregator_id:
                    await self._give_order(series, other, signed)
        except PeerUnreachableError:
            return False
        except PeerRefusalError as refusal:
            if refusal.problem is PeerProblem.UNKNOWN_TASK:
                forget_given(series, other)
            log.info("series_not_handed_over", peer=other, series=str(series.series_id), reason=str(refusal))
            return not refusal.problem.passing
        return True

    async def _give_series(self, series: InstalledSeries, other: AggregatorId) -> bool:
        """Give the series, and again when the other's key list is old; return False if the other does not take it."""
        known, now = was_given(series, other, SERIES), self._context.clock.now()
        if known and (now - self._heard.get(other, 0) < _REFRESH_S or not self._asks(series, other)):
            return True
        if series.refused_by and not known:
            await self._end(series)
            return False
        request = InstallSeries(signed=series.signed, seed=series.seed, orders=series.orders)
        try:
            answer = await call_peer(self._context, other, lambda peer: peer.install_series(request))
        except PeerRefusalError as refusal:
            if refusal.problem.passing or known:
                raise
            log.warning("series_install_failed", series=str(series.series_id), peer=other)
            await note_refusal(self._context, series, other)
            await self._end(series)
            return False
        self._heard[other] = now
        await self._note(series, other, SERIES, answer)
        for signed in request.orders:
            await self._note(series, other, order_name(signed), answer)
        return True

    def _asks(self, series: InstalledSeries, other: AggregatorId) -> bool:
        """Return whether this series asks another aggregator for its key list; it does if no series here does."""
        if self._asking.get(other) not in self._context.series:
            self._asking[other] = series.series_id
        return self._asking[other] == series.series_id

    async def _give_order(self, series: InstalledSeries, other: AggregatorId, signed: SignedOrder) -> None:
        if was_given(series, other, order_name(signed)):
            return
        answer = await call_peer(self._context, other, lambda peer: peer.deliver_order(signed))
        await self._note(series, other, order_name(signed), answer)

    async def _note(self, series: InstalledSeries, other: AggregatorId, what: str, answer: SeriesAnswer) -> None:
        if answer.key_list.key_list.aggregator_id == other:
            await note_key_list(self._context, series, answer.key_list)
        if not was_given(series, other, what):
            await note_given(self._context, series, other, what)
            self._context.failpoints.hit("series.after_hand_over")

    async def _end(self, series: InstalledSeries) -> None:
        """Stop a series that one of its aggregators does not take, once: nothing of it could ever be opened.

        Windows that are open here already end; that costs nothing, since nothing of them was debited.
        """
        await self._stop(series)
        await abort_windows(self._context, series.series_id, AbortReason.INSTALL_FAILED)

    async def _stop(self, series: InstalledSeries) -> None:
        own = [one.order for one in series.orders if one.order.aggregator_id == self._context.aggregator_id]
        if series.following >= series.asked.schedule.windows or any(one.action is OrderAction.STOP for one in own):
            return
        order = SeriesOrder(
            series_id=series.series_id,
            number=max((one.number for one in own), default=0) + 1,
            action=OrderAction.STOP,
            aggregator_id=self._context.aggregator_id,
            from_window=series.following,
        )
        await take_own_order(self._context, sign_order(order, self._context.identity.signing_key))
