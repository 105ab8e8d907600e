"""A device's sessions: one shared secret with each aggregator, opened before anything is charged or sent.

Chooses and opens sessions; seals no report and stores nothing itself (the spool keeps a session with its first report).
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.channel.session import DeviceIdentity, SessionSecret, new_session
from fleetcount_protocol.errors import MachineError, PeerError, RejectReason
from fleetcount_protocol.ids import SessionId
from fleetcount_protocol.messages import SessionAccepted, SessionRequest
from fleetcount_protocol.task.task import Aggregator, HpkeKey

from fleetcount_client.backoff import Backoff, Retry
from fleetcount_client.spool import SessionRow, Spool
from fleetcount_client.stored import decode_session_request, encode_session_request
from fleetcount_client.timer import Timer
from fleetcount_client.transport import Transport, Unreachable

__all__ = ["OpenSession", "SessionKeeper"]

_LOG: Final = logging.getLogger(__name__)
_EXPIRY_SLACK_S: Final = 60
_KEY_REFUSALS: Final = frozenset({RejectReason.UNKNOWN_KEY, RejectReason.BAD_SEAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """A session the aggregator has accepted, or did when it was stored."""

    request: SessionRequest
    secret: SessionSecret = field(repr=False)
    hpke_key: bytes

    @property
    def row(self) -> SessionRow:
        """The session as the spool keeps it."""
        return SessionRow(
            session_id=self.secret.session_id,
            aggregator_id=self.secret.aggregator_id,
            hpke_key=self.hpke_key,
            request=encode_session_request(self.request),
            secret=self.secret.secret,
            expiry=self.secret.expiry,
        )


def _from_row(row: SessionRow) -> OpenSession:
    request = decode_session_request(row.request)
    secret = SessionSecret(
        session_id=row.session_id, aggregator_id=request.aggregator_id, secret=row.secret, expiry=row.expiry
    )
    return OpenSession(request=request, secret=secret, hpke_key=row.hpke_key)


class SessionKeeper:
    """The sessions of one device, shared by the tasks it answers at the same time."""

    def __init__(
        self,
        *,
        spool: Spool,
        transport: Transport,
        identity: DeviceIdentity,
        timer: Timer,
        source: RandomSource,
        retry: Retry,
        lifetime_s: int,
    ) -> None:
        self._spool = spool
        self._transport = transport
        self._identity = identity
        self._timer = timer
        self._source = source
        self._retry = retry
        self._lifetime_s = lifetime_s
        self._known: dict[SessionId, OpenSession] | None = None
        self._locks: dict[str, asyncio.Lock] = {}

    async def open_all(
        self, aggregators: Sequence[Aggregator], needed_until: int, deadline: float
    ) -> tuple[OpenSession, ...] | RejectReason | None:
        """Return one session an aggregator, in their order, each valid beyond `needed_until`.

        Returns the reason when an aggregator refuses for good, None when one stayed out of reach until `deadline`.
        """
        answers = await asyncio.gather(
            *(self._open(one, needed_until + _EXPIRY_SLACK_S, deadline) for one in aggregators)
        )
        refusal = next((answer for answer in answers if isinstance(answer, RejectReason)), None)
        if refusal is not None:
            return refusal
        opened = tuple(answer for answer in answers if isinstance(answer, OpenSession))
        return opened if len(opened) == len(answers) else None

    def of_report(self, session_ids: Sequence[SessionId]) -> tuple[OpenSession, ...]:
        """Return the stored sessions of a report in its order.

        Raises:
            MachineError: one of them is not stored (any more).
        """
        known = self._load()
        missing = next((session_id for session_id in session_ids if session_id not in known), None)
        if missing is not None:
            raise MachineError(f"the state file has lost session {missing.hex()[:12]} of an unfinished answer")
        return tuple(known[session_id] for session_id in session_ids)

    def go_on_as(self, identity: DeviceIdentity) -> None:
        """Open sessions under another certificate from now on, for the same key: those that are open still hold."""
        self._identity = identity

    async def reopen(self, aggregator: Aggregator, session_id: SessionId) -> RejectReason | None:
        """Send a session's stored request again, to an aggregator that has lost it; return why it refuses, if it does.

        Raises:
            Unreachable: no answer. PeerError: an answer that is not one.
        """
        session = self._load().get(session_id)
        if session is None:
            return RejectReason.UNKNOWN_SESSION
        (answer,) = await self._transport.open_sessions(aggregator, [session.request])
        return None if isinstance(answer, SessionAccepted) else answer.reason

    def _load(self) -> dict[SessionId, OpenSession]:
        if self._known is None:
            self._known = {row.session_id: _from_row(row) for row in self._spool.sessions()}
        return self._known

    async def _open(self, aggregator: Aggregator, needed: int, deadline: float) -> OpenSession | RejectReason | None:
        # Two tasks asked at the same time share one session: the second waits and finds it.
        async with self._locks.setdefault(aggregator.aggregator_id, asyncio.Lock()):
            session = self._reusable(aggregator, needed)
            if session is not None:
                return session
            ends = int(self._identity.certificate.not_valid_after_utc.timestamp())
            if needed > ends:
                return RejectReason.BAD_CERTIFICATE  # It ends before the task does: no aggregator would take it.
            expiry = min(max(int(self._timer.now()) + self._lifetime_s, needed), ends)
            return await self._open_new(aggregator, expiry, deadline)

    def _reusable(self, aggregator: Aggregator, needed: int) -> OpenSession | None:
        keys = {key.public_key for key in aggregator.hpke_keys}
        for session in self._load().values():
            same = session.secret.aggregator_id == aggregator.aggregator_id and session.hpke_key in keys
            if same and session.secret.expiry >= needed:
                return session
        return None

    async def _open_new(
        self, aggregator: Aggregator, expiry: int, deadline: float
    ) -> OpenSession | RejectReason | None:
        refusal: RejectReason | None = None
        for key in aggregator.hpke_keys:
            answer = await self._open_with(aggregator, key, expiry, deadline)
            if isinstance(answer, OpenSession):
                self._load()[answer.secret.session_id] = answer
                return answer
            if answer not in _KEY_REFUSALS:
                return answer
            refusal = answer  # The key is retired: the task may name a newer one.
        return refusal

    async def _open_with(
        self, aggregator: Aggregator, key: HpkeKey, expiry: int, deadline: float
    ) -> OpenSession | RejectReason | None:
        request, secret = new_session(aggregator, key, self._identity, expiry, self._source)
        backoff = Backoff(self._retry, self._source)
        while self._timer.now() < deadline:
            try:
                (answer,) = await self._transport.open_sessions(aggregator, [request])
            except (Unreachable, PeerError) as error:
                _LOG.info("aggregator %s: no session yet: %s", aggregator.aggregator_id, type(error).__name__)
            else:
                if isinstance(answer, SessionAccepted):
                    return OpenSession(request=request, secret=secret, hpke_key=key.public_key)
                if answer.reason.final:
                    return answer.reason
            await self._timer.sleep(min(backoff.next_delay(), max(0.0, deadline - self._timer.now())))
        return None
