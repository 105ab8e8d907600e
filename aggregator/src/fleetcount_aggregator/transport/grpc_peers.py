"""Another aggregator over gRPC with mutual TLS: encode, call with a deadline, decode.

The peer's certificate must carry its aggregator id, and its greetings are signed with its signing key; an address
proves nothing. Before a question and its seed leave, the peer has proved its key on the connection that they leave by.
It must not retry: the leader does.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import grpc
from fleetcount_protocol.errors import DecodeError, PeerProblem
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES
from fleetcount_protocol.messages import (
    AbortWindow,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallQuestion,
    NoisedShare,
    OpenQuery,
    QuestionAnswer,
    RecordProposal,
    RecordSignature,
    ReleaseAnswer,
    SealSet,
    SetAgreed,
    SetDiffers,
    WindowState,
    WindowStatus,
)
from fleetcount_protocol.question.orders import SignedOrder
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.wire.call_metadata import GREETING_HEADER
from fleetcount_protocol.wire.device import RELEASE_ANSWER
from fleetcount_protocol.wire.peer import (
    ABORT_ANSWER,
    ABORT_WINDOW,
    BATCH_DECISION,
    BATCH_PROPOSAL,
    BATCH_REPLY,
    COMMIT_QUERY,
    COMMITMENT,
    DELIVER_ANSWER,
    FINISH_BATCH,
    FINISHED_RECORD,
    NOISED_SHARE,
    OPEN_QUERY,
    RECORD_PROPOSAL,
    RECORD_SIGNATURE,
    SET_ANSWER,
    SHARED_IDS,
    SHARED_QUERY,
    SHARED_QUESTION_QUERY,
    STATUS,
    STATUS_QUERY,
    split_seal_set,
)
from fleetcount_protocol.wire.question import (
    DELIVER_ORDER,
    DELIVER_ORDER_ANSWER,
    INSTALL_QUESTION,
    INSTALL_QUESTION_ANSWER,
)
from fleetcount_protocol.wire.strict import WireMessage
from fleetcount_transport.channels import open_channel
from fleetcount_transport.lost_reasons import call_reason

from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.transport.grpc_server import CLAIM_HEADER, PEER_SERVICE

Response = TypeVar("Response")
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
            self._metadata = ((CLAIM_HEADER, caller),)
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
        decode: Callable[[bytes], Response],
        *,
        after_proof: bool = False,
    ) -> Response:
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

    async def _unary(
        self, method: str, encoder: WireMessage[Any, Any], request: Any, decoder: WireMessage[Any, Any]
    ) -> Any:
        """Call a method with bytes both ways: the strict codec reads the answer, not the RPC library."""
        call: Callable[..., Any] = self._channel.unary_unary(f"/{PEER_SERVICE}/{method}")
        return await self._call(call, encoder.encode(request), decoder.decode)

    async def install_question(self, request: InstallQuestion) -> QuestionAnswer:
        """See `Peer.install_question`."""
        call: Callable[..., Any] = self._channel.stream_unary(f"/{PEER_SERVICE}/InstallQuestion")
        sent = INSTALL_QUESTION.encode(request)
        return await self._call(call, sent, INSTALL_QUESTION_ANSWER.decode, after_proof=True)

    async def deliver_order(self, signed: SignedOrder) -> QuestionAnswer:
        """See `Peer.deliver_order`."""
        answer: QuestionAnswer = await self._unary("DeliverOrder", DELIVER_ORDER, signed, DELIVER_ORDER_ANSWER)
        return answer

    async def propose_batch(self, request: BatchProposal) -> BatchReply:
        """See `Peer.propose_batch`."""
        reply: BatchReply = await self._unary("ProposeBatch", BATCH_PROPOSAL, request, BATCH_REPLY)
        return reply

    async def finish_batch(self, request: FinishBatch) -> BatchDecision:
        """See `Peer.finish_batch`."""
        decision: BatchDecision = await self._unary("FinishBatch", FINISH_BATCH, request, BATCH_DECISION)
        return decision

    async def seal_set(self, request: SealSet) -> SetAgreed | SetDiffers:
        """See `Peer.seal_set`."""
        chunks = (chunk.SerializeToString(deterministic=True) for chunk in split_seal_set(request))
        call: Callable[..., Any] = self._channel.stream_unary(f"/{PEER_SERVICE}/SealSet")
        return await self._call(call, chunks, SET_ANSWER.decode)

    async def commit(self, request: CommitQuery) -> Commitment:
        """See `Peer.commit`."""
        commitment: Commitment = await self._unary("Commit", COMMIT_QUERY, request, COMMITMENT)
        return commitment

    async def open_share(self, request: OpenQuery) -> NoisedShare:
        """See `Peer.open_share`."""
        share: NoisedShare = await self._unary("Open", OPEN_QUERY, request, NOISED_SHARE)
        return share

    async def sign_record(self, request: RecordProposal) -> RecordSignature:
        """See `Peer.sign_record`."""
        signature: RecordSignature = await self._unary("SignRecord", RECORD_PROPOSAL, request, RECORD_SIGNATURE)
        return signature

    async def deliver_record(self, request: FinishedRecord) -> WindowState:
        """See `Peer.deliver_record`."""
        state: WindowState = await self._unary("DeliverRecord", FINISHED_RECORD, request, DELIVER_ANSWER)
        return state

    async def abort(self, request: AbortWindow) -> WindowState:
        """See `Peer.abort`."""
        state: WindowState = await self._unary("Abort", ABORT_WINDOW, request, ABORT_ANSWER)
        return state

    async def status(self, window_id: WindowId) -> WindowStatus:
        """See `Peer.status`."""
        status: WindowStatus = await self._unary("GetStatus", STATUS_QUERY, window_id, STATUS)
        return status

    async def shared(self, after: QuestionId | None) -> SharedIds:
        """See `Peer.shared`."""
        shared: SharedIds = await self._unary("ListShared", SHARED_QUERY, after, SHARED_IDS)
        return shared

    async def shared_question(self, question_id: QuestionId) -> InstallQuestion:
        """See `Peer.shared_question`."""
        shown: InstallQuestion = await self._unary(
            "GetSharedQuestion", SHARED_QUESTION_QUERY, question_id, INSTALL_QUESTION
        )
        return shown

    async def outcome(self, window_id: WindowId) -> ReleaseAnswer:
        """See `Peer.outcome`."""
        answer: ReleaseAnswer = await self._unary("GetOutcome", STATUS_QUERY, window_id, RELEASE_ANSWER)
        return answer
