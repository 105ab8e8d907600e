"""Intake over MQTT 3.1.1: what devices publish is acknowledged to the broker only after it is durable here.

Also keeps the tasks and releases this aggregator leads as retained messages. A shell: decode, call, encode, publish;
the rules are device_service's. The one module that knows the MQTT client library.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiomqtt
from fleetcount_protocol.codec import (
    INSTALMENT,
    INSTALMENT_REPLY,
    RELEASE_ANSWER,
    SESSION_REPLY,
    SESSION_REQUEST,
    SIGNED_TASK,
)
from fleetcount_protocol.errors import DecodeError, FleetcountError, UsageError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.messages import Instalment, SessionRequest
from fleetcount_protocol.topics import (
    parse_report_topic,
    parse_session_topic,
    receipt_topic,
    release_topic,
    report_topic,
    session_reply_topic,
    session_topic,
    task_topic,
)

from fleetcount_aggregator.config import ConfigError, MqttTable, split_endpoint
from fleetcount_aggregator.device_service import DeviceService
from fleetcount_aggregator.logs import log
from fleetcount_aggregator.party import Party
from fleetcount_aggregator.states import FINAL_STATES, State

__all__ = ["MqttIntake"]

GROUP: Final = 16
"""Messages taken before an acknowledgement: below the 20 a default broker keeps in flight, or it would stall."""
_ANNOUNCE_S: Final = 0.25
_FIRST_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0
_KEEPALIVE_S: Final = 30
_MAX_QUEUED: Final = 65_536
_QUIET: Final = logging.getLogger("fleetcount_aggregator.mqtt")
_QUIET.setLevel(logging.ERROR)
_OPEN: Final = frozenset({State.ANNOUNCED, State.COLLECTING})


class _Client(aiomqtt.Client):
    """The library acknowledges on receipt and so loses what a crash finds in its queue; here the caller does.

    It also asks the event loop by number to watch a socket that may be closed when the loop gets to it: then the number
    means nothing, or another connection of this process. Here the loop looks at the socket itself.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._client.manual_ack_set(True)

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

    def forget_disconnection(self) -> None:
        """Say that the reason of a lost connection has been seen, or the event loop complains about it later."""
        if self._disconnected.done() and not self._disconnected.cancelled():
            self._disconnected.exception()

    def acknowledge(self, message: aiomqtt.Message) -> None:
        """Let the broker forget a message."""
        if message.qos:
            self._client.ack(message.mid, message.qos)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """One message understood: a session request or an instalment, else None: poison."""

    session: SessionRequest | None = None
    instalment: Instalment | None = None


class MqttIntake:
    """One aggregator's connection to the broker of its deployment; `run` connects again whenever it is lost."""

    def __init__(self, party: Party, service: DeviceService, table: MqttTable) -> None:
        self._party = party
        self._service = service
        self._host, self._port = split_endpoint(table.broker)
        self._tls = _tls_context(table)
        self._deployment = party.identity.deployment

    async def run(self) -> None:
        """Take messages until cancelled."""
        wait = _FIRST_RETRY_S
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await self._session()
            except* (aiomqtt.MqttError, FleetcountError) as group:
                log.warning("mqtt_disconnected", reasons=sorted({type(one).__name__ for one in group.exceptions}))
            if asyncio.get_running_loop().time() - started > 2 * _LONGEST_RETRY_S:
                wait = _FIRST_RETRY_S
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret.
            wait = min(2 * wait, _LONGEST_RETRY_S)

    def _new_client(self) -> _Client:
        return _Client(
            self._host,
            self._port,
            # A lasting name and session, so that the broker keeps what comes while this aggregator is away.
            identifier=f"fc-{self._deployment}-{self._party.aggregator_id}"[:64],
            clean_session=False,
            keepalive=_KEEPALIVE_S,
            tls_context=self._tls,
            max_queued_incoming_messages=_MAX_QUEUED,
            logger=_QUIET,
        )

    async def _session(self) -> None:
        """Run one connection: announce and take, until one of both fails."""
        client = self._new_client()
        try:
            async with client, asyncio.TaskGroup() as group:
                self._party.metrics.mqtt_connected()
                log.info("mqtt_connected", broker=f"{self._host}:{self._port}")
                await client.subscribe(session_topic(self._deployment, self._party.aggregator_id), qos=1)
                group.create_task(self._announce(client), name="mqtt-announce")
                group.create_task(self._take(client), name="mqtt-take")
        finally:
            client.forget_disconnection()

    # Taking.

    async def _take(self, client: _Client) -> None:
        messages = client.messages
        while True:
            group = [await anext(messages)]
            while len(group) < GROUP and len(messages):
                group.append(await anext(messages))
            await self._serve(client, group)
            for message in group:
                client.acknowledge(message)

    async def _serve(self, client: _Client, group: Sequence[aiomqtt.Message]) -> None:
        """Answer one group of messages; returns after everything in it is durable and answered.

        Raises:
            StoreError: nothing is acknowledged, and the broker delivers the group again.
        """
        decoded = [self._decode(message) for message in group]
        sessions = [one.session for one in decoded if one.session is not None]
        instalments = [one.instalment for one in decoded if one.instalment is not None]
        answers: list[tuple[str, bytes]] = []
        for session_reply in await self._service.open_sessions(sessions):
            topic = session_reply_topic(self._deployment, session_reply.session_id)
            answers.append((topic, SESSION_REPLY.encode(session_reply)))
        for reply in await self._service.upload(instalments):
            answers.append((receipt_topic(self._deployment, reply.session_id), INSTALMENT_REPLY.encode(reply)))
        await asyncio.gather(*(client.publish(topic, payload, qos=1) for topic, payload in answers))

    def _decode(self, message: aiomqtt.Message) -> _Decoded:
        """Return what a message says; what no decoder understands is counted, and the stream goes on."""
        topic, payload = str(message.topic), message.payload
        try:
            if message.retain:
                raise DecodeError("devices never publish retained messages")
            if topic == session_topic(self._deployment, self._party.aggregator_id):
                parse_session_topic(topic)
                return _Decoded(session=SESSION_REQUEST.decode(payload))
            return _Decoded(instalment=self._decode_report(topic, payload))
        except (DecodeError, UsageError):
            self._party.metrics.poison_message()
            return _Decoded()

    def _decode_report(self, topic: str, payload: bytes) -> Instalment:
        _, task_id, position = parse_report_topic(topic)
        instalment = INSTALMENT.decode(payload)
        task = self._party.tasks.get(task_id)
        if instalment.task_id != task_id or (task is not None and task.position != position):
            raise DecodeError("an instalment on the topic of another task or aggregator")
        return instalment

    # Announcing.

    async def _announce(self, client: _Client) -> None:
        """Keep subscriptions and retained messages in step with the tasks."""
        reading: set[TaskId] = set()
        announced: set[TaskId] = set()
        released: set[TaskId] = set()
        while True:
            await self._follow(client, reading)
            await self._publish_tasks(client, announced)
            await self._publish_releases(client, released)
            await asyncio.sleep(_ANNOUNCE_S)

    async def _follow(self, client: _Client, reading: set[TaskId]) -> None:
        """Subscribe to the report topics of open tasks, and leave those of closed ones."""
        for task in list(self._party.tasks.values()):
            topic = report_topic(self._deployment, task.task_id, task.position)
            is_open = self._party.states[task.task_id] in _OPEN
            if is_open and task.task_id not in reading:
                await client.subscribe(topic, qos=1)
                reading.add(task.task_id)
            elif not is_open and task.task_id in reading:
                await client.unsubscribe(topic)
                reading.discard(task.task_id)

    async def _publish_tasks(self, client: _Client, announced: set[TaskId]) -> None:
        """Keep every open task this aggregator leads as a retained message, and take closed ones away."""
        listed = {one.task.task_id: one for one in await self._service.tasks(self._deployment)}
        for task_id, signed in listed.items():
            if task_id not in announced and self._party.tasks[task_id].is_leader:
                await client.publish(
                    task_topic(self._deployment, task_id), SIGNED_TASK.encode(signed), qos=1, retain=True
                )
                announced.add(task_id)
        for task_id in announced - listed.keys():
            await client.publish(task_topic(self._deployment, task_id), b"", qos=1, retain=True)
            announced.discard(task_id)

    async def _publish_releases(self, client: _Client, released: set[TaskId]) -> None:
        """Keep the outcome of every task this aggregator leads as a retained message until the task expires."""
        now = self._party.clock.now()
        for task in list(self._party.tasks.values()):
            ended = self._party.states[task.task_id] in FINAL_STATES and now < task.task.expiry
            if task.is_leader and ended and task.task_id not in released:
                answer = await self._service.release(task.task_id)
                payload = RELEASE_ANSWER.encode(answer)
                await client.publish(release_topic(self._deployment, task.task_id), payload, qos=1, retain=True)
                # A task announced before a restart of this process is still retained.
                await client.publish(task_topic(self._deployment, task.task_id), b"", qos=1, retain=True)
                released.add(task.task_id)


def _tls_context(table: MqttTable) -> ssl.SSLContext | None:
    if table.ca_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=str(table.ca_file))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if table.certificate_file is not None:
            context.load_cert_chain(table.certificate_file, table.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"mqtt.ca_file or mqtt.certificate_file cannot be used: {error}") from None
    return context
