"""One aggregator process: reads the configuration, wires everything, runs until SIGTERM, closes in order.

The only module that imports all the others; it must not hold a rule of the protocol.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import Purpose, load_authorities
from fleetcount_protocol.clock import SystemClock
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_protocol.task.signing import TrustedAggregator
from fleetcount_transport.denials import Denials
from fleetcount_transport.failpoints import failpoints_from_environment
from fleetcount_transport.key_files import TlsFiles, read_public_file
from fleetcount_transport.listening import bind, serve_metrics
from fleetcount_transport.logs import log
from fleetcount_transport.quotas import CallLimits
from fleetcount_transport.toml_table import ConfigError

from fleetcount_aggregator.agreement.verification import Verification
from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_aggregator.context import Context, Identity, Limits
from fleetcount_aggregator.host.keys import KeyRing, load_signing_key
from fleetcount_aggregator.host.malloc import return_large_arrays
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.intake.device_service import DeviceService
from fleetcount_aggregator.intake.intake import Intake
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.handover import Handover
from fleetcount_aggregator.roles.helper import Helper
from fleetcount_aggregator.roles.leader import Leader
from fleetcount_aggregator.roles.scheduler import Scheduler
from fleetcount_aggregator.storage.at_rest import report_log_key
from fleetcount_aggregator.storage.sqlite_store import SqliteStore
from fleetcount_aggregator.tasks.directory import TaskDirectory
from fleetcount_aggregator.tasks.loading import load_tasks
from fleetcount_aggregator.tasks.series_install import load_series
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_aggregator.transport.grpc_server import (
    DeviceShell,
    PeerShell,
    certified_peer,
    claimed_peer,
    device_server,
    peer_server,
)
from fleetcount_aggregator.verification.compile_ahead import compile_ahead
from fleetcount_aggregator.verification.workers import ProcessWorkers

__all__ = ["Core", "build_identity", "run", "serve"]

TICK_S: Final = 0.2
DRAIN_S: Final = 5.0
_KEYS_S: Final = 10.0
_COMPILING_AFTER_S: Final = 60.0
"""A program that has started first answers those who wait for it; one that soon ends compiles nothing."""
_SESSION_GRACE_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Core:
    """One aggregator's rules, wired together: what every transport and every test talks to."""

    context: Context
    service: DeviceService
    helper: Helper
    leader: Leader
    scheduler: Scheduler
    handover: Handover

    @classmethod
    def of(cls, context: Context) -> "Core":
        """Wire the rules over one context."""
        verification = Verification(context)
        steps = ReleaseSteps(context)
        leader = Leader(context, verification, steps)
        return cls(
            context=context,
            service=DeviceService(context, Intake(context), steps),
            helper=Helper(context, verification, steps),
            leader=leader,
            scheduler=Scheduler(context, leader),
            handover=Handover(context),
        )


def build_identity(config: AggregatorConfig) -> Identity:
    """Return who this aggregator is, from its key files.

    Raises:
        ConfigError, UsageError: a file that is missing, open to others, or holds the wrong thing.
    """
    signing_key = load_signing_key(config.keys.signing_key_file)
    own_public = signing_key.public_key().public_bytes_raw()
    for peer in config.peers:
        if peer.signing_public_key == own_public:
            raise ConfigError(f"peers: {peer.id!r} has this aggregator's own signing key")
    own = AggregatorId(config.aggregator.id)
    trusted = {
        AggregatorId(peer.id): TrustedAggregator(
            aggregator_id=AggregatorId(peer.id), operator=peer.operator, signing_public_key=peer.signing_public_key
        )
        for peer in config.peers
    }
    trusted[own] = TrustedAggregator(
        aggregator_id=own, operator=config.aggregator.operator, signing_public_key=own_public
    )
    return Identity(
        aggregator_id=own,
        operator=config.aggregator.operator,
        deployment=config.aggregator.deployment,
        signing_key=signing_key,
        trusted=trusted,
        device_ca=_authorities(config.tls.device_ca_file),
    )


def _authorities(path: Path) -> tuple[x509.Certificate, ...]:
    try:
        return load_authorities(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Tls:
    """The credentials of both listeners and of the connections to peers."""

    devices: grpc.ServerCredentials
    peers: grpc.ServerCredentials
    client: grpc.ChannelCredentials


def _load_tls(config: AggregatorConfig) -> _Tls | None:
    """Return the TLS credentials, or None with [grpc] insecure.

    Raises:
        ConfigError, UsageError: a file is missing or wrong, or the key is not the certificate's.
    """
    if config.grpc.insecure:
        return None
    tls = config.tls
    files = TlsFiles.read(tls.aggregator_ca_file, tls.certificate_file, tls.key_file, Purpose.AGGREGATOR)
    # Relays and aggregators' operators come to the device port too; the purpose says what each may ask there.
    readers = read_public_file(tls.device_ca_file) + b"\n" + files.authorities
    return _Tls(devices=files.to_clients(readers), peers=files.to_clients(files.authorities), client=files.to_servers())


async def serve(config: AggregatorConfig, environment: Mapping[str, str]) -> None:
    """Run one aggregator until SIGTERM or SIGINT.

    Prints one JSON line on standard output once it listens, with the ports it is bound to.

    Raises:
        UsageError: the configuration cannot be used; nothing was started.
        MachineError: the store or a listener cannot be opened.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with _context(config, environment) as context:
        core = Core.of(context)
        await load_series(context)
        await load_tasks(context)
        await _run(config, core, stop)


@contextlib.asynccontextmanager
async def _context(config: AggregatorConfig, environment: Mapping[str, str]) -> AsyncGenerator[Context, None]:
    """Open everything an aggregator needs, and close it in the opposite order."""
    identity = build_identity(config)
    keys = KeyRing.load(config.keys.hpke_key_directory)
    tls = _load_tls(config)
    failpoints = failpoints_from_environment(environment)
    directory = _state_directory(config)
    if not config.aggregator.task_directory.is_dir():
        raise ConfigError(f"aggregator.task_directory {config.aggregator.task_directory} is not a directory")
    store = SqliteStore.open(directory / "aggregator.db", report_log_key(identity.signing_key))
    workers = ProcessWorkers(config.workers.count)
    workers.compile_ahead(compile_ahead, pause_s=_COMPILING_AFTER_S)
    peers = {
        AggregatorId(peer.id): GrpcPeer(
            AggregatorId(peer.id),
            peer.endpoint,
            caller=identity.aggregator_id,
            timeout_s=config.limits.call_timeout_s,
            credentials=None if tls is None else tls.client,
        )
        for peer in config.peers
    }
    context = Context(
        identity=identity,
        store=store,
        keys=keys,
        clock=SystemClock(),
        workers=workers,
        limits=_limits(config),
        peers=peers,
        noise=SystemNoise(SystemRandom()),
        failpoints=failpoints,
        denials=Denials.open(config.tls.deny_source(kept=directory / "deny-list"), identity.device_ca),
    )
    try:
        yield context
    finally:
        for peer in peers.values():
            await peer.close()
        await workers.close()
        await store.close()


def _state_directory(config: AggregatorConfig) -> Path:
    directory = config.aggregator.state_directory
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"aggregator.state_directory {directory}: {error.strerror}") from error
    return directory


def _limits(config: AggregatorConfig) -> Limits:
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
        give_up_s=limits.give_up_s,
        call_timeout_s=limits.call_timeout_s,
    )


async def _run(config: AggregatorConfig, core: Core, stop: asyncio.Event) -> None:
    """Listen, start the background tasks, wait for the signal, drain."""
    tls = _load_tls(config)
    context = core.context
    limits = CallLimits(idle_s=config.grpc.idle_s, calls_each=config.grpc.calls_each, bytes_each=config.grpc.bytes_each)
    devices = device_server(
        DeviceShell(core.service, context.metrics, limits=limits, denies=context.denials.denies),
        config.grpc.concurrent_calls,
    )
    known = [context.aggregator_id, *context.peers]
    identify = claimed_peer(known) if tls is None else certified_peer(known, context.denials.denies)
    aggregators = peer_server(PeerShell(core.helper, context.metrics, identify))
    ports = {
        "device_port": bind(devices, config.grpc.device_listen, None if tls is None else tls.devices),
        "peer_port": bind(aggregators, config.grpc.peer_listen, None if tls is None else tls.peers),
    }
    await devices.start()
    await aggregators.start()
    metrics_server = None
    if config.metrics is not None:
        metrics_server, ports["metrics_port"] = await serve_metrics(config.metrics.listen, context.metrics.render)
    try:
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(work(), name=name) for name, work in _background(config, core, group).items()
            ]
            # What is loaded now stays: walking it again would hold up intake by a tenth of a second each time.
            gc.freeze()
            _say_ready(context, ports)
            await stop.wait()
            log.info("draining")
            await asyncio.gather(devices.stop(DRAIN_S), aggregators.stop(DRAIN_S))
            for task in background:
                task.cancel()
    finally:
        if metrics_server is not None:
            metrics_server.close()
        await asyncio.gather(devices.stop(0), aggregators.stop(0))
    log.info("stopped")


def _say_ready(context: Context, ports: Mapping[str, int]) -> None:
    print(json.dumps({"event": "ready", "aggregator": context.aggregator_id, **ports}), flush=True)
    log.info("ready", aggregator=context.aggregator_id, **ports)


# Background tasks.


def _background(
    config: AggregatorConfig, core: Core, group: asyncio.TaskGroup
) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
    """Return the named background tasks; each runs until it is cancelled."""
    directory = TaskDirectory(core.context, config.aggregator.task_directory)
    tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "task-directory": lambda: _every(1.0, directory.poll, core.context),
        "watch": lambda: _watch_tasks(core),
        "deny-list": lambda: _every(core.context.denials.poll_s, core.context.denials.poll, core.context),
        "windows": lambda: _every(TICK_S, core.scheduler.open_windows, core.context),
        "handovers": lambda: _every(TICK_S, core.handover.run_due, core.context),
        "keys": lambda: _every(_KEYS_S, lambda: _refresh_keys(core.context), core.context),
        "sessions": lambda: _every(3600.0, lambda: _forget_sessions(core.context), core.context),
    }
    if config.mqtt is not None:
        from fleetcount_aggregator.transport.mqtt_intake import MqttIntake  # Only who uses MQTT needs its client.

        tasks["mqtt"] = MqttIntake(core.context, core.service, config.mqtt).run
    return tasks


async def _every(seconds: float, work: Callable[[], Awaitable[Any]], context: Context) -> None:
    """Do some work again and again; a failing machine is logged and tried again."""
    while True:
        try:
            await work()
        except (MachineError, OSError) as error:
            context.metrics.store_failed()
            log.error("background_failed", reason=str(error))
        await asyncio.sleep(seconds)


async def _forget_sessions(context: Context) -> None:
    await context.store.forget_sessions(context.now() - _SESSION_GRACE_S)


async def _refresh_keys(context: Context) -> None:
    context.keys.refresh()


async def _watch_tasks(core: Core) -> None:
    """Give every task that needs looking after a worker of its own, one at a time a task."""
    running: dict[TaskId, asyncio.Task[None]] = {}
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        while True:
            started = loop.time()
            running = {task_id: worker for task_id, worker in running.items() if not worker.done()}
            for task in core.scheduler.pending():
                if task.task_id not in running:
                    running[task.task_id] = group.create_task(
                        _look_after(core, task), name=f"task-{task.task_id.hex()[:12]}"
                    )
            await asyncio.sleep(TICK_S)
            core.context.metrics.loop_lag(max(0.0, loop.time() - started - TICK_S))


async def _look_after(core: Core, task: InstalledTask) -> None:
    """Look after one task once. The top of a task: what goes wrong is logged, and the task is looked at again."""
    try:
        await core.scheduler.look_after(task)
    except MachineError as error:
        core.context.metrics.store_failed()
        log.error("task_waits", task=str(task.task_id), reason=str(error))
        await asyncio.sleep(1)
    except Exception as error:
        log.error("task_failed", task=str(task.task_id), error=type(error).__name__)
        await asyncio.sleep(1)


def run(config: AggregatorConfig) -> None:
    """Run `serve` on a new event loop with this process's environment; the entry point of the command."""
    return_large_arrays()
    try:
        asyncio.run(serve(config, os.environ))
    except BaseExceptionGroup as group:
        raise _first(group) from group
    finally:
        sys.stdout.flush()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
