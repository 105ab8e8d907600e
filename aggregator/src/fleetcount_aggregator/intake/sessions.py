"""The sessions of devices: opened from signed, sealed requests, held in memory, found again in the store when needed.

A secret lives in this process's memory only; the store holds the request as it arrived. What needs no private key is
judged in a worker process when many ask (session_opening).
"""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.session import SessionSecret, open_request
from fleetcount_protocol.errors import Refused, RejectReason
from fleetcount_protocol.ids import Digest, SessionId
from fleetcount_protocol.messages import SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.wire.device import SESSION_REQUEST

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.intake.coalescing import Coalescing
from fleetcount_aggregator.intake.session_opening import SessionSetting, judge_requests
from fleetcount_aggregator.storage.store import SessionRow
from fleetcount_aggregator.verification.spare_workers import SpareWorkers

__all__ = ["CACHED", "PackedSession", "Sessions"]

CACHED: Final = 2**20
"""Sessions held in memory, about 300 bytes each; those beyond are opened again from the store, oldest first."""
WORTH_A_PROCESS: Final = 4
"""From so many requests on a worker process checks them: a certificate chain and a signature each."""
_MOST_AT_ONCE: Final = 64
"""Requests judged together: where no worker is free, they hold up the event loop for some 20 ms."""
_EXPIRY_BYTES: Final = 8


class PackedSession(bytes):
    """A session in 104 bytes: secret, receipt key, digest of the device's key, expiry. Never shown."""

    __slots__ = ()

    @classmethod
    def of(cls, secret: SessionSecret, certificate: Digest) -> "PackedSession":
        """Return a session packed."""
        return cls(secret.secret + secret.receipt_key + certificate + secret.expiry.to_bytes(_EXPIRY_BYTES))

    def __repr__(self) -> str:
        return "PackedSession(…)"

    @property
    def secret(self) -> bytes:
        """The 32 bytes that report keys come from."""
        return self[:32]

    @property
    def receipt_key(self) -> bytes:
        """The 32-byte key of receipts."""
        return self[32:64]

    @property
    def certificate(self) -> Digest:
        """The device, as it is counted."""
        return Digest(self.certificate_bytes)

    @property
    def certificate_bytes(self) -> bytes:
        """The 32 bytes of `certificate`, without making an object, for thousands at a time."""
        return self[64:96]

    @property
    def expiry(self) -> int:
        """Unix seconds."""
        return int.from_bytes(self[96:])


class Sessions:
    """Opens sessions and finds them again."""

    def __init__(self, context: Context, workers: SpareWorkers) -> None:
        self._context = context
        self._workers = workers
        self._live: dict[bytes, PackedSession] = {}
        self._locks: WeakValueDictionary[Digest, asyncio.Lock] = WeakValueDictionary()
        self._judging = Coalescing(self._judge, _MOST_AT_ONCE)

    async def open(self, requests: Sequence[SessionRequest]) -> list[SessionAccepted | SessionRefused]:
        """Open sessions durably; one answer a request, in order. The same request again gets the same answer.

        Devices go side by side, so that they share commits; one device's requests in turn, so that its quota holds.
        """
        held = self._usable([request.session_id for request in requests])
        new = [request for request, known in zip(requests, held, strict=True) if known is None]
        opened = iter(await self._open([(request, False) for request in new]))
        answers = [
            self._admit(request, next(opened)) if known is None else _accepted(request, known.expiry)
            for request, known in zip(requests, held, strict=True)
        ]
        return await asyncio.gather(*answers)

    async def find(self, session_ids: Sequence[bytes]) -> list[PackedSession | None]:
        """Return sessions that may be used, or None: the device opens such a one again with the same request."""
        missing = [session_id for session_id in dict.fromkeys(session_ids) if session_id not in self._live]
        if missing:
            await self._reopen(missing)
        return self._usable(session_ids)

    def _usable(self, session_ids: Sequence[bytes]) -> list[PackedSession | None]:
        """Return the sessions in memory that have not expired, and whose device is not shut out."""
        clock, denials = self._context.now(), self._context.denials
        if denials.is_stale(clock):
            return [None] * len(session_ids)
        now, denied = clock.to_bytes(_EXPIRY_BYTES), denials.keys
        return [
            session if session is not None and session[96:] > now and session[64:96] not in denied else None
            for session in map(self._live.get, session_ids)
        ]

    async def _reopen(self, session_ids: Sequence[bytes]) -> None:
        """Take sessions from the store into memory, if they are there and still open."""
        rows = await self._context.store.sessions([SessionId(session_id) for session_id in session_ids])
        requests = [SESSION_REQUEST.decode(row.request) for row in rows]
        opened = await self._open([(request, True) for request in requests])
        for request, session in zip(requests, opened, strict=True):
            if isinstance(session, PackedSession):
                self._keep(request.session_id, session)

    async def _admit(
        self, request: SessionRequest, session: PackedSession | RejectReason
    ) -> SessionAccepted | SessionRefused:
        """Store one opened session if its device may have another one."""
        reason = session if isinstance(session, RejectReason) else await self._remember(request, session)
        if reason is not None:
            self._context.metrics.refused(reason)
            return SessionRefused(session_id=request.session_id, reason=reason)
        return SessionAccepted(session_id=request.session_id, expiry=request.expiry)

    async def _remember(self, request: SessionRequest, session: PackedSession) -> RejectReason | None:
        async with self._lock_of(session.certificate):
            if await self._is_beyond_quota(request.session_id, session.certificate):
                return RejectReason.OVER_QUOTA
            await self._context.store.add_session(
                SessionRow(
                    session_id=request.session_id,
                    request=SESSION_REQUEST.encode(request),
                    certificate=session.certificate,
                    expiry=session.expiry,
                )
            )
        self._keep(request.session_id, session)
        return None

    def _lock_of(self, certificate: Digest) -> asyncio.Lock:
        """Return the device's lock, which lives as long as somebody holds or awaits it."""
        return self._locks.setdefault(certificate, asyncio.Lock())

    async def _is_beyond_quota(self, session_id: SessionId, certificate: Digest) -> bool:
        store = self._context.store
        if await store.session(session_id) is not None:
            return False
        return await store.sessions_of(certificate, self._context.now()) >= self._context.limits.sessions_per_device

    def _keep(self, session_id: SessionId, session: PackedSession) -> None:
        if len(self._live) >= CACHED:
            for oldest in list(islice(self._live, CACHED // 16)):
                del self._live[oldest]
        self._live[bytes(session_id)] = session

    # Public-key work.

    async def _open(self, requests: Sequence[tuple[SessionRequest, bool]]) -> list[PackedSession | RejectReason]:
        """Return the session of every request, or why it is refused; the flag says that it was accepted before."""
        for key_id in {request.key_id for request, _ in requests}:
            self._context.keys.pairs(key_id)  # A key that came since the start is found when a request names it.
        judged = await self._judging.ask([(SESSION_REQUEST.encode(request), known) for request, known in requests])
        return [
            self._unseal(request, self._unless_shut_out(digest))
            for (request, _), digest in zip(requests, judged, strict=True)
        ]

    def _unless_shut_out(self, digest: Digest | RejectReason) -> Digest | RejectReason:
        """Refuse a device on the deny list for good, and everybody for now while the list is out of date."""
        if isinstance(digest, RejectReason):
            return digest
        if self._context.denials.denies(digest):
            return RejectReason.BAD_CERTIFICATE
        return RejectReason.BUSY if self._context.denials.is_stale(self._context.now()) else digest

    def _unseal(self, request: SessionRequest, digest: Digest | RejectReason) -> PackedSession | RejectReason:
        """Open the seal: here, since private keys stay in this process."""
        if isinstance(digest, RejectReason):
            return digest
        pair = self._context.keys.pairs(request.key_id).get(request.key_id)
        if pair is None:
            return RejectReason.UNKNOWN_KEY
        try:
            return PackedSession.of(open_request(request, pair, digest), digest)
        except Refused as refusal:
            return refusal.reason

    async def _judge(self, requests: Sequence[tuple[bytes, bool]]) -> list[Digest | RejectReason]:
        context = self._context
        setting = SessionSetting(
            aggregator_id=context.aggregator_id,
            key_ids=context.keys.key_ids,
            authorities=tuple(one.public_bytes(Encoding.DER) for one in context.identity.device_ca),
        )
        now = context.clock.now()
        if len(requests) < WORTH_A_PROCESS:
            return judge_requests(setting, requests, now)
        return await self._workers.run(judge_requests, setting, requests, now)


async def _accepted(request: SessionRequest, expiry: int) -> SessionAccepted | SessionRefused:
    return SessionAccepted(session_id=request.session_id, expiry=expiry)
