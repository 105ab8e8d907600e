"""An aggregator in the same process for devices under test: real sealing and receipts, no proof, no release."""

from collections.abc import Mapping, Sequence

from cryptography import x509
from fleetcount_protocol.channel.chain import KeyChain, WindowKey
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import SessionSecret, accept_session, make_receipt, unseal_instalment
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.errors import Refused, RejectReason, SealError
from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import (
    Instalment,
    Receipt,
    Refusal,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.window.window import Window


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
