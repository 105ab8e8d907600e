"""The connection of every party to an MQTT 3.1.1 broker: opened and closed at once, on demand, or kept open.

It must not depend on a topic or a message of fleetcount. No other module may use internals of the MQTT library.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Self, TypeVar

import aiomqtt
from fleetcount_protocol.ids import split_endpoint
from fleetcount_protocol.limits import MAX_MQTT_PACKET_BYTES

from fleetcount_transport.mqtt_packets import (
    PUBACK,
    PUBLISH,
    PacketReader,
    Publication,
    ViolationError,
    acknowledgement,
    publication,
)

_QUIET: Final = logging.getLogger("fleetcount_transport.mqtt")
_QUIET.setLevel(logging.CRITICAL)  # Its errors are lost connections, and answers without a waiting caller.
_NO_DELAY: Final = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
"""Without it a small packet waits for TCP's acknowledgement of the one before it, 40 ms on Linux."""
_CHUNK_BYTES: Final = 32 * 1024
"""Bytes read at once: many messages share one write of acknowledgements, and other tasks run in between."""
_REFUSED: Final = 0x80
"""The return code of a topic that a broker does not grant (MQTT 3.1.1, section 3.9.3)."""
_PACKET_IDS: Final = 65_535
"""Also the most acknowledgements that a broker may leave unread."""
_LOOKS_A_PING: Final = 12
"""A ping, or the end of waiting for its answer, comes late by this part of the time between two at most."""
_ResultT = TypeVar("_ResultT")


class MqttConnection(aiomqtt.Client):
    """aiomqtt with an immediate end, bounds, and acknowledgements by the caller where wanted (decisions 11 and 31).

    It mends six faults of the library, which acknowledges on receipt, so that a crash loses its queue; lets callers
    wait for acknowledgements of a lost connection; leaves socket and task of a cancelled connect behind; watches file
    descriptors, which may be another socket's by then; buffers any packet that a broker announces, up to 256 MiB (a
    `PacketReader` reads here, messages go straight to `arrived`); and wakes a vehicle each second to look for a ping.
    """

    def __init__(
        self,
        broker: str,
        *,
        identifier: str,
        arrived: Callable[[Publication], bool],
        **settings: Any,
    ) -> None:
        """Prepare a connection to "host:port".

        `arrived` gets every message, on the event loop, and returns whether to acknowledge it now: if not, the caller
        does so later (`acknowledge`). `settings` are the library's: session, time limits, login.

        Raises:
            UsageError: `broker` is no endpoint.
        """
        host, port = split_endpoint(broker)
        super().__init__(host, port, identifier=identifier, socket_options=[_NO_DELAY], logger=_QUIET, **settings)
        self._arrived = arrived
        self._packets = PacketReader(MAX_MQTT_PACKET_BYTES)
        self._for_library = bytearray()
        self._at_end = False
        self._violation: ViolationError | None = None
        # The library reads from the socket by this method alone.
        self._client._sock_recv = self._read_for_library  # type: ignore[method-assign] # pyright: ignore[reportPrivateUsage]
        self._connect_ended = self._left = False
        self._unkept: dict[int, asyncio.Future[None] | None] = {}
        self.subscribed: set[str] = set()
        self.is_resumed = False
        """Whether the broker has resumed a session of this client id, with its subscriptions."""

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            MqttError: there is no broker, or it refuses, disconnects or does not answer; socket and task are closed.
        """
        try:
            await super().__aenter__()
            if self._client.socket() is None:  # Lost again between CONNACK and here.
                raise self._lost_error()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *reason: object) -> None:
        """Send DISCONNECT if the socket accepts it now, and close; it never waits for the broker and never raises."""
        self._client.disconnect()
        self._client.loop_write()
        await self._leave()

    def send(self, messages: Sequence[tuple[str, bytes]], *, retain: bool = False) -> "asyncio.Future[None]":
        """Publish topics and payloads in one write with QoS 1; what it returns is done when the last is acknowledged.

        Raises:
            MqttError: the connection was lost, or the broker leaves as many messages unacknowledged as there are ids.
        """
        if not self._client.is_connected():
            raise self._lost_error()
        if len(messages) + len(self._unkept) > _PACKET_IDS:
            raise aiomqtt.MqttError(f"the broker leaves more than {_PACKET_IDS} messages unacknowledged")
        kept, packets = self._loop.create_future(), list[bytes]()
        for at, message in enumerate(messages, start=1):
            # The library's ids: it takes one for a subscription.
            while (packet_id := self._client._mid_generate()) in self._unkept:  # pyright: ignore[reportPrivateUsage]
                pass
            self._unkept[packet_id] = kept if at == len(messages) else None
            packets.append(publication(*message, packet_id, retain=retain))
        if packets:
            self._client._packet_queue(PUBLISH, b"".join(packets), 0, 1)  # pyright: ignore[reportPrivateUsage]
        else:
            kept.set_result(None)
        return kept

    async def publish_all(self, messages: Sequence[tuple[str, bytes]], *, retain: bool = False) -> None:
        """Send messages, in order, and wait until the broker has acknowledged the last.

        Raises:
            MqttError: as `send`, or the broker does not answer.
        """
        await self._wait_for(self.send(messages, retain=retain), None)

    async def subscribe(self, *arguments: Any, **settings: Any) -> tuple[int, ...] | list[Any]:
        """Subscribe, with the library's arguments; return when the broker has granted every topic.

        Raises:
            MqttError: the connection was lost, the broker does not answer, or it refuses a topic, whose messages would
                otherwise be missing without an error.
        """
        granted = await super().subscribe(*arguments, **settings)
        refused = sum(getattr(one, "value", one) >= _REFUSED for one in granted)
        if refused:
            raise aiomqtt.MqttError(f"not authorised: the broker refuses {refused} of {len(granted)} topics")
        return granted

    def acknowledge(self, messages: Iterable[Publication]) -> None:
        """Acknowledge messages (PUBACK), so that the broker does not deliver them again."""
        acks = b"".join(acknowledgement(one.packet_id) for one in messages if one.packet_id is not None)
        if not acks:
            return
        self._client._packet_queue(PUBACK, acks, 0, 1)  # pyright: ignore[reportPrivateUsage]  # All in one write.
        waiting = self._client._out_packet  # pyright: ignore[reportPrivateUsage]
        if len(waiting) > 64:
            unsent = sum(one["to_process"] for one in waiting if one["command"] == PUBACK)
            if unsent > _PACKET_IDS * len(acknowledgement(1)):
                self._end(ViolationError(f"the broker leaves more than {_PACKET_IDS} acknowledgements unread"))

    def pause(self) -> None:
        """Read nothing until `resume`: TCP flow control stops the broker."""
        self._watch(reads=False)

    def resume(self) -> None:
        """Read again."""
        self._watch(reads=True)

    async def until_lost(self) -> None:
        """Wait for the end of the connection.

        Raises:
            MqttError: always; with the broker's violation of the protocol, if there was one.
        """
        await asyncio.wait({self._disconnected})
        raise self._lost_error()

    def _on_connect(
        self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any | None = None
    ) -> None:
        self.is_resumed = bool(flags.session_present)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    # Reading.

    def _watch(self, *, reads: bool) -> None:
        sock = self._client.socket()
        if sock is None or sock.fileno() < 0:
            return
        if reads:
            self._loop.add_reader(sock.fileno(), self._read)
        else:
            self._loop.remove_reader(sock.fileno())

    async def _misc_loop(self) -> None:
        while not self._client.loop_misc():  # noqa: ASYNC110 - the library's loop; its code of success is 0.
            await asyncio.sleep(self._keepalive / _LOOKS_A_PING)

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        # Runs in the thread that connects.
        def begin() -> None:
            self._misc_task = self._loop.create_task(self._misc_loop())
            self._watch(reads=True)

        self._loop.call_soon_threadsafe(begin)

    def _read(self) -> None:
        try:
            data, at_end = self._receive()
            self._dispatch(data)
            if at_end:
                self._at_end = True
                self._client.loop_read()
        except Exception as error:
            self._end(error)

    def _receive(self) -> tuple[bytes, bool]:
        """Return the available bytes, and whether the stream has ended. It loops: TLS gives one record per call."""
        sock, data = self._client.socket(), bytearray()
        while sock is not None and len(data) < _CHUNK_BYTES:
            try:
                part = sock.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                part = b""
            if not part:
                return bytes(data), True
            data += part
        return bytes(data), False

    def _dispatch(self, data: bytes) -> None:
        """Dispatch the packets that these bytes complete: messages to `arrived`, others to their asker."""
        done: list[Publication] = []
        for packet in self._packets.feed(data):
            if isinstance(packet, Publication):
                if self._arrived(packet):
                    done.append(packet)
            elif packet.acknowledges in self._unkept:
                kept = self._unkept.pop(packet.acknowledges)
                if kept is not None and not kept.done():
                    kept.set_result(None)
            else:
                self._for_library += packet.data
                self._client.loop_read()
        self.acknowledge(done)

    def _read_for_library(self, bufsize: int) -> bytes:
        """Read for the library, in place of its socket: bytes of complete packets, or b"" at the end."""
        if not self._for_library and not self._at_end:
            raise BlockingIOError
        given = bytes(self._for_library[:bufsize])
        del self._for_library[:bufsize]
        return given

    def _end(self, error: Exception) -> None:
        """Close at once, and fail every waiting caller with the error."""
        self._violation = error if isinstance(error, ViolationError) else None
        for future in (self._connected, self._disconnected):
            if not future.done():
                future.set_exception(error)
        self._close()

    def _lost_error(self) -> aiomqtt.MqttError:
        return aiomqtt.MqttError("the connection was lost" if self._violation is None else str(self._violation))

    # Ends.

    async def _wait_for(self, fut: Awaitable[_ResultT], timeout: float | None) -> _ResultT:  # noqa: ASYNC109 - its name.
        # Replaces the library's method: it ends when the connection is lost. Besides, asyncio.wait_for of Python 3.11
        # loses a cancellation that arrives together with the answer.
        limit_s = self.timeout if timeout is None else timeout
        waiting = asyncio.ensure_future(fut)
        ends: set[asyncio.Future[Any]] = {waiting, self._disconnected}
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise aiomqtt.MqttError(f"the broker did not answer within {limit_s:g} s") from None
        finally:
            waiting.cancel()
        if self._disconnected.done():
            raise self._lost_error()
        return waiting.result()

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None) -> None:
        if self._connected.done():
            super()._on_disconnect(client, userdata, flags, reason_code, properties)
        else:
            self._connected.set_exception(aiomqtt.MqttError("the broker closed the connection"))

    def _client_connect(self) -> None:
        # Runs in a thread, which continues when its caller is cancelled.
        try:
            super()._client_connect()
        finally:
            self._loop.call_soon_threadsafe(self._note_end_of_connect)

    def _note_end_of_connect(self) -> None:
        self._connect_ended = True
        if self._left:
            self._close()

    async def _leave(self) -> None:
        """Close, or let the thread that is still connecting close; read errors that no caller will read."""
        self._left = True
        for future in (self._connected, self._disconnected):
            # By callbacks, not after the wait below: a party that is being stopped is cancelled in that wait.
            future.add_done_callback(_read_error)
        if self._connect_ended:
            self._close()
            if self._misc_task is not None:
                await asyncio.wait({self._misc_task})

    def _close(self) -> None:
        """Close the socket, which the event loop then no longer watches, and end the task that sends pings."""
        self._client._sock_close()  # pyright: ignore[reportPrivateUsage]  # The library has no other immediate end.
        if self._misc_task is not None:
            self._misc_task.cancel()

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except OSError as error:
                if not self._disconnected.done():
                    self._disconnected.set_exception(error)

        def begin() -> None:
            # Nearly always the socket takes all at once, and is not watched.
            if sock.fileno() >= 0:
                write()
            if sock.fileno() >= 0 and client.want_write():
                self._loop.add_writer(sock.fileno(), write)

        try:
            asyncio.get_running_loop().call_soon(begin)
        except RuntimeError:  # The thread that connects.
            self._loop.call_soon_threadsafe(begin)


def _read_error(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


class MqttOnDemand:
    """A connection that is opened at the first use, and at the first use after it was lost; it never retries by itself.

    `lost` gets the error that ended a connection; `prepare`, for example subscriptions, is awaited once per connection.
    """

    def __init__(
        self,
        new: Callable[[], MqttConnection],
        lost: Callable[[aiomqtt.MqttError], None],
        prepare: Callable[[MqttConnection], Awaitable[None]],
    ) -> None:
        self._new = new
        self._lost = lost
        self._prepare = prepare
        self._opening = asyncio.Lock()
        self._connection: MqttConnection | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def use(self) -> MqttConnection:
        """Return the connection, opened if necessary.

        Raises:
            MqttError: there is no broker, or it refuses, disconnects or does not answer.
        """
        async with self._opening:
            if self._connection is not None and self._watcher is not None and not self._watcher.done():
                return self._connection
            await self.close()
            connection = self._new()
            await connection.__aenter__()
            self._connection = connection
            self._watcher = asyncio.create_task(self._watch(connection), name="MQTT connection")
            try:
                await self._prepare(connection)
            except BaseException:
                await self.close()
                raise
            return connection

    async def close(self) -> None:
        """Leave the broker; the next use connects again."""
        connection, watcher = self._connection, self._watcher
        self._connection = self._watcher = None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        if connection is not None:
            await connection.__aexit__(None, None, None)

    async def _watch(self, connection: MqttConnection) -> None:
        try:
            await connection.until_lost()
        except aiomqtt.MqttError as error:
            self._lost(error)
