"""The sessions of devices: opened from signed, sealed requests, held in memory, found again in the store when needed.

The store holds what was answered and the chain of keys, sealed at rest; the request opens nothing any more. What needs
no private key is judged in a worker process when many ask (session_opening).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.chain import KeyChain
from fleetcount_protocol.channel.session import open_request
from fleetcount_protocol.errors import Refused, RejectReason
from fleetcount_protocol.ids import Digest, SessionId
from fleetcount_protocol.messages import SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.wire.device import SESSION_REQUEST
from fleetcount_transport.admission.admission import BusyError
from fleetcount_transport.admission.identity import LOCAL, Identity
from fleetcount_transport.admission.reputation import Reputation
from fleetcount_transport.admission.turns import FairBatches
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.intake.session_opening import SessionSetting, judge_requests
from fleetcount_aggregator.memory.sessions import SessionCache
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_types import SessionRow
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.storage.session_rows import add_session, read_session, read_sessions
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.spare_workers import SpareWorkers

WORTH_A_PROCESS: Final = 4
"""From so many requests on a worker process checks them: a certificate chain and a signature each."""
_MOST_AT_ONCE: Final = 16
"""Requests judged together, some 5 ms: who asks for one waits for one such batch, whatever others ask for."""
_FAULTS: Final = frozenset(
    {RejectReason.BAD_SIGNATURE, RejectReason.BAD_CERTIFICATE, RejectReason.BAD_SEAL, RejectReason.MALFORMED}
)
"""Refusals for which work was done in vain, and that no honest device gets: a request for another aggregator too."""
_BY_THE_CLOCK: Final = frozenset({RejectReason.EXPIRED, RejectReason.BAD_CERTIFICATE, RejectReason.MALFORMED})
"""Refusals that may follow from a clock that is wrong."""
_EXPIRY_BYTES: Final = 8
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request to be judged, and who came with it; `known`: accepted and stored before."""

    request: SessionRequest
    who: Identity
    known: bool = False


class Sessions:
    """Opens sessions and finds them again."""

    def __init__(self, host: Host, store: Store, cache: SessionCache, workers: SpareWorkers) -> None:
        self._host = host
        self._store = store
        self._cache = cache
        self._workers = workers
        self._locks: WeakValueDictionary[Digest, asyncio.Lock] = WeakValueDictionary()
        self._judging: FairBatches[_Asked, Digest | RejectReason] = FairBatches(self._judge, _MOST_AT_ONCE)

    async def open(
        self, requests: Sequence[SessionRequest], callers: Sequence[Identity] | None = None
    ) -> list[SessionAccepted | SessionRefused]:
        """Open sessions durably; one answer a request, in order. The same request again gets the same answer.

        `callers` says by whom each request came, None for this process itself: they are judged in turn, and one that
        does not hold counts against its caller. Of a caller none of whose requests held before one is judged alone, and
        what came with one that fails, or is not even looked at, is not judged. Devices go side by side, so that they
        share commits; one device's requests in turn, so that its quota holds.
        """
        held = self._usable([request.session_id for request in requests])
        named = [LOCAL] * len(requests) if callers is None else callers
        asked = [_Asked(request, who) for request, who in zip(requests, named, strict=True)]
        found: dict[int, SessionAccepted | SessionRefused] = {}
        first, behind = self._one_each(asked, held)
        for places in (first, behind):
            failed = {asked[place].who for place, answer in found.items() if _ends_the_call(answer)}
            judged = [place for place in places if asked[place].who not in failed]
            skipped = set(places).difference(judged)
            found |= {place: self._refuse(asked[place].request, RejectReason.BUSY) for place in skipped}
            answers = await asyncio.gather(*(self._admit(asked[place], held[place]) for place in judged))
            found |= zip(judged, answers, strict=True)
        return [found[place] for place in range(len(asked))]

    def _one_each(self, asked: Sequence[_Asked], held: Sequence[PackedSession | None]) -> tuple[list[int], list[int]]:
        """Return which requests are judged at once, and which only after the first of the same unknown caller."""
        first, behind, unknown = list[int](), list[int](), set[Identity]()
        for place, (one, known) in enumerate(zip(asked, held, strict=True)):
            is_next = known is None and one.who in unknown
            (behind if is_next else first).append(place)
            if known is None and not self._host.admission.knows(one.who):
                unknown.add(one.who)
        return first, behind

    async def find(self, session_ids: Sequence[bytes]) -> list[PackedSession | None]:
        """Return sessions that may be used, or None: the device opens another one for its next window."""
        missing: Sequence[bytes] = [one for one in dict.fromkeys(session_ids) if one not in self._cache.live]
        while missing:
            missing = await self._read(missing)
        return self._usable(session_ids)

    def _usable(self, session_ids: Sequence[bytes]) -> list[PackedSession | None]:
        """Return the sessions in memory that have not expired, and whose device is not shut out."""
        # A session ends when that time has certainly come: what was sealed in it is of no use in another.
        now, denied = int(self._host.moment().sure).to_bytes(_EXPIRY_BYTES), self._host.denials.keys
        return [
            session if session is not None and session[96:104] > now and session[64:96] not in denied else None
            for session in map(self._cache.live.get, session_ids)
        ]

    async def _read(self, session_ids: Sequence[bytes]) -> list[bytes]:
        """Take sessions from the store into memory, if they are there and still open.

        Returns those whose keys were erased meanwhile: what was read of them is not kept.
        """
        with self._cache.reading(session_ids) as forgotten:
            rows = await self._store.read(read_sessions, [SessionId(session_id) for session_id in session_ids])
            asked = [_Asked(SESSION_REQUEST.decode(row.request), Identity(row.certificate), known=True) for row in rows]
            for row, device in zip(rows, await asyncio.gather(*map(self._device_of, asked)), strict=True):
                if isinstance(device, Digest) and row.session_id not in forgotten:
                    self._keep_stored(row)
            return [row.session_id for row in rows if row.session_id in forgotten]

    def _keep_stored(self, row: SessionRow) -> None:
        """Keep a session of the store; one whose keys are damaged is not there, and its device opens another."""
        try:
            receipt_key, chain = self._cache.chain_seal.open(row.session_id, row.chain)
        except StoreError as error:
            log.error("session_damaged", reason=str(error))
            return
        self._cache.keep(row.session_id, PackedSession.of(chain, receipt_key, row.certificate, row.expiry))

    async def _admit(self, asked: _Asked, held: PackedSession | None) -> SessionAccepted | SessionRefused:
        """Open a session and store it, if its device may have another one, or give the answer of before.

        What is `held` is not judged again: its name is the hash of all that was signed.
        """
        request = asked.request
        device = self._unless_shut_out(await self._device_of(asked) if held is None else held.certificate)
        answer = (
            device
            if isinstance(device, RejectReason)
            else await self._answer(request, device, is_held=held is not None)
        )
        if isinstance(answer, SessionAccepted):
            self._host.admission.held(asked.who)
            return answer
        if answer in _FAULTS:
            self._host.admission.failed(asked.who)
        return self._refuse(request, answer)

    def _refuse(self, request: SessionRequest, reason: RejectReason) -> SessionRefused:
        self._host.metrics.refused(reason)
        return SessionRefused(session_id=request.session_id, reason=reason)

    async def _answer(
        self, request: SessionRequest, device: Digest, *, is_held: bool
    ) -> SessionAccepted | RejectReason:
        # It lives as long as somebody holds or awaits it.
        async with self._locks.setdefault(device, asyncio.Lock()):
            known = await self._store.read(read_session, request.session_id) if is_held else None
            return await self._open(request, device) if known is None else _accepted(known)

    async def _open(self, request: SessionRequest, device: Digest) -> SessionAccepted | RejectReason:
        """Open the seal, here, since private keys stay in this process, and store the session unless it is stored.

        That is one operation of the store, which counts the device's sessions and knows an answer of before.
        """
        pair = self._host.keys.pairs(request.key_id).get(request.key_id)
        if pair is None:
            return RejectReason.UNKNOWN_KEY
        try:
            accepted, secret = open_request(request, pair, device)
        except Refused as refusal:
            return refusal.reason
        chain = KeyChain(number=secret.number, key=secret.secret)
        row = SessionRow(
            session_id=request.session_id,
            request=SESSION_REQUEST.encode(request),
            certificate=device,
            expiry=request.expiry,
            accepted=accepted.ephemeral_key + accepted.confirmation,
            chain=self._cache.chain_seal.seal(request.session_id, secret.receipt_key, chain),
        )
        most = self._host.limits.sessions_per_device
        stored = await self._store.write_unfenced(add_session, row, most=most, now=self._host.now())
        if stored is None:
            return RejectReason.OVER_QUOTA
        if stored.accepted != row.accepted:
            return _accepted(stored)  # It was opened before, with other keys: by another process, or before a restart.
        self._cache.keep(request.session_id, PackedSession.of(chain, secret.receipt_key, device, request.expiry))
        return accepted

    # What needs no private key.

    async def _device_of(self, asked: _Asked) -> Digest | RejectReason:
        """Return the device of a request, or why it is refused."""
        if not asked.known and asked.request.key_id in self._host.keys.retired:
            return RejectReason.UNKNOWN_KEY
        # A key that came since the start is found when it is named; one that is not ours is worth no process.
        if asked.request.key_id not in self._host.keys.pairs(asked.request.key_id) and not asked.known:
            return RejectReason.UNKNOWN_KEY
        reputation = Reputation.KNOWN if asked.known else self._host.admission.reputation(asked.who)
        return await self._judging.ask(asked, asked.who.key, asked.who.carried, reputation=reputation)

    def _unless_shut_out(self, digest: Digest | RejectReason) -> Digest | RejectReason:
        """Refuse a device on the deny list for good, and everybody for now while the list is out of date."""
        if isinstance(digest, RejectReason):
            return digest
        if self._host.denials.denies(digest):
            return RejectReason.BAD_CERTIFICATE
        return RejectReason.BUSY if self._host.denials.is_stale(self._host.now()) else digest

    async def _judge(self, asked: Sequence[_Asked]) -> list[Digest | RejectReason]:
        """Judge the requests of those who may still fail; the others are refused without looking at them."""
        open_places = [place for place, one in enumerate(asked) if one.known or self._may_fail(one.who)]
        found: list[Digest | RejectReason] = [RejectReason.BUSY] * len(asked)
        requests = [(SESSION_REQUEST.encode(asked[place].request), asked[place].known) for place in open_places]
        is_confirmed = self._host.moment().is_confirmed
        for place, judged in zip(open_places, await self._judge_somewhere(requests), strict=True):
            # What is from the future, by a time that has only certainly come, may come again.
            found[place] = judged if judged not in _BY_THE_CLOCK or is_confirmed else RejectReason.BUSY
        return found

    def _may_fail(self, who: Identity) -> bool:
        try:
            self._host.admission.check(who)
        except BusyError:
            return False
        return True

    async def _judge_somewhere(self, requests: Sequence[tuple[bytes, bool]]) -> list[Digest | RejectReason]:
        setting = SessionSetting(
            aggregator_id=self._host.aggregator_id,
            key_ids=self._host.keys.key_ids,
            authorities=tuple(one.public_bytes(Encoding.DER) for one in self._host.identity.device_ca),
        )
        now = self._host.moment().sure
        if len(requests) < WORTH_A_PROCESS:
            return judge_requests(setting, requests, now)
        return await self._workers.run(judge_requests, setting, requests, now)


def _ends_the_call(answer: SessionAccepted | SessionRefused) -> bool:
    """Return whether nothing that came with a request is looked at: it failed, or its caller is shut out by now."""
    return isinstance(answer, SessionRefused) and (answer.reason in _FAULTS or answer.reason is RejectReason.BUSY)


def _accepted(row: SessionRow) -> SessionAccepted:
    """Return what was answered when the session was opened."""
    return SessionAccepted(
        session_id=row.session_id,
        expiry=row.expiry,
        ephemeral_key=row.accepted[:_KEY_BYTES],
        confirmation=row.accepted[_KEY_BYTES:],
    )
