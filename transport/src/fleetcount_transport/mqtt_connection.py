"""The connection to an MQTT 3.1.1 broker of every party: one that can be closed, opened on demand or kept open.

It must not depend on a topic or a message of fleetcount. No other module may use internals of the MQTT library.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self, TypeVar

import aiomqtt
from fleetcount_protocol.endpoint import split_endpoint

__all__ = ["MqttConnection", "MqttOnDemand", "Reconnecting"]

_QUIET: Final = logging.getLogger("fleetcount_transport.mqtt")
_QUIET.setLevel(logging.CRITICAL)  # Its errors are lost connections, and answers without a waiting caller.
_NO_DELAY: Final = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
"""Without it a small packet waits for TCP's acknowledgement of the one before it, 40 ms on Linux."""
_FIRST_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0
_ResultT = TypeVar("_ResultT")


class MqttConnection(aiomqtt.Client):
    """aiomqtt with an end, and where wanted with acknowledgements by the caller (docs/decisions/0011).

    The library acknowledges on receipt and so loses what a crash finds in its queue. When a connection is lost, its
    callers wait for acknowledgements that cannot come; a connection that is given up half-way leaves its socket and
    a task behind; and it watches sockets by number, which may be another socket's when the event loop gets to it.
    """

    def __init__(self, broker: str, *, identifier: str, acknowledges: bool = True, **settings: Any) -> None:
        """Prepare a connection to "host:port"; not `acknowledges`, the caller does it (`acknowledge`).

        `settings` are the library's: session, time limits, bounds of its queues, login.

        Raises:
            UsageError: `broker` is no endpoint.
        """
        host, port = split_endpoint(broker)
        super().__init__(host, port, identifier=identifier, socket_options=[_NO_DELAY], logger=_QUIET, **settings)
        self._client.manual_ack_set(not acknowledges)
        self._connect_ended = self._left = False
        self.subscribed: set[str] = set()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            MqttError: there is no broker, or it refuses, hangs up or is silent; nothing of the attempt is left.
        """
        try:
            return await super().__aenter__()
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(self, *reason: object) -> None:
        """Say good-bye if the socket takes it now, and close; never waits for the broker and never raises."""
        self._client.disconnect()
        self._client.loop_write()
        await self._leave()

    def send(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 1 and do not wait for the acknowledgement: the caller waits for the answer anyway.

        Raises:
            MqttError: the connection was lost.
        """
        if not self._client.is_connected():
            raise aiomqtt.MqttError("the connection was lost")
        self._client.publish(topic, payload, qos=1)

    async def publish_all(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Publish topics and payloads with QoS 1, and wait until the broker has acknowledged the last.

        Everything is on its way, in order, before the first wait.

        Raises:
            MqttError: the connection was lost, or the broker is silent.
        """
        for topic, payload in messages[:-1]:
            self._client.publish(topic, payload, qos=1)
        for topic, payload in messages[-1:]:
            await self.publish(topic, payload, qos=1)

    def acknowledge(self, message: aiomqtt.Message) -> None:
        """Let the broker forget a message."""
        if message.qos:
            self._client.ack(message.mid, message.qos)

    def take_arrived(self, most: int) -> list[aiomqtt.Message]:
        """Return at most `most` of the messages that are here already."""
        return [self._queue.get_nowait() for _ in range(min(most, self._queue.qsize()))]

    async def _wait_for(self, fut: Awaitable[_ResultT], timeout: float | None) -> _ResultT:  # noqa: ASYNC109 - its name.
        # Also, asyncio.wait_for of Python 3.11 loses a cancellation that comes together with the answer.
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
            raise aiomqtt.MqttError("the connection was lost")
        return waiting.result()

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None) -> None:
        if self._connected.done():
            super()._on_disconnect(client, userdata, flags, reason_code, properties)
        else:
            self._connected.set_exception(aiomqtt.MqttError("the broker hung up"))

    def _client_connect(self) -> None:
        # Runs in a thread, which goes on when its caller is cancelled.
        try:
            super()._client_connect()
        finally:
            self._loop.call_soon_threadsafe(self._note_end_of_connect)

    def _note_end_of_connect(self) -> None:
        self._connect_ended = True
        if self._left:
            self._close()

    async def _leave(self) -> None:
        """Close, or let the thread that still connects close; read errors that no caller will read."""
        self._left = True
        if self._connect_ended:
            self._close()
            if self._misc_task is not None:
                await asyncio.wait({self._misc_task})
        for future in (self._connected, self._disconnected):
            if future.done() and not future.cancelled():
                future.exception()

    def _close(self) -> None:
        """Close the socket; the event loop watches it no more, and the task that sends pings ends."""
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

        def watch() -> None:
            if sock.fileno() >= 0:
                self._loop.add_writer(sock.fileno(), write)

        self._loop.call_soon_threadsafe(watch)


class MqttOnDemand:
    """A connection that is opened at the first use, and at the next one after it was lost; never retries by itself.

    `take` gets topic and payload of everything that arrives, `lost` the error that ended a connection; `prepare`, say
    subscriptions, is awaited once a connection.
    """

    def __init__(
        self,
        new: Callable[[], MqttConnection],
        take: Callable[[str, bytes], None],
        lost: Callable[[aiomqtt.MqttError], None],
        prepare: Callable[[MqttConnection], Awaitable[None]] | None = None,
    ) -> None:
        self._new = new
        self._take = take
        self._lost = lost
        self._prepare = prepare
        self._opening = asyncio.Lock()
        self._connection: MqttConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    async def use(self) -> MqttConnection:
        """Return the connection, opened if need be.

        Raises:
            MqttError: there is no broker, or it refuses, hangs up or is silent.
        """
        async with self._opening:
            if self._connection is not None and self._reader is not None and not self._reader.done():
                return self._connection
            await self.close()
            connection = self._new()
            await connection.__aenter__()
            self._connection = connection
            self._reader = asyncio.create_task(self._read(connection), name="MQTT answers")
            if self._prepare is not None:
                await self._prepare(connection)
            return connection

    async def close(self) -> None:
        """Leave the broker; the next use connects again."""
        connection, reader = self._connection, self._reader
        self._connection = self._reader = None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if connection is not None:
            await connection.__aexit__(None, None, None)

    async def _read(self, connection: MqttConnection) -> None:
        try:
            async for message in connection.messages:
                self._take(str(message.topic), message.payload)
        except aiomqtt.MqttError as error:
            self._lost(error)


class Reconnecting:
    """How long to wait before the next attempt: between half and all of a delay that doubles, up to 5 s.

    `clock` gives seconds; a connection that lasted longer than the last delay begins anew at 0.2 s.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wait = _FIRST_RETRY_S
        self._started = clock()

    def attempt(self) -> None:
        """Note that an attempt begins."""
        self._started = self._clock()

    async def rest(self) -> None:
        """Wait before the next attempt."""
        if self._clock() - self._started > self._wait:  # It was a connection, not another attempt.
            self._wait = _FIRST_RETRY_S
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret.
        self._wait = min(2 * self._wait, _LONGEST_RETRY_S)
