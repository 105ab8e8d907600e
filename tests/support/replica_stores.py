"""The side of an aggregator's process that decides about instalments, over PostgreSQL: several of them in one test.

Each has a store, a member, a keeper of shards and a listener for the others, and talks to them by gRPC on loopback.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.intake.routing import OwnReports, RoutedReports
from fleetcount_aggregator.intake.shard_keeper import ShardKeeper
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.leases import Member
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine
from fleetcount_aggregator.storage.shard_leases import ShardLeases
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.transport.grpc_replicas import ReplicaCalls, ReplicaShell, replica_server
from fleetcount_aggregator.transport.grpc_server import claimed_peer
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_transport.admission.admission import Admission

from tests.support.members import connector

STORE_KEY = bytes(range(32))
_OWN = AggregatorId("alpha")


@dataclass
class ReplicaStore:
    """One process's part."""

    store: Store
    member: Member
    keeper: ShardKeeper
    reports: RoutedReports
    link: AsyncLink
    server: grpc.aio.Server

    def lead(self) -> int:
        """Let this one take the steps that happen once a window; return under which epoch."""
        engine = self.store.engine
        assert isinstance(engine, PostgresEngine)
        assert engine.stand()
        assert engine.epoch is not None
        return engine.epoch

    def resign(self) -> None:
        """Let another lead."""
        engine = self.store.engine
        assert isinstance(engine, PostgresEngine)
        engine.resign()

    async def run_out(self) -> None:
        """Let the member run out now, as if it had not been heard of for its time."""
        await self.link.rows(
            "UPDATE members SET until = clock_timestamp() - interval '1 second' WHERE member = %s", self.member.name
        )


@asynccontextmanager
async def replica_store(
    url: str, directory: Path, *, shards: int = 4, is_open: Callable[[WindowId], bool] = lambda _: True
) -> AsyncIterator[ReplicaStore]:
    """Open one process's part, which takes no shard until it is told to."""
    place = StorePlace(directory=directory, url=url)
    engine = await asyncio.to_thread(lambda: open_engine(place, alone=False, shards=shards))
    store = Store.over(engine, directory / "store.db", STORE_KEY)
    link, calls = AsyncLink(connector(url)), ReplicaCalls(_OWN, timeout_s=10, credentials=None)
    member = Member(link, length_s=60, roles="intake")
    leases = ShardLeases(link, member)
    keeper = ShardKeeper(member, leases, store.logs, lambda window_id: not is_open(window_id), "intake")
    shell = ReplicaShell(OwnReports(store), Metrics(), claimed_peer([_OWN]), Admission())
    server = replica_server(shell)
    member.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    await member.join()
    try:
        reports = RoutedReports(store, store.logs, keeper, leases, calls, is_open)
        yield ReplicaStore(store, member, keeper, reports, link, server)
    finally:
        await server.stop(0)
        await calls.close()
        await link.close()
        await store.close()
