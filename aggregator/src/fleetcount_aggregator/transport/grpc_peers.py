"""Another aggregator over gRPC with mutual TLS: encode, call with a deadline, decode.

The peer's certificate must carry its aggregator id; an address proves nothing. It must not retry: the leader does.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES
from fleetcount_protocol.messages import (
    AbortTask,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallSeries,
    InstallTask,
    NoisedShare,
    OpenQuery,
    RecordProposal,
    RecordSignature,
    SealSet,
    SeriesAnswer,
    SetAgreed,
    TaskStatus,
)
from fleetcount_protocol.series.orders import SignedOrder
from fleetcount_protocol.wire.peer import (
    ABORT_ANSWER,
    ABORT_TASK,
    BATCH_DECISION,
    BATCH_PROPOSAL,
    BATCH_REPLY,
    COMMIT_QUERY,
    COMMITMENT,
    DELIVER_ANSWER,
    FINISH_BATCH,
    FINISHED_RECORD,
    INSTALL_ANSWER,
    INSTALL_TASK,
    NOISED_SHARE,
    OPEN_QUERY,
    RECORD_PROPOSAL,
    RECORD_SIGNATURE,
    SET_AGREED,
    STATUS,
    STATUS_QUERY,
    split_seal_set,
)
from fleetcount_protocol.wire.series import (
    DELIVER_ORDER,
    DELIVER_ORDER_ANSWER,
    INSTALL_SERIES,
    INSTALL_SERIES_ANSWER,
)
from fleetcount_protocol.wire.strict import WireMessage

from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.transport.grpc_server import CLAIM_HEADER, PEER_SERVICE

__all__ = ["GrpcPeer"]

Response = TypeVar("Response")
_WORDS: Final = {problem.value: problem for problem in PeerProblem}
_LARGEST: Final = MAX_PEER_MESSAGE_BYTES + 4096


class GrpcPeer:
    """Implements `Peer`. Without `credentials` the connection is plaintext (loopback tests only)."""

    def __init__(
        self,
        peer_id: AggregatorId,
        endpoint: str,
        *,
        caller: AggregatorId,
        timeout_s: float,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", _LARGEST),
            ("grpc.max_send_message_length", _LARGEST),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.enable_retries", 0),
        ]
        self._metadata: tuple[tuple[str, str], ...] = ()
        if credentials is None:
            self._metadata = ((CLAIM_HEADER, caller),)
            self._channel = grpc.aio.insecure_channel(endpoint, options=options)
        else:
            options.append(("grpc.ssl_target_name_override", str(peer_id)))
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=options)
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """Give up the connection."""
        await self._channel.close()

    async def _call(
        self, method: Callable[..., Awaitable[bytes]], request: Any, decode: Callable[[bytes], Response]
    ) -> Response:
        try:
            return decode(await method(request, timeout=self._timeout_s, metadata=self._metadata))
        except grpc.aio.AioRpcError as error:
            problem = _WORDS.get(error.details() or "")
            if problem is not None:
                raise PeerRefusalError(problem) from None
            raise PeerUnreachableError(f"peer answers {error.code().name.lower()}") from None
        except DecodeError:
            raise PeerRefusalError(PeerProblem.MALFORMED) from None

    async def _unary(
        self, method: str, encoder: WireMessage[Any, Any], request: Any, decoder: WireMessage[Any, Any]
    ) -> Any:
        """Call a method with bytes both ways: the strict codec reads the answer, not the RPC library."""
        call: Callable[..., Awaitable[bytes]] = self._channel.unary_unary(f"/{PEER_SERVICE}/{method}")
        return await self._call(call, encoder.encode(request), decoder.decode)

    async def install_task(self, request: InstallTask) -> State:
        """See `Peer.install_task`."""
        state: State = await self._unary("InstallTask", INSTALL_TASK, request, INSTALL_ANSWER)
        return state

    async def install_series(self, request: InstallSeries) -> SeriesAnswer:
        """See `Peer.install_series`."""
        answer: SeriesAnswer = await self._unary("InstallSeries", INSTALL_SERIES, request, INSTALL_SERIES_ANSWER)
        return answer

    async def deliver_order(self, signed: SignedOrder) -> SeriesAnswer:
        """See `Peer.deliver_order`."""
        answer: SeriesAnswer = await self._unary("DeliverOrder", DELIVER_ORDER, signed, DELIVER_ORDER_ANSWER)
        return answer

    async def propose_batch(self, request: BatchProposal) -> BatchReply:
        """See `Peer.propose_batch`."""
        reply: BatchReply = await self._unary("ProposeBatch", BATCH_PROPOSAL, request, BATCH_REPLY)
        return reply

    async def finish_batch(self, request: FinishBatch) -> BatchDecision:
        """See `Peer.finish_batch`."""
        decision: BatchDecision = await self._unary("FinishBatch", FINISH_BATCH, request, BATCH_DECISION)
        return decision

    async def seal_set(self, request: SealSet) -> SetAgreed:
        """See `Peer.seal_set`."""
        chunks = (chunk.SerializeToString(deterministic=True) for chunk in split_seal_set(request))
        call: Callable[..., Awaitable[bytes]] = self._channel.stream_unary(f"/{PEER_SERVICE}/SealSet")
        return await self._call(call, chunks, SET_AGREED.decode)

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

    async def deliver_record(self, request: FinishedRecord) -> State:
        """See `Peer.deliver_record`."""
        state: State = await self._unary("DeliverRecord", FINISHED_RECORD, request, DELIVER_ANSWER)
        return state

    async def abort(self, request: AbortTask) -> State:
        """See `Peer.abort`."""
        state: State = await self._unary("Abort", ABORT_TASK, request, ABORT_ANSWER)
        return state

    async def status(self, task_id: TaskId) -> TaskStatus:
        """See `Peer.status`."""
        status: TaskStatus = await self._unary("GetStatus", STATUS_QUERY, task_id, STATUS)
        return status
