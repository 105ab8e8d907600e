"""The socket and the options of every gRPC server.

It must not depend on a service: the caller gives the handlers.
"""

from typing import Final

import grpc
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES

from fleetcount_transport.admission.server_socket import ServerSocket
from fleetcount_transport.channels import Options

_HEADROOM_BYTES: Final = 4096
_UNUSED_MS: Final = 600_000
"""Milliseconds for which a connection without a call stays open."""


def bind(server: grpc.aio.Server, credentials: grpc.ServerCredentials | None) -> ServerSocket:
    """Bind a server to a socket for the `HandshakeGate` before it, without TLS when `credentials` is None.

    Raises:
        MachineError: as `ServerSocket`.
    """
    if credentials is None:
        return ServerSocket(lambda path: server.add_insecure_port(f"unix:{path}"))
    return ServerSocket(lambda path: server.add_secure_port(f"unix:{path}", credentials))


def grpc_server(
    handlers: grpc.GenericRpcHandler, largest_message: int, handshake_s: float, options: Options = ()
) -> grpc.aio.Server:
    """Return a server without a port yet, with limits of a message (bytes) and of a handshake (seconds).

    `options` are gRPC's own, beside those that every server has.
    """
    server = grpc.aio.server(options=[*_options(largest_message, handshake_s), *options])
    server.add_generic_rpc_handlers((handlers,))
    return server


def _options(largest_message: int, handshake_s: float) -> list[tuple[str, int]]:
    return [
        ("grpc.server_handshake_timeout_ms", int(1000 * handshake_s)),
        ("grpc.max_connection_idle_ms", _UNUSED_MS),
        ("grpc.max_receive_message_length", largest_message + _HEADROOM_BYTES),
        ("grpc.max_send_message_length", MAX_PEER_MESSAGE_BYTES + _HEADROOM_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 256),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.default_compression_algorithm", 0),
        ("grpc.max_metadata_size", 16 * 1024),
    ]
