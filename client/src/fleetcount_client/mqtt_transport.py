"""The transport over MQTT 3.1.1: QoS 1, sealed bytes through an untrusted broker, answers on topics of the session.

A PUBACK is no receipt: only what the aggregator itself answers counts. Never retries; the client id is random.
"""

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import aiomqtt
from fleetcount_protocol.endpoint import split_endpoint
from fleetcount_protocol.errors import DecodeError, TaskError
from fleetcount_protocol.ids import ReportId, SessionId, TaskId
from fleetcount_protocol.limits import MAX_TASKS_PER_LIST
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.task.task import Aggregator, SignedTask, Task
from fleetcount_protocol.wire.device import (
    INSTALMENT,
    INSTALMENT_REPLY,
    SESSION_REPLY,
    SESSION_REQUEST,
    SIGNED_TASK,
)
from fleetcount_protocol.wire.topics import (
    receipt_topic,
    report_topic,
    session_reply_topic,
    session_topic,
    task_filter,
)
from fleetcount_transport.key_files import tls_context
from fleetcount_transport.toml_table import ConfigError

from fleetcount_client.transport import Unreachable

__all__ = ["NO_DELAY", "MqttClient", "MqttLogin", "MqttTransport"]

_LOG: Final = logging.getLogger(__name__)
_QUIET: Final = logging.getLogger("fleetcount_client.mqtt")
_QUIET.setLevel(logging.CRITICAL)  # Its errors are lost connections and answers nobody waits for any more.
_TASK_SETTLE_S: Final = 0.5
_TASK_WAIT_S: Final = 5.0
_MAX_QUEUED: Final = 1_000
_KEEPALIVE_S: Final = 60
NO_DELAY: Final = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
"""Without it a small packet waits for TCP's acknowledgement of the one before it, 40 ms on Linux."""
_ResultT = TypeVar("_ResultT")
_ReportName = tuple[TaskId, ReportId, int, SessionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttLogin:
    """How to log in to the broker: TLS under `ca_file`, a certificate or a name and password of its own."""

    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def password(self) -> str | None:
        """Return the password from its file. Raises ConfigError when it cannot be read."""
        if self.password_file is None:
            return None
        try:
            return self.password_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"mqtt.password_file {self.password_file} cannot be read as UTF-8 text") from None

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings, None without `ca_file`. Raises ConfigError when a file is no PEM."""
        return tls_context(self.ca_file, self.certificate_file, self.key_file)


class MqttClient(aiomqtt.Client):
    """aiomqtt with an end (docs/decisions/0011).

    When a connection is lost the library lets everybody wait for an acknowledgement that cannot come; a connection that
    is given up half-way leaves its socket and a task behind; and it watches sockets by a number that may be another's
    when the event loop gets to it.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
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
        # Runs in a thread, which does not end when nobody waits for it any more.
        try:
            super()._client_connect()
        finally:
            self._loop.call_soon_threadsafe(self._note_end_of_connect)

    def _note_end_of_connect(self) -> None:
        self._connect_ended = True
        if self._left:
            self._close()

    async def _leave(self) -> None:
        """Close, or let the thread that still connects close; look at what nobody else will look at."""
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


class MqttTransport:
    """One device's connection to the broker of its deployment, opened at the first use.

    Tasks, sessions and reports of all aggregators go through this one broker; which aggregator reads which topic is the
    broker's configuration (docs/wire.md, "MQTT").
    """

    def __init__(
        self, *, deployment: str, broker: str, login: MqttLogin | None = None, call_timeout_s: float = 20.0
    ) -> None:
        self._deployment = deployment
        self._host, self._port = split_endpoint(broker)
        self._login = login or MqttLogin()
        self._call_timeout_s = call_timeout_s
        self._opening = asyncio.Lock()
        self._client: MqttClient | None = None
        self._reader: asyncio.Task[None] | None = None
        self._sessions: dict[SessionId, asyncio.Future[SessionAccepted | SessionRefused]] = {}
        self._receipts: dict[_ReportName, asyncio.Future[Receipt | Refusal]] = {}
        self._tasks: dict[TaskId, SignedTask] = {}
        self._task_arrived = asyncio.Event()

    async def list_tasks(self) -> tuple[SignedTask, ...]:
        """Return the tasks the broker keeps: wait up to 5 s for the first, then until none comes for half a second.

        Raises:
            Unreachable: the broker does not answer.
        """
        client = await self._connected()
        self._tasks.clear()
        self._task_arrived.clear()
        # Subscribing anew makes the broker send what it keeps, even to a client that is subscribed already.
        client.subscribed.discard(task_filter(self._deployment))
        await self._subscribe(client, [task_filter(self._deployment)])
        wait_s = _TASK_WAIT_S
        while await self._new_task(wait_s):
            wait_s = _TASK_SETTLE_S
        return tuple(self._tasks.values())

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Publish session requests for one aggregator and wait for its answers, one a request, in order."""
        client = await self._connected()
        topic = session_topic(self._deployment, aggregator.aggregator_id)
        replies = [session_reply_topic(self._deployment, request.session_id) for request in requests]
        waiting = [asyncio.get_running_loop().create_future() for _ in requests]
        self._sessions.update(zip((request.session_id for request in requests), waiting, strict=True))
        try:
            await self._subscribe(client, replies)
            self._send(client, topic, map(SESSION_REQUEST.encode, requests))
            return await self._all(waiting, f"aggregator {aggregator.aggregator_id} by MQTT")
        finally:
            _drop(waiting)
            for request in requests:
                self._sessions.pop(request.session_id, None)
            await self._unsubscribe(client, replies)

    async def upload(
        self, task: Task, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Publish instalments for one aggregator and wait for its receipts and refusals, one each, in order."""
        client = await self._connected()
        topic = report_topic(self._deployment, task.task_id, position)
        sessions = dict.fromkeys(instalment.session_id for instalment in instalments)
        waiting = [asyncio.get_running_loop().create_future() for _ in instalments]
        self._receipts.update(zip(map(_name, instalments), waiting, strict=True))
        try:
            await self._subscribe(client, [receipt_topic(self._deployment, one) for one in sessions])
            self._send(client, topic, map(INSTALMENT.encode, instalments))
            return await self._all(waiting, f"aggregator {task.aggregators[position].aggregator_id} by MQTT")
        finally:
            _drop(waiting)
            for instalment in instalments:
                self._receipts.pop(_name(instalment), None)

    async def close(self) -> None:
        """Leave the broker; the next use connects again."""
        client, reader = self._client, self._reader
        self._client = self._reader = None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _connected(self) -> MqttClient:
        async with self._opening:
            if self._client is not None and self._reader is not None and not self._reader.done():
                return self._client
            await self.close()
            client = self._new_client()
            try:
                await client.__aenter__()
            except aiomqtt.MqttError as error:
                raise self._unreachable(error) from None
            self._client = client
            self._reader = asyncio.create_task(self._read(client), name="MQTT answers")
            return client

    def _new_client(self) -> MqttClient:
        return MqttClient(
            self._host,
            self._port,
            # Random and new at each connection: the broker learns no lasting name from it.
            identifier=f"fc{secrets.token_hex(8)}",
            username=self._login.username,
            password=self._login.password(),
            tls_context=self._login.tls_context(),
            clean_session=True,
            timeout=self._call_timeout_s,
            keepalive=_KEEPALIVE_S,
            max_queued_incoming_messages=_MAX_QUEUED,
            socket_options=[NO_DELAY],
            logger=_QUIET,
        )

    async def _read(self, client: MqttClient) -> None:
        """Hand every arriving message to the call that waits for it, until the connection ends."""
        try:
            async for message in client.messages:
                self._take(str(message.topic), message.payload)
        except aiomqtt.MqttError as error:
            lost = self._unreachable(error)
            _fail(self._sessions.values(), lost)
            _fail(self._receipts.values(), lost)

    def _take(self, topic: str, payload: bytes) -> None:
        kind = topic.removeprefix(f"fleetcount/v1/{self._deployment}/")
        try:
            if kind.startswith("receipt/"):
                reply = INSTALMENT_REPLY.decode(payload)
                _settle(self._receipts.get(_name(reply)), reply)
            elif kind.startswith("session-reply/"):
                answer = SESSION_REPLY.decode(payload)
                _settle(self._sessions.get(answer.session_id), answer)
            elif payload and len(self._tasks) < MAX_TASKS_PER_LIST:
                signed = SIGNED_TASK.decode(payload)
                self._tasks[signed.task.task_id] = signed
                self._task_arrived.set()
        except (DecodeError, TaskError) as error:
            _LOG.info("a message of the broker cannot be read: %s", error)

    async def _subscribe(self, client: MqttClient, topics: Iterable[str]) -> None:
        """Subscribe to what is not subscribed yet; returns when the broker has acknowledged it."""
        wanted = [topic for topic in topics if topic not in client.subscribed]
        if not wanted:
            return
        try:
            await client.subscribe([(topic, 1) for topic in wanted])
        except aiomqtt.MqttError as error:
            raise self._unreachable(error) from None
        client.subscribed.update(wanted)

    async def _unsubscribe(self, client: MqttClient, topics: Iterable[str]) -> None:
        known = [topic for topic in topics if topic in client.subscribed]
        if not known:
            return
        client.subscribed.difference_update(known)
        try:
            await client.unsubscribe(known)
        except aiomqtt.MqttError as error:
            _LOG.debug("leaving a topic: %s", error)

    def _send(self, client: MqttClient, topic: str, payloads: Iterable[bytes]) -> None:
        try:
            for payload in payloads:
                client.send(topic, payload)
        except aiomqtt.MqttError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: aiomqtt.MqttError) -> Unreachable:
        return Unreachable(f"broker {self._host}:{self._port}: {error}")

    async def _new_task(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._task_arrived.wait()
        except TimeoutError:
            return False
        self._task_arrived.clear()
        return True

    async def _all(self, waiting: "Iterable[asyncio.Future[_ResultT]]", what: str) -> tuple[_ResultT, ...]:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return tuple(await asyncio.gather(*waiting))
        except TimeoutError:
            raise Unreachable(f"{what} did not answer within {self._call_timeout_s:g} s") from None


def _fail(futures: "Iterable[asyncio.Future[_ResultT]]", error: Unreachable) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def _drop(futures: "Iterable[asyncio.Future[_ResultT]]") -> None:
    """End futures nobody waits for any more; look at their errors, so that the loop does not report them as lost."""
    for future in futures:
        if not future.cancel() and not future.cancelled():
            future.exception()


def _settle(future: "asyncio.Future[_ResultT] | None", value: _ResultT) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _name(message: Instalment | Receipt | Refusal) -> _ReportName:
    return message.task_id, message.report_id, message.round, message.session_id
