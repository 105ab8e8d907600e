"""A server of a test's own that leaves no connection behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, place: Path | None = None) -> AsyncIterator[int]:
    """Serve connections on a free port of this machine; give the port. With a `place`, at a socket there; give 0.

    `asyncio.Server` ends without its connections (before Python 3.12.1 also `wait_closed`). One whose other side
    closes a moment later would be found open by whatever test runs then.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        await serve(reader, writer)

    if place is not None:
        server = await asyncio.start_unix_server(kept, place)
    else:
        server = await asyncio.start_server(kept, "127.0.0.1", 0)
    try:
        yield 0 if place is not None else server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)  # The task of a connection that was just accepted begins.
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
