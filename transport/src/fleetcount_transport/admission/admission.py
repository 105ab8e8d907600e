"""Limits of calls, bytes and failed signatures per identity, so that no identity occupies a whole server.

All listeners of a server share them. They depend on identities, sizes and a clock alone; nothing here opens a
connection or reads a message.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fleetcount_transport.admission.identity import LOCAL, Identity
from fleetcount_transport.admission.reputation import Remembered, Reputation
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

_FEW: Final = 32
"""A caller has few while it has at most 1/32 of its own limit."""
_PART: Final = 8
"""A caller with more than few may have at most 1/8 of what is free."""
_CALLS_OF_A_PARTY: Final = 64
_BYTES_OF_A_PARTY: Final = 32 << 20
_UNNAMED: Final = 16
"""Connections of callers whose identity is not known yet, beside those of the known parties."""
_RETRY_S: Final = 1.0
_KNOWN_S: Final = 86_400.0
"""Seconds for which an identity counts as known after a valid signature."""
_MOST_FAULTY: Final = 65_536
"""Identities whose faults are remembered, about 300 bytes each; beyond, the oldest are forgotten."""


class Shed(StrEnum):
    """The reasons for which a server sheds load: those of `fleetcount_shed_total`."""

    CALLS = "calls"
    BYTES = "bytes"
    FAULTS = "faults"
    FOREIGN = "foreign"
    IDLE = "idle"
    UNREAD = "unread"
    HANDSHAKE = "handshake"
    CONNECTIONS = "connections"


class Broken(StrEnum):
    """How a TLS handshake with a caller broke off: the kinds of `fleetcount_handshakes_failed_total`."""

    NO_TLS = "no_tls"
    """What the caller sent is no TLS."""
    HELLO = "hello"
    """This server ended it after the caller's hello: they have no version or cipher in common."""
    CERTIFICATE = "certificate"
    """This server ended it after the caller's certificate: there is none, it is over, or its authority is unknown."""
    CALLER = "caller"
    """The caller ended it after this server's certificate, which it may not accept."""
    LATE = "late"
    """The caller was not done in `handshake_s` seconds."""


class BusyError(Exception):
    """The server is busy; `retry_after_s` is a hint when to try again, in seconds."""

    def __init__(self, reason: Shed, retry_after_s: float = _RETRY_S) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after_s = retry_after_s


@settings
class AdmissionTable:
    """[admission]: the limits of each listener of a server.

    Connections in all, from one address, of one certificate (fewer where the limit of open files is too low).
    `handshake_s`: from the start of a connection to its first call; `idle_s`: for which a call waits for its caller, to
    send or to read. Calls and bytes of messages under way, in all and of one certificate. `faults_each` signatures of
    one identity may be invalid within `faults_s` seconds; after that its calls are refused unread until these are over.
    Of all unknown identities together `faults_unknown` may be invalid; after that one failure per identity is enough.
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
    """The shares of a resource: `total` in all, at most `each` per caller.

    The second half is reserved for callers with few, the last quarter for callers with nothing: so a new caller gets
    in, however many others use all they can. A request always fits while nothing is in use.
    """

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self.used = 0
        self.of: dict[bytes, int] = {}

    def acquire(self, who: bytes, size: int) -> bool:
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

    def release(self, who: bytes, size: int) -> None:
        self.used -= size
        self.of[who] -= size
        if not self.of[who]:
            del self.of[who]


def limits_for_peers(limits: AdmissionTable, parties: int) -> AdmissionTable:
    """Return the limits of a listener for `parties` known parties alone: each always has its whole share.

    Many windows of one leader end at once, and its batches are long; messages beyond its share wait at the leader.
    """
    parties = max(1, parties)
    return replace(
        limits,
        connections=limits.connections_each * parties + _UNNAMED,
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
    """The shares and faults of all identities at one server. `count` is called for everything that is shed.

    A listener calls in this order: `call` as soon as the caller's identity is known and before a byte of its message is
    read; `hold` for the message, once its size is known; `failed` for each invalid signature, and `held` for valid
    ones.
    """

    def __init__(
        self,
        limits: AdmissionTable | None = None,
        count: Callable[[Shed], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or AdmissionTable()
        self._count = count
        self._clock = clock
        self._calls = _Shares(self.limits.calls, self.limits.calls_each)
        self._bytes = _Shares(self.limits.bytes_in_memory, self.limits.bytes_each)
        self._faults: dict[Identity, _Faults] = {}
        self._known = Remembered[Identity](_KNOWN_S, clock)
        self._of_unknown = _Faults(0, 0.0)

    @property
    def callers(self) -> int:
        """How many identities have calls under way."""
        return len(self._calls.of)

    @contextmanager
    def call(self, who: Identity) -> Generator[None]:
        """Count a call while it lasts.

        Raises:
            BusyError: too many of its signatures were invalid, or it has used its share of calls.
        """
        self.check(who)
        if not self._calls.acquire(who.key, 1):
            raise self.shed(Shed.CALLS)
        try:
            yield
        finally:
            self._calls.release(who.key, 1)

    @contextmanager
    def hold(self, who: Identity, size: int) -> Generator[None]:
        """Count the bytes of a message while it is under way.

        Raises:
            BusyError: the caller has used its share of bytes.
        """
        if not self._bytes.acquire(who.key, size):
            raise self.shed(Shed.BYTES)
        try:
            yield
        finally:
            self._bytes.release(who.key, size)

    @contextmanager
    def admit(self, who: Identity, size: int) -> Generator[None]:
        """Count a call and its message of this size together: for listeners that get both at the same time.

        Raises:
            BusyError: as `call` and `hold`.
        """
        with self.call(who), self.hold(who, size):
            yield

    # Faults.

    def knows(self, who: Identity) -> bool:
        """Return whether a signature of this identity was valid within the last day."""
        return who in self._known or who == LOCAL

    def reputation(self, who: Identity) -> Reputation:
        """Return the priority of an identity for public-key work."""
        if self.knows(who):
            return Reputation.KNOWN
        faults = self._faults.get(who)
        return Reputation.NEW if faults is None or faults.until <= self._clock() else Reputation.FAILED

    def check(self, who: Identity) -> None:
        """Refuse an identity too many of whose signatures were invalid.

        Raises:
            BusyError: with the remaining time of the refusal.
        """
        faults = self._faults.get(who)
        if faults is None or faults.count < self._faults_allowed(who):
            return
        if (left := faults.until - self._clock()) > 0:
            raise self.shed(Shed.FAULTS, left)

    def _faults_allowed(self, who: Identity) -> int:
        """Return the failures after which an identity is refused: new identities share one budget."""
        spent = self._of_unknown.until > self._clock() and self._of_unknown.count >= self.limits.faults_unknown
        return 1 if spent and not self.knows(who) else self.limits.faults_each

    def held(self, who: Identity) -> None:
        """Note a valid signature: its identity gets priority over unknown ones."""
        self._known.note(who)

    def failed(self, who: Identity, count: int = 1) -> None:
        """Note invalid signatures; an identity that has used up its faults is no longer known."""
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
        """Count a shed, and return the error to raise for it."""
        self._count(reason)
        return BusyError(reason, retry_after_s)
