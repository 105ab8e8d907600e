"""A server of a test's own that leaves no connection behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """Serve connections on a free port of this machine; give the port.

    `asyncio.Server` ends without its connections (before Python 3.12.1 also `wait_closed`). One whose other side
    closes a moment later would be found open by whatever test runs then.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        await serve(reader, writer)

    server = await asyncio.start_server(kept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)  # The task of a connection that was just accepted begins.
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
