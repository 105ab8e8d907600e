"""The stores of several processes of one aggregator over PostgreSQL, in one test."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine
from fleetcount_aggregator.storage.store import Store

from tests.support.connector import connector
from tests.support.instalments import StoredInstalment, add

STORE_KEY = bytes(range(32))


@dataclass
class ReplicaStore:
    """One process's part."""

    store: Store
    engine: PostgresEngine
    link: AsyncLink

    def lead(self) -> int:
        """Let this one take the steps that happen once a window; return under which epoch."""
        assert self.engine.take_lead()
        assert self.engine.epoch is not None
        return self.engine.epoch

    def release_lead(self) -> None:
        """Let another lead."""
        self.engine.release_lead()

    async def give(self, rows: Sequence[StoredInstalment]) -> list[StoreOutcome]:
        """Give it instalments, as an intake does; one outcome each."""
        return await add(self.store, rows)


@asynccontextmanager
async def replica_store(url: str, directory: Path) -> AsyncIterator[ReplicaStore]:
    """Open one process's part."""
    place = StorePlace(directory=directory, url=url)
    engine = await asyncio.to_thread(lambda: open_engine(place, alone=False))
    assert isinstance(engine, PostgresEngine)
    store, link = Store.over(engine, directory / "store.db", STORE_KEY), AsyncLink(connector(url))
    try:
        yield ReplicaStore(store, engine, link)
    finally:
        await link.close()
        await store.close()
