"""One relay process: reads the configuration, listens for devices, forwards, and stops in order on SIGTERM.

It keeps nothing on disk but the newest deny list: devices send again what a stopped relay had received and not
answered.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import grpc
from fleetcount_protocol.channel.certificates import Purpose, aggregator_names, load_authorities, load_certificate
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_BATCH_BYTES
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.admission.descriptors import connections_allowed
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.channels import DEVICE_OPTIONS
from fleetcount_transport.denials import Denials
from fleetcount_transport.key_files import TlsFiles, read_authority_file
from fleetcount_transport.listening import bind, grpc_server
from fleetcount_transport.logs import follow_hangups, log
from fleetcount_transport.operator_pages import health_pages, metrics_page, serve_pages
from fleetcount_transport.toml_table import ConfigError

from fleetcount_relay.config import RelayConfig
from fleetcount_relay.forwarding import Forwarder, ForwardingLimits, Upstream, open_upstream
from fleetcount_relay.metrics import RelayMetrics
from fleetcount_relay.readiness import RelayReadiness
from fleetcount_relay.service import RelayShell

DRAIN_S = 5.0
"""Seconds in which calls under way may end after SIGTERM."""


@dataclass(frozen=True, slots=True)
class _Tls:
    """The credentials of the listener and of the connections to aggregators."""

    devices: grpc.ServerCredentials
    upstream: grpc.ChannelCredentials


def _load_tls(config: RelayConfig) -> _Tls:
    """Return the TLS credentials.

    Raises:
        ConfigError, UsageError: a file is missing or wrong, or the certificate is not a relay's.
    """
    tls = config.tls
    files = TlsFiles.read(tls.aggregator_ca_file, tls.certificate_file, tls.key_file, Purpose.RELAY)
    names = set(aggregator_names(load_certificate(tls.certificate_file)))
    taken = sorted(names & {one.id for one in config.aggregators})
    if taken:
        raise ConfigError(
            f"{tls.certificate_file} carries {taken[0]!r}, the name of an aggregator; a relay has a name of its own"
        )
    return _Tls(devices=files.to_clients(read_authority_file(tls.device_ca_file)), upstream=files.to_servers())


def _load_denials(config: RelayConfig) -> Denials:
    """Return the denied keys; the newest list is kept in the state directory, which is made if it is not there.

    Raises:
        ConfigError: the directory cannot be made, or the list cannot be used (`Denials.open`).
    """
    directory = config.relay.state_directory
    if directory is not None:
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"relay.state_directory {directory} cannot be made: {error.strerror}") from error
    return Denials.open(config.deny_source(), load_authorities(config.tls.device_ca_file), time.time)


async def serve(config: RelayConfig) -> None:
    """Run one relay until SIGTERM or SIGINT.

    Prints one JSON line on standard output once it listens, with the port it is bound to.

    Raises:
        UsageError: the configuration cannot be used; nothing was started.
        MachineError: a listener cannot be opened.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    follow_hangups()
    tls, metrics = _load_tls(config), RelayMetrics()
    denials = _load_denials(config)
    async with _forwarders(config, tls, metrics) as forwarders:
        readiness = RelayReadiness(config, forwarders, denials)
        metrics.registry.register(readiness)
        probing = asyncio.create_task(readiness.watch(), name="probing")
        limits = config.admission
        most = connections_allowed(limits.connections)
        front = HandshakeGate(limits, most, metrics.shed, metrics.handshake_failed, tls=True)
        admission = Admission(limits, metrics.shed)
        shell = RelayShell(forwarders, metrics, admission, denials.denies, front, readiness.is_ready)
        devices = grpc_server(shell.handlers(), MAX_BATCH_BYTES, limits.handshake_s, DEVICE_OPTIONS)
        devices.add_generic_rpc_handlers((shell.health(),))
        behind = bind(devices, tls.devices)
        await devices.start()
        page = None
        try:
            ports = {"device_port": front.listen(config.relay.listen, behind)}
            if config.metrics is not None:
                pages = {"/metrics": metrics_page(metrics.registry), **health_pages(readiness.checks)}
                page, ports["metrics_port"] = await serve_pages(config.metrics.listen, pages, config.metrics.host)
            print(json.dumps({"event": "ready", **ports}), flush=True)
            log.info("ready", **ports)
            while not stop.is_set():
                await denials.poll()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), denials.poll_s)
            log.info("draining")
            readiness.is_draining = True
            front.stop()
            shell.grpc_admission.kept.end()
            await devices.stop(DRAIN_S)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            if page is not None:
                page.close()
            await devices.stop(0)
            front.close()
    log.info("stopped")


@contextlib.asynccontextmanager
async def _forwarders(
    config: RelayConfig, tls: _Tls, metrics: RelayMetrics
) -> AsyncGenerator[Mapping[str, Forwarder], None]:
    """Open the channels to the aggregators, and close them at the end."""
    limits = ForwardingLimits(linger_s=config.relay.linger_s, call_timeout_s=config.relay.call_timeout_s)
    channels: dict[str, grpc.aio.Channel] = {
        one.id: open_upstream(AggregatorId(one.id), one.endpoint, tls.upstream) for one in config.aggregators
    }
    forwarders = {
        name: Forwarder(Upstream(aggregator_id=AggregatorId(name), channel=channel), metrics, limits)
        for name, channel in channels.items()
    }
    running = [asyncio.create_task(one.run(), name=f"forward-{name}") for name, one in forwarders.items()]
    try:
        yield forwarders
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for channel in channels.values():
            await channel.close()


def run(config: RelayConfig) -> None:
    """Run `serve` on a new event loop; the entry point of the command."""
    try:
        asyncio.run(serve(config))
    finally:
        sys.stdout.flush()
