"""What an aggregator serves and does without end: its rules wired together, its listeners, its background tasks.

Which of them run in a process, and for how long, is `app`'s and `replicas`' to say. It must hold no rule of the
protocol.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from cryptography import x509
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_transport.admission.admission import Admission, limits_for_peers
from fleetcount_transport.admission.descriptors import connections_allowed
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.key_files import read_authorities, read_authority_file
from fleetcount_transport.listening import bind
from fleetcount_transport.live_tls import LiveTls
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.verification import Verification
from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.reasons import WaitFor
from fleetcount_aggregator.intake.device_service import DeviceService
from fleetcount_aggregator.intake.intake import Intake
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.handover import Handover
from fleetcount_aggregator.roles.helper import Helper
from fleetcount_aggregator.roles.leader import Leader
from fleetcount_aggregator.roles.outcomes import settle_restored
from fleetcount_aggregator.roles.probing import (
    PROBE_S,
    Timekeeping,
    probe_peers,
    probe_store,
    read_time,
    watch_loop,
)
from fleetcount_aggregator.roles.scheduler import Scheduler
from fleetcount_aggregator.roles.settling import Settling
from fleetcount_aggregator.storage.errors import FencedError
from fleetcount_aggregator.storage.session_rows import forget_sessions
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.transport.grpc_server import (
    DeviceShell,
    PeerShell,
    certified_peer,
    claimed_peer,
    device_server,
    peer_server,
)
from fleetcount_aggregator.windows.directory import QuestionDirectory
from fleetcount_aggregator.windows.retention import Retention
from fleetcount_aggregator.windows.sealing_keys import SealingKeys

TICK_S: Final = 0.2
DRAIN_S: Final = 5.0
KEYS_S: Final = 10.0
_WHOLE: Final = BrokerConnection()
_SESSION_GRACE_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Core:
    """One aggregator's rules, wired together: what every transport and every test talks to."""

    context: Context
    steps: ReleaseSteps
    service: DeviceService
    helper: Helper
    leader: Leader
    scheduler: Scheduler
    handover: Handover
    retention: Retention

    @classmethod
    def of(cls, context: Context) -> "Core":
        """Wire the rules over one context."""
        windows, questions, peers = context.windows, context.questions, context.peers
        verification = Verification(context.workers, context.host.failpoints)
        steps = ReleaseSteps(windows, questions, context.workers)
        settling = Settling(windows, peers, steps)
        leader = Leader(context, verification, steps, settling)
        return cls(
            context=context,
            steps=steps,
            service=DeviceService(questions, Intake(windows, context.workers), steps),
            helper=Helper(context, verification, steps),
            leader=leader,
            scheduler=Scheduler(context, leader, settling),
            handover=Handover(questions, peers, windows),
            retention=Retention(windows, questions),
        )


@dataclass(frozen=True, slots=True)
class Tls:
    """The credentials of both listeners, and of each aggregator its authorities and what gives the credentials of a
    connection to it as they are now; what gives the digest of the own public key.
    """

    devices: grpc.ServerCredentials
    peers: grpc.ServerCredentials
    authorities: Mapping[AggregatorId, Sequence[x509.Certificate]]
    clients: Mapping[AggregatorId, Callable[[], grpc.ChannelCredentials]]
    own_key: Callable[[], bytes]


def load_tls(config: AggregatorConfig) -> Tls | None:
    """Return the TLS credentials, or None with [grpc] insecure.

    Raises:
        ConfigError, UsageError: a file is missing or wrong, or the key is not the certificate's.
    """
    if config.grpc.insecure:
        return None
    tls, files = config.tls, config.aggregator_authorities
    live = {
        file: LiveTls(file, tls.certificate_file, tls.key_file, Purpose.AGGREGATOR)
        for file in (tls.aggregator_ca_file, *files.values())
    }
    own = live[tls.aggregator_ca_file]
    # TLS verifies that one of the authorities certified a caller; `certified_peer` that it is this peer's.
    among_peers = b"\n".join(one.authorities for one in live.values())
    # Relays and aggregators' operators come to the device port too; the purpose says what each may ask there.
    readers = read_authority_file(tls.device_ca_file) + b"\n" + among_peers
    return Tls(
        devices=own.to_clients(readers),
        peers=own.to_clients(among_peers),
        authorities={one: read_authorities(file) for one, file in files.items()},
        clients={one: live[file].to_servers for one, file in files.items()},
        own_key=own.own_key,
    )


class Listener:
    """A gRPC server of this process and the front before it; `port` once it is open.

    `end_streams` ends the streams on which nothing is under way: gRPC would wait for them.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        front: HandshakeGate,
        credentials: grpc.ServerCredentials | None,
        end_streams: Callable[[], None],
    ) -> None:
        self._server = server
        self._front = front
        self._end_streams = end_streams
        self._behind = bind(server, credentials)
        self.port = 0

    async def open(self, address: str) -> int:
        """Serve at an address; return the port."""
        await self._server.start()
        self.port = self._front.listen(address, self._behind)
        return self.port

    async def drain(self) -> None:
        """Take nothing new, and finish what is under way."""
        self._front.stop()
        self._end_streams()
        await self._server.stop(DRAIN_S)

    async def close(self) -> None:
        """End every connection."""
        await self._server.stop(0)
        self._front.close()


def device_listener(config: AggregatorConfig, core: Core) -> Listener:
    """Return the listener for devices, closed still."""
    context, tls = core.context, load_tls(config)
    admission = context.host.admission
    most = connections_allowed(admission.limits.connections)
    metrics = context.host.metrics
    front = HandshakeGate(admission.limits, most, metrics.shed, metrics.handshake_failed, tls=tls is not None)
    shell = DeviceShell(
        core.service,
        metrics,
        admission,
        context.host.denials.denies,
        front,
        is_serving=lambda: context.host.health.is_well(Dependency.STORE),
        now=lambda: context.host.moment().sure,
    )
    server = device_server(shell)
    return Listener(server, front, None if tls is None else tls.devices, shell.grpc_admission.kept.end)


def peer_listener(config: AggregatorConfig, core: Core) -> Listener:
    """Return the listener for the other aggregators, closed still."""
    context, tls = core.context, load_tls(config)
    metrics, denials = context.host.metrics, context.host.denials

    def now() -> float:
        """Return a time that has certainly come: no peer is refused for good by a clock that may be wrong."""
        return context.host.moment().sure

    among_peers = Admission(limits_for_peers(config.admission, len(context.peers)), metrics.shed)
    limits = among_peers.limits
    front = HandshakeGate(limits, limits.connections, metrics.shed, metrics.handshake_failed, tls=tls is not None)
    known = [context.host.aggregator_id, *context.peers]
    identify = claimed_peer(known) if tls is None else certified_peer(tls.authorities, denials.denies, now)
    shell = PeerShell(core.helper, metrics, identify, among_peers, front)
    return Listener(peer_server(shell), front, None if tls is None else tls.peers, shell.grpc_admission.kept.end)


# Background tasks.

Work = dict[str, Callable[[], Coroutine[Any, Any, None]]]
"""Named background tasks; each runs until it is cancelled."""


def watching_work(host: Host, store: Store) -> Work:
    """Return what goes on in every process of an aggregator: it knows how it is, and who is denied.

    The deny list is not the intake's alone: who seals a set leaves out who is denied by then.
    """
    denials = host.denials
    return {
        "deny-list": lambda: every(denials.poll_s, denials.poll, host),
        "lag": lambda: watch_loop(host.metrics),
        "store": lambda: every(PROBE_S, lambda: probe_store(store, host.health), host),
        "clock": lambda: every(1.0, lambda: read_time(host, store), host),
    }


def mqtt_work(
    config: AggregatorConfig, core: Core, client: str = "", share: BrokerConnection = _WHOLE
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the intake over MQTT of a share of the devices, which needs [mqtt]; see `MqttIntake` about `client`."""
    from fleetcount_aggregator.transport.mqtt_intake import MqttIntake  # Only who uses MQTT needs its client.

    if config.mqtt is None:
        raise UsageError("[mqtt] is missing; intake over MQTT needs it")
    return MqttIntake(core.context, core.service, config.mqtt, client, share).run


def coordinator_work(config: AggregatorConfig, core: Core) -> Work:
    """Return what goes on in one process of an aggregator alone."""
    context, host = core.context, core.context.host
    directory = QuestionDirectory(context, config.aggregator.question_directory)
    sealing_keys = SealingKeys(host, config.keys.rotation)
    timekeeping = Timekeeping(host, context.store, context.peers)
    return {
        "question-directory": lambda: every(1.0, directory.poll, host),
        "watch": lambda: _watch_windows(core),
        "restored": lambda: settle_restored(context, core.steps),
        "windows": lambda: every(TICK_S, core.scheduler.open_windows, host),
        "peers": lambda: every(PROBE_S, lambda: probe_peers(context.peers, host.health), host),
        "time": lambda: every(1.0, timekeeping.look, host),
        "handovers": lambda: every(TICK_S, core.handover.run_due, host),
        "keys": lambda: every(KEYS_S, sealing_keys.look, host),
        "retention": lambda: every(1.0, core.retention.look, host),
        "sessions": lambda: every(3600.0, lambda: _forget_sessions(context.store, host), host),
    }


async def every(seconds: float, work: Callable[[], Awaitable[Any]], host: Host) -> None:
    """Do some work again and again; a failing machine is logged, noted under the window's name, and tried again."""
    current = asyncio.current_task()
    name = "" if current is None else current.get_name()
    while True:
        problem = ""
        try:
            await work()
        except FencedError:
            raise  # Another process does this work now.
        except (MachineError, OSError) as error:
            problem = str(error)
            host.metrics.store_failed()
            host.metrics.background_failed(name)
            log.error("background_failed", work=name, reason=problem)
        host.health.note(Dependency.BACKGROUND, problem, name=name)
        await asyncio.sleep(seconds)


async def _forget_sessions(store: Store, host: Host) -> None:
    await store.write_unfenced(forget_sessions, int(host.moment().sure) - _SESSION_GRACE_S)


async def _watch_windows(core: Core) -> None:
    """Give every window that needs looking after a worker of its own, one at a time a window."""
    running: dict[WindowId, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            running = {window_id: worker for window_id, worker in running.items() if not worker.done()}
            for window in core.scheduler.pending():
                if window.window_id not in running:
                    running[window.window_id] = group.create_task(
                        _look_after(core, window), name=f"window-{window.window_id.hex()[:12]}"
                    )
            await asyncio.sleep(TICK_S)


async def _look_after(core: Core, window: InstalledWindow) -> None:
    """Look after one window once. The top of a window: what goes wrong is logged, and the window is looked at again."""
    try:
        await core.scheduler.look_after(window)
        core.context.windows.waits.over(window.window_id, WaitFor.STORE)
    except FencedError:
        raise
    except MachineError as error:
        core.context.host.metrics.store_failed()
        core.context.windows.waits.note(window.window_id, WaitFor.STORE, str(error))
        await asyncio.sleep(1)
    except Exception as error:
        log.error("window_failed", window=str(window.window_id), error=type(error).__name__)
        await asyncio.sleep(1)
