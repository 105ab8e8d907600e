"""The sessions of devices: opened from signed, sealed requests, held in memory, found again in the store when needed.

A secret lives in this process's memory only; the store holds the request as it arrived.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.codec import SESSION_REQUEST
from fleetcount_protocol.errors import DecodeError, Refused, RejectReason
from fleetcount_protocol.ids import Digest, SessionId
from fleetcount_protocol.messages import SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.session import SessionSecret, accept_session

from fleetcount_aggregator.party import Party
from fleetcount_aggregator.store import SessionRow

__all__ = ["LiveSession", "Sessions"]

CACHED: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSession:
    """A session in memory: its secret, whose it is, and until when."""

    secret: SessionSecret
    certificate: Digest
    expiry: int


class Sessions:
    """Opens sessions and finds them again."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._live: OrderedDict[SessionId, LiveSession] = OrderedDict()

    async def open(self, request: SessionRequest) -> SessionAccepted | SessionRefused:
        """Open one session durably; the same request again opens the same session and gets the same answer."""
        known = self._live.get(request.session_id)
        if known is not None and known.expiry > self._party.now():
            return SessionAccepted(session_id=request.session_id, expiry=known.expiry)
        try:
            session = self._accept(request)
            await self._check_quota(request, session)
        except Refused as refusal:
            self._party.metrics.refused(refusal.reason)
            return SessionRefused(session_id=request.session_id, reason=refusal.reason)
        await self._party.store.add_session(
            SessionRow(
                session_id=request.session_id,
                request=SESSION_REQUEST.encode(request),
                certificate=session.certificate,
                expiry=session.expiry,
            )
        )
        self._keep(request.session_id, session)
        return SessionAccepted(session_id=request.session_id, expiry=session.expiry)

    async def find(self, session_id: SessionId) -> LiveSession | None:
        """Return a session that has not expired, or None: the device opens it again with the same request."""
        session = self._live.get(session_id)
        if session is None:
            session = await self._reopen(session_id)
        if session is None or session.expiry <= self._party.now():
            return None
        self._keep(session_id, session)
        return session

    async def _reopen(self, session_id: SessionId) -> LiveSession | None:
        row = await self._party.store.session(session_id)
        if row is None:
            return None
        try:
            return self._accept(SESSION_REQUEST.decode(row.request))
        except (Refused, DecodeError):
            return None

    def _accept(self, request: SessionRequest) -> LiveSession:
        identity = self._party.identity
        _, secret, certificate = accept_session(
            request,
            self._party.keys.pairs(request.key_id),
            identity.aggregator_id,
            identity.device_ca,
            self._party.clock.now(),
        )
        return LiveSession(secret=secret, certificate=certificate, expiry=request.expiry)

    async def _check_quota(self, request: SessionRequest, session: LiveSession) -> None:
        if await self._party.store.session(request.session_id) is not None:
            return
        open_now = await self._party.store.sessions_of(session.certificate, self._party.now())
        if open_now >= self._party.limits.sessions_per_device:
            raise Refused(RejectReason.OVER_QUOTA)

    def _keep(self, session_id: SessionId, session: LiveSession) -> None:
        self._live[session_id] = session
        self._live.move_to_end(session_id)
        if len(self._live) > CACHED:
            self._live.popitem(last=False)
