"""Whether the store can be written to, the other aggregators answer and this process keeps up, also while it rests.

A peer that has answered anything of late is left alone. It must not decide what follows from an answer.
"""

import asyncio
from math import inf
from typing import Final

from fleetcount_protocol.ids import AggregatorId, WindowId

from fleetcount_aggregator.host.health_observations import Dependency, HealthObservations
from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.host.moment import NOTED_EVERY_S
from fleetcount_aggregator.memory.peers import Peers
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.rows import note_time, read_latest_time
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


class Timekeeping:
    """Lets a store remember the time, and asks peers for theirs while the clock is not confirmed."""

    def __init__(self, host: Host, store: Store, peers: Peers) -> None:
        self._host = host
        self._store = store
        self._peers = peers
        self._noted_at = -inf

    async def look(self) -> None:
        """Note the time if it is confirmed, every `NOTED_EVERY_S`; else ask every peer.

        Raises:
            StoreError: the store failed; the next call does it again.
        """
        moment = self._host.moment()
        if not moment.is_confirmed:
            await asyncio.gather(*(_probe(self._peers, name) for name in self._peers))
        elif moment.now >= self._noted_at + NOTED_EVERY_S:
            await self._store.write(note_time, int(moment.now))
            self._noted_at = moment.now


async def read_time(host: Host, store: Store) -> None:
    """Compare the clock with the time that another process of this aggregator has noted, while it is not confirmed.

    Raises:
        StoreError: the store failed.
    """
    if not host.moment().is_confirmed:
        host.moments.hear(await store.read(read_latest_time))


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
