"""One call to another aggregator: with a deadline, counted, noted, and every failure one of two errors.

It must not try again: who calls decides that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.peers import Peer, PeerRefusalError, PeerUnreachableError

Result = TypeVar("Result")


async def call_peer(
    context: Context, name: AggregatorId, ask: Callable[[Peer], Awaitable[Result]], *, counted: bool = True
) -> Result:
    """Return what a peer answers within `call_timeout_s`; not `counted`: how many such calls there are is secret.

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
        _note(context, name, "timeout" if counted else "", "no answer in time")
        raise PeerUnreachableError(f"{name} did not answer in time") from None
    except PeerUnreachableError as error:
        _note(context, name, "unreachable" if counted else "", str(error))
        raise
    except PeerRefusalError as refusal:
        _note(context, name, refusal.problem.value if counted else "")  # Who refuses is there.
        if refusal.problem is PeerProblem.STALE_EPOCH:
            # Nothing follows for a window: who can show the newer start ends this process, and who cannot did not
            # answer.
            raise PeerUnreachableError(f"{name} knows a newer start of this aggregator") from refusal
        raise
    _note(context, name, "ok" if counted else "")
    return answer


def _note(context: Context, name: AggregatorId, result: str, problem: str = "") -> None:
    if result:
        context.metrics.peer_called(name, result)
    context.health.note(Dependency.PEER, problem, name=name)
