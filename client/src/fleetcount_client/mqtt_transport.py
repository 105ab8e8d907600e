"""The transport over MQTT 3.1.1: QoS 1, sealed bytes through an untrusted broker, answers on topics of the device.

A PUBACK is no receipt: only what the aggregator itself answers counts. Never retries; the client id is random.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import aiomqtt
from fleetcount_protocol.errors import DecodeError, QuestionError, UsageError
from fleetcount_protocol.ids import ReportId, SessionId, UserName, WindowId, split_endpoint
from fleetcount_protocol.limits import MAX_QUESTION_LIST_BYTES, MAX_QUESTIONS
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
from fleetcount_protocol.wire.device import (
    RELEASE_ANSWER,
    SESSION_REPLY,
    SESSION_REQUEST,
)
from fleetcount_protocol.wire.device_columns import UPLOAD, UPLOAD_ANSWER, Upload
from fleetcount_protocol.wire.question import QUESTION_OFFER
from fleetcount_protocol.wire.topics import (
    TopicKind,
    parse_topic,
    question_filter,
    receipt_filter,
    release_topic,
    report_topic,
    session_reply_filter,
    session_topic,
)
from fleetcount_transport.key_files import tls_context
from fleetcount_transport.lost_reasons import broker_reason
from fleetcount_transport.mqtt_connection import MqttConnection, MqttOnDemand
from fleetcount_transport.mqtt_packets import Publication
from fleetcount_transport.toml_table import ConfigError

from fleetcount_client.transport import Unreachable

_LOG: Final = logging.getLogger(__name__)
_OFFER_SETTLE_S: Final = 0.5
_OFFER_WAIT_S: Final = 5.0
_LONGEST_LISTING_S: Final = 60.0
"""Then what has come is what is on offer: who publishes again and again must not hold a device in one poll."""
_KEEPALIVE_S: Final = 60
_MOST_LISTED_BYTES: Final = MAX_QUESTION_LIST_BYTES
"""What is kept of one answer of the broker to what is on offer; in memory it is up to four times that."""
_ResultT = TypeVar("_ResultT")
_ReportName = tuple[WindowId, ReportId, int, SessionId]


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


class MqttTransport:
    """One device's connection to the broker of its deployment, opened at the first use.

    Question, sessions and reports of all aggregators go through this one broker; who may read and write which topic is
    the broker's configuration (docs/wire.md, "MQTT"). `user` gives the name by which the broker knows the device, asked
    for anew for each connection: a certificate may have been renewed.
    """

    def __init__(
        self,
        *,
        deployment: str,
        broker: str,
        user: Callable[[], UserName],
        login: MqttLogin | None = None,
        call_timeout_s: float = 20.0,
    ) -> None:
        self._deployment = deployment
        split_endpoint(broker)
        self._broker = broker
        self._user_now = user
        self._user: UserName
        self._login = login or MqttLogin()
        self._call_timeout_s = call_timeout_s
        self._connection = MqttOnDemand(self._new_connection, self._fail, self._listen)
        self._sessions: dict[SessionId, asyncio.Future[SessionAccepted | SessionRefused]] = {}
        self._receipts: dict[_ReportName, asyncio.Future[Receipt | Refusal]] = {}
        self._releases: dict[str, asyncio.Future[ReleaseAnswer]] = {}
        self._listed_bytes = 0
        self._offers: dict[str, QuestionOffer] = {}
        self._known: dict[bytes, QuestionOffer] = {}
        self._offer_arrived = asyncio.Event()

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        """Return the offers the broker keeps, one a question and aggregator.

        It waits up to 5 s for the first, then until none comes for half a second.

        Raises:
            Unreachable: the broker does not answer.
        """
        client, topics = await self._connected(), question_filter(self._deployment)
        self._offers.clear()
        self._known.clear()
        self._offer_arrived.clear()
        self._listed_bytes = 0
        # Subscribing anew makes the broker send what it keeps, even to a client that is subscribed already.
        client.subscribed.discard(topics)
        await self._subscribe(client, [topics])
        wait_s = _OFFER_WAIT_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_LISTING_S):
                while True:
                    async with asyncio.timeout(wait_s):
                        await self._offer_arrived.wait()
                    self._offer_arrived.clear()
                    wait_s = _OFFER_SETTLE_S
        return tuple(self._offers.values())

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Publish session requests for one aggregator and wait for its answers, one a request, in order."""
        client = await self._connected()
        topic = session_topic(self._deployment, aggregator.aggregator_id, self._user)
        waiting = [asyncio.get_running_loop().create_future() for _ in requests]
        self._sessions.update(zip((request.session_id for request in requests), waiting, strict=True))
        try:
            self._send(client, topic, map(SESSION_REQUEST.encode, requests))
            return await self._all(waiting, f"aggregator {aggregator.aggregator_id} by MQTT")
        finally:
            _drop(waiting)
            for request in requests:
                self._sessions.pop(request.session_id, None)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Publish instalments for one aggregator and wait for its receipts and refusals, one each, in order."""
        client, aggregator_id = await self._connected(), window.aggregators[position].aggregator_id
        topic = report_topic(self._deployment, aggregator_id, self._user, window.window_id)
        waiting = [asyncio.get_running_loop().create_future() for _ in instalments]
        self._receipts.update(zip(map(_name, instalments), waiting, strict=True))
        try:
            self._send(client, topic, (UPLOAD.encode(Upload.of(aggregator_id, [one])) for one in instalments))
            return await self._all(waiting, f"aggregator {aggregator_id} by MQTT")
        finally:
            _drop(waiting)
            for instalment in instalments:
                self._receipts.pop(_name(instalment), None)

    async def release(self, window: Window) -> ReleaseAnswer:
        """Return the release that the broker keeps of a window.

        Raises:
            Unreachable: the broker does not answer, or has nothing of it within the time of a call.
        """
        client = await self._connected()
        topic = release_topic(self._deployment, window.aggregators[0].aggregator_id, window.window_id)
        waiting = self._releases.setdefault(topic, asyncio.get_running_loop().create_future())
        try:
            await self._subscribe(client, [topic])
            [answer] = await self._all([waiting], f"release of window {window.window_id} by MQTT")
            return answer
        finally:
            _drop([waiting])
            self._releases.pop(topic, None)
            await self._unsubscribe(client, [topic])

    async def close(self) -> None:
        """Leave the broker; the next use connects again."""
        await self._connection.close()

    async def _connected(self) -> MqttConnection:
        try:
            return await self._connection.use()
        except aiomqtt.MqttError as error:
            raise self._unreachable(error) from None
        except UsageError as error:
            # In the middle of a renewal a certificate may be there before its key: the next attempt reads both again.
            raise Unreachable(f"broker {self._broker}: {error}") from None

    def _new_connection(self) -> MqttConnection:
        self._user = self._user_now()
        return MqttConnection(
            self._broker,
            # Random and new at each connection: the broker learns no lasting name from it.
            identifier=f"fc{secrets.token_hex(8)}",
            arrived=self._take,
            username=self._login.username,
            password=self._login.password(),
            tls_context=self._login.tls_context(),
            clean_session=True,
            timeout=self._call_timeout_s,
            keepalive=_KEEPALIVE_S,
        )

    async def _listen(self, client: MqttConnection) -> None:
        """Subscribe to all answers to this device, before anything is asked."""
        answers = session_reply_filter(self._deployment, self._user), receipt_filter(self._deployment, self._user)
        await client.subscribe([(topic, 1) for topic in answers])

    def _fail(self, error: aiomqtt.MqttError) -> None:
        """Tell everybody who waits that nothing comes back any more."""
        lost = self._unreachable(error)
        _fail(self._sessions.values(), lost)
        _fail(self._receipts.values(), lost)
        _fail(self._releases.values(), lost)

    def _take(self, message: Publication) -> bool:
        topic, payload = message.topic, message.payload
        try:
            kind = parse_topic(topic).kind
            if kind is TopicKind.RECEIPT:
                reply = UPLOAD_ANSWER.decode(payload).only_one
                _settle(self._receipts.get(_name(reply)), reply)
            elif kind is TopicKind.SESSION_REPLY:
                answer = SESSION_REPLY.decode(payload)
                _settle(self._sessions.get(answer.session_id), answer)
            elif not payload:
                pass  # What was kept there is taken away.
            elif kind is TopicKind.RELEASE:
                if waiting := self._releases.get(topic):  # A record is large, and decoded for who asked alone.
                    _settle(waiting, RELEASE_ANSWER.decode(payload))
            elif kind is TopicKind.QUESTION:
                self._take_offer(topic, payload)
        except (DecodeError, QuestionError) as error:
            _LOG.info("a message of the broker cannot be read: %s", error)
        return True

    def _take_offer(self, topic: str, payload: bytes) -> None:
        """Keep an offer, unless too much is listed; what all aggregators give alike is read and counted once."""
        if topic not in self._offers and len(self._offers) >= MAX_QUESTIONS:
            return
        digest = hashlib.sha256(payload).digest()
        if digest not in self._known:
            self._listed_bytes += len(payload)
            if self._listed_bytes > _MOST_LISTED_BYTES:
                return
            self._known[digest] = QUESTION_OFFER.decode(payload)
        self._offers[topic] = self._known[digest]
        self._offer_arrived.set()

    async def _subscribe(self, client: MqttConnection, topics: Iterable[str]) -> None:
        """Subscribe to what is not subscribed yet; returns when the broker has acknowledged it."""
        wanted = [topic for topic in topics if topic not in client.subscribed]
        if not wanted:
            return
        try:
            await client.subscribe([(topic, 1) for topic in wanted])
        except aiomqtt.MqttError as error:
            raise self._unreachable(error) from None
        client.subscribed.update(wanted)

    async def _unsubscribe(self, client: MqttConnection, topics: Iterable[str]) -> None:
        known = [topic for topic in topics if topic in client.subscribed]
        if not known:
            return
        client.subscribed.difference_update(known)
        try:
            await client.unsubscribe(known)
        except aiomqtt.MqttError as error:
            _LOG.debug("leaving a topic: %s", error)

    def _send(self, client: MqttConnection, topic: str, payloads: Iterable[bytes]) -> None:
        try:
            client.send([(topic, payload) for payload in payloads])
        except aiomqtt.MqttError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: aiomqtt.MqttError) -> Unreachable:
        return Unreachable(f"broker {self._broker}: {broker_reason(error)}")

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
    return message.window_id, message.report_id, message.round, message.session_id
