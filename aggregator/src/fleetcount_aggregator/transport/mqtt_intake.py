"""Intake over MQTT 3.1.1: what devices publish is acknowledged to the broker only after it is durable here.

Also keeps the tasks and releases this aggregator leads as retained messages. A shell: decode, call, encode, publish.
It must not hold a rule (`device_service` does); the connection is `fleetcount_transport`'s.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiomqtt
from fleetcount_protocol.errors import DecodeError, FleetcountError, MachineError, UsageError
from fleetcount_protocol.ids import SeriesId, TaskId
from fleetcount_protocol.messages import Instalment, SessionRequest
from fleetcount_protocol.wire.device import (
    INSTALMENT,
    INSTALMENT_REPLY,
    RELEASE_ANSWER,
    SESSION_REPLY,
    SESSION_REQUEST,
    SIGNED_TASK,
)
from fleetcount_protocol.wire.series import SERIES_OFFER
from fleetcount_protocol.wire.topics import (
    parse_report_topic,
    parse_session_topic,
    receipt_topic,
    release_topic,
    report_topic,
    series_topic,
    session_reply_topic,
    session_topic,
    task_topic,
)
from fleetcount_transport.key_files import tls_context
from fleetcount_transport.logs import log
from fleetcount_transport.mqtt_connection import MqttConnection, Reconnecting

from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.intake.device_service import DeviceService

__all__ = ["MqttIntake"]

_ANNOUNCE_S: Final = 0.25
_OFFER_S: Final = 2.0
_KEEPALIVE_S: Final = 30
_ACKNOWLEDGED_S: Final = 10.0
"""How long a broker that is there may take to acknowledge anything; a lost connection is noticed at once."""
_MAX_QUEUED: Final = 65_536
_OPEN: Final = frozenset({State.ANNOUNCED, State.COLLECTING})


@dataclass(frozen=True, slots=True)
class _Decoded:
    """One message understood: a session request or an instalment, else None: poison."""

    session: SessionRequest | None = None
    instalment: Instalment | None = None


class MqttIntake:
    """One aggregator's connection to the broker of its deployment; `run` connects again whenever it is lost."""

    def __init__(self, context: Context, service: DeviceService, table: MqttTable) -> None:
        self._context = context
        self._service = service
        self._broker = table.broker
        self._inflight = table.inflight
        self._tls = tls_context(table.ca_file, table.certificate_file, table.key_file)
        self._deployment = context.identity.deployment

    async def run(self) -> None:
        """Take messages until cancelled."""
        retries = Reconnecting(asyncio.get_running_loop().time)
        while True:
            retries.attempt()
            try:
                await self._session()
            except* (aiomqtt.MqttError, FleetcountError) as group:
                log.warning("mqtt_disconnected", reasons=sorted({type(one).__name__ for one in group.exceptions}))
            except* Exception as group:
                # The top of a task: an unexpected error must not end the aggregator, whose gRPC goes on.
                self._context.metrics.mqtt_failed()
                log.error("mqtt_failed", errors=sorted({type(one).__name__ for one in group.exceptions}))
            await retries.rest()

    def _new_connection(self) -> MqttConnection:
        return MqttConnection(
            self._broker,
            # What is not durable yet, the broker keeps.
            acknowledges=False,
            # A lasting name and session, so that the broker keeps what comes while this aggregator is away.
            identifier=f"fc-{self._deployment}-{self._context.aggregator_id}"[:64],
            clean_session=False,
            keepalive=_KEEPALIVE_S,
            timeout=_ACKNOWLEDGED_S,
            tls_context=self._tls,
            max_queued_incoming_messages=_MAX_QUEUED,
            max_inflight_messages=self._inflight,
        )

    async def _session(self) -> None:
        """Run one connection: announce and take, until one of both fails."""
        async with self._new_connection() as client, asyncio.TaskGroup() as group:
            self._context.metrics.mqtt_connected()
            log.info("mqtt_connected", broker=self._broker)
            await client.subscribe(session_topic(self._deployment, self._context.aggregator_id), qos=1)
            group.create_task(self._announce(client), name="mqtt-announce")
            group.create_task(self._offer(client), name="mqtt-offers")
            group.create_task(self._take(client, group), name="mqtt-take")

    # Taking.

    async def _take(self, client: MqttConnection, group: asyncio.TaskGroup) -> None:
        """Take what has arrived as one group: one commit, the answers, the acknowledgements, and the next.

        The broker keeps the answers of one group while the next is committed, no more: it has to keep up. An answer
        that a broker loses after it was acknowledged comes again when the device does.
        """
        messages, kept = client.messages, None
        while True:
            arrived = [await anext(messages), *client.take_arrived(self._inflight - 1)]
            answers = await self._serve(arrived)
            if kept is not None:
                await kept
            kept = group.create_task(client.publish_all(answers), name="mqtt-answers")
            await asyncio.sleep(0)  # The answers are in the line before the acknowledgements.
            for message in arrived:
                client.acknowledge(message)

    async def _serve(self, arrived: Sequence[aiomqtt.Message]) -> list[tuple[str, bytes]]:
        """Return topics and payloads of the answers to one group; everything in it is durable then.

        A message that makes this code fail is found by taking its group one by one, counted, and acknowledged without
        an answer: delivered again it would fail again, and its device sends it again until it has its receipt.

        Raises:
            MachineError: nothing is acknowledged, and the broker delivers the group again.
        """
        try:
            return await self._serve_together(arrived)
        except MachineError:
            raise
        except Exception as error:
            # The top of a message, which strangers write.
            if len(arrived) == 1:
                self._context.metrics.mqtt_failed()
                log.error("mqtt_message_failed", error=type(error).__name__)
                return []
        return [answer for message in arrived for answer in await self._serve([message])]

    async def _serve_together(self, arrived: Sequence[aiomqtt.Message]) -> list[tuple[str, bytes]]:
        decoded = [self._decode(message) for message in arrived]
        sessions = [one.session for one in decoded if one.session is not None]
        instalments = [one.instalment for one in decoded if one.instalment is not None]
        answers: list[tuple[str, bytes]] = []
        for session_reply in await self._service.open_sessions(sessions):
            topic = session_reply_topic(self._deployment, session_reply.session_id)
            answers.append((topic, SESSION_REPLY.encode(session_reply)))
        for reply in await self._service.upload(instalments):
            answers.append((receipt_topic(self._deployment, reply.session_id), INSTALMENT_REPLY.encode(reply)))
        return answers

    def _decode(self, message: aiomqtt.Message) -> _Decoded:
        """Return what a message says; what no decoder understands is counted, and the stream goes on."""
        topic, payload = str(message.topic), message.payload
        try:
            if message.retain:
                raise DecodeError("devices never publish retained messages")
            if topic == session_topic(self._deployment, self._context.aggregator_id):
                parse_session_topic(topic)
                return _Decoded(session=SESSION_REQUEST.decode(payload))
            return _Decoded(instalment=self._decode_report(topic, payload))
        except (DecodeError, UsageError):
            self._context.metrics.poison_message()
            return _Decoded()

    def _decode_report(self, topic: str, payload: bytes) -> Instalment:
        _, task_id, position = parse_report_topic(topic)
        instalment = INSTALMENT.decode(payload)
        task = self._context.tasks.get(task_id)
        if instalment.task_id != task_id or (task is not None and task.position != position):
            raise DecodeError("an instalment on the topic of another task or aggregator")
        return instalment

    # Announcing.

    async def _announce(self, client: MqttConnection) -> None:
        """Keep subscriptions and retained messages in step with the tasks."""
        reading: dict[TaskId, str] = {}
        announced: set[TaskId] = set()
        published = 0
        while True:
            await self._follow(client, reading)
            await self._publish_tasks(client, announced)
            published = await self._publish_releases(client, published)
            await asyncio.sleep(_ANNOUNCE_S)

    async def _follow(self, client: MqttConnection, reading: dict[TaskId, str]) -> None:
        """Subscribe to the report topics of open tasks, and leave those of closed ones."""
        opened = {task_id for task_id in self._context.live if self._context.states[task_id] in _OPEN}
        for task_id in opened - reading.keys():
            topic = self._report_topic(task_id)
            await client.subscribe(topic, qos=1)
            reading[task_id] = topic
        for task_id in reading.keys() - opened:
            await client.unsubscribe(reading[task_id])
            del reading[task_id]

    def _report_topic(self, task_id: TaskId) -> str:
        return report_topic(self._deployment, task_id, self._context.live[task_id].position)

    async def _publish_tasks(self, client: MqttConnection, announced: set[TaskId]) -> None:
        """Keep every open task this aggregator leads as a retained message, and take closed ones away."""
        listed = {one.task.task_id: one for one in await self._service.tasks(self._deployment)}
        for task_id, signed in listed.items():
            if task_id not in announced and self._context.tasks[task_id].is_leader:
                await client.publish(
                    task_topic(self._deployment, task_id), SIGNED_TASK.encode(signed), qos=1, retain=True
                )
                announced.add(task_id)
        for task_id in announced - listed.keys():
            await client.publish(task_topic(self._deployment, task_id), b"", qos=1, retain=True)
            announced.discard(task_id)

    async def _offer(self, client: MqttConnection) -> None:
        """Keep the offer of every series that devices may join as a retained message, and take those over away."""
        known: dict[SeriesId, object] = {}
        while True:
            running = {one.series_id: one for one in self._service.offered()}
            for series_id, series in running.items():
                # Compared part by part: thousands of offers are not encoded to find that none has changed.
                lists = tuple(self._context.key_lists.get(one.aggregator_id) for one in series.series.aggregators)
                if known.get(series_id) != (series.orders, lists):
                    payload = SERIES_OFFER.encode(self._service.offer(series))
                    await client.publish(self._series_topic(series), payload, qos=1, retain=True)
                    known[series_id] = (series.orders, lists)
            for series_id in known.keys() - running.keys():
                await client.publish(self._series_topic(self._context.series[series_id]), b"", qos=1, retain=True)
                del known[series_id]
            await asyncio.sleep(_OFFER_S)

    def _series_topic(self, series: InstalledSeries) -> str:
        return series_topic(self._deployment, series.series_id, series.position)

    async def _publish_releases(self, client: MqttConnection, published: int) -> int:
        """Keep the outcome of every task this aggregator leads as a retained message until the task expires.

        Returns how many of the outcomes are published; what a connection has published is not looked at again.
        """
        fresh = self._context.outcomes[published:]
        for task_id, expiry in fresh:
            if self._context.clock.now() < expiry:
                payload = RELEASE_ANSWER.encode(await self._service.release(task_id))
                await client.publish(release_topic(self._deployment, task_id), payload, qos=1, retain=True)
                # A task announced before a restart of this process is still retained.
                await client.publish(task_topic(self._deployment, task_id), b"", qos=1, retain=True)
        return published + len(fresh)
