"""Delivery of stored bytes: send, wait for receipts, send the same bytes again, give up when the window closes.

Seals nothing, draws no coin and never changes a byte.
"""

import asyncio
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

from fleetcount_client.backoff import Backoff, Retry
from fleetcount_client.sessions import SessionKeeper
from fleetcount_client.spool import Spool
from fleetcount_client.spool_rows import OutboxEntry
from fleetcount_client.stored import decode_instalment
from fleetcount_client.timer import Timer
from fleetcount_client.transport import Transport, Unreachable

__all__ = ["Delivery", "DeliveryEnd", "worth_retrying"]

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
    ) -> None:
        self._spool = spool
        self._transport = transport
        self._sessions = sessions
        self._timer = timer
        self._source = source
        self._retry = retry

    async def deliver(
        self, window: Window, entries: Sequence[OutboxEntry], deadline: float
    ) -> DeliveryEnd | RejectReason:
        """Deliver the entries of one round, all at once, again and again until `deadline`; return how that ended.

        Receipts are stored as they come. The answer is a reason when an aggregator refuses for good.
        """
        backoff = Backoff(self._retry, self._source)
        pending = list(entries)
        while pending and self._timer.now() < deadline:
            answers = await asyncio.gather(*(self._attempt(window, entry, backoff) for entry in pending))
            failpoints.reach("after_round_one_sent" if pending[0].round != 2 else "after_round_two_sent")
            self._store(window, pending, answers)
            refusal = next((answer for answer in answers if isinstance(answer, RejectReason)), None)
            if refusal is not None:
                return refusal
            pending = [entry for entry, answer in zip(pending, answers, strict=True) if answer is _Attempt.AGAIN]
            if pending:
                await self._timer.sleep(min(backoff.next_delay(), max(0.0, deadline - self._timer.now())))
        return DeliveryEnd.WINDOW_CLOSED if pending else DeliveryEnd.RECEIPTED

    def _store(
        self, window: Window, entries: Sequence[OutboxEntry], answers: Sequence[_Attempt | RejectReason]
    ) -> None:
        done = [entry.position for entry, answer in zip(entries, answers, strict=True) if answer is _Attempt.RECEIPTED]
        # When all are done, the report's next phase erases them in the same step.
        if done and len(done) < len(entries):
            self._spool.receipted(window.window_id, entries[0].round, done)

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
