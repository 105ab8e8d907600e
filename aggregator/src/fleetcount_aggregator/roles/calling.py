"""One call to another aggregator: with a deadline, counted, and every failure one of two errors.

It must not try again: who calls decides that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fleetcount_protocol.ids import AggregatorId

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.peers import Peer, PeerRefusalError, PeerUnreachableError

__all__ = ["call_peer"]

Result = TypeVar("Result")


async def call_peer(context: Context, name: AggregatorId, ask: Callable[[Peer], Awaitable[Result]]) -> Result:
    """Return what a peer answers within `call_timeout_s`.

    Raises:
        PeerUnreachableError: it did not answer, or is not configured.
        PeerRefusalError: it refused.
    """
    peer = context.peers.get(name)
    if peer is None:
        raise PeerUnreachableError(f"no peer {name} is configured")
    try:
        async with asyncio.timeout(context.limits.call_timeout_s):
            answer = await ask(peer)
    except TimeoutError:
        context.metrics.peer_called(name, "timeout")
        raise PeerUnreachableError(f"{name} did not answer in time") from None
    except PeerUnreachableError:
        context.metrics.peer_called(name, "unreachable")
        raise
    except PeerRefusalError as refusal:
        context.metrics.peer_called(name, refusal.problem.value)
        raise
    context.metrics.peer_called(name, "ok")
    return answer
