"""Another aggregator over gRPC with mutual TLS: encode, call with a deadline, decode.

The peer's certificate must carry its aggregator id, and its greetings are signed with its signing key; an address
proves nothing. Before a question and its seed leave, the peer has proved its key on the connection that they leave by.
It must not retry: the leader does.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

import grpc
from fleetcount_protocol.errors import DecodeError, PeerProblem
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES
from fleetcount_protocol.messages import InstallQuestion, QuestionAnswer, SealSet, SetAgreed, SetDiffers
from fleetcount_protocol.wire.call_metadata import GREETING_HEADER
from fleetcount_protocol.wire.peer import SET_ANSWER, split_seal_set
from fleetcount_transport.channels import open_channel
from fleetcount_transport.lost_reasons import call_reason

from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.transport import peer_calls as calls
from fleetcount_aggregator.transport.peer_calls import AnswerT, RequestT

_WORDS: Final = {problem.value: problem for problem in PeerProblem}
_LARGEST: Final = MAX_PEER_MESSAGE_BYTES + 4096


def _greeting_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> bytes:
    """Return the greeting that came with an answer, empty if none did."""
    said = dict(metadata or ()).get(GREETING_HEADER, b"")
    return said if isinstance(said, bytes) else b""


class Speaker(Protocol):
    """What a connection needs of `Greetings`."""

    def now(self) -> float:
        """Return the caller's time."""
        ...

    def say(self, to: AggregatorId, tls_key: bytes = b"") -> bytes:
        """Return the greeting of a call under a TLS key, empty for none."""
        ...

    def check_answerer(self, peer: AggregatorId, said: bytes, called: bytes, tls_key: bytes = b"") -> None:
        """Check by its greeting that who answers is the peer; raises PeerUnreachableError."""
        ...

    async def hear_answer(
        self, peer: AggregatorId, said: bytes, asked: float, called: bytes = b"", tls_key: bytes = b""
    ) -> None:
        """Take the greeting of an answer; raises PeerUnreachableError if the answer counts for nothing."""
        ...


def _path(name: str) -> str:
    return f"/{calls.PEER_SERVICE}/{name}"


def _asking(
    call: calls.PeerCall[RequestT, AnswerT],
) -> Callable[["GrpcPeer", RequestT], Coroutine[Any, Any, AnswerT]]:
    """Return the method of `Peer` that is this call."""

    async def ask(peer: "GrpcPeer", request: RequestT) -> AnswerT:
        return await peer.ask(call, request)

    return ask


class GrpcPeer:
    """Implements `Peer`. Without `credentials` the connection is plaintext (loopback tests only).

    Credentials that are asked for anew may become others: then a new connection is made, and calls under way end on the
    one before. `greetings` are those of the aggregator that calls, None for a command of its operator; `tls_key` gives
    the digest of the public key of the credentials' certificate (`key_digest`), which greetings are signed for.
    """

    def __init__(
        self,
        peer_id: AggregatorId,
        endpoint: str,
        *,
        caller: AggregatorId,
        timeout_s: float,
        credentials: grpc.ChannelCredentials | Callable[[], grpc.ChannelCredentials] | None,
        greetings: Speaker | None = None,
        tls_key: Callable[[], bytes] = bytes,
    ) -> None:
        self._peer_id, self._greetings, self._endpoint = peer_id, greetings, endpoint
        self._tls_key = tls_key
        self._options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", _LARGEST),
            ("grpc.max_send_message_length", _LARGEST),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.enable_retries", 0),
        ]
        self._metadata: tuple[tuple[str, str | bytes], ...] = ()
        self._credentials = credentials
        self._in_use: grpc.ChannelCredentials | None = None
        self._channels: list[grpc.aio.Channel] = []
        if credentials is None:
            self._metadata = ((calls.CLAIM_HEADER, caller),)
            self._channels.append(open_channel(endpoint, None, options=self._options))
        else:
            self._options.append(("grpc.ssl_target_name_override", str(peer_id)))
        self._timeout_s = timeout_s

    @property
    def _channel(self) -> grpc.aio.Channel:
        """The connection for a new call."""
        credentials = self._credentials() if callable(self._credentials) else self._credentials
        if credentials is not self._in_use and credentials is not None:
            self._in_use = credentials
            self._channels.append(open_channel(self._endpoint, credentials, options=self._options))
        return self._channels[-1]

    async def close(self) -> None:
        """Give up every connection."""
        for channel in self._channels:
            await channel.close()

    async def _call(
        self,
        method: Callable[..., Any],
        request: Any,
        decode: Callable[[bytes], AnswerT],
        *,
        after_proof: bool = False,
    ) -> AnswerT:
        """Call a method; with `after_proof` one with a stream, on which the request leaves once the peer has proved who
        it is.
        """
        greetings, metadata, asked, own, said_own = self._greetings, self._metadata, 0.0, self._tls_key(), b""
        if greetings is not None:
            asked, said_own = greetings.now(), greetings.say(self._peer_id, own)
            metadata = (*metadata, (GREETING_HEADER, said_own))
        sent = () if after_proof else (request,)
        call = method(*sent, timeout=self._timeout_s, metadata=metadata)
        try:
            if after_proof:
                await self._send_after_proof(call, request, said_own, own)
            answer = await call
            if greetings is not None:
                said = _greeting_in(await call.trailing_metadata())
                await greetings.hear_answer(self._peer_id, said, asked, said_own, own)
            return decode(answer)
        except grpc.aio.AioRpcError as error:
            # Who is refused at the door, or reaches nobody, is not greeted.
            if greetings is not None and (said := _greeting_in(error.trailing_metadata())):
                await greetings.hear_answer(self._peer_id, said, asked, said_own, own)
            problem = _WORDS.get(error.details() or "")
            if problem is not None:
                raise PeerRefusalError(problem) from None
            raise PeerUnreachableError(f"peer answers {call_reason(error)}") from None
        except DecodeError:
            raise PeerRefusalError(PeerProblem.MALFORMED) from None

    async def _send_after_proof(self, call: Any, request: bytes, called: bytes, own: bytes) -> None:
        """Send a request on a stream whose far end has proved on it that it is the peer.

        Raises:
            PeerUnreachableError: it has not; nothing of the request was sent.
        """
        if self._greetings is not None:
            proof = _greeting_in(await call.initial_metadata())
            if call.done():
                return  # Refused at the door, or nobody there: the call says so when it is awaited.
            try:
                self._greetings.check_answerer(self._peer_id, proof, called, own)
            except PeerUnreachableError:
                call.cancel()
                raise
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # As above.
            await call.write(request)
            await call.done_writing()

    async def install_question(self, request: InstallQuestion, /) -> QuestionAnswer:
        """See `Peer.install_question`."""
        return await self._call(
            self._channel.stream_unary(_path(calls.INSTALL_QUESTION.name)),
            calls.INSTALL_QUESTION.request.encode(request),
            calls.INSTALL_QUESTION.answer.decode,
            after_proof=True,
        )

    async def seal_set(self, request: SealSet, /) -> SetAgreed | SetDiffers:
        """See `Peer.seal_set`."""
        chunks = (chunk.SerializeToString(deterministic=True) for chunk in split_seal_set(request))
        return await self._call(self._channel.stream_unary(_path(calls.SEAL_SET)), chunks, SET_ANSWER.decode)

    async def ask(self, call: calls.PeerCall[RequestT, AnswerT], request: RequestT) -> AnswerT:
        """Make a call with bytes both ways: the strict codec reads the answer, not the RPC library."""
        method: Callable[..., Any] = self._channel.unary_unary(_path(call.name))
        return await self._call(method, call.request.encode(request), call.answer.decode)

    deliver_order = _asking(calls.DELIVER_ORDER)
    propose_batch = _asking(calls.PROPOSE_BATCH)
    finish_batch = _asking(calls.FINISH_BATCH)
    commit = _asking(calls.COMMIT)
    open_share = _asking(calls.OPEN_SHARE)
    sign_record = _asking(calls.SIGN_RECORD)
    deliver_record = _asking(calls.DELIVER_RECORD)
    abort = _asking(calls.ABORT)
    status = _asking(calls.STATUS)
    shared = _asking(calls.SHARED)
    shared_question = _asking(calls.SHARED_QUESTION)
    outcome = _asking(calls.OUTCOME)
