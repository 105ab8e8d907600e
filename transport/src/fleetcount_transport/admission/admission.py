"""What one identity may have under way and get wrong, so that nobody takes up a whole server; for every door of it.

Decides from identities, sizes and a clock alone; it opens no connection and reads no message.
"""

import time
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fleetcount_transport.admission.identity import LOCAL, Identity
from fleetcount_transport.admission.reputation import Remembered, Reputation
from fleetcount_transport.admission.turns import FairQueue
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

_FEW: Final = 32
"""A caller has few while it has at most this part of what it may have."""
_PART: Final = 8
"""Who has more than few takes at most this part of what is free."""
_CALLS_OF_A_PARTY: Final = 64
_BYTES_OF_A_PARTY: Final = 32 << 20
_STRANGERS: Final = 16
"""Connections of those who have not said yet who they are, beside those of a closed circle."""
_RETRY_S: Final = 1.0
_KNOWN_S: Final = 86_400.0
"""How long it is remembered of an identity that a signature of it held."""
_MOST_FAULTY: Final = 65_536
"""Identities whose faults are remembered, about 300 bytes each; beyond, the oldest are forgiven."""


class Shed(StrEnum):
    """Why a server did not take something: the reasons of `fleetcount_shed_total`."""

    CALLS = "calls"
    BYTES = "bytes"
    FAULTS = "faults"
    FOREIGN = "foreign"
    IDLE = "idle"
    UNREAD = "unread"
    HANDSHAKE = "handshake"
    CONNECTIONS = "connections"


class BusyError(Exception):
    """Not now; `retry_after_s` is a hint when to come back."""

    def __init__(self, reason: Shed, retry_after_s: float = _RETRY_S) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after_s = retry_after_s


@settings
class AdmissionTable:
    """[admission]: who gets in and how much of it, for each of a server's listeners.

    Connections in all, from one address, of one certificate (fewer where the limit of open files allows no more); how
    long one has from its beginning to its first call; how long a call waits for its caller, to send or to read. Calls
    and bytes of messages under way, in all and of one certificate. `faults_each` signatures of one identity may fail in
    `faults_s` seconds; beyond, it is refused unread until they are over. Of all identities together of which none has
    held yet `faults_unknown` may fail; beyond, one failure is enough.
    """

    connections: int = setting(Table.integer, 16, 1_000_000, default=16_384)
    connections_by_address: int = setting(Table.integer, 1, 1_000_000, default=4096)
    connections_each: int = setting(Table.integer, 1, 100_000, default=16)
    handshake_s: float = setting(Table.seconds, 0.1, 600, default=10.0)
    idle_s: float = setting(Table.seconds, 1, 3600, default=60.0)
    calls: int = setting(Table.integer, 16, 100_000, default=4096)
    calls_each: int = setting(Table.integer, 1, 100_000, default=256)
    bytes_in_memory: int = setting(Table.integer, 1 << 20, 1 << 36, default=64 << 20)
    bytes_each: int = setting(Table.integer, 1 << 20, 1 << 36, default=16 << 20)
    faults_each: int = setting(Table.integer, 1, 1_000_000, default=8)
    faults_s: float = setting(Table.seconds, 1, 86_400, default=60.0)
    faults_unknown: int = setting(Table.integer, 1, 1_000_000, default=256)


class _Shares:
    """What each has of something that there is `total` of, and at most `each`.

    The second half is for those who have few, the last fourth for those who have nothing: so there is room for who
    comes next, however many took all they got before. Something alone always fits.
    """

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self.used = 0
        self.of: dict[bytes, int] = {}

    def take(self, who: bytes, size: int) -> bool:
        has, free = self.of.get(who, 0), self.total - self.used
        if not self._fits(has, size, free):
            return False
        self.of[who] = has + size
        self.used += size
        return True

    def _fits(self, has: int, size: int, free: int) -> bool:
        if not has:
            return 2 * size <= free or not self.used
        left, wanted = free - size, has + size
        if wanted <= self.each // _FEW:
            return left >= self.total // 4
        return left >= self.total // 2 and wanted <= min(self.each, free // _PART)

    def give_back(self, who: bytes, size: int) -> None:
        self.used -= size
        self.of[who] -= size
        if not self.of[who]:
            del self.of[who]


def limits_for_peers(limits: AdmissionTable, parties: int) -> AdmissionTable:
    """Return the limits of a listener that only so many known parties may use: each has its whole share always.

    Many windows of one leader end at once, and its batches are long; what it sends beyond its share waits there.
    """
    parties = max(1, parties)
    return replace(
        limits,
        connections=limits.connections_each * parties + _STRANGERS,
        calls=2 * _PART * _CALLS_OF_A_PARTY * parties,
        calls_each=_CALLS_OF_A_PARTY,
        bytes_in_memory=2 * _PART * _BYTES_OF_A_PARTY * parties,
        bytes_each=_BYTES_OF_A_PARTY,
    )


@dataclass(slots=True)
class _Faults:
    count: int
    until: float


class Admission:
    """The shares, turns and faults of everybody at one server. `count` hears of everything that is not taken.

    A door asks in this order: `call` as soon as the caller has a name and before a byte of its message; `hold` for the
    message, once its size is known; `turn` before public-key work, of which `turns` go on at once; `failed` for each
    signature that did not hold, and `held` for those that did.
    """

    def __init__(
        self,
        limits: AdmissionTable | None = None,
        count: Callable[[Shed], None] = lambda _: None,
        *,
        turns: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or AdmissionTable()
        self._count = count
        self._clock = clock
        self._calls = _Shares(self.limits.calls, self.limits.calls_each)
        self._bytes = _Shares(self.limits.bytes_in_memory, self.limits.bytes_each)
        self._turns = FairQueue(turns)
        self._faults: dict[Identity, _Faults] = {}
        self._known = Remembered[Identity](_KNOWN_S, clock)
        self._of_unknown = _Faults(0, 0.0)

    @property
    def callers(self) -> int:
        """How many have calls under way."""
        return len(self._calls.of)

    @contextmanager
    def call(self, who: Identity) -> Generator[None]:
        """Count a call while it lasts.

        Raises:
            BusyError: too many of its signatures have failed, or it has its share of calls.
        """
        self.check(who)
        if not self._calls.take(who.key, 1):
            raise self.shed(Shed.CALLS)
        try:
            yield
        finally:
            self._calls.give_back(who.key, 1)

    @contextmanager
    def hold(self, who: Identity, size: int) -> Generator[None]:
        """Count the bytes of a message while it is under way.

        Raises:
            BusyError: its caller has its share of bytes.
        """
        if not self._bytes.take(who.key, size):
            raise self.shed(Shed.BYTES)
        try:
            yield
        finally:
            self._bytes.give_back(who.key, size)

    @contextmanager
    def admit(self, who: Identity, size: int) -> Generator[None]:
        """Count a call and its message of this size at once: for doors that have both at the same time.

        Raises:
            BusyError: as `call` and `hold`.
        """
        with self.call(who), self.hold(who, size):
            yield

    def turn(self, who: Identity) -> AbstractAsyncContextManager[None]:
        """Return the context of a turn at public-key work; everybody who waits is served in turn."""
        return self._turns.of(who.key, who.carried, reputation=self.reputation(who))

    # Faults.

    def knows(self, who: Identity) -> bool:
        """Return whether a signature of this identity held before, as far as that is remembered."""
        return who in self._known or who == LOCAL

    def reputation(self, who: Identity) -> Reputation:
        """Return in which line an identity waits for public-key work."""
        if self.knows(who):
            return Reputation.KNOWN
        faults = self._faults.get(who)
        return Reputation.NEW if faults is None or faults.until <= self._clock() else Reputation.FAILED

    def check(self, who: Identity) -> None:
        """Refuse an identity too many of whose signatures have failed.

        Raises:
            BusyError: with the time that is left.
        """
        faults = self._faults.get(who)
        if faults is None or faults.count < self._faults_allowed(who):
            return
        if (left := faults.until - self._clock()) > 0:
            raise self.shed(Shed.FAULTS, left)

    def _faults_allowed(self, who: Identity) -> int:
        """Return after how many failures an identity is refused: a thousand new ones have no thousand budgets."""
        spent = self._of_unknown.until > self._clock() and self._of_unknown.count >= self.limits.faults_unknown
        return 1 if spent and not self.knows(who) else self.limits.faults_each

    def held(self, who: Identity) -> None:
        """Note that a signature held: its identity goes before those of whom none has."""
        self._known.note(who)

    def failed(self, who: Identity, count: int = 1) -> None:
        """Note signatures that did not hold; who is shut out is known no longer."""
        now = self._clock()
        if not self.knows(who):
            if self._of_unknown.until <= now:
                self._of_unknown = _Faults(0, now + self.limits.faults_s)
            self._of_unknown.count += count
        faults = self._faults.get(who)
        if faults is None or faults.until <= now:
            self._faults.pop(who, None)
            if len(self._faults) >= _MOST_FAULTY:
                del self._faults[next(iter(self._faults))]
            faults = self._faults[who] = _Faults(0, now + self.limits.faults_s)
        faults.count += count
        if faults.count >= self.limits.faults_each:
            self._known.forget(who)

    def shed(self, reason: Shed, retry_after_s: float = _RETRY_S) -> BusyError:
        """Count something that is not taken, and return the error that says so."""
        self._count(reason)
        return BusyError(reason, retry_after_s)
