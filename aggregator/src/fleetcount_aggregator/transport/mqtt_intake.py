"""Intake over MQTT 3.1.1: what devices publish is acknowledged to the broker only after it is durable here.

A message is charged to the user whose topic it came on, and answered on that user's topics. A shell: decode, call,
encode, publish. It must not hold a rule (`device_service` does); the connection is `fleetcount_transport`'s.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from typing import Final, TypeVar

import aiomqtt
from fleetcount_protocol.channel.certificates import parse_certificate
from fleetcount_protocol.channel.user_names import is_user
from fleetcount_protocol.errors import (
    DecodeError,
    FleetcountError,
    MachineError,
    RejectReason,
    SignatureError,
    UsageError,
)
from fleetcount_protocol.ids import SessionId
from fleetcount_protocol.messages import SessionRefused, SessionReply, SessionRequest
from fleetcount_protocol.wire.device import SESSION_REPLY, SESSION_REQUEST
from fleetcount_protocol.wire.device_columns import UPLOAD, UPLOAD_ANSWER, InstalmentColumns, Upload, UploadAnswer
from fleetcount_protocol.wire.topics import TopicKind, receipt_topic, session_reply_topic
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.key_files import tls_context
from fleetcount_transport.logs import log
from fleetcount_transport.lost_reasons import broker_reason
from fleetcount_transport.mqtt_connection import MqttConnection

from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.intake.device_service import DeviceService
from fleetcount_aggregator.transport.mqtt_announcing import Announcing
from fleetcount_aggregator.transport.mqtt_inbox import Arrival, Inbox
from fleetcount_aggregator.transport.mqtt_retries import Reconnecting
from fleetcount_aggregator.transport.mqtt_subscribing import Subscribing

_KEEPALIVE_S: Final = 30
_ACKNOWLEDGED_S: Final = 10.0
"""How long a broker that is there may take to acknowledge anything; a lost connection is noticed at once."""
_SESSIONS_AT_ONCE: Final = 32
"""Session requests in one group: some 10 ms, for which the next one waits."""
_UNKEPT: Final = 4
"""Groups whose answers the broker may not have acknowledged: it does so behind all that it is handing over."""
_FAULTS: Final = frozenset(
    one.value for one in (RejectReason.MALFORMED, RejectReason.BAD_SEAL, RejectReason.UNKNOWN_SESSION)
)
"""Refusals of instalments for which work was done in vain; those of sessions are counted where they are judged."""
_Answers = list[tuple[str, bytes]]
_WHOLE: Final = BrokerConnection()
_MessageT = TypeVar("_MessageT")


class MqttIntake:
    """One aggregator's connection to the broker of its deployment; `run` connects again whenever it is lost.

    `share` says whose messages it asks for; it answers whomever it gets one of. `client` is put behind the client id:
    whoever has the same takes the session over.
    """

    def __init__(
        self,
        context: Context,
        service: DeviceService,
        table: MqttTable,
        client: str = "",
        share: BrokerConnection = _WHOLE,
    ) -> None:
        self._context = context
        self._host = context.host
        self._service = service
        self._broker = table.broker
        self._client = client
        self._inflight = table.inflight
        self._tls = tls_context(table.ca_file, *table.credential(share.slot))
        self._share = share
        self._deployment = context.host.identity.deployment

    async def run(self) -> None:
        """Take messages until cancelled."""
        retries = Reconnecting(asyncio.get_running_loop().time)
        while True:
            retries.attempt()
            session = asyncio.create_task(self._session(), name="mqtt-session")
            try:
                # Waited for and not awaited: before Python 3.13 a group of windows one of which fails swallows the
                # cancellation of that moment, and this aggregator would not end.
                await asyncio.wait([session])
            finally:
                session.cancel()
                [ended] = await asyncio.gather(session, return_exceptions=True)
                self._host.health.note(Dependency.BROKER, f"no connection to {self._broker}", name=self._share.name)
            try:
                if isinstance(ended, BaseException):
                    raise ended
            except* (aiomqtt.MqttError, FleetcountError) as group:
                reasons = sorted({broker_reason(one) for one in group.exceptions})
                log.warning("mqtt_disconnected", broker=self._broker, reasons=reasons)
            except* Exception as group:
                # The top of a window: an unexpected error must not end the aggregator, whose gRPC goes on.
                self._host.metrics.mqtt_failed()
                log.error("mqtt_failed", errors=sorted({type(one).__name__ for one in group.exceptions}))
            await retries.rest()

    def _new_connection(self) -> tuple[MqttConnection, Inbox]:
        def slow_down(slow: bool) -> None:
            (client.pause if slow else client.resume)()

        host = self._host
        inbox = Inbox(self._deployment, host.aggregator_id, host.admission, host.metrics, slow_down)
        client = MqttConnection(
            self._broker,
            arrived=inbox.put,
            # A lasting name and session, so that the broker keeps what comes while this aggregator is away.
            identifier=f"fc-{self._deployment}-{self._host.aggregator_id}"[: 64 - len(self._client)] + self._client,
            clean_session=False,
            keepalive=_KEEPALIVE_S,
            timeout=_ACKNOWLEDGED_S,
            tls_context=self._tls,
        )
        return client, inbox

    async def _session(self) -> None:
        """Run one connection: announce and take, until one of both fails."""
        connection, inbox = self._new_connection()
        async with connection as client, asyncio.TaskGroup() as group:
            self._host.metrics.mqtt_connected()
            self._host.health.note(Dependency.BROKER, name=self._share.name)
            log.info("mqtt_connected", broker=self._broker, slot=self._share.slot)
            group.create_task(client.until_lost(), name="mqtt-lost")
            subscribing = Subscribing(self._context.windows, client, self._share)
            await subscribing.begin()
            if self._share.announces:
                announcing = Announcing(self._context.windows, self._service, client, subscribing)
                group.create_task(announcing.announce(), name="mqtt-announce")
                group.create_task(announcing.offer(), name="mqtt-offers")
            else:
                group.create_task(subscribing.run(), name="mqtt-subscriptions")
            # Each at its own pace: requests for sessions, which cost public-key work, hold up no report.
            for kind, serve, most in (
                (TopicKind.SESSION, self._open_sessions, _SESSIONS_AT_ONCE),
                (TopicKind.REPORT, self._take_reports, self._inflight),
            ):
                group.create_task(self._take(client, group, inbox, kind, serve, most), name=f"mqtt-{kind}")

    async def _take(
        self,
        client: MqttConnection,
        group: asyncio.TaskGroup,
        inbox: Inbox,
        kind: TopicKind,
        serve: Callable[[Sequence[Arrival]], Awaitable[_Answers]],
        most: int,
    ) -> None:
        """Take what waits as one group: one commit, the answers, the acknowledgements, and the next.

        The broker keeps the answers of a few groups while the next is committed, no more: it has to keep up, unless it
        is held up itself. An answer that a broker loses after it was acknowledged comes again when the device does.
        """
        kept: deque[asyncio.Task[None]] = deque()
        while True:
            arrived = await inbox.take(kind, most)
            answers = await self._serve(serve, arrived)
            if len(kept) == _UNKEPT:
                await inbox.unless_full(kept.popleft())
            kept.append(group.create_task(client.publish_all(answers), name="mqtt-answers"))
            await asyncio.sleep(0)  # The answers are in the line before the acknowledgements.
            client.acknowledge(one.message for one in arrived)
            inbox.done(arrived)

    async def _serve(
        self, serve: Callable[[Sequence[Arrival]], Awaitable[_Answers]], arrived: Sequence[Arrival]
    ) -> _Answers:
        """Return topics and payloads of the answers to one group; everything in it is durable then.

        A message that makes this code fail is found by taking its group one by one, counted, and acknowledged without
        an answer: delivered again it would fail again, and its device sends it again until it has its receipt.

        Raises:
            MachineError: nothing is acknowledged, and the broker delivers the group again.
        """
        try:
            return await serve(arrived)
        except MachineError:
            raise
        except Exception as error:
            # The top of a message, which strangers write.
            if len(arrived) == 1:
                self._host.metrics.mqtt_failed()
                log.error("mqtt_message_failed", error=type(error).__name__)
                return []
        return [answer for one in arrived for answer in await self._serve(serve, [one])]

    # Sessions.

    async def _open_sessions(self, arrived: Sequence[Arrival]) -> _Answers:
        asked = [(one, request) for one in arrived if (request := self._read(one, self._session_request)) is not None]
        # Before any public-key work: a user asks for the device that its certificate names, and for no other.
        own = [_is_own(one, request) for one, request in asked]
        judged = iter(
            await self._service.open_sessions(
                [request for (_, request), is_own in zip(asked, own, strict=True) if is_own],
                [_identity(one) for (one, _), is_own in zip(asked, own, strict=True) if is_own],
            )
        )
        return [
            self._session_answer(one, next(judged) if is_own else self._refuse_foreign(one, request))
            for (one, request), is_own in zip(asked, own, strict=True)
        ]

    def _refuse_foreign(self, arrival: Arrival, request: SessionRequest) -> SessionRefused:
        self._host.admission.failed(_identity(arrival))
        self._host.metrics.refused(RejectReason.BAD_CERTIFICATE)
        return SessionRefused(session_id=request.session_id, reason=RejectReason.BAD_CERTIFICATE)

    def _session_answer(self, arrival: Arrival, reply: SessionReply) -> tuple[str, bytes]:
        own = self._deployment, self._host.aggregator_id
        return session_reply_topic(*own, arrival.user, reply.session_id), SESSION_REPLY.encode(reply)

    # Reports.

    async def _take_reports(self, arrived: Sequence[Arrival]) -> _Answers:
        taken = [(one, run) for one in arrived if (run := self._read(one, self._instalment)) is not None]
        # What came as columns stays columns: an object for each part and answer would cost as much as decoding them.
        alike = groupby((run for _, run in taken), attrgetter("shape"))
        runs = tuple(InstalmentColumns.joined(list(group)) for _, group in alike)
        answered = await self._service.take(Upload(aggregator_id=self._host.aggregator_id, runs=runs))
        replies = (reply for run in answered.runs for reply in run.split(repeat(1, len(run))))
        answers: _Answers = []
        for (arrival, run), reply in zip(taken, replies, strict=True):
            [reason] = reply.reasons
            if reason in _FAULTS:
                self._host.admission.failed(_identity(arrival))
            elif not reason and not self._host.admission.knows(_identity(arrival)):
                self._host.admission.held(_identity(arrival))
            session_id = SessionId(run.session_ids[0])
            topic = receipt_topic(self._deployment, self._host.aggregator_id, arrival.user, session_id)
            answers.append((topic, UPLOAD_ANSWER.encode(UploadAnswer(runs=(reply,)))))
        return answers

    # Both.

    def _read(self, arrival: Arrival, read: Callable[[Arrival], _MessageT]) -> _MessageT | None:
        """Return what a payload says; what no decoder understands, or is not of its topic, is counted.

        The stream goes on.
        """
        try:
            return read(arrival)
        except (DecodeError, UsageError):
            self._host.metrics.poison_message()
            self._host.admission.failed(_identity(arrival))
            return None

    def _session_request(self, arrival: Arrival) -> SessionRequest:
        return SESSION_REQUEST.decode(arrival.message.payload)

    def _instalment(self, arrival: Arrival) -> InstalmentColumns:
        """Return the run of the one instalment of an upload for this aggregator and its topic's window."""
        upload = UPLOAD.decode(arrival.message.payload)
        run = upload.only_one
        if upload.aggregator_id != self._host.aggregator_id or run.window_id != arrival.subject:
            raise DecodeError("an instalment on the topic of another aggregator or window")
        return run


def _identity(arrival: Arrival) -> Identity:
    return Identity(arrival.user.encode())


def _is_own(arrival: Arrival, request: SessionRequest) -> bool:
    """Return whether a request is for the device whose topic it came on; whose it is, is not verified here."""
    try:
        return is_user(parse_certificate(request.certificate), arrival.user)
    except SignatureError:
        return False
