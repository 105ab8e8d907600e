"""What a client may not leave behind on the event loop: tasks, and sockets the loop still watches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_OF_SERVERS = ("_accept_connection2", ".serve(")
"""Tasks of a test's own asyncio servers, which learn a little later that a client has gone."""
_PATIENCE_S = 30.0
"""A thread that was connecting when its client gave up notices that at its end."""


@asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[None]:
    """Fail if tasks or watched sockets that were not there before stay after the block.

    asyncio's own transports are not looked at: what is meant are sockets that a library gave the loop by number.
    """
    tasks, watched = asyncio.all_tasks(), _watched_sockets()
    yield
    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    while (left := _new_tasks(tasks)) or _watched_sockets() - watched:
        assert asyncio.get_running_loop().time() < deadline, (left, _watched_sockets() - watched)
        await asyncio.sleep(0.01)


def _new_tasks(known: set[asyncio.Task[object]]) -> list[asyncio.Task[object]]:
    return [one for one in asyncio.all_tasks() - known if not any(name in repr(one) for name in _OF_SERVERS)]


def _watched_sockets() -> set[int]:
    loop = asyncio.get_running_loop()
    return set(loop._selector.get_map()) - set(loop._transports)  # type: ignore[attr-defined]  # asyncio shows no list.
