"""One MQTT connection for all devices of a process: the answers of every session arrive on two subscriptions.

The connection detects its own loss (decision 11). A PUBACK is no receipt: only an answer of the aggregator itself is
one. It never retries, and connects again at the next use.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar

import aiomqtt
from cryptography.x509 import load_der_x509_certificate
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.channel.user_names import key_name
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import ReportId, SessionId, UserName, WindowId
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    Receipt,
    Refusal,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.device import SESSION_REPLY, SESSION_REQUEST
from fleetcount_protocol.wire.device_columns import UPLOAD, UPLOAD_ANSWER, Upload
from fleetcount_protocol.wire.question import QUESTION_OFFER
from fleetcount_protocol.wire.topics import (
    TopicKind,
    parse_topic,
    question_filter,
    receipt_filter,
    report_topic,
    session_reply_filter,
    session_topic,
)
from fleetcount_transport.mqtt_connection import MqttConnection, MqttOnDemand
from fleetcount_transport.mqtt_packets import Publication

_LOG: Final = logging.getLogger(__name__)
_KEEPALIVE_S: Final = 60
_STRANGER: Final = UserName("unknown")
"""The sender's name of a report whose session this process did not open; an aggregator answers under any name."""
_KeyT = TypeVar("_KeyT")
_AnswerT = TypeVar("_AnswerT")
_ReportName = tuple[WindowId, ReportId, int, SessionId]


class _Waiting(Generic[_KeyT, _AnswerT]):
    """The callers that wait for an answer, by its name; several may wait for the answer to the same message."""

    def __init__(self) -> None:
        self._table: dict[_KeyT, list[asyncio.Future[_AnswerT]]] = {}

    def expect(self, name: _KeyT) -> "asyncio.Future[_AnswerT]":
        """Return the future answer of one more message of this name."""
        answer: asyncio.Future[_AnswerT] = asyncio.get_running_loop().create_future()
        self._table.setdefault(name, []).append(answer)
        return answer

    def settle(self, name: _KeyT, value: _AnswerT) -> None:
        """Give an answer to every caller that waits for it."""
        for answer in self._table.get(name, ()):
            if not answer.done():
                answer.set_result(value)

    def fail(self, why: str) -> None:
        """Tell every waiting caller that no answer will come."""
        for answer in [answer for answers in self._table.values() for answer in answers]:
            if not answer.done():
                answer.set_exception(Unreachable(why))

    def forget(self, name: _KeyT, answer: "asyncio.Future[_AnswerT]") -> None:
        """Remove a future that no caller waits for; read its error, so that the loop does not report it as lost."""
        if not answer.cancel() and not answer.cancelled():
            answer.exception()
        self._table[name].remove(answer)
        if not self._table[name]:
            del self._table[name]


class SharedMqtt:
    """A transport for many devices at once; every answer names its session."""

    def __init__(self, *, deployment: str, broker: str, call_timeout_s: float) -> None:
        self._deployment = deployment
        self._broker = broker
        self._call_timeout_s = call_timeout_s
        self._connection = MqttOnDemand(self._new_connection, self._fail, self._subscribe)
        self._sessions: _Waiting[SessionId, SessionAccepted | SessionRefused] = _Waiting()
        self._receipts: _Waiting[_ReportName, Receipt | Refusal] = _Waiting()
        self._users: dict[SessionId, UserName] = {}
        self._offers: dict[str, QuestionOffer] = {}

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        """Return the latest offers that the broker has delivered, one per question and aggregator.

        The caller asks again until its question is among them.

        Raises:
            Unreachable: the broker does not answer.
        """
        await self._connected()
        return tuple(self._offers.values())

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Publish session requests for one aggregator and wait for its answers, one per request, in order."""
        client, aggregator_id = await self._connected(), aggregator.aggregator_id
        messages: dict[SessionId, tuple[str, bytes]] = {}
        for request in requests:
            user = self._users[request.session_id] = key_name(load_der_x509_certificate(request.certificate))
            topic = session_topic(self._deployment, aggregator_id, user)
            messages[request.session_id] = topic, SESSION_REQUEST.encode(request)
        return await self._exchange(client, messages, self._sessions)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Publish instalments for one aggregator and wait for its receipts and refusals, one each, in order."""
        client, aggregator_id = await self._connected(), window.aggregators[position].aggregator_id
        messages: dict[_ReportName, tuple[str, bytes]] = {}
        for one in instalments:
            user = self._users.get(one.session_id, _STRANGER)
            topic = report_topic(self._deployment, aggregator_id, user, window.window_id)
            messages[_name(one)] = topic, UPLOAD.encode(Upload.of(aggregator_id, [one]))
        return await self._exchange(client, messages, self._receipts)

    async def release(self, window: Window) -> ReleaseAnswer:
        """Refuse: a study reads releases at the aggregators, not over MQTT.

        Raises:
            Unreachable: always.
        """
        raise Unreachable(f"release of window {window.window_id}: a study reads it at the aggregators")

    async def close(self) -> None:
        """Leave the broker; the next use connects again."""
        await self._connection.close()

    async def _exchange(
        self, client: MqttConnection, messages: Mapping[_KeyT, tuple[str, bytes]], table: "_Waiting[_KeyT, _AnswerT]"
    ) -> tuple[_AnswerT, ...]:
        """Publish messages, each on its device's topic, and wait for the answer to each, in order."""
        waiting = [table.expect(name) for name in messages]
        try:
            client.send(list(messages.values()))
            async with asyncio.timeout(self._call_timeout_s):
                return tuple(await asyncio.gather(*waiting))
        except aiomqtt.MqttError as error:
            raise self._unreachable(error) from None
        except TimeoutError:
            raise Unreachable(f"no answer by MQTT within {self._call_timeout_s:g} s") from None
        finally:
            for name, answer in zip(messages, waiting, strict=True):
                table.forget(name, answer)

    async def _connected(self) -> MqttConnection:
        try:
            return await self._connection.use()
        except aiomqtt.MqttError as error:
            raise self._unreachable(error) from None

    async def _subscribe(self, connection: MqttConnection) -> None:
        answers = receipt_filter(self._deployment, None), session_reply_filter(self._deployment, None)
        for topic in (*answers, question_filter(self._deployment)):
            await connection.subscribe(topic, qos=1)

    def _new_connection(self) -> MqttConnection:
        return MqttConnection(
            self._broker,
            identifier=f"fc{secrets.token_hex(8)}",
            arrived=self._take,
            clean_session=True,
            timeout=self._call_timeout_s,
            keepalive=_KEEPALIVE_S,
        )

    def _fail(self, error: aiomqtt.MqttError) -> None:
        """Tell every waiting caller that no answer will come."""
        lost = f"broker {self._broker}: {error}"
        self._sessions.fail(lost)
        self._receipts.fail(lost)

    def _take(self, message: Publication) -> bool:
        topic, payload = message.topic, message.payload
        try:
            kind = parse_topic(topic).kind
            if kind is TopicKind.RECEIPT:
                reply = UPLOAD_ANSWER.decode(payload).only_one
                self._receipts.settle(_name(reply), reply)
            elif kind is TopicKind.SESSION_REPLY:
                answer = SESSION_REPLY.decode(payload)
                self._sessions.settle(answer.session_id, answer)
            elif kind is TopicKind.QUESTION and payload:
                self._offers[topic] = QUESTION_OFFER.decode(payload)
        except (DecodeError, QuestionError) as error:
            _LOG.info("a message of the broker cannot be read: %s", error)
        return True

    def _unreachable(self, error: aiomqtt.MqttError) -> Unreachable:
        return Unreachable(f"broker {self._broker}: {error}")


def _name(message: Instalment | Receipt | Refusal) -> _ReportName:
    return message.window_id, message.report_id, message.round, message.session_id
