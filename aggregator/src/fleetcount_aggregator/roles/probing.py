"""Whether the store can be written to, the other aggregators answer and this process keeps up, also while it rests.

A peer that has answered anything of late is left alone. It must not decide what follows from an answer.
"""

import asyncio
from typing import Final

from fleetcount_protocol.ids import AggregatorId, WindowId

from fleetcount_aggregator.host.health_observations import Dependency, HealthObservations
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.memory.peers import Peers
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.store import Store

PROBE_S: Final = 10.0
"""How often to probe; a peer that goes away is noticed within twice that, if nothing else is asked of it."""
_TICK_S: Final = 0.2
_WORST_OF_S: Final = 60.0
_NO_WINDOW: Final = WindowId(bytes(WindowId.SIZE))


async def probe_peers(peers: Peers, health: HealthObservations) -> None:
    """Ask every peer that has not answered within `PROBE_S` about a window that does not exist, all at once.

    That it refuses by name is the right answer; how it went is in `health` (`Peers.call`).
    """
    silent = [name for name in peers if not health.is_fresh(Dependency.PEER, name, PROBE_S)]
    await asyncio.gather(*(_probe(peers, name) for name in silent))


async def _probe(peers: Peers, name: AggregatorId) -> None:
    try:
        await peers.call(name, lambda peer: peer.status(_NO_WINDOW))
    except (PeerUnreachableError, PeerRefusalError):
        return  # Noted.


async def probe_store(store: Store, health: HealthObservations) -> None:
    """Let the store write something that changes nothing, and note how it went."""
    problem = ""
    try:
        await store.probe()
    except StoreError as error:
        problem = str(error)
    health.note(Dependency.STORE, problem)


async def watch_loop(metrics: Metrics) -> None:
    """Show how late a tick of the event loop came at worst within the last minute, until cancelled."""
    loop = asyncio.get_running_loop()
    worst, worst_at = 0.0, loop.time()
    while True:
        started = loop.time()
        await asyncio.sleep(_TICK_S)
        now = loop.time()
        lag = max(0.0, now - started - _TICK_S)
        if lag >= worst or now - worst_at > _WORST_OF_S:
            worst, worst_at = lag, now
        metrics.loop_lag(worst)
