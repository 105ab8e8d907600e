"""The transport over gRPC: mutual TLS, a deadline on every message, session requests and instalments on one stream.

Bytes are decoded by the protocol's strict codec, never by the RPC library alone. Never retries and never falls back to
plaintext.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio
from fleetcount_protocol.errors import DecodeError, PeerError, QuestionError, UsageError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.limits import MAX_BATCH_BYTES, MAX_QUESTION_LIST_BYTES, MAX_QUESTIONS, MAX_QUESTIONS_PER_LIST
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    QuestionQuery,
    Receipt,
    Refusal,
    ReleaseAnswer,
    ReleaseQuery,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
    check_unchanged,
    held_digest,
)
from fleetcount_protocol.v1.device_pb2 import ListQuestionsResponse
from fleetcount_protocol.v1.device_pb2 import QuestionOffer as PbQuestionOffer
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.device import RELEASE_ANSWER, RELEASE_QUERY
from fleetcount_protocol.wire.device_columns import batches
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage, DeviceMessage
from fleetcount_protocol.wire.question import QUESTION_LIST_QUERY, QUESTION_OFFER
from fleetcount_transport.channels import DEVICE_OPTIONS, open_channel
from fleetcount_transport.key_files import TlsFiles
from fleetcount_transport.lost_reasons import call_reason
from fleetcount_transport.toml_table import ConfigError
from google.protobuf.message import DecodeError as ProtobufError

from fleetcount_client.answer_streams import AnswerStreams, hint_s
from fleetcount_client.transport import Unreachable

_LOG: Final = logging.getLogger(__name__)
_SERVICE: Final = "/fleetcount_protocol.v1.DeviceService/"
_OVERHEAD_BYTES: Final = 65_536
_OPTIONS: Final = (
    *DEVICE_OPTIONS,
    ("grpc.max_receive_message_length", MAX_QUESTION_LIST_BYTES + _OVERHEAD_BYTES),
    ("grpc.max_send_message_length", MAX_BATCH_BYTES + _OVERHEAD_BYTES),
)
_ResultT = TypeVar("_ResultT")


class _Offers:
    """What one aggregator offers: by the SHA-256 of each offer's message what was read, None where it cannot be."""

    def __init__(self) -> None:
        self.by_digest: dict[bytes, QuestionOffer | None] = {}
        self.held: bytes | None = None
        """The digest of all that a query for nothing new names; None while there is none."""

    def close(self) -> None:
        """Compute `held`: every list was read."""
        self.held = held_digest(self.by_digest) if self.by_digest else None

    def readable(self) -> list[QuestionOffer]:
        """Return those that can be read, in the order of the lists."""
        return [one for one in self.by_digest.values() if one is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowServer:
    """An aggregator that is asked for questions: its id, which its certificate must carry, and "host:port"."""

    aggregator_id: AggregatorId
    endpoint: str


def _nobody_listens(party: str, trouble: str) -> None:
    """Take what a listener would hear; there is none."""


class GrpcTransport:
    """One device's calls to its aggregators; one channel an aggregator, opened at the first call.

    The server's certificate must carry the aggregator's id as the window (or the configuration) names it, whatever the
    host: a certificate of the same authority for another aggregator is not enough. `tls` may be a function that is
    asked at every new connection. With `tls` None, which `insecure` must confirm, only endpoints on this machine are
    called.

    With a `relay`, "host:port", every call goes there; its request names the aggregator. The relay's certificate
    must carry that host; what it carries it can neither read nor change unnoticed (docs/wire.md, "Relay").

    With a `proxy`, "host:port", connections go through that HTTP proxy; one of the environment is never asked.

    `heard` is told of each aggregator that was asked for questions: its id, and "" or why it did not answer.

    Raises:
        ConfigError: neither `tls` nor `insecure`.
    """

    def __init__(
        self,
        *,
        deployment: str,
        servers: Iterable[WindowServer],
        tls: TlsFiles | Callable[[], TlsFiles] | None,
        call_timeout_s: float = 20.0,
        insecure: bool = False,
        relay: str = "",
        proxy: str = "",
        heard: Callable[[str, str], None] | None = None,
    ) -> None:
        if tls is None and not insecure:
            raise ConfigError("grpc.ca_file is missing; allowed without TLS is only insecure = true on loopback")
        self._deployment = deployment
        self._servers = tuple(servers)
        self._tls = tls
        self._call_timeout_s = call_timeout_s
        self._relay = relay
        self._proxy = proxy
        self._heard = heard or _nobody_listens
        self._ways: dict[tuple[str, str], AnswerStreams] = {}
        self._listed: dict[str, _Offers] = {}
        """What each server offered last: the same bytes are not read again."""

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        """Return the question every configured aggregator offers; one that cannot be read is left out and logged.

        Raises:
            Unreachable: none of them answered.
        """
        offers: list[QuestionOffer] = []
        failures: list[str] = []
        for server in self._servers:
            try:
                offers += await self._question_of(server)
            except (Unreachable, PeerError) as error:
                failures.append(str(error))
                self._heard(server.aggregator_id, str(error))
            else:
                self._heard(server.aggregator_id, "")
        if len(failures) == len(self._servers):
            raise Unreachable("; ".join(failures) or "no aggregator with a grpc_endpoint is configured")
        return tuple(offers)

    async def _question_of(self, server: WindowServer) -> list[QuestionOffer]:
        """Return the question one aggregator offers, list by list, `MAX_QUESTIONS` at most."""
        endpoint = server.endpoint
        channel = self._way(server.aggregator_id, endpoint).channel
        known, read = self._listed.get(endpoint, _Offers()), _Offers()
        # Behind a relay an aggregator must not know a device again, as by a digest of offers made for it alone.
        held, after, more = None if self._relay else known.held, None, True
        while more and len(read.by_digest) < MAX_QUESTIONS:
            query = QUESTION_LIST_QUERY.encode(
                QuestionQuery(aggregator_id=server.aggregator_id, deployment=self._deployment, after=after, held=held)
            )
            listed = _read_list(await self._answered(endpoint, self._ask(channel, "ListQuestions", query)))
            if listed.unchanged:
                if held is None:
                    raise DecodeError("a list of questions is unchanged, and none was said to be held")
                return known.readable()
            messages, more, held = listed.offers[:MAX_QUESTIONS_PER_LIST], listed.more, None
            last = max((QuestionId(hashlib.sha256(one.signed.question).digest()) for one in messages), default=None)
            if more and (last is None or (after is not None and last <= after)):
                raise DecodeError("a list of questions says that there are more and holds none that is new")
            after = last
            for message in messages:
                digest = hashlib.sha256(message.SerializeToString()).digest()
                read.by_digest[digest] = known.by_digest[digest] if digest in known.by_digest else _read_offer(message)
        read.close()
        self._listed[endpoint] = read
        return read.readable()

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Ask one aggregator to open sessions; one answer a request, in order."""
        [answer] = await self._exchange(aggregator, [DeviceMessage(requests=tuple(requests))])
        replies = answer.replies
        if [reply.session_id for reply in replies] != [request.session_id for request in requests]:
            raise DecodeError(f"{len(replies)} session replies do not answer {len(requests)} requests")
        return replies

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Send instalments in as few batches as fit; one answer an instalment, in order."""
        aggregator = window.aggregators[position]
        messages = [DeviceMessage(upload=one) for one in batches(aggregator.aggregator_id, instalments)]
        answers = await self._exchange(aggregator, messages)
        replies = tuple(reply for one in answers if one.upload is not None for reply in one.upload.replies())
        if [_name(reply) for reply in replies] != [_name(instalment) for instalment in instalments]:
            raise DecodeError(f"{len(replies)} replies do not answer {len(instalments)} instalments")
        return replies

    async def release(self, window: Window) -> ReleaseAnswer:
        """Return a window's release from the first aggregator that has one, else the state that the last one told.

        Raises:
            Unreachable: none of them told anything.
        """
        told: ReleaseAnswer | None = None
        failures: list[str] = []
        for one in window.aggregators:
            try:
                channel = self._way(one.aggregator_id, one.grpc_endpoint).channel
                query = RELEASE_QUERY.encode(ReleaseQuery(aggregator_id=one.aggregator_id, window_id=window.window_id))
                told = RELEASE_ANSWER.decode(
                    await self._answered(one.grpc_endpoint, self._ask(channel, "GetRelease", query))
                )
            except (Unreachable, PeerError) as error:
                failures.append(str(error))
                continue
            if told.record:
                return told
        if told is None:
            raise Unreachable("; ".join(failures))
        return told

    async def close(self) -> None:
        """Close every channel; the next call opens a new one."""
        ways, self._ways = self._ways, {}
        for one in ways.values():
            await one.channel.close()

    async def _exchange(self, aggregator: Aggregator, messages: Sequence[DeviceMessage]) -> list[AggregatorMessage]:
        """Send messages to an aggregator; return one answer each, in order."""
        streams = self._way(aggregator.aggregator_id, aggregator.grpc_endpoint)
        exchange = streams.exchange([DEVICE_MESSAGE.encode(one) for one in messages])
        return list(map(AGGREGATOR_MESSAGE.decode, await self._answered(aggregator.grpc_endpoint, exchange)))

    async def _answered(self, endpoint: str, call: Awaitable[_ResultT]) -> _ResultT:
        if self._relay:
            endpoint += f" by the relay {self._relay}"
        try:
            return await call
        except Unreachable as error:
            raise Unreachable(f"{endpoint}: {error}", error.retry_after_s) from None
        except grpc.aio.AioRpcError as error:
            reason = call_reason(error, self._own_certificate())
            raise Unreachable(f"{endpoint}: {reason}", hint_s(error.trailing_metadata())) from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling():
                raise
            # Not the caller was cancelled but its call: gRPC ends so what waits as its channel is closed.
            raise Unreachable(f"{endpoint}: the connection was given up") from None

    def _own_certificate(self) -> str:
        """Describe the certificate that is shown now; "" without TLS, or while its files are being replaced."""
        try:
            tls = self._tls() if callable(self._tls) else self._tls
        except UsageError:
            return ""
        return "" if tls is None else tls.described()

    async def _ask(self, channel: grpc.aio.Channel, name: str, query: bytes) -> bytes:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_SERVICE + name)
        return await method(query, timeout=self._call_timeout_s)

    def _way(self, aggregator_id: AggregatorId, endpoint: str) -> AnswerStreams:
        """Return the channel, with its streams, on which calls for one aggregator travel: its own, or the relay's."""
        if not endpoint:
            raise Unreachable(f"aggregator {aggregator_id} has no gRPC endpoint")
        if self._relay:
            return self._streams("", self._relay)
        return self._streams(aggregator_id, endpoint)

    def _streams(self, expected: str, endpoint: str) -> AnswerStreams:
        """Return the channel to an endpoint whose certificate carries the `expected` name, or its host's if "".

        Raises:
            Unreachable: without TLS, an endpoint beyond this machine; or the files of TLS cannot be used now.
        """
        name = (expected, endpoint)
        if name not in self._ways:
            self._ways[name] = AnswerStreams(self._open(expected, endpoint), self._call_timeout_s)
        return self._ways[name]

    def _open(self, expected: str, endpoint: str) -> grpc.aio.Channel:
        try:
            tls = self._tls() if callable(self._tls) else self._tls
            credentials = None if tls is None else tls.to_servers()
            return open_channel(endpoint, credentials, name=expected, options=_OPTIONS, proxy=self._proxy)
        except UsageError as error:
            # In the middle of a renewal a certificate may be there before its key: the next attempt reads both again.
            raise Unreachable(f"{endpoint}: {error}") from None


def _name(message: Instalment | Receipt | Refusal) -> tuple[bytes, bytes, int, bytes]:
    return message.window_id, message.report_id, message.round, message.session_id


def _read_list(data: bytes) -> ListQuestionsResponse:
    """Return a list of questions whose offers are not read yet.

    Raises:
        DecodeError: it is too long, no message, or is unchanged and has offers.
    """
    if len(data) > MAX_QUESTION_LIST_BYTES:
        raise DecodeError(f"the list of questions has {len(data)} bytes, more than {MAX_QUESTION_LIST_BYTES}")
    try:
        listed = ListQuestionsResponse.FromString(data)
    except ProtobufError:
        raise DecodeError("the list of questions is no protobuf message") from None
    check_unchanged(listed.unchanged, len(listed.offers), listed.more)
    return listed


def _read_offer(message: PbQuestionOffer) -> QuestionOffer | None:
    """Return what this version understands of an offer: a newer kind of one must not hide the others."""
    try:
        return QUESTION_OFFER.from_pb(message)
    except (DecodeError, QuestionError) as error:
        _LOG.info("a question on offer cannot be read: %s", error)
        return None
