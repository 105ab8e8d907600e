"""One of several processes of an aggregator over PostgreSQL: the work and the listeners of its roles.

`intake` serves devices, `worker` verifies, and the elected `coordinator` does what happens once. It must hold no rule
of the protocol.
"""

import asyncio
import json
from dataclasses import replace

from fleetcount_protocol.errors import UsageError
from fleetcount_transport.key_files import tls_context

from fleetcount_aggregator.config import AggregatorConfig, MqttTable
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.host.role import Role
from fleetcount_aggregator.process.serving import (
    KEYS_S,
    Core,
    Listener,
    Work,
    coordinator_work,
    device_listener,
    every,
    mqtt_work,
    peer_listener,
)
from fleetcount_aggregator.roles.election import Election
from fleetcount_aggregator.roles.following import Following
from fleetcount_aggregator.roles.slots import SlotKeeper
from fleetcount_aggregator.roles.worker import WorkerRole
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.changes import Changes
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.storage.opening import server_of
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine
from fleetcount_aggregator.storage.slot_locks import SlotLocks
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.remote_workers import RemoteWorkers
from fleetcount_aggregator.windows.sealing_keys import SealingKeys


class Replica:
    """One process of an aggregator; `begin`, then open `listeners`, then do the `work` until it is cancelled."""

    def __init__(self, config: AggregatorConfig, context: Context, store: Store, roles: frozenset[Role]) -> None:
        if not isinstance(store.engine, PostgresEngine):
            raise UsageError("store.url is missing; several processes need a store in PostgreSQL")
        server = server_of(config.store_place)
        self._config = config
        self._roles = roles
        self._engine = store.engine
        self._connect = server.connect_async
        self._links = work, changes = AsyncLink(server.connect_unsure), AsyncLink(server.connect_async)
        self._jobs = Jobs(work)
        local = context.workers
        self._remote = RemoteWorkers(self._jobs, store.data_keys, local)
        self._context = context = replace(context, workers=self._remote)
        self._worker = WorkerRole(context.windows, server.connect_unsure, local, store.logs.backend.reader)
        self.core = Core.of(context)
        self._following = Following(
            context.windows,
            context.questions,
            Changes(changes),
            leads=lambda: self.is_coordinator,
            forget_destroyed=store.forget_destroyed,
        )
        if Role.COORDINATOR in roles and config.mqtt is not None:
            from fleetcount_aggregator.transport.mqtt_withdrawing import Withdrawing  # Who uses MQTT has its client.

            # The coordinator deletes outcomes at the broker, whichever process has published them.
            context.windows.outcomes.withdraw = Withdrawing(context.host, config.mqtt)

    async def begin(self) -> None:
        """Load questions and windows from the database.

        Raises:
            FleetcountError: the store failed, or a row cannot be read.
        """
        await self._following.look()

    def listeners(self) -> dict[str, tuple[Listener, str]]:
        """Return the listeners of this process's roles, with their addresses, by the name of their port."""
        if Role.INTAKE not in self._roles:
            return {}
        return {"device_port": (device_listener(self._config, self.core), self._config.grpc.device_listen)}

    def work(self) -> Work:
        """Return the background work of this process's roles, by name."""
        work: Work = {"following": self._following.run, "results": self._remote.keep_collecting}
        if Role.COORDINATOR in self._roles:
            work["election"] = Election(self._engine, self._coordinate).run
        if Role.WORKER in self._roles:
            work["worker"] = self._worker.run
        if Role.INTAKE in self._roles:
            keys = SealingKeys(self._context.host, None)  # The coordinator makes and deletes keys; others read them.
            work["key-directory"] = lambda: every(KEYS_S, keys.look, self._context.host)
            if self._config.mqtt is not None:
                work["mqtt"] = self._slots(self._config.mqtt).run
        return work

    @property
    def is_coordinator(self) -> bool:
        """Whether this process is the coordinator, as far as it knows."""
        return self._engine.epoch is not None

    def _slots(self, table: MqttTable) -> SlotKeeper:
        """Return the keeper of the connections to the broker.

        Raises:
            ConfigError: the certificate of a slot is missing; every process must have all, since it may get any slot.
        """
        for slot in range(table.slots):
            tls_context(table.ca_file, *table.credential(slot))

        async def serve(slot: int) -> None:
            connection = BrokerConnection(slot, table.slots)
            try:
                await mqtt_work(self._config, self.core, f"-{slot}", connection)()
            finally:
                # Another process reports it from now on.
                self._context.host.health.forget(Dependency.BROKER, name=connection.name)

        return SlotKeeper(SlotLocks(self._connect, table.slots), table.slots, serve)

    async def _coordinate(self) -> None:
        """Do the work that happens once, until cancelled; raises FencedError after another process was elected."""
        await self._following.rest()
        await self._context.questions.load(self._context.windows)
        await self._context.windows.load(self._context.questions)
        await self._jobs.tidy()
        await self._context.peers.greetings.begin(self._context.host.identity.signing_key, self._context.host.source)
        listener = peer_listener(self._config, self.core)
        try:
            port = await listener.open(self._config.grpc.peer_listen)
            print(json.dumps({"event": "coordinator", "epoch": self._engine.epoch, "peer_port": port}), flush=True)
            async with asyncio.TaskGroup() as group:
                for name, one in coordinator_work(self._config, self.core).items():
                    group.create_task(one(), name=name)
        finally:
            self._context.peers.greetings.end()
            self._remote.forget()
            self._following.missed()
            await listener.close()

    async def close(self) -> None:
        """Close the connections of this process."""
        for link in self._links:
            await link.close()
