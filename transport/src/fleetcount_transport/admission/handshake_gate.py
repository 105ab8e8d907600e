"""A listener in front of a gRPC server of this process: who may connect, how often, and how long without a call.

gRPC's core accepts whoever comes until no descriptor is left, and cannot let go of a caller that takes no answer. Here
connections are counted before TLS, and passed on byte for byte. Handshakes are passed on few at a time, those from
known addresses by a way of their own. Reads nothing but the heads of TLS records, and decides about no call.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Final, cast

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import split_listener

from fleetcount_transport.admission.admission import AdmissionTable, Shed
from fleetcount_transport.admission.reputation import Remembered, Reputation
from fleetcount_transport.admission.tls_records import Flight, flight_of
from fleetcount_transport.admission.turns import FairQueue

_BACKLOG: Final = 4096
_AT_ONCE: Final = 32
"""Connections accepted, or ended, before others on the event loop have their turn."""
_BUFFERED: Final = 1 << 18
"""Bytes that wait to be written to one side before the other is read no more."""
_HOST_BITS: Final = 64
_REST_S: Final = 0.1
"""How long nothing is accepted after the machine had no descriptor for it."""
_OPENING: Final = "opening"
_CLOGGED: Final = "on_backpressure"
_RESTING: Final = "resting"
"""Why a side is not read."""
_LAST_WORDS_S: Final = 5.0
"""How long one side may take for what the other sent before it ended."""
_KNOWN_AT_ONCE: Final = 4
_OTHERS_AT_ONCE: Final = 1
"""Handshakes that the server works on at once, from addresses one knows and from all others; more wait unread."""
_QUICK_S: Final = 0.005
"""A machine with a core to spare answers sooner."""
_LOOK_S: Final = 0.002
_LATE_S: Final = 0.001
"""After a handshake of others this process asks to go on in a moment; with a core to spare it is no later than this."""
_PAUSE: Final = 6.0
"""Where there is none, they pause so many times what a handshake took, which also cost what nobody waited for."""
_FLIGHTS: Final = 2
"""What a client says until it has a name, each time for an answer: TLS 1.3 has two flights (RFC 8446, section 2)."""
_TURN_S: Final = 0.05
"""How long a handshake has its turn if the server answers nothing; the others do not wait for it longer."""
_ADDRESS_S: Final = 86_400.0
"""How long it is remembered of an address, in memory alone, that somebody known came from there, or nobody."""


def origin_of(address: str) -> str:
    """Return what counts as one address: of IPv6 the network of 64 bits, all of which one host has (RFC 6177)."""
    if ":" not in address:
        return address
    ip = IPv6Address(address)
    return str(ip.ipv4_mapped or IPv6Network((int(ip) >> _HOST_BITS << _HOST_BITS, 128 - _HOST_BITS)))


def pause_s(took_s: float, late_s: float, *, is_answered: bool) -> float:
    """Return how long others wait after a handshake that took so long, this process going on so late after it.

    That a server has no answer does not say that the machine is slow: who speaks nonsense would hold all others up.
    """
    is_busy = late_s > _LATE_S or (is_answered and took_s > _QUICK_S)
    return _PAUSE * (took_s + late_s) if is_busy else 0.0


class _Side(asyncio.Protocol):
    """One of the two sockets of a connection; what it receives is written to the other."""

    other: "_Side"

    def __init__(self, connection: "_Connection") -> None:
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self._held: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = opened = cast("asyncio.Transport", transport)
        opened.set_write_buffer_limits(_BUFFERED)
        self.connection.made(self, opened)

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if self is connection.client:
            if connection.flights:
                connection.on_hello(data)
                return
        elif connection.answered is not None:
            connection.answered.set()
        if self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        # A client that has said all may still wait for answers; a server that has ends the connection.
        if self is self.connection.server or self.other.transport is None:
            return False
        self.other.transport.write_eof()
        return True

    def hold(self, why: str) -> None:
        """Read nothing until every reason is gone."""
        self._held.add(why)
        if self.transport is not None:
            self.transport.pause_reading()

    def free(self, why: str) -> None:
        """Take a reason away."""
        self._held.discard(why)
        if not self._held and self.transport is not None:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.other.hold(_CLOGGED)
        self.connection.on_backpressure(self)

    def resume_writing(self) -> None:
        self.connection.on_backpressure_end(self)
        self.other.free(_CLOGGED)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.lost(self)


class _Connection:
    """A client's connection: silent until its first bytes, then passed on, then proven by a call of one with a name.

    `flights` is how often what its client says still waits for a turn; `answered` is set by the server's next word.
    """

    def __init__(self, front: "HandshakeGate", address: str) -> None:
        self.address = address
        self.name = ""
        self.owner: bytes | None = None
        self.client = _Side(self)
        self.server = _Side(self)
        self.client.other, self.server.other = self.server, self.client
        self._front = front
        self._said = b""
        self.flights = _FLIGHTS if front.tls else 1
        self.answered: asyncio.Event | None = None
        self.opening: asyncio.Task[None] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self.ended = False

    def made(self, side: _Side, transport: asyncio.Transport) -> None:
        """Note that one side is open."""
        if self.ended:
            transport.abort()
        elif side is self.server:
            address, port = transport.get_extra_info("sockname")
            self.name = f"ipv4:{address}:{port}"
            self._front.opened(self)

    def on_hello(self, data: bytes) -> None:
        """Take what a client says before it has a name, and once it is a flight, read no more until it is passed on."""
        self._said += data
        flight = flight_of(self._said) if self._front.tls else Flight.WHOLE
        if flight is Flight.FOREIGN:
            self._front.drop(self, Shed.HANDSHAKE)
        elif flight is Flight.WHOLE:
            self.client.hold(_OPENING)
            self._front.on_hello(self)

    async def pass_on(self) -> bool:
        """Give the server what the client has said; return whether it had an answer within a moment."""
        if self.server.transport is None:
            return False
        self.answered, self.flights = asyncio.Event(), self.flights - 1
        self.server.transport.write(self._said)
        self._said = b""
        self.client.free(_OPENING)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TURN_S):
                await self.answered.wait()
        is_answered, self.answered = self.answered.is_set(), None
        return is_answered

    def on_backpressure(self, side: _Side) -> None:
        """Begin to wait for a client that takes nothing."""
        if side is self.client:
            self._end_in(self._front.limits.idle_s, Shed.UNREAD)

    def on_backpressure_end(self, side: _Side) -> None:
        """Wait no longer."""
        if side is self.client and self._clock is not None:
            self._clock.cancel()

    def lost(self, side: _Side) -> None:
        """End the other side too, after what it was sent last."""
        if side.other.transport is not None and not self.ended:
            side.other.transport.close()
            self._end_in(_LAST_WORDS_S, None)
        side.transport = None
        if side.other.transport is None:
            self.end()

    def end(self) -> None:
        """End both sides at once."""
        if self.ended:
            return
        self.ended = True
        if self._clock is not None:
            self._clock.cancel()
        if self.opening is not None and self.opening is not asyncio.current_task():
            self.opening.cancel()
        for side in (self.client, self.server):
            if side.transport is not None:
                side.transport.abort()
        self._front.ended(self)

    def _end_in(self, seconds: float, reason: Shed | None) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.get_running_loop().call_later(seconds, self._front.drop, self, reason)


class HandshakeGate:
    """The connections of one listener, at most `most`; `count` hears of every one that is not kept.

    Who has made a call under a certificate that is served keeps its connection, `limits.connections_each` of them. Of
    the others the oldest makes room for a new one, those that have said nothing first, and each has
    `limits.handshake_s` from its beginning to its first call. With `tls` clients begin with a handshake.
    """

    def __init__(
        self, limits: AdmissionTable, most: int, count: Callable[[Shed], None] = lambda _: None, *, tls: bool = False
    ) -> None:
        self.limits = limits
        self.tls = tls
        self._of_known, self._of_others = FairQueue(_KNOWN_AT_ONCE), FairQueue(_OTHERS_AT_ONCE)
        self._known, self._failed = Remembered[str](_ADDRESS_S), Remembered[str](limits.faults_s)
        self._most = most
        self._count = count
        self._upstream = 0
        self._listening: list[socket.socket] = []
        self._silent: dict[_Connection, float] = {}
        self._unproven: dict[_Connection, float] = {}
        self._proven: dict[bytes, dict[_Connection, None]] = {}
        self._all = 0
        self._by_address = Counter[str]()
        self._by_name: dict[str, _Connection] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return self._all

    # Listening.

    def listen(self, listener: str, upstream: int) -> int:
        """Accept connections at "host:port" and pass them on to a port of this machine; return the port.

        Raises:
            MachineError: the address is in use, or not an address of this machine.
        """
        host, port = split_listener(listener)
        self._upstream = upstream
        try:
            for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
                one = socket.create_server((address[0], port), family=family, backlog=_BACKLOG)
                one.setblocking(False)
                self._listening.append(one)
                port = port or int(one.getsockname()[1])
        except OSError as error:
            self.close()
            raise MachineError(f"cannot listen on {listener}: {error.strerror}") from error
        for one in self._listening:
            asyncio.get_running_loop().add_reader(one, self._accept, one)
        self._sweep()
        return port

    def stop(self) -> None:
        """Accept nobody any more; connections stay."""
        loop = asyncio.get_running_loop()
        for one in self._listening:
            loop.remove_reader(one)
            one.close()
        self._listening.clear()

    def close(self) -> None:
        """End everything."""
        self.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in self._work:
            task.cancel()
        for one in [*self._silent, *self._unproven, *(one for owned in self._proven.values() for one in owned)]:
            one.end()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No descriptor is left, whoever has them: those that wait are taken when some are free.
                self._count(Shed.CONNECTIONS)
                self._rest(listening)
                return
            origin = origin_of(address[0])
            if self._make_room(origin):
                self._take(accepted, origin)
            else:
                self._count(Shed.CONNECTIONS)
                accepted.close()

    def _rest(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def go_on() -> None:
            if listening in self._listening:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(_REST_S, go_on)

    def _make_room(self, address: str) -> bool:
        """Return whether there is room for a connection from an address, after another one has left if need be."""
        if self._by_address[address] >= self.limits.connections_by_address:
            return self._drop_oldest(lambda one: one.address == address)
        return self._all < self._most or self._drop_oldest(lambda _: True)

    def _drop_oldest(self, which: Callable[[_Connection], bool]) -> bool:
        for waiting in (self._silent, self._unproven):
            for one in waiting:
                if which(one):
                    self.drop(one, Shed.CONNECTIONS)
                    return True
        return False

    def _take(self, accepted: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        # An answer that waits for the acknowledgement of the one before would take 40 ms.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(self, address)
        self._silent[connection] = loop.time()
        self._all += 1
        self._by_address[address] += 1
        self._begin(connection, loop.connect_accepted_socket(lambda: connection.client, accepted))

    def _begin(self, connection: _Connection, opening: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
        async def attempt() -> None:
            try:
                await opening
            except OSError:
                self.drop(connection, Shed.CONNECTIONS)

        task = asyncio.get_running_loop().create_task(attempt())
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    # What becomes of a connection.

    def on_hello(self, connection: _Connection) -> None:
        """Pass on what a client said when it is its turn; the way to the server is opened then."""
        if connection in self._silent:
            self._unproven[connection] = self._silent.pop(connection)
        connection.opening = self._begin(connection, self._pass_on(connection))

    async def _pass_on(self, connection: _Connection) -> None:
        reputation, loop = self._reputation(connection.address), asyncio.get_running_loop()
        is_known = reputation is Reputation.KNOWN
        async with (self._of_known if is_known else self._of_others).of(connection.address, reputation=reputation):
            begun = loop.time()
            if connection.server.transport is None:
                await loop.create_connection(lambda: connection.server, "127.0.0.1", self._upstream)
            is_answered = await connection.pass_on()
            if not is_known:
                took_s, wakes_at = loop.time() - begun, loop.time() + _LOOK_S
                await asyncio.sleep(_LOOK_S)
                await asyncio.sleep(pause_s(took_s, loop.time() - wakes_at, is_answered=is_answered))

    def _reputation(self, address: str) -> Reputation:
        if address in self._known:
            return Reputation.KNOWN
        return Reputation.FAILED if address in self._failed else Reputation.NEW

    def opened(self, connection: _Connection) -> None:
        """Remember by which name the server knows a connection."""
        self._by_name[connection.name] = connection

    def prove(self, name: str, owner: bytes) -> None:
        """Keep a connection since somebody makes a call on it, by the name that the server knows it by."""
        connection = self._by_name.get(name)
        if connection is None or connection.owner == owner:
            return
        self._let_go(connection)
        connection.owner = owner
        owned = self._proven.setdefault(owner, {})
        owned[connection] = None
        if len(owned) > self.limits.connections_each:
            self.drop(next(iter(owned)), Shed.CONNECTIONS)

    def hang_up(self, name: str, reason: Shed) -> None:
        """End a connection by the name that the server knows it by."""
        connection = self._by_name.get(name)
        if connection is not None:
            self.drop(connection, reason)

    def know(self, name: str) -> None:
        """Remember the address of a connection, by the name that the server knows it by: somebody known is there."""
        connection = self._by_name.get(name)
        if connection is not None:
            self._known.note(connection.address)

    def rest(self, name: str, seconds: float) -> None:
        """Read nothing more from a connection, by the name that the server knows it by, and end it after a while.

        What has piled up by then ends with it: read at once, it would cost as much as what was not read saved.
        """
        connection = self._by_name.get(name)
        if connection is not None:
            connection.client.hold(_RESTING)
            self._failed.note(connection.address)
            asyncio.get_running_loop().call_later(seconds, connection.end)

    def drop(self, connection: _Connection, reason: Shed | None) -> None:
        """End a connection, and count why."""
        if not connection.ended and reason is not None:
            self._count(reason)
        connection.end()

    def ended(self, connection: _Connection) -> None:
        """Forget a connection that has ended; one that said something and had no name says something of its address."""
        if connection in self._unproven:
            self._failed.note(connection.address)
        self._let_go(connection)
        self._by_name.pop(connection.name, None)
        self._all -= 1
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _let_go(self, connection: _Connection) -> None:
        """Take a connection out of the lines of those that are not proven, or from its owner."""
        self._silent.pop(connection, None)
        self._unproven.pop(connection, None)
        if connection.owner is not None:
            owned = self._proven[connection.owner]
            del owned[connection]
            if not owned:
                del self._proven[connection.owner]

    def _sweep(self) -> None:
        """End connections that have made no call in their time, now and again and again; few at once, as they come."""
        loop, each_s = asyncio.get_running_loop(), self.limits.handshake_s
        over = [
            one
            for waiting in (self._silent, self._unproven)
            for one, since in waiting.items()
            if loop.time() - since >= each_s
        ]
        for one in over[:_AT_ONCE]:
            self.drop(one, Shed.HANDSHAKE)
        self._sweeping = loop.call_later(each_s / 4 if len(over) <= _AT_ONCE else _LOOK_S, self._sweep)
