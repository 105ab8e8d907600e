"""Between replicas of one aggregator: opened instalments to the owner of their shard, over gRPC with mutual TLS.

Both sides show the aggregator's own certificate; nobody else is listened to. Thin shells: decode, call, encode.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc
from fleetcount_protocol.errors import DecodeError, PeerProblem
from fleetcount_protocol.ids import AggregatorId, Digest
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.admission.grpc_admission import Call, GrpcAdmission, Name
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.channels import open_channel
from fleetcount_transport.listening import grpc_server
from fleetcount_transport.lost_reasons import call_reason

from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.intake.routing import Reports
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.errors import FencedError, StoreBusyError
from fleetcount_aggregator.storage.instalment_run import (
    MOST_RUN_BYTES,
    DigestQuery,
    InstalmentRun,
    decode_digests,
    decode_outcomes,
    decode_query,
    decode_runs,
    encode_digests,
    encode_outcomes,
    encode_query,
    encode_runs,
)
from fleetcount_aggregator.transport.grpc_server import CLAIM_HEADER, answer_call

Answer = TypeVar("Answer")
REPLICA_SERVICE: Final = "fleetcount_aggregator.v1.ReplicaService"


class ReplicaShell:
    """Takes what other replicas opened for shards owned here; `reports` answers after the commit."""

    def __init__(
        self,
        reports: Reports,
        metrics: Metrics,
        identify: Name,
        admission: Admission,
        front: HandshakeGate | None = None,
    ) -> None:
        self._reports = reports
        self._metrics = metrics
        self._identify = identify
        self.grpc_admission = GrpcAdmission(admission, front, at_once=admission.limits.calls_each)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service's methods."""
        methods = {
            "Append": self.grpc_admission.unary(self._append, self._identify),
            "Find": self.grpc_admission.unary(self._find, self._identify),
        }
        return grpc.method_handlers_generic_handler(REPLICA_SERVICE, methods)

    async def _append(self, request: bytes, call: Call) -> bytes:
        async def work() -> bytes:
            return encode_outcomes(await self._reports.add_instalments(decode_runs(request)))

        return await self._answer(call, work)

    async def _find(self, request: bytes, call: Call) -> bytes:
        async def work() -> bytes:
            query = decode_query(request)
            return encode_digests(await self._reports.stored(query.window_id, query.round, query.ids))

        return await self._answer(call, work)

    async def _answer(self, call: Call, work: Callable[[], Awaitable[bytes]]) -> bytes:
        async def unless_busy() -> bytes:
            try:
                return await work()
            except (FencedError, StoreBusyError):
                raise PeerRefusalError(PeerProblem.BUSY) from None

        return await answer_call(call, self._metrics, unless_busy)


def replica_server(shell: ReplicaShell) -> grpc.aio.Server:
    """Return the server for other replicas, without a port yet."""
    return grpc_server(shell.handlers(), MOST_RUN_BYTES, shell.grpc_admission.admission.limits.handshake_s)


class ReplicaCalls:
    """Calls other replicas by address. Without `credentials` connections are plaintext (loopback tests only).

    Credentials are asked for with every call: once they are others, new connections are made, and calls under way end
    on those before.
    """

    def __init__(
        self, own: AggregatorId, *, timeout_s: float, credentials: Callable[[], grpc.ChannelCredentials] | None
    ) -> None:
        self._own = own
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._in_use: grpc.ChannelCredentials | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._former: list[grpc.aio.Channel] = []
        self._metadata = ((CLAIM_HEADER, str(own)),) if credentials is None else ()

    async def append(self, address: str, runs: Sequence[InstalmentRun]) -> list[bytes]:
        """Have a shard's owner store runs; return what became of each, after its commit.

        Raises:
            StoreBusyError: it is gone, owns them no more, or has no room; whether it stored them is not known, and the
                same bytes may be sent again.
        """
        return await self._call(
            address, "Append", encode_runs(runs), lambda answer: decode_outcomes(answer, [len(run) for run in runs])
        )

    async def find(self, address: str, query: DigestQuery) -> list[Digest | None]:
        """Ask a shard's owner for the digests of stored instalments; raises as `append`."""
        count = len(query.ids)
        return await self._call(address, "Find", encode_query(query), lambda answer: decode_digests(answer, count))

    async def _call(self, address: str, method: str, request: bytes, decode: Callable[[bytes], Answer]) -> Answer:
        call: Any = self._channel(address).unary_unary(f"/{REPLICA_SERVICE}/{method}")
        try:
            return decode(await call(request, timeout=self._timeout_s, metadata=self._metadata))
        except grpc.aio.AioRpcError as error:
            raise StoreBusyError(f"the owner of a shard answers {call_reason(error)}") from None
        except DecodeError as error:
            raise StoreBusyError(f"the owner of a shard answers what cannot be read: {error}") from None

    def _channel(self, address: str) -> grpc.aio.Channel:
        credentials = None if self._credentials is None else self._credentials()
        if credentials is not self._in_use:
            self._in_use = credentials
            self._former += self._channels.values()
            self._channels.clear()
        known = self._channels.get(address)
        if known is not None:
            return known
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MOST_RUN_BYTES),
            ("grpc.max_send_message_length", MOST_RUN_BYTES + 4096),
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.enable_retries", 0),
        ]
        if credentials is None:
            channel = open_channel(address, None, options=options)
        else:
            options.append(("grpc.ssl_target_name_override", str(self._own)))
            channel = open_channel(address, credentials, options=options)
        self._channels[address] = channel
        return channel

    async def close(self) -> None:
        """Give up every connection."""
        for channel in (*self._former, *self._channels.values()):
            await channel.close()
        self._former.clear()
        self._channels.clear()
