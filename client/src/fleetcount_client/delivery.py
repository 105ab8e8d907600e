"""Delivery of stored bytes: each part from its moment on, the same bytes until its receipt or until the window closes.

Seals nothing, draws no coin and never changes a byte.
"""

import enum
import logging
from collections.abc import Sequence
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.channel.receipts import check_receipt
from fleetcount_protocol.errors import PeerError, RejectReason
from fleetcount_protocol.messages import Refusal
from fleetcount_protocol.window.window import Window
from fleetcount_transport import failpoints

from fleetcount_client.sessions import SessionKeeper
from fleetcount_client.spool import Spool
from fleetcount_client.spool_rows import OutboxEntry
from fleetcount_client.stored import decode_instalment
from fleetcount_client.timer import Activity, Backoff, Retry, Timer
from fleetcount_client.transport import Transport, Unreachable

_LOG: Final = logging.getLogger(__name__)


class DeliveryEnd(enum.Enum):
    """How the delivery of one round ended, where no aggregator refused it."""

    RECEIPTED = 1
    """Every aggregator has made its receipt."""
    WINDOW_CLOSED = 2


class _Attempt(enum.Enum):
    RECEIPTED = 1
    AGAIN = 2


def worth_retrying(reason: RejectReason) -> bool:
    """Return whether the same bytes may be taken later; a window that is unknown there may still arrive."""
    return not reason.final or reason is RejectReason.UNKNOWN_WINDOW


class Delivery:
    """Delivers the entries of one device."""

    def __init__(
        self,
        *,
        spool: Spool,
        transport: Transport,
        sessions: SessionKeeper,
        timer: Timer,
        source: RandomSource,
        retry: Retry,
        activity: Activity,
    ) -> None:
        self._spool = spool
        self._transport = transport
        self._sessions = sessions
        self._timer = timer
        self._source = source
        self._retry = retry
        self._activity = activity

    async def deliver(
        self, window: Window, entries: Sequence[OutboxEntry], moments: Sequence[float], deadline: float
    ) -> DeliveryEnd | RejectReason:
        """Deliver the entries of one round, each from its moment (Unix seconds) on, again and again until `deadline`.

        No part waits for another, nor hears of its receipt: who delays an answer moves no other part. Receipts are
        stored as they come. The answer is a reason when an aggregator refuses for good; what has not left then stays.
        """
        left = {entry.position for entry in entries}
        parts = [
            self._deliver_part(window, entry, moment, deadline, left)
            for entry, moment in zip(entries, moments, strict=True)
        ]
        ends = await self._activity.together(parts)
        if isinstance(ends, RejectReason):
            return ends
        return DeliveryEnd.WINDOW_CLOSED if DeliveryEnd.WINDOW_CLOSED in ends else DeliveryEnd.RECEIPTED

    async def _deliver_part(
        self, window: Window, entry: OutboxEntry, moment: float, deadline: float, left: set[int]
    ) -> DeliveryEnd | RejectReason:
        await self._activity.pause_until(moment)
        backoff = Backoff(self._retry, self._source)
        while self._timer.now() < deadline:
            answer = await self._attempt(window, entry, backoff)
            failpoints.reach("after_round_one_sent" if entry.round != 2 else "after_round_two_sent")
            if isinstance(answer, RejectReason):
                return answer
            if answer is _Attempt.RECEIPTED:
                left.discard(entry.position)
                if left:  # With the last one the report's next phase erases all, in the same step.
                    self._spool.receipted(window.window_id, entry.round, [entry.position])
                return DeliveryEnd.RECEIPTED
            await self._timer.sleep(min(backoff.next_delay(), max(0.0, deadline - self._timer.now())))
        return DeliveryEnd.WINDOW_CLOSED

    async def _attempt(self, window: Window, entry: OutboxEntry, backoff: Backoff) -> _Attempt | RejectReason:
        aggregator = window.aggregators[entry.position]
        instalment = decode_instalment(entry.instalment)
        session = self._sessions.find(instalment.session_id)
        if session is None:
            return RejectReason.UNKNOWN_SESSION
        try:
            (answer,) = await self._transport.upload(window, entry.position, [instalment])
            if isinstance(answer, Refusal):
                if answer.reason is RejectReason.UNKNOWN_SESSION:
                    self._sessions.forget(instalment.session_id)
                return _Attempt.AGAIN if worth_retrying(answer.reason) else answer.reason
            check_receipt(session.secret, instalment, answer)
        except (Unreachable, PeerError) as error:
            _LOG.info("aggregator %s: no receipt yet: %s", aggregator.aggregator_id, type(error).__name__)
            backoff.heed(error.retry_after_s if isinstance(error, Unreachable) else 0.0)
            return _Attempt.AGAIN
        return _Attempt.RECEIPTED
