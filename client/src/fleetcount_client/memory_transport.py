"""Aggregators in the same process: the transport of tests and simulations, and an intake that keeps what it is given.

Speaks the real protocol with real sealing and receipts, without a network; checks no proof and releases nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cryptography import x509
from fleetcount_protocol.channel.chain import KeyChain, WindowKey
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import SessionSecret, accept_session, make_receipt, unseal_instalment
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.errors import Refused, RejectReason, SealError
from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    Receipt,
    Refusal,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window

from fleetcount_client.transport import Unreachable


class Intake(Protocol):
    """One aggregator's side of a memory transport."""

    def open_session(self, request: SessionRequest) -> SessionAccepted | SessionRefused:
        """Open a session, or say why not."""
        ...

    def take(self, window: Window, instalment: Instalment) -> Receipt | Refusal:
        """Store an instalment and receipt it, or say why not."""
        ...


class MemoryTransport:
    """Carries messages to intakes in this process."""

    def __init__(
        self,
        intakes: Mapping[AggregatorId, Intake],
        offers: Callable[[], Sequence[QuestionOffer]] = tuple,
        releases: Mapping[WindowId, ReleaseAnswer] | None = None,
    ) -> None:
        self._intakes = intakes
        self._offers = offers
        self._releases = {} if releases is None else releases

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        """Return the questions on offer now."""
        return tuple(self._offers())

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Ask the intake of that id. Raises Unreachable when there is none."""
        intake = self._intake(aggregator)
        return tuple(intake.open_session(request) for request in requests)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Hand instalments to the intake at `position`. Raises Unreachable when there is none."""
        intake = self._intake(window.aggregators[position])
        return tuple(intake.take(window, instalment) for instalment in instalments)

    async def release(self, window: Window) -> ReleaseAnswer:
        """Return the release it was given for a window. Raises Unreachable when there is none."""
        answer = self._releases.get(window.window_id)
        if answer is None:
            raise Unreachable(f"no release of window {window.window_id} in this process")
        return answer

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _intake(self, aggregator: Aggregator) -> Intake:
        intake = self._intakes.get(aggregator.aggregator_id)
        if intake is None:
            raise Unreachable(f"no aggregator {aggregator.aggregator_id} in this process")
        return intake


class MemoryAggregator:
    """An intake that keeps everything in memory: first bytes win, a repeat gets the same receipt, windows hold."""

    def __init__(
        self,
        *,
        aggregator_id: AggregatorId,
        key_pairs: Mapping[int, HpkeKeyPair],
        authorities: Sequence[x509.Certificate],
        clock: Clock,
    ) -> None:
        self._aggregator_id = aggregator_id
        self._key_pairs = key_pairs
        self._authorities = tuple(authorities)
        self._clock = clock
        self._sessions: dict[SessionId, tuple[SessionAccepted, SessionSecret]] = {}
        self.instalments: dict[tuple[WindowId, ReportId, int], Instalment] = {}
        self.parts: dict[tuple[WindowId, ReportId, int], bytes] = {}

    def open_session(self, request: SessionRequest) -> SessionAccepted | SessionRefused:
        """Open a session, or say why not; a repeat gets the same answer."""
        if request.session_id not in self._sessions:
            try:
                accepted, secret, _ = accept_session(
                    request, self._key_pairs, self._aggregator_id, self._authorities, self._clock.now()
                )
            except Refused as refusal:
                return SessionRefused(session_id=request.session_id, reason=refusal.reason)
            self._sessions[request.session_id] = accepted, secret
        return self._sessions[request.session_id][0]

    def forget_sessions(self) -> None:
        """Lose every session, as an aggregator whose store is lost does."""
        self._sessions.clear()

    def take(self, window: Window, instalment: Instalment) -> Receipt | Refusal:
        """Store an instalment and receipt it, or say why not."""
        name = (instalment.window_id, instalment.report_id, instalment.round)
        _, secret = self._sessions.get(instalment.session_id, (None, None))
        key = None if secret is None else _window_key(secret, instalment.key_number)
        if secret is None or key is None:
            return _refusal(instalment, RejectReason.UNKNOWN_SESSION)
        known = self.instalments.get(name)
        if known is not None:
            same = known.digest == instalment.digest
            return (
                make_receipt(secret, instalment) if same else _refusal(instalment, RejectReason.DUPLICATE_OTHER_BYTES)
            )
        reason = self._reason(window, instalment.round)
        if reason is not None:
            return _refusal(instalment, reason)
        try:
            part = unseal_instalment(key, window.position_of(self._aggregator_id), instalment)
        except SealError:
            return _refusal(instalment, RejectReason.BAD_SEAL)
        self.instalments[name] = instalment
        self.parts[name] = part
        return make_receipt(secret, instalment)

    def _reason(self, window: Window, round_number: int) -> RejectReason | None:
        second = round_number == 2
        opens = window.round_one_closes if second else window.round_one_opens
        closes = window.round_two_closes if second else window.round_one_closes
        now = self._clock.now()
        if now < opens:
            return RejectReason.TOO_EARLY
        return RejectReason.TOO_LATE if now >= closes else None


def _window_key(secret: SessionSecret, number: int) -> WindowKey | None:
    key = KeyChain(number=secret.number, key=secret.secret).window_key(number)
    return None if key is None else WindowKey(session_id=secret.session_id, number=number, key=key)


def _refusal(instalment: Instalment, reason: RejectReason) -> Refusal:
    return Refusal(
        window_id=instalment.window_id,
        report_id=instalment.report_id,
        round=instalment.round,
        session_id=instalment.session_id,
        reason=reason,
    )
