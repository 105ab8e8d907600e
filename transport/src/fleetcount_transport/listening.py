"""What every server of ours needs to listen: a port, its options, the metrics page.

It must not depend on a service: the caller brings the handlers.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import grpc
from fleetcount_protocol.endpoint import split_listener
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES

__all__ = ["bind", "serve_metrics", "server_options"]

_HEADROOM_BYTES: Final = 4096


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind a server to "host:port", without TLS when `credentials` is None, and return the port.

    Raises:
        MachineError: the address is in use, or not an address of this machine.
    """
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise MachineError(f"cannot listen on {address}: it is in use, or not an address of this machine") from error
    if port == 0:
        raise MachineError(f"cannot listen on {address}")
    return int(port)


def server_options(largest_message: int) -> list[tuple[str, int]]:
    """Return the options of a gRPC server that takes messages up to this size."""
    return [
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


async def serve_metrics(listen: str, render: Callable[[], bytes]) -> tuple[asyncio.Server, int]:
    """Serve GET /metrics at "host:port"; return the server and its port.

    Raises:
        MachineError: the address cannot be listened on.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(5):
                request = await reader.readline()
                body = render() if request.startswith(b"GET /metrics ") else b""
                status = b"200 OK" if body else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
                )
                await writer.drain()
        writer.close()

    host, port = split_listener(listen)
    try:
        server = await asyncio.start_server(answer, host, port, limit=8192)
    except OSError as error:
        raise MachineError(f"cannot listen on {listen}: {error.strerror}") from error
    return server, int(server.sockets[0].getsockname()[1])
