"""A device's sessions: one chain of keys with each aggregator, opened before anything is charged or sent.

Chooses and opens sessions; seals no report and stores nothing itself (the spool keeps a session with its first report).
How an instalment lies in the spool is said here, a fixed layout that only the same device reads: what the spool itself
loads is part of every start, and needs no message.
"""

import asyncio
import enum
import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.channel.session import DeviceIdentity, SessionSecret, check_receipt, new_session
from fleetcount_protocol.errors import DecodeError, PeerError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId
from fleetcount_protocol.layout import Reader, sized
from fleetcount_protocol.limits import (
    MAX_CIPHERTEXT_BYTES,
    MAX_INSTALMENT_BYTES,
    MAX_KEY_NUMBER,
    MAX_PUBLIC_SHARE_BYTES,
    SESSION_EXPIRY_STEP_S,
)
from fleetcount_protocol.messages import Instalment, Refusal, SessionAccepted
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.window import Window
from fleetcount_transport import failpoints

from fleetcount_client.spool import Spool
from fleetcount_client.spool_rows import OutboxEntry, SessionRow
from fleetcount_client.timer import Activity, Backoff, Retry, Timer, uniform_seconds
from fleetcount_client.transport import Transport, Unreachable

_LOG: Final = logging.getLogger(__name__)
_EXPIRY_SLACK_S: Final = 60
_SOON_S: Final = 5.0
_INSTALMENT_LABEL: Final = b"FCDI02"
_INSTALMENT_HEAD: Final = struct.Struct(">6s32s16s16sHB")
_KEY_REFUSALS: Final = frozenset({RejectReason.UNKNOWN_KEY, RejectReason.BAD_SEAL})
# Malformed is also a report in a session that the device opened under another key, of before.
_SESSION_REFUSALS: Final = frozenset({RejectReason.UNKNOWN_SESSION, RejectReason.MALFORMED})


def encode_instalment(instalment: Instalment) -> bytes:
    """Return an instalment as the spool keeps it."""
    names = instalment.window_id, instalment.report_id, instalment.session_id
    head = _INSTALMENT_HEAD.pack(_INSTALMENT_LABEL, *names, instalment.key_number, instalment.round)
    return head + sized(instalment.public_share, 2) + sized(instalment.ciphertext, 4)


def decode_instalment(stored: bytes) -> Instalment:
    """Return the instalment `encode_instalment` gave; raises DecodeError for anything else."""
    reader = Reader(stored, "a stored instalment", MAX_INSTALMENT_BYTES)
    head = reader.take(_INSTALMENT_HEAD.size)
    label, window_id, report_id, session_id, key_number, round_number = _INSTALMENT_HEAD.unpack(head)
    if label != _INSTALMENT_LABEL:
        raise DecodeError("a stored instalment begins with another label")
    instalment = Instalment(
        window_id=WindowId(window_id),
        report_id=ReportId(report_id),
        session_id=SessionId(session_id),
        key_number=key_number,
        round=round_number,
        public_share=reader.sized(2, 0, MAX_PUBLIC_SHARE_BYTES),
        ciphertext=reader.sized(4, 1, MAX_CIPHERTEXT_BYTES),
    )
    reader.finish()
    return instalment


def row_of(secret: SessionSecret, hpke_key: bytes) -> SessionRow:
    """Return a session as the spool keeps it; `hpke_key` is the key it was sealed to."""
    return SessionRow(
        session_id=secret.session_id,
        aggregator_id=secret.aggregator_id,
        hpke_key=hpke_key,
        secret=secret.secret,
        receipt_key=secret.receipt_key,
        number=secret.number,
        expiry=secret.expiry,
    )


def secret_of(row: SessionRow) -> SessionSecret:
    """Return the secrets of a stored session."""
    return SessionSecret(
        session_id=row.session_id,
        aggregator_id=AggregatorId(row.aggregator_id),
        secret=row.secret,
        receipt_key=row.receipt_key,
        expiry=row.expiry,
        number=row.number,
    )


class SessionKeeper:
    """The sessions of one device, shared by the windows it answers at the same time."""

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
        activity: Activity,
    ) -> None:
        self._spool = spool
        self._transport = transport
        self._identity = identity
        self._timer = timer
        self._source = source
        self._retry = retry
        self._lifetime_s = lifetime_s
        self._activity = activity
        self._known: dict[SessionId, SessionRow] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def open_all(
        self, aggregators: Sequence[Aggregator], needed_until: int, now: float, before: float, deadline: float
    ) -> tuple[SessionRow, ...] | RejectReason | None:
        """Return one session an aggregator, in their order, each valid beyond `needed_until` (Unix seconds).

        One that is not open is asked for at a moment of its own, drawn uniformly from `now` to `before`, so that the
        requests of one device to several aggregators do not leave together. Returns the reason when an aggregator
        refuses for good, None when one stayed out of reach until `deadline`.
        """
        needed = needed_until + _EXPIRY_SLACK_S
        found = [self._reusable(one, needed) for one in aggregators]
        if None in found:
            self.take_up()
            found = [self._reusable(one, needed) for one in aggregators]
        if None in found:
            answers = await self._activity.together(
                [self._open(one, needed, now, before, deadline) for one in aggregators]
            )
            if isinstance(answers, RejectReason):
                return answers
            found = answers
        opened = tuple(one for one in found if one is not None)
        return opened if len(opened) == len(found) else None

    def find(self, session_id: SessionId) -> SessionRow | None:
        """Return a stored session, or None if it is forgotten."""
        if session_id not in self._known:
            self.take_up()  # Another process of this device may have opened it, for an answer that this one finishes.
        return self._known.get(session_id)

    def take_up(self) -> None:
        """Go on from the sessions as they are stored now: another process may have moved them on, or forgotten some."""
        stored = {row.session_id: row for row in self._spool.sessions()}
        # One that no answer has used is in memory only. Of any other, what is not stored any more was forgotten, maybe
        # by another process: taken up again it would use keys of before a second time.
        unused = {name: one for name, one in self._known.items() if one.number == 1}
        self._known = unused | stored

    def move_on(self, stored: Iterable[SessionRow]) -> None:
        """Go on from sessions as an answer that begins has just stored them."""
        self._known.update((row.session_id, row) for row in stored)

    def forget(self, session_id: SessionId) -> None:
        """Begin no answer any more with a session of which the aggregator lacks a key; the next window opens another
        one.

        It may lack that of one answer alone, whose window has just ended: those under way go on, and hear for
        themselves.
        """
        self._spool.forget_session(session_id)
        self.take_up()

    @property
    def device(self) -> Digest:
        """The digest of the device's public key."""
        return self._identity.digest

    def go_on_as(self, identity: DeviceIdentity) -> None:
        """Open sessions under another certificate from now on, for the same key: those that are open still hold."""
        self._identity = identity

    async def _open(
        self, aggregator: Aggregator, needed: int, now: float, before: float, deadline: float
    ) -> SessionRow | RejectReason | None:
        if before > now and self._reusable(aggregator, needed) is None:
            now = await self._activity.pause_until(now + uniform_seconds(self._source, before - now))
        # Two windows asked at the same time share one session: the second waits and finds it.
        async with self._locks.setdefault(aggregator.aggregator_id, asyncio.Lock()):
            session = self._reusable(aggregator, needed)
            if session is not None:
                return session
            ends = int(self._identity.certificate.not_valid_after_utc.timestamp())
            expiry = _expiry(max(int(now) + self._lifetime_s, needed), ends)
            if needed > expiry:
                return RejectReason.BAD_CERTIFICATE  # No hour is between the window's end and the certificate's.
            return await self._open_new(aggregator, expiry, deadline)

    def _reusable(self, aggregator: Aggregator, needed: int) -> SessionRow | None:
        keys = {key.public_key for key in aggregator.hpke_keys}
        for session in self._known.values():
            same = session.aggregator_id == aggregator.aggregator_id and session.hpke_key in keys
            if same and session.expiry >= needed and session.number <= MAX_KEY_NUMBER:
                return session
        return None

    async def _open_new(self, aggregator: Aggregator, expiry: int, deadline: float) -> SessionRow | RejectReason | None:
        refusal: RejectReason | None = None
        for key in aggregator.hpke_keys:
            answer = await self._open_with(aggregator, key, expiry, deadline)
            if isinstance(answer, SessionRow):
                self._known[answer.session_id] = answer
                return answer
            if answer not in _KEY_REFUSALS:
                return answer
            refusal = answer  # The key is retired: the window may name a newer one.
        return refusal

    async def _open_with(
        self, aggregator: Aggregator, key: HpkeKey, expiry: int, deadline: float
    ) -> SessionRow | RejectReason | None:
        request, opening = new_session(aggregator, key, self._identity, expiry, self._source)
        backoff = Backoff(self._retry, self._source)
        while self._timer.now() < deadline:
            try:
                (answer,) = await self._transport.open_sessions(aggregator, [request])
                if isinstance(answer, SessionAccepted):
                    return row_of(opening.finish(answer), key.public_key)
            except (Unreachable, PeerError) as error:
                _LOG.info("aggregator %s: no session yet: %s", aggregator.aggregator_id, type(error).__name__)
                backoff.heed(error.retry_after_s if isinstance(error, Unreachable) else 0.0)
            else:
                if answer.reason.final:
                    return answer.reason
            await self._timer.sleep(min(backoff.next_delay(), max(0.0, deadline - self._timer.now())))
        return None


def _expiry(wanted: int, ends: int) -> int:
    """Return when a session ends (Unix seconds): the hour after `wanted`, or the last before the certificate's end."""
    return min(-(-wanted // SESSION_EXPIRY_STEP_S), ends // SESSION_EXPIRY_STEP_S) * SESSION_EXPIRY_STEP_S


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
    """Delivers stored bytes and never changes one: each from its moment on, until its receipt or the window ends."""

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

        No part waits for another, nor hears of its receipt: who delays an answer moves no other part. The answer is a
        reason when an aggregator refuses for good; what has not left then stays.
        """
        left = dict(zip(entries, moments, strict=True))
        parts = [
            self._deliver_part(window, entry, moment, deadline, left)
            for entry, moment in zip(entries, moments, strict=True)
        ]
        ends = await self._activity.together(parts)
        if isinstance(ends, RejectReason):
            return ends
        return DeliveryEnd.WINDOW_CLOSED if DeliveryEnd.WINDOW_CLOSED in ends else DeliveryEnd.RECEIPTED

    async def _deliver_part(
        self, window: Window, entry: OutboxEntry, moment: float, deadline: float, left: dict[OutboxEntry, float]
    ) -> DeliveryEnd | RejectReason:
        now = await self._activity.pause_until(moment)
        backoff = Backoff(self._retry, self._source)
        while now < deadline:
            answer = await self._attempt(window, entry, backoff)
            failpoints.reach("after_round_one_sent" if entry.round != 2 else "after_round_two_sent")
            if isinstance(answer, RejectReason):
                return answer
            if answer is _Attempt.RECEIPTED:
                del left[entry]
                if left:
                    self._keep_receipts(window, left, self._timer.now())
                return DeliveryEnd.RECEIPTED
            now = self._timer.now()
            delay = min(backoff.next_delay(), max(0.0, deadline - now))
            left[entry] = now + delay
            self._keep_receipts(window, left, now)
            await self._timer.sleep(delay)
            now = self._timer.now()
        return DeliveryEnd.WINDOW_CLOSED

    def _keep_receipts(self, window: Window, left: Mapping[OutboxEntry, float], now: float) -> None:
        """Store the receipts of a round, unless all parts that are `left` are due soon: then the next phase erases all.

        After a restart a part without one is sent again, which tells its aggregator that this device was started.
        """
        if len(left) < len(window.aggregators) and max(left.values()) - now > _SOON_S:
            self._spool.receipted(window.window_id, left)

    async def _attempt(self, window: Window, entry: OutboxEntry, backoff: Backoff) -> _Attempt | RejectReason:
        aggregator = window.aggregators[entry.position]
        instalment = decode_instalment(entry.instalment)
        session = self._sessions.find(instalment.session_id)
        if session is None:
            return RejectReason.UNKNOWN_SESSION
        try:
            (answer,) = await self._transport.upload(window, entry.position, [instalment])
            if isinstance(answer, Refusal):
                if answer.reason in _SESSION_REFUSALS:
                    self._sessions.forget(instalment.session_id)
                return _Attempt.AGAIN if worth_retrying(answer.reason) else answer.reason
            check_receipt(secret_of(session), instalment, answer)
        except (Unreachable, PeerError) as error:
            _LOG.info("aggregator %s: no receipt yet: %s", aggregator.aggregator_id, type(error).__name__)
            backoff.heed(error.retry_after_s if isinstance(error, Unreachable) else 0.0)
            return _Attempt.AGAIN
        return _Attempt.RECEIPTED
