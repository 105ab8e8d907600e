"""A server of a test's own that leaves no connection behind."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fleetcount_transport.admission.server_socket import ServerSocket

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, at: socket.socket | None = None) -> AsyncIterator[int]:
    """Serve connections on a free port of this machine and give the port; or `at` a socket of its own, and give 0.

    `asyncio.Server` ends without its connections (before Python 3.12.1 also `wait_closed`). One whose other side
    closes a moment later would be found open by whatever test runs then.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        await serve(reader, writer)

    if at is not None:
        server = await asyncio.start_unix_server(kept, sock=at)
    else:
        server = await asyncio.start_server(kept, "127.0.0.1", 0)
    try:
        yield 0 if at is not None else server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)  # The task of a connection that was just accepted begins.
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


def unix_socket() -> tuple[socket.socket, ServerSocket]:
    """Return a socket that listens, and how a gate reaches it."""
    at = socket.socket(socket.AF_UNIX)

    def listen(path: str) -> None:
        at.bind(path)
        at.listen()

    return at, ServerSocket(listen)
