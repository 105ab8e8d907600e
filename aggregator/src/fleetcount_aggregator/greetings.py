"""What this aggregator says of itself beside every call, and what follows from what its peers say of themselves.

Of every aggregator the newest epoch that was seen is remembered durably (`channel.greetings`). One that speaks under
an older epoch is not answered and not listened to, and is shown the newer one; who is shown a newer epoch of its own
is the older of two processes with one identity, or an older copy, and stops. Beside that it estimates how far the
peers' clocks are from this one. It must not carry a greeting (`transport`) nor end the process (`app`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.channel.greetings import (
    TAG_BYTES,
    Epoch,
    Greeting,
    decode_epoch,
    decode_greeting,
    sign_epoch,
    verify_epoch,
)
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.errors import DecodeError, PeerError, PeerProblem, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.logs import log

from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.storage.store import Store

_FIRST_WORDS_S: Final = 5.0
"""How long after its start an aggregator waits for its peers' clocks before it takes windows for missed."""
_OWN_START: Final = ""
"""The name of this aggregator's last start in the store; under its id lies the newest epoch that it was shown."""


class SupersededError(PeerError):
    """A newer start of this very aggregator is known to its peers."""


@dataclass(frozen=True, slots=True)
class Skew:
    """By how many seconds a peer's clock is ahead of this one: `seconds`, give or take `give_or_take_s`."""

    seconds: float
    give_or_take_s: float

    @classmethod
    def of(cls, said: float, asked: float, answered: float) -> "Skew":
        """Return what one answer tells: the peer's time `said` lies between the call and its answer."""
        return cls(said - (asked + answered) / 2, (answered - asked) / 2)

    def __str__(self) -> str:
        return f"{self.seconds:+.1f} s from this one (give or take {self.give_or_take_s:.1f} s)"

    @property
    def certain_s(self) -> float:
        """The least that the clocks can be apart."""
        return max(0.0, abs(self.seconds) - self.give_or_take_s)


class Greetings:
    """The greetings of one aggregator; before `begin` and after `end` it says nothing and minds nobody's epoch.

    `restored` says that the store is an older copy: it goes on above whatever epoch its peers show it, until each of
    them has shown it its own; then no peer knows more from before its start. Any other store's process stops then.
    """

    def __init__(
        self,
        own_id: AggregatorId,
        trusted: Mapping[AggregatorId, TrustedAggregator],
        store: Store,
        clock: Clock,
        largest_skew_s: float,
    ) -> None:
        self.own_id, self._trusted, self._store, self._clock = own_id, trusted, store, clock
        self.largest_skew_s = largest_skew_s
        self.on_skew: Callable[[AggregatorId, float], None] = lambda _peer, _seconds: None
        """Is told what is known of a peer's clock, whenever that changes."""
        self._own: Epoch | None = None
        self._begun_at = -inf
        self._newest: dict[AggregatorId, Epoch] = {}
        self._sign: Callable[[int], Epoch] | None = None
        self.restored = False
        self._unmet = set(trusted) - {own_id}
        """The peers that have not shown this process its own epoch yet."""
        self.skews: dict[AggregatorId, Skew] = {}
        self.superseded = asyncio.Event()
        self._why = SupersededError()
        self._noting = asyncio.Lock()

    # Epochs.

    async def begin(self, key: Ed25519PrivateKey, source: RandomSource) -> None:
        """Begin a new epoch, durably, before the first call.

        Raises:
            SupersededError: the store was shown a newer epoch than its own and is no copy.
        """

        def sign(above: int) -> Epoch:
            return sign_epoch(self.own_id, above + 1, source.random_bytes(TAG_BYTES), key)

        known = self._checked(await self._store.epochs())
        last = known.pop(_OWN_START, None)
        self._newest = {AggregatorId(name): epoch for name, epoch in known.items()}
        shown = self._newest.get(self.own_id)
        if shown is not None and (last is None or shown > last) and not self.restored:
            raise self._supersede(shown, last)
        self._begun_at = self.now()
        await self._start(sign(max((one.number for one in (last, shown) if one is not None), default=0)))
        self._sign = sign

    def end(self) -> None:
        """Leave the epoch to another process on the same store."""
        self._own = None

    def _checked(self, stored: Mapping[str, bytes]) -> dict[str, Epoch]:
        """Return the stored epochs that their aggregators have signed; what is damaged is said and left out."""
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
        await self._store.note_epoch(_OWN_START, epoch.encode())
        self._own = epoch
        log.info("epoch_begun", epoch=epoch.number)

    async def _start_above(self, shown: Epoch, sign: Callable[[int], Epoch]) -> None:
        async with self._noting:  # Two peers may show one at once: a process's own epochs only go up.
            if self._own is not None and shown > self._own:
                await self._start(sign(shown.number))

    def _supersede(self, shown: Epoch, own: Epoch | None) -> SupersededError:
        """End this process, whether it has begun or, among several, was elected now; return why."""
        self._why = SupersededError(
            f"{self.own_id} has been started elsewhere: peers know epoch {shown.number} of it, and this is epoch"
            f" {0 if own is None else own.number}. One of the two runs on a copy of the other's state: stop one for"
            " good, and start this one with --restored if it is the one that shall go on"
        )
        self.superseded.set()
        return self._why

    def check(self) -> None:
        """Return if no newer start of this aggregator is known.

        Raises:
            SupersededError: one is.
        """
        if self.superseded.is_set():
            raise self._why

    # Saying and hearing.

    def say(self, to: AggregatorId) -> bytes:
        """Return the greeting for a peer, to be sent with a call or an answer; empty before `begin`."""
        if self._own is None:
            return b""
        time_ms = int(1000 * self._clock.now())
        return Greeting(time_ms=time_ms, epoch=self._own, known=self._newest.get(to)).encode()

    async def hear_call(self, caller: AggregatorId, said: bytes) -> None:
        """Take what a peer says with its call, before anything of the call is looked at.

        A call may come without a greeting: a command of the peer's operator is no start of it. Greetings tell honest
        processes apart; who has stolen an aggregator's keys is beyond them.

        Raises:
            PeerRefusalError: STALE_EPOCH, a newer start of the caller is known; BUSY, one of this aggregator;
                MALFORMED, no greeting.
        """
        await self._hear(caller, said)
        if self.superseded.is_set():
            raise PeerRefusalError(PeerProblem.BUSY)

    async def hear_answer(self, peer: AggregatorId, said: bytes, asked: float) -> None:
        """Take what a peer says with its answer, a refusal too; `asked` is this clock's time of the call.

        Raises:
            PeerUnreachableError: the answer is of an older start of the peer, or says nothing that can be read.
        """
        answered = self._clock.now()
        try:
            greeting = await self._hear(peer, said)
        except PeerRefusalError as refusal:
            raise PeerUnreachableError(f"{peer} answers with a greeting that is {refusal.problem.value}") from refusal
        if greeting is not None:
            self._note_skew(peer, greeting.time_ms / 1000, asked, answered)

    async def _hear(self, who: AggregatorId, said: bytes) -> Greeting | None:
        if not said:
            return None
        try:
            greeting = decode_greeting(said)
            if self._own is None:
                return greeting
            if greeting.epoch != self._newest.get(who):
                verify_epoch(greeting.epoch, self._trusted[who])
            await self._look_at_own(greeting.known)
        except (DecodeError, SignatureError, KeyError):
            raise PeerRefusalError(PeerProblem.MALFORMED) from None
        async with self._noting:  # Of two calls at once the older must not be noted over the newer.
            known = self._newest.get(who)
            if known is None or greeting.epoch > known:
                await self._store.note_epoch(who, greeting.epoch.encode())
                self._newest[who] = greeting.epoch
            elif greeting.epoch < known:
                raise PeerRefusalError(PeerProblem.STALE_EPOCH)
        if greeting.known is not None and greeting.known == self._own:
            self._unmet.discard(who)
            self.restored = self.restored and bool(self._unmet)
        return greeting

    async def _look_at_own(self, shown: Epoch | None) -> None:
        """Look at an epoch of this aggregator that a peer shows; a newer one than its own proves itself."""
        if shown is None or self._own is None or shown <= self._own or self.superseded.is_set():
            return
        verify_epoch(shown, self._trusted[self.own_id])
        if self.restored and self._sign is not None:
            await self._start_above(shown, self._sign)
            return
        last = self._checked(await self._store.epochs()).get(_OWN_START)
        if last is not None and last >= shown:
            return  # A later process on this very store, whose own epochs say which of them acts.
        await self._store.note_epoch(self.own_id, shown.encode())
        self._newest[self.own_id] = shown
        self._supersede(shown, self._own)

    # Clocks.

    def now(self) -> float:
        """Return this aggregator's time."""
        return self._clock.now()

    def far_clock(self, peers: Iterable[AggregatorId]) -> str:
        """Return whose clock is certainly too far from this one, in words, "" if nobody's is known to be."""
        for peer in peers:
            skew = self.skews.get(peer)
            if skew is not None and skew.certain_s > self.largest_skew_s:
                return f"the clock of {peer} is {skew}, allowed: {self.largest_skew_s:g} s ([limits] largest_skew_s)"
        return ""

    def not_yet(self, moment: float, peers: Iterable[AggregatorId]) -> bool:
        """Return whether a moment that is over by this clock may not be by that of a peer, and that one be right.

        So it is if the peer's is certainly too far away and before the moment, or has not been heard just after the
        start: a process that starts under a wrong clock hears so from its peers within a second.
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
        """Narrow what is known of a peer's clock by one answer: it was given between the call and now."""
        made = Skew.of(said, asked, answered)
        known = self.skews.get(peer)
        if known is not None and abs(made.seconds - known.seconds) <= made.give_or_take_s - known.give_or_take_s:
            return  # A slower answer that says nothing new.
        if made.certain_s > self.largest_skew_s and (known is None or known.certain_s <= self.largest_skew_s):
            log.error("clock_differs", peer=peer, seconds=round(made.seconds, 1), allowed=self.largest_skew_s)
        self.skews[peer] = made
        self.on_skew(peer, made.seconds)
