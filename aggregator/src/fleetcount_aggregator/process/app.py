"""One aggregator process: reads the configuration, wires everything, runs until SIGTERM, closes in order.

What is served and done without end is in `serving`; this must not hold a rule of the protocol either.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.clock import AnchoredClock
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.denials import Denials
from fleetcount_transport.failpoints import failpoints_from_environment
from fleetcount_transport.key_files import read_authorities
from fleetcount_transport.logs import follow_hangups, log
from fleetcount_transport.operator_pages import serve_pages
from fleetcount_transport.toml_table import ConfigError

from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Host, Limits, OwnIdentity
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.host.malloc import return_large_arrays
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.host.role import ALL_ROLES, Role
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.memory.windows import broker_unreachable
from fleetcount_aggregator.peers import Peer
from fleetcount_aggregator.process.serving import (
    Core,
    Listener,
    Work,
    coordinator_work,
    device_listener,
    load_tls,
    mqtt_work,
    peer_listener,
    watching_work,
)
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import Mended, Repair
from fleetcount_aggregator.roles.readiness import ElectionState, Readiness, Watched
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.row_repair import is_restored
from fleetcount_aggregator.storage.rows import note_time, read_latest_time
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_aggregator.trust import trusted_by
from fleetcount_aggregator.verification.compile_ahead import compile_ahead
from fleetcount_aggregator.verification.workers import ProcessWorkers

_COMPILING_AFTER_S: Final = 60.0
"""A program that has started first answers those who wait for it; one that soon ends compiles nothing."""


def build_identity(config: AggregatorConfig) -> OwnIdentity:
    """Return who this aggregator is, from its key files.

    Raises:
        ConfigError, UsageError: a file that is missing, open to others, or holds the wrong thing.
    """
    signing_key = load_signing_key(config.keys.signing_key_file)
    return OwnIdentity(
        aggregator_id=AggregatorId(config.aggregator.id),
        operator=config.aggregator.operator,
        deployment=config.aggregator.deployment,
        signing_key=signing_key,
        trusted=trusted_by(config, signing_key.public_key().public_bytes_raw()),
        device_ca=read_authorities(config.tls.device_ca_file),
    )


async def serve(
    config: AggregatorConfig,
    environment: Mapping[str, str],
    *,
    roles: frozenset[Role] = ALL_ROLES,
    accept_failover: bool = False,
    restored: bool = False,
    migrate: bool = False,
    clock_is_right: bool = False,
) -> None:
    """Run one aggregator, or one process of it by its roles, until SIGTERM or SIGINT.

    `accept_failover` and `migrate` as `open_engine` says, `restored` as `Greetings`, `clock_is_right` as `Moments`.

    Prints one JSON line on standard output once it listens, with the ports it is bound to.

    Raises:
        UsageError: the configuration cannot be used; nothing was started.
        MachineError: the store or a listener cannot be opened.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    follow_hangups()
    if config.store.url is None and roles != ALL_ROLES:
        raise ConfigError(
            f"--roles is {','.join(sorted(roles))} and store.url is missing; a store in a file is of one process, which"
            f" has all roles ({','.join(Role)})"
        )
    alone = config.store.url is None
    opening = partial(_store, alone=alone, accept_failover=accept_failover, migrate=migrate)
    async with _context(config, environment, opening) as context:
        store = context.store
        context.peers.greetings.restored = restored or await store.read(is_restored)
        context.host.moments.begin(await store.read(read_latest_time), context.peers, is_right=clock_is_right)
        if config.store.url is not None:
            await _serve_replica(config, context, store, roles, stop)
            return
        if await store.read(read_latest_time) is None:
            await store.write(note_time, context.host.now())  # It has no past: this is its beginning.
        core = Core.of(context)
        await context.questions.load(context.windows)
        await context.windows.load(context.questions)
        await context.peers.greetings.begin(context.host.identity.signing_key, context.host.source)
        listeners = {
            "device_port": (device_listener(config, core), config.grpc.device_listen),
            "peer_port": (peer_listener(config, core), config.grpc.peer_listen),
        }
        work = coordinator_work(config, core)
        if config.mqtt is not None:
            context.windows.outcomes.withdraw = broker_unreachable
            work["mqtt"] = mqtt_work(config, core)
        await _run(config, context, listeners, work, stop)
        context.peers.greetings.check()


async def _serve_replica(
    config: AggregatorConfig,
    context: Context,
    store: Store,
    roles: frozenset[Role],
    stop: asyncio.Event,
) -> None:
    from fleetcount_aggregator.process.replicas import Replica  # Only who uses PostgreSQL needs its client.

    replica = Replica(config, context, store, roles)
    try:
        await replica.begin()
        await _run(config, context, replica.listeners(), replica.work(), stop, replica)
        context.peers.greetings.check()
    finally:
        await replica.close()


async def repair(
    config: AggregatorConfig, environment: Mapping[str, str], windows: Sequence[WindowId], *, dry_run: bool
) -> tuple[list[Mended], list[str]]:
    """Settle the windows in quarantine, or these of them, and mend what belongs to none; the aggregator must be
    stopped.

    Returns what became of each window, and a sentence for everything else that was done. `dry_run`: nothing is, these
    are what would be.

    Raises:
        UsageError: the configuration cannot be used, or a window is not in quarantine.
        MachineError: the store cannot be opened, is in use, or failed.
    """
    async with _context(config, environment, partial(_store, alone=True)) as context:
        context.host.moments.begin(await context.store.read(read_latest_time), context.peers)
        await context.questions.load(context.windows)
        await context.windows.load(context.questions)
        quarantined = context.windows.quarantined
        if unknown := [one for one in windows if one not in quarantined]:
            raise UsageError(f"window {unknown[0].hex()} is not damaged; {len(quarantined)} windows are")
        mending = Repair(context, ReleaseSteps(context.windows, context.questions, context.workers))
        chosen = windows or tuple(quarantined)
        mended = [await mending.window(one, AbortReason.DAMAGED, dry_run=dry_run) for one in chosen]
        return mended, [] if windows else await mending.others(dry_run=dry_run)


@contextlib.asynccontextmanager
async def _context(
    config: AggregatorConfig, environment: Mapping[str, str], opening: Callable[[AggregatorConfig, OwnIdentity], Store]
) -> AsyncGenerator[Context, None]:
    """Open everything an aggregator needs, its store by `opening`, and close it in the opposite order."""
    if not config.peers:
        raise ConfigError("peers is missing; allowed is one [[peers]] at least, as `fleetcount operator join` adds it")
    identity = build_identity(config)
    keys = config.keys.key_ring()
    tls = load_tls(config)
    failpoints = failpoints_from_environment(environment)
    config.aggregator.check_question_directory()
    store = opening(config, identity)
    workers = ProcessWorkers(config.workers.count)
    workers.compile_ahead(compile_ahead, pause_s=_COMPILING_AFTER_S)
    metrics, clock = Metrics(), AnchoredClock()
    host = Host(
        identity=identity,
        keys=keys,
        clock=clock,
        limits=limits_of(config),
        noise=SystemNoise(SystemRandom()),
        failpoints=failpoints,
        metrics=metrics,
        admission=Admission(config.admission, metrics.shed),
        denials=Denials.open(
            config.tls.deny_source(kept=config.aggregator.state_directory / "deny-list"), identity.device_ca, clock.now
        ),
    )
    peers: dict[AggregatorId, Peer] = {}
    context = Context.over(host, store, workers, peers)
    connections = [
        GrpcPeer(
            AggregatorId(peer.id),
            peer.endpoint,
            caller=identity.aggregator_id,
            timeout_s=config.limits.call_timeout_s,
            credentials=None if tls is None else tls.clients[peer.id],
            greetings=context.peers.greetings,
            tls_key=bytes if tls is None else tls.own_key,
        )
        for peer in config.peers
    ]
    peers |= {AggregatorId(peer.id): connection for peer, connection in zip(config.peers, connections, strict=True)}
    try:
        yield context
    finally:
        for connection in connections:
            await connection.close()
        await workers.close()
        await store.close()


def _store(
    config: AggregatorConfig,
    identity: OwnIdentity,
    *,
    alone: bool,
    accept_failover: bool = False,
    migrate: bool = False,
) -> Store:
    place, files = config.store_place, config.keys
    keys = StoreKeys.load(
        files.signing_key_file, files.store_key_file, files.former_store_key_file, identity.signing_key
    )
    engine = open_engine(place, alone=alone, accept_failover=accept_failover, migrate=migrate)
    return Store.over(engine, place.file, keys.at_rest, keys.former)


def limits_of(config: AggregatorConfig) -> Limits:
    """Return the limits of an operator's configuration, by which questions are judged and charged."""
    limits = config.limits
    return Limits(
        largest_epsilon=limits.largest_epsilon,
        total_epsilon=limits.total_epsilon,
        total_delta=limits.total_delta,
        budget_period_s=limits.budget_period_s,
        smallest_min_batch_size=limits.smallest_min_batch_size,
        allow_exact_release=limits.allow_exact_release,
        allow_one_sided=limits.allow_one_sided,
        largest_posterior=limits.largest_posterior,
        sessions_per_device=limits.sessions_per_device,
        keep_digests_s=limits.keep_digests_s,
        keep_records_s=limits.keep_records_s,
        give_up_s=limits.give_up_s,
        leeway_s=limits.leeway_s,
        largest_skew_s=limits.largest_skew_s,
        call_timeout_s=limits.call_timeout_s,
    )


async def _run(
    config: AggregatorConfig,
    context: Context,
    listeners: Mapping[str, tuple[Listener, str]],
    work: Work,
    stop: asyncio.Event,
    election: ElectionState | None = None,
) -> None:
    """Listen, start the background tasks, wait for the signal, drain."""
    opened = [listener for listener, _ in listeners.values()]
    metrics_server, readiness = None, Readiness(context, Watched.of(config), election)
    try:
        ports = {name: await listener.open(address) for name, (listener, address) in listeners.items()}
        if config.metrics is not None:
            table = config.metrics
            metrics_server, ports["metrics_port"] = await serve_pages(table.listen, readiness.pages(), table.host)
        async with asyncio.TaskGroup() as group:
            everything = work | watching_work(context.host, context.store)
            background = [group.create_task(one(), name=name) for name, one in everything.items()]
            # What is loaded now stays: walking it again would hold up intake by a tenth of a second each time.
            gc.freeze()
            _say_ready(context, ports)
            await _either(stop, context.peers.greetings.superseded)
            readiness.is_draining = True
            if context.peers.greetings.superseded.is_set():
                for task in background:  # Whatever is done now, the newer start of this aggregator does.
                    task.cancel()
            log.info("draining")
            await asyncio.gather(*(listener.drain() for listener in opened))
            for task in background:
                task.cancel()
    finally:
        if metrics_server is not None:
            metrics_server.close()
        await asyncio.gather(*(listener.close() for listener in opened))
    log.info("stopped")


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(one.wait()) for one in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


def _say_ready(context: Context, ports: Mapping[str, int]) -> None:
    print(json.dumps({"event": "ready", "aggregator": context.host.aggregator_id, **ports}), flush=True)
    log.info("ready", aggregator=context.host.aggregator_id, **ports)


def run(
    config: AggregatorConfig,
    *,
    roles: frozenset[Role] = ALL_ROLES,
    accept_failover: bool = False,
    restored: bool = False,
    migrate: bool = False,
    clock_is_right: bool = False,
) -> None:
    """Run `serve` on a new event loop with this process's environment; the entry point of the command."""
    return_large_arrays()
    try:
        how = {"accept_failover": accept_failover, "restored": restored, "migrate": migrate}
        how["clock_is_right"] = clock_is_right
        asyncio.run(serve(config, os.environ, roles=roles, **how))
    except BaseExceptionGroup as group:
        raise _first(group) from group
    finally:
        sys.stdout.flush()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
