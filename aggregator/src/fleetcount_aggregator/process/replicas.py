"""One process of an aggregator over PostgreSQL: what of it runs here by its roles, and what follows when others change.

`intake` serves devices and writes shards, `worker` verifies, `coordinator` stands for election and does what happens
once. It must hold no rule of the protocol.
"""

import asyncio
import json
from dataclasses import replace
from typing import Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import WindowId, split_listener
from fleetcount_transport.admission.admission import Admission, limits_for_peers
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.key_files import tls_context

from fleetcount_aggregator.config import AggregatorConfig, MqttTable
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.host.role import Role
from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.intake.intake_rules import OPEN_STATES
from fleetcount_aggregator.intake.routing import OwnReports, RoutedReports
from fleetcount_aggregator.intake.shard_keeper import ShardKeeper
from fleetcount_aggregator.process.serving import (
    Core,
    Listener,
    Work,
    coordinator_work,
    device_listener,
    every,
    load_tls,
    mqtt_work,
    peer_listener,
)
from fleetcount_aggregator.roles.following import Following
from fleetcount_aggregator.roles.membership import Membership
from fleetcount_aggregator.roles.slots import SlotKeeper
from fleetcount_aggregator.roles.standing import Standing
from fleetcount_aggregator.roles.worker import WorkerRole
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.changes import Changes
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.storage.leases import Member
from fleetcount_aggregator.storage.opening import server_of
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine
from fleetcount_aggregator.storage.shard_leases import ShardLeases
from fleetcount_aggregator.storage.slot_locks import SlotLocks
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.transport.grpc_replicas import ReplicaCalls, ReplicaShell, replica_server
from fleetcount_aggregator.transport.grpc_server import certified_peer, claimed_peer
from fleetcount_aggregator.verification.remote_workers import RemoteWorkers
from fleetcount_aggregator.windows.sealing_keys import SealingKeys

_KEYS_S: Final = 10.0
_MOST_REPLICAS: Final = 64
"""Other processes of this aggregator that may call this one."""


class Replica:
    """One process of an aggregator; `begin`, then open `listeners`, then do the `work` until it is cancelled."""

    def __init__(
        self, config: AggregatorConfig, context: Context, store: Store, roles: frozenset[Role], release: str = ""
    ) -> None:
        server, tls, table = server_of(config.store_place), load_tls(config), config.store
        engine = store.engine
        if not isinstance(engine, PostgresEngine):
            raise UsageError("store.url is missing; several processes need a store in PostgreSQL")
        self._config = config
        self._roles = roles
        connect, unsure = server.connect_async, server.connect_unsure
        self._connect = connect
        self._links = [AsyncLink(one) for one in (connect, unsure, connect, connect)]
        self._replicas = _replica_listener(config, context)
        self._forward = ReplicaCalls(
            context.host.aggregator_id,
            timeout_s=config.limits.call_timeout_s,
            credentials=None if tls is None else tls.client,
        )
        members, work, shards, changes = self._links
        self.member = Member(members, length_s=table.lease_s, roles=",".join(sorted(roles)), release=release)
        local = context.workers
        self._jobs = Jobs(work)
        self._remote = RemoteWorkers(self._jobs, context.store.data_keys, local)
        context = replace(context, workers=self._remote)
        self._context = context
        self._worker = WorkerRole(context.windows, unsure, local, store.logs.backend.reader)
        leases = ShardLeases(shards, self.member)
        self.keeper = ShardKeeper(self.member, leases, store.logs, self._has_ended, Role.INTAKE)
        reports = RoutedReports(context.store, store.logs, self.keeper, leases, self._forward, self._is_open)
        self.core = Core.of(context, reports)
        self._following = Following(
            context.windows,
            context.questions,
            Changes(changes),
            leads=lambda: self.is_coordinator,
            forget_destroyed=store.forget_destroyed,
        )
        self._engine = engine
        self._membership = Membership(self.member, [self.keeper.lost])
        if Role.COORDINATOR in roles and config.mqtt is not None:
            from fleetcount_aggregator.transport.mqtt_withdrawing import Withdrawing  # Who uses MQTT has its client.

            # Whoever has the connection that put an outcome at the broker: a coordinator takes it away by itself.
            context.windows.outcomes.withdraw = Withdrawing(context.host, config.mqtt)

    def _is_open(self, window_id: WindowId) -> bool:
        return self._context.windows.states.get(window_id) in OPEN_STATES

    def _has_ended(self, window_id: WindowId) -> bool:
        # A window that is not known here yet has been installed a moment ago.
        return self._context.windows.states.get(window_id) in FINAL_STATES

    async def begin(self) -> None:
        """Take up what the database has of questions.

        Raises:
            FleetcountError: the store failed, or holds what cannot be read.
        """
        await self._following.look()

    def listeners(self) -> dict[str, tuple[Listener, str]]:
        """Return the listeners of this process's roles, with their addresses, by the name of their port."""
        if Role.INTAKE not in self._roles:
            return {}
        devices = device_listener(self._config, self.core)
        return {
            "device_port": (devices, self._config.grpc.device_listen),
            "replica_port": (self._replicas, self._config.store.replica_listen),
        }

    def work(self) -> Work:
        """Return what goes on in this process."""
        work: Work = {
            "member": self._join,
            "following": self._following.run,
            "results": self._remote.keep_collecting,
        }
        if Role.COORDINATOR in self._roles:
            work["standing"] = Standing(self._engine, self._coordinate).run
        if Role.WORKER in self._roles:
            work["worker"] = self._worker.run
        if Role.INTAKE in self._roles:
            keys = SealingKeys(self._context.host, None)  # The coordinator makes and deletes keys; others take them up.
            work |= {
                "shards": self.keeper.run,
                "key-directory": lambda: every(_KEYS_S, keys.look, self._context.host),
            }
            if self._config.mqtt is not None:
                work["mqtt"] = self._slots(self._config.mqtt).run
        return work

    async def _join(self) -> None:
        table = self._config.store
        host, _ = split_listener(table.replica_listen)
        self.member.address = table.replica_address or f"{host}:{self._replicas.port}"
        await self._membership.run()

    @property
    def is_coordinator(self) -> bool:
        """See `Membership.is_coordinator`."""
        return self._engine.epoch is not None

    def complaint(self) -> str:
        """See `Membership.complaint`."""
        return "" if self.member.holds else "its leases are not surely its own: the database did not renew them in time"

    def _slots(self, table: MqttTable) -> SlotKeeper:
        """Return what holds connections to the broker.

        Raises:
            ConfigError: the certificate of one is missing: whichever process it comes to must have it.
        """
        for slot in range(table.slots):
            tls_context(table.ca_file, *table.credential(slot))

        async def serve(slot: int) -> None:
            share = BrokerConnection(slot, table.slots)
            try:
                await mqtt_work(self._config, self.core, f"-{slot}", share)()
            finally:
                self._context.host.health.forget(Dependency.BROKER, name=share.name)  # It is another's from now on.

        return SlotKeeper(SlotLocks(self._connect, table.slots), table.slots, serve)

    async def _coordinate(self) -> None:
        """Do what happens once, until cancelled; raises FencedError when another process does it."""
        await self.keeper.settle()
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
        """Let go of every connection of its own."""
        await self._forward.close()
        for link in self._links:
            await link.close()


def _replica_listener(config: AggregatorConfig, context: Context) -> Listener:
    """Return the listener for the other processes of this aggregator, closed still."""
    tls, own = load_tls(config), [context.host.aggregator_id]
    among = Admission(limits_for_peers(config.admission, _MOST_REPLICAS), context.host.metrics.shed)
    front = HandshakeGate(among.limits, among.limits.connections, context.host.metrics.shed, tls=tls is not None)
    identify = claimed_peer(own) if tls is None else certified_peer(own, context.host.denials.denies)
    server = replica_server(ReplicaShell(OwnReports(context.store), context.host.metrics, identify, among, front))
    return Listener(server, front, None if tls is None else tls.peers)
