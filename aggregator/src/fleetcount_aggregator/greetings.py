"""Greetings: the start epoch and clock that aggregators sign with every call and answer, and their consequences.

A greeting proves that its sender holds the signing key that this aggregator trusts: a name in a certificate does not.
The newest epoch of every aggregator is stored durably (`channel.greetings`). A peer with an older epoch gets no answer
but the newer epoch. A process that gets a newer epoch of its own identity is the older of two processes, or runs on an
older copy of the store, and stops. Greetings also give an estimate of the difference of the peers' clocks. It must not
send a greeting (`transport`) nor end the process (`app`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.channel.greetings import (
    CHALLENGE_BYTES,
    TAG_BYTES,
    Epoch,
    Greeting,
    Meeting,
    decode_epoch,
    decode_greeting,
    sign_epoch,
    sign_greeting,
    verify_epoch,
    verify_greeting,
)
from fleetcount_protocol.errors import DecodeError, PeerError, PeerProblem, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.moment import Moments, Skew
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.storage.rows import note_epoch, read_epochs
from fleetcount_aggregator.storage.store import Store

_FIRST_WORDS_S: Final = 5.0
"""Seconds after the start for which no window is decided as missed before the peers' clocks are known."""
_OWN_START: Final = ""
"""The store's key of this aggregator's last own epoch; under its id is the newest epoch that a peer has shown it."""


class SupersededError(PeerError):
    """A peer knows a newer epoch of this same aggregator."""


class Greetings:
    """The greetings of one aggregator; before `begin` and after `end` it sends none and checks no epoch.

    `restored` says that the store is an older copy: then the process continues above every epoch of its own that a peer
    shows it, until each peer has shown it the present one. Without `restored` the process stops at a newer epoch.
    """

    def __init__(
        self,
        own_id: AggregatorId,
        trusted: Mapping[AggregatorId, TrustedAggregator],
        store: Store,
        moments: Moments,
    ) -> None:
        self.own_id, self._trusted, self._store, self._moments = own_id, trusted, store, moments
        self.largest_skew_s, self.skews = moments.largest_skew_s, moments.skews
        self.on_skew: Callable[[AggregatorId, float], None] = lambda _peer, _seconds: None
        """Called with a peer and the estimated skew of its clock in seconds, whenever that changes."""
        self._own: Epoch | None = None
        self._begun_at = -inf
        self._newest: dict[AggregatorId, Epoch] = {}
        self._sign: Callable[[int], Epoch] | None = None
        self._key: Ed25519PrivateKey | None = None
        self._source: RandomSource | None = None
        self.restored = False
        self._unmet = set(trusted) - {own_id}
        """The peers that have not shown this process its own epoch yet."""
        self.superseded = asyncio.Event()
        self._why = SupersededError()
        self._noting = asyncio.Lock()

    # Epochs.

    async def begin(self, key: Ed25519PrivateKey, source: RandomSource) -> None:
        """Begin a new epoch, durably, before the first call.

        Raises:
            SupersededError: a peer has shown this store a newer epoch than its own, and it is not marked as restored.
        """

        def sign(above: int) -> Epoch:
            return sign_epoch(self.own_id, above + 1, source.random_bytes(TAG_BYTES), key)

        known = self._checked(await self._store.read(read_epochs))
        last = known.pop(_OWN_START, None)
        self._newest = {AggregatorId(name): epoch for name, epoch in known.items()}
        shown = self._newest.get(self.own_id)
        if shown is not None and (last is None or shown > last) and not self.restored:
            raise self._supersede(shown, last)
        self._begun_at = self.now()
        self._key, self._source = key, source
        await self._start(sign(max((one.number for one in (last, shown) if one is not None), default=0)))
        self._sign = sign

    def end(self) -> None:
        """Stop sending greetings, because another process on the same store takes over."""
        self._own = None

    def _checked(self, stored: Mapping[str, bytes]) -> dict[str, Epoch]:
        """Return the stored epochs with valid signatures; damaged ones are logged and left out."""
        found: dict[str, Epoch] = {}
        for name, data in stored.items():
            try:
                epoch = decode_epoch(data)
                verify_epoch(epoch, self._trusted[AggregatorId(name or self.own_id)])
            except (DecodeError, SignatureError, KeyError):
                log.error("epoch_damaged", of=name)
            else:
                found[name] = epoch
        return found

    async def _start(self, epoch: Epoch) -> None:
        await self._store.write(note_epoch, _OWN_START, epoch.encode())
        self._own = epoch
        log.info("epoch_begun", epoch=epoch.number)

    async def _start_above(self, shown: Epoch, sign: Callable[[int], Epoch]) -> None:
        async with self._noting:  # Two peers may show an epoch at once: the own epoch must only grow.
            if self._own is not None and shown > self._own:
                await self._start(sign(shown.number))

    def _supersede(self, shown: Epoch, own: Epoch | None) -> SupersededError:
        """Set `superseded`, at which the process ends; return the error to raise."""
        self._why = SupersededError(
            f"{self.own_id} has been started elsewhere: peers know epoch {shown.number} of it, and this is epoch"
            f" {0 if own is None else own.number}. One of the two runs on a copy of the other's state: stop one for"
            " good, and start this one with --restored if it is the one that shall go on"
        )
        self.superseded.set()
        return self._why

    def check(self) -> None:
        """Check that no newer epoch of this aggregator is known.

        Raises:
            SupersededError: one is known.
        """
        if self.superseded.is_set():
            raise self._why

    # Sending and receiving.

    def say(self, to: AggregatorId, tls_key: bytes = b"", answers: bytes | None = None) -> bytes:
        """Return the greeting to send to a peer with a call, or with an answer; b"" before `begin`.

        `tls_key` is the digest of the caller's public key in TLS. `answers` is the greeting of the call, b"" if it had
        none; None for a call. An answer to an unreadable greeting proves nothing.
        """
        if self._own is None or self._key is None or self._source is None:
            return b""
        if answers is None:
            challenge = self._source.random_bytes(CHALLENGE_BYTES)
        else:
            try:
                challenge = decode_greeting(answers).challenge
            except DecodeError:
                challenge = bytes(CHALLENGE_BYTES)
        greeting = Greeting(
            time_ms=int(1000 * self._moments.now()), epoch=self._own, known=self._newest.get(to), challenge=challenge
        )
        caller, callee = (self.own_id, to) if answers is None else (to, self.own_id)
        meeting = Meeting(caller=caller, callee=callee, tls_key=tls_key)
        return sign_greeting(greeting, meeting, self._key, is_answer=answers is not None).encode()

    async def hear_call(self, caller: AggregatorId, said: bytes, tls_key: bytes = b"") -> None:
        """Process the greeting of a peer's call, before anything else of the call is read.

        A call may come without a greeting, from a command of the peer's operator. `tls_key` is the key that the caller
        has shown in TLS: the greeting is signed for it.

        Raises:
            PeerRefusalError: STALE_EPOCH, a newer epoch of the caller is known; BUSY, a newer one of this aggregator
                is known; MALFORMED, the bytes are no valid greeting of the caller's for this call.
        """
        await self._hear(caller, said, Meeting(caller=caller, callee=self.own_id, tls_key=tls_key), None)
        if self.superseded.is_set():
            raise PeerRefusalError(PeerProblem.BUSY)

    def check_answerer(self, peer: AggregatorId, said: bytes, called: bytes, tls_key: bytes = b"") -> None:
        """Check that who answers a call holds the peer's signing key, by its greeting alone.

        `called` is the greeting that this aggregator sent with the call.

        Raises:
            PeerUnreachableError: it does not show that.
        """
        try:
            self._verify(peer, decode_greeting(said), self._meeting_with(peer, tls_key), called)
        except (DecodeError, SignatureError, KeyError):
            raise PeerUnreachableError(f"who answers as {peer} does not prove that it has its signing key") from None

    def _meeting_with(self, peer: AggregatorId, tls_key: bytes) -> Meeting:
        return Meeting(caller=self.own_id, callee=peer, tls_key=tls_key)

    async def hear_answer(
        self, peer: AggregatorId, said: bytes, asked: float, called: bytes = b"", tls_key: bytes = b""
    ) -> None:
        """Process the greeting of a peer's answer or refusal; `asked` is the time of the call by this clock.

        `called` is the greeting that this aggregator sent with the call.

        Raises:
            PeerUnreachableError: the answer has an older epoch of the peer, or no valid greeting for this call.
        """
        answered = self._moments.now()
        try:
            greeting = await self._hear(peer, said, self._meeting_with(peer, tls_key), called)
        except PeerRefusalError as refusal:
            raise PeerUnreachableError(f"{peer} answers with a greeting that is {refusal.problem.value}") from refusal
        if greeting is not None:
            self._note_skew(peer, greeting.time_ms / 1000, asked, answered)

    def _verify(self, who: AggregatorId, greeting: Greeting, meeting: Meeting, called: bytes | None) -> None:
        """Verify a greeting of a call (`called` is None) or of an answer to this aggregator's greeting."""
        if called and greeting.challenge != decode_greeting(called).challenge:
            raise SignatureError("the greeting answers another call")
        verify_greeting(greeting, meeting, self._trusted[who], is_answer=called is not None)

    async def _hear(self, who: AggregatorId, said: bytes, meeting: Meeting, called: bytes | None) -> Greeting | None:
        if not said:
            return None
        try:
            greeting = decode_greeting(said)
            if self._own is None:
                return greeting
            self._verify(who, greeting, meeting, called)
            if greeting.epoch != self._newest.get(who):
                verify_epoch(greeting.epoch, self._trusted[who])
            await self._look_at_own(greeting.known)
        except (DecodeError, SignatureError, KeyError):
            raise PeerRefusalError(PeerProblem.MALFORMED) from None
        async with self._noting:  # Of two concurrent calls the older epoch must not overwrite the newer.
            known = self._newest.get(who)
            if known is None or greeting.epoch > known:
                await self._store.write(note_epoch, who, greeting.epoch.encode())
                self._newest[who] = greeting.epoch
            elif greeting.epoch < known:
                raise PeerRefusalError(PeerProblem.STALE_EPOCH)
        if greeting.known is not None and greeting.known == self._own:
            self._unmet.discard(who)
            self.restored = self.restored and bool(self._unmet)
        return greeting

    async def _look_at_own(self, shown: Epoch | None) -> None:
        """Check an epoch of this aggregator that a peer shows; a newer one must have a valid signature to count."""
        if shown is None or self._own is None or shown <= self._own or self.superseded.is_set():
            return
        verify_epoch(shown, self._trusted[self.own_id])
        if self.restored and self._sign is not None:
            await self._start_above(shown, self._sign)
            return
        last = self._checked(await self._store.read(read_epochs)).get(_OWN_START)
        if last is not None and last >= shown:
            return  # A later process on this very store, whose own epochs say which of them acts.
        await self._store.write(note_epoch, self.own_id, shown.encode())
        self._newest[self.own_id] = shown
        self._supersede(shown, self._own)

    # Clocks.

    def now(self) -> float:
        """Return this aggregator's time, Unix seconds."""
        return self._moments.now()

    def far_clock(self, peers: Iterable[AggregatorId]) -> str:
        """Return a sentence about a peer whose clock certainly differs too much, "" if none is known to."""
        for peer in peers:
            skew = self.skews.get(peer)
            if skew is not None and skew.certain_s > self.largest_skew_s:
                return f"the clock of {peer} is {skew}, allowed: {self.largest_skew_s:g} s ([limits] largest_skew_s)"
        return ""

    def not_yet(self, moment: float, peers: Iterable[AggregatorId]) -> bool:
        """Return whether a moment that is past by this clock may still be future by a peer's clock, which may be right.

        It is if the peer's clock certainly differs too much and is before the moment, or if shortly after the start the
        peer has not answered yet: a process that starts with a wrong clock learns that from its peers within a second.
        """
        for peer in peers:
            skew = self.skews.get(peer)
            if skew is None:
                if peer != self.own_id and self.now() < self._begun_at + _FIRST_WORDS_S:
                    return True
            elif skew.certain_s > self.largest_skew_s and self.now() + skew.seconds < moment:
                return True
        return False

    def _note_skew(self, peer: AggregatorId, said: float, asked: float, answered: float) -> None:
        """Update the estimate of a peer's clock by one answer, which the peer gave between `asked` and `answered`."""
        made = Skew.of(said, asked, answered)
        known = self.skews.get(peer)
        if known is not None and abs(made.seconds - known.seconds) <= made.give_or_take_s - known.give_or_take_s:
            return  # A slower answer, whose interval contains the known one.
        if made.certain_s > self.largest_skew_s and (known is None or known.certain_s <= self.largest_skew_s):
            log.error("clock_differs", peer=peer, seconds=round(made.seconds, 1), allowed=self.largest_skew_s)
        self.skews[peer] = made
        self.on_skew(peer, made.seconds)
