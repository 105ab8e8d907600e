"""A TCP proxy in front of a gRPC server of this process, which limits connections, handshakes and their time.

gRPC's core accepts connections until no descriptor is left, and cannot close the connection of a caller that does not
read its answer. Here connections are counted before TLS, and forwarded byte for byte. Few handshakes are forwarded at a
time; those from known addresses have a queue of their own. It reads only the headers of TLS records, decides about no
call, and says how handshakes broke off, by kind and without an address: gRPC says nothing of them.
"""

import asyncio
import math
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Final, cast

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import split_listener

from fleetcount_transport.admission.admission import AdmissionTable, Broken, Shed
from fleetcount_transport.admission.reputation import Remembered, Reputation
from fleetcount_transport.admission.server_socket import ServerSocket, name_at_server
from fleetcount_transport.admission.tls_records import LONGEST_ALERT_BYTES, Flight, flight_of, is_alert, is_hello
from fleetcount_transport.admission.turns import FairQueue
from fleetcount_transport.logs import log

_BACKLOG: Final = 4096
_AT_ONCE: Final = 32
"""Connections accepted, or ended, before other tasks of the event loop run."""
_BUFFERED: Final = 1 << 18
"""Bytes waiting to be written to one side at which reading from the other side pauses."""
_READ_AT_ONCE: Final = 1 << 16
"""Bytes read at once, into one place for all connections: by itself asyncio allocates 256 KiB for every read, which
costs more than the read.
"""
_HOST_BITS: Final = 64
_REST_S: Final = 0.1
"""Seconds without accepting after the machine had no free descriptor."""
_OPENING: Final = "opening"
_BACKPRESSURE: Final = "backpressure"
_SHUT_OUT: Final = "shut out"
"""The reasons why a side is not read."""
_FLUSH_S: Final = 5.0
"""Seconds in which one side may read the last bytes of the other, after that has ended."""
_KNOWN_AT_ONCE: Final = 4
_OTHERS_AT_ONCE: Final = 1
"""Handshakes that the server works on at once, from known addresses and from others; further ones wait unread."""
_QUICK_S: Final = 0.005
"""Seconds within which a machine with an idle core answers a handshake."""
_LOOK_S: Final = 0.002
_LATE_S: Final = 0.001
"""After a handshake from an unknown address the gate sleeps `_LOOK_S`; with an idle core it wakes at most this late."""
_PAUSE: Final = 6.0
"""On a busy machine unknown addresses pause for this multiple of a handshake's time, so they get about 1/7 of it."""
_FLIGHTS: Final = 2
"""The flights of a client until its identity is known: two in TLS 1.3 (RFC 8446, section 2), beside a second hello if
the server asks for one."""
_SAY_S: Final = 60.0
"""Seconds between two lines of the log about handshakes that broke off."""
_TURN_S: Final = 0.05
"""Seconds after which a handshake loses its turn if the server has not answered."""
_ADDRESS_S: Final = 86_400.0
"""Seconds for which an address counts as known after a known identity came from it; in memory alone."""


def origin_of(address: str) -> str:
    """Return the unit of counting for an address: for IPv6 its /64 network, which one site may have (RFC 6177)."""
    if ":" not in address:
        return address
    ip = IPv6Address(address)
    return str(ip.ipv4_mapped or IPv6Network((int(ip) >> _HOST_BITS << _HOST_BITS, 128 - _HOST_BITS)))


def pause_s(took_s: float, late_s: float, *, is_answered: bool) -> float:
    """Return the pause of unknown addresses after a handshake of `took_s`, when this process woke up `late_s` late.

    A handshake without an answer does not show that the machine is slow: otherwise a client that sends garbage would
    delay all others.
    """
    is_busy = late_s > _LATE_S or (is_answered and took_s > _QUICK_S)
    return _PAUSE * (took_s + late_s) if is_busy else 0.0


class _Side(asyncio.BufferedProtocol):
    """One of the two sockets of a connection; the bytes it receives are written to the other."""

    other: "_Side"

    def __init__(self, connection: "_Connection") -> None:
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self._pauses: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = opened = cast("asyncio.Transport", transport)
        opened.set_write_buffer_limits(_BUFFERED)
        self.connection.made(self, opened)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.inbox

    def buffer_updated(self, nbytes: int) -> None:
        connection = self.connection
        data = connection.inbox[:nbytes].tobytes()
        if self is connection.client:
            if connection.flights:
                connection.on_hello(data)
                return
        else:
            connection.on_answer(len(data))
        if self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        # A client may close its sending side and still wait for answers; a server that closes ends the connection.
        if self is self.connection.server or self.other.transport is None:
            return False
        self.connection.on_client_eof()
        self.other.transport.write_eof()
        return True

    def pause_for(self, why: str) -> None:
        """Pause reading until every reason is removed."""
        self._pauses.add(why)
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_from(self, why: str) -> None:
        """Remove a reason; resume reading if it was the last."""
        self._pauses.discard(why)
        if not self._pauses and self.transport is not None:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.other.pause_for(_BACKPRESSURE)
        self.connection.on_backpressure(self)

    def resume_writing(self) -> None:
        self.connection.on_backpressure_end(self)
        self.other.resume_from(_BACKPRESSURE)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.lost(self)


class _Connection:
    """A client's connection: silent until its first flight, then forwarded, then proven by a call of a known
    certificate.

    `flights` is how many flights of the client still need a turn; `answered` becomes True with the server's next bytes.
    `_answer_bytes` counts what the server has said since the last of them, as far as the longest alert and the next
    bytes; `_gave_up` is whether the client sent an alert or its end instead of the next.
    """

    def __init__(self, front: "HandshakeGate", address: str) -> None:
        self.address = address
        self.inbox = front.inbox
        self.name = ""
        self.owner: bytes | None = None
        self.client = _Side(self)
        self.server = _Side(self)
        self.client.other, self.server.other = self.server, self.client
        self._front = front
        self._received = b""
        self._answer_bytes, self._asked_again, self._gave_up = 0, False, False
        self.flights = _FLIGHTS if front.tls else 1
        self.answered: asyncio.Future[bool] | None = None
        self.opening: asyncio.Task[None] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self.ended = False

    def made(self, side: _Side, transport: asyncio.Transport) -> None:
        """Note that one side is open."""
        if self.ended:
            transport.abort()
        elif side is self.server:
            self.name = name_at_server(transport.get_extra_info("socket"))
            self._front.opened(self)

    def on_hello(self, data: bytes) -> None:
        """Buffer the bytes of a handshake; once they are a whole flight, pause reading until it is forwarded."""
        self._received += data
        flight = flight_of(self._received) if self._front.tls else Flight.WHOLE
        if flight is Flight.FOREIGN:
            self._front.broke(Broken.NO_TLS)
            self._front.drop(self, Shed.HANDSHAKE)
        elif flight is Flight.WHOLE:
            self.client.pause_for(_OPENING)
            self._front.on_hello(self)

    async def pass_on(self) -> bool:
        """Forward the client's flight to the server; return whether it answered within `_TURN_S`."""
        if self.server.transport is None:
            return False
        loop = asyncio.get_running_loop()
        self.answered, self._answer_bytes = loop.create_future(), 0
        if self._front.tls:
            self._gave_up = is_alert(self._received)
        if self._front.tls and self.flights < _FLIGHTS and not self._asked_again and is_hello(self._received):
            self._asked_again = True  # The flight with the certificate is still to come.
        else:
            self.flights -= 1
        self.server.transport.write(self._received)
        self._received = b""
        self.client.resume_from(_OPENING)
        limit = loop.call_later(_TURN_S, self._settle, False)
        try:
            return await self.answered
        finally:
            limit.cancel()
            self.answered = None

    def _settle(self, is_answered: bool) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(is_answered)

    def on_client_eof(self) -> None:
        """Note that the client sends nothing more."""
        self._gave_up = True

    def on_answer(self, size: int) -> None:
        """Note bytes of the server."""
        self._settle(True)
        if self._answer_bytes <= LONGEST_ALERT_BYTES:
            self._answer_bytes += size

    def broken_by(self, side: _Side) -> Broken | None:
        """Return how the handshake broke off if `side` ended the connection; None if it was done, or never began."""
        is_done = self.owner is not None or (not self.flights and self._answer_bytes > LONGEST_ALERT_BYTES)
        if not self._front.tls or is_done or self.server.transport is None:
            return None
        if side is self.client or self._gave_up:
            return Broken.CALLER
        return Broken.HELLO if self.flights else Broken.CERTIFICATE

    def on_backpressure(self, side: _Side) -> None:
        """Start the timer of a client that does not read."""
        if side is self.client:
            self._end_in(self._front.limits.idle_s, Shed.UNREAD)

    def on_backpressure_end(self, side: _Side) -> None:
        """Stop the timer of a client that reads again."""
        if side is self.client and self._clock is not None:
            self._clock.cancel()

    def lost(self, side: _Side) -> None:
        """Close the other side too, after its last bytes are written."""
        if not self.ended and (broken := self.broken_by(side)) is not None:
            self._front.broke(broken)
        if side.other.transport is not None and not self.ended:
            side.other.transport.close()
            self._end_in(_FLUSH_S, None)
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
    """The connections of one listener, at most `most`; `count` is called for every one that is shed, and `count_broken`
    for every handshake that broke off.

    A connection with a call under an accepted certificate stays, up to `limits.connections_each` per certificate. Of
    the others the oldest is closed for a new one, silent ones first, and each has `limits.handshake_s` seconds from its
    start to its first call. With `tls` clients begin with a handshake.
    """

    def __init__(
        self,
        limits: AdmissionTable,
        most: int,
        count: Callable[[Shed], None] = lambda _: None,
        count_broken: Callable[[Broken], None] = lambda _: None,
        *,
        tls: bool = False,
    ) -> None:
        self.limits = limits
        self.inbox = memoryview(bytearray(_READ_AT_ONCE))
        self.tls = tls
        self._of_known, self._of_others = FairQueue(_KNOWN_AT_ONCE), FairQueue(_OTHERS_AT_ONCE)
        self._known, self._failed = Remembered[str](_ADDRESS_S), Remembered[str](limits.faults_s)
        self._most = most
        self._count = count
        self._count_broken = count_broken
        self._unsaid, self._said_at = Counter[Broken](), -math.inf
        self._behind: ServerSocket | None = None
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

    def listen(self, listener: str, behind: ServerSocket) -> int:
        """Accept connections at "host:port" and pass them on to the server's socket; return the port.

        The socket is the gate's from here on, which closes it.

        Raises:
            MachineError: the address is in use, or not an address of this machine.
        """
        host, port = split_listener(listener)
        self._behind = behind
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
        """Stop accepting; connections stay."""
        loop = asyncio.get_running_loop()
        for one in self._listening:
            loop.remove_reader(one)
            one.close()
        self._listening.clear()

    def close(self) -> None:
        """Stop accepting and close every connection."""
        self.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in self._work:
            task.cancel()
        for one in [*self._silent, *self._unproven, *(one for owned in self._proven.values() for one in owned)]:
            one.end()
        if self._behind is not None:
            self._behind.close()
            self._behind = None

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No descriptor is left on the machine: the backlog waits until some are free.
                self._count(Shed.CONNECTIONS)
                self._pause_accepting(listening)
                return
            origin = origin_of(address[0])
            if self._make_room(origin):
                self._open(accepted, origin)
            else:
                self._count(Shed.CONNECTIONS)
                accepted.close()

    def _pause_accepting(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def go_on() -> None:
            if listening in self._listening:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(_REST_S, go_on)

    def _make_room(self, address: str) -> bool:
        """Return whether there is room for a connection from an address, after closing another one if necessary."""
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

    def _open(self, accepted: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        # Otherwise a small answer waits 40 ms for the acknowledgement of the one before (Nagle's algorithm).
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

    # The life of a connection.

    def on_hello(self, connection: _Connection) -> None:
        """Forward a client's flight when it has its turn; the connection to the server is opened then."""
        if connection in self._silent:
            self._unproven[connection] = self._silent.pop(connection)
        connection.opening = self._begin(connection, self._pass_on(connection))

    async def _pass_on(self, connection: _Connection) -> None:
        reputation, loop = self._reputation(connection.address), asyncio.get_running_loop()
        is_known = reputation is Reputation.KNOWN
        async with (self._of_known if is_known else self._of_others).of(connection.address, reputation=reputation):
            begun = loop.time()
            if connection.server.transport is None:
                behind = cast("ServerSocket", self._behind)  # Closing ends all attempts.
                await loop.create_unix_connection(lambda: connection.server, sock=behind.connect())
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
        """Index a connection by the peer name that gRPC reports for it."""
        self._by_name[connection.name] = connection

    def prove(self, name: str, owner: bytes) -> None:
        """Note a call of the certificate `owner` on a connection, given by gRPC's peer name: it is now proven."""
        connection = self._by_name.get(name)
        if connection is None or connection.owner == owner:
            return
        self._unlist(connection)
        connection.owner = owner
        owned = self._proven.setdefault(owner, {})
        owned[connection] = None
        if len(owned) > self.limits.connections_each:
            self.drop(next(iter(owned)), Shed.CONNECTIONS)

    def hang_up(self, name: str, reason: Shed) -> None:
        """Close a connection, given by gRPC's peer name."""
        connection = self._by_name.get(name)
        if connection is not None:
            self.drop(connection, reason)

    def know(self, name: str) -> None:
        """Note that a known identity uses the address of a connection, given by gRPC's peer name."""
        connection = self._by_name.get(name)
        if connection is not None:
            self._known.note(connection.address)

    def rest(self, name: str, seconds: float) -> None:
        """Stop reading from a connection, given by gRPC's peer name, and close it after `seconds`.

        The close discards the bytes that wait by then: to read them would cost what not reading has saved.
        """
        connection = self._by_name.get(name)
        if connection is not None:
            connection.client.pause_for(_SHUT_OUT)
            self._failed.note(connection.address)
            asyncio.get_running_loop().call_later(seconds, connection.end)

    def broke(self, how: Broken) -> None:
        """Count a handshake that broke off; the log says so within a quarter of `handshake_s`, then once a minute."""
        self._count_broken(how)
        self._unsaid[how] += 1

    def _say_broken(self, now: float) -> None:
        if self._unsaid and now - self._said_at >= _SAY_S:
            log.warning("handshakes_failed", **{how.value: count for how, count in sorted(self._unsaid.items())})
            self._unsaid.clear()
            self._said_at = now

    def drop(self, connection: _Connection, reason: Shed | None) -> None:
        """Close a connection, and count the reason."""
        if not connection.ended and reason is not None:
            self._count(reason)
        connection.end()

    def ended(self, connection: _Connection) -> None:
        """Forget a closed connection; a handshake without a call counts as a failure of its address."""
        if connection in self._unproven:
            self._failed.note(connection.address)
        self._unlist(connection)
        self._by_name.pop(connection.name, None)
        self._all -= 1
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _unlist(self, connection: _Connection) -> None:
        """Remove a connection from the silent and unproven ones, or from its owner."""
        self._silent.pop(connection, None)
        self._unproven.pop(connection, None)
        if connection.owner is not None:
            owned = self._proven[connection.owner]
            del owned[connection]
            if not owned:
                del self._proven[connection.owner]

    def _sweep(self) -> None:
        """Close connections without a call within `handshake_s`, few at once, and schedule the next sweep."""
        loop, each_s = asyncio.get_running_loop(), self.limits.handshake_s
        over = [
            one
            for waiting in (self._silent, self._unproven)
            for one, since in waiting.items()
            if loop.time() - since >= each_s
        ]
        for one in over[:_AT_ONCE]:
            if self.tls and one.flights and one.server.transport is not None:
                self.broke(Broken.LATE)
            self.drop(one, Shed.HANDSHAKE)
        self._say_broken(loop.time())
        self._sweeping = loop.call_later(each_s / 4 if len(over) <= _AT_ONCE else _LOOK_S, self._sweep)
