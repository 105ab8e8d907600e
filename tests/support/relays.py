"""Aggregators of one process behind real gRPC with mutual TLS, and relays in front of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import grpc.aio
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_aggregator.transport.grpc_server import DeviceShell, device_server
from fleetcount_client.grpc_transport import GrpcTransport, WindowServer
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    Purpose,
    save_certificates,
    save_private_key,
)
from fleetcount_protocol.channel.session import new_session
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import SessionAccepted
from fleetcount_protocol.window.window import Window
from fleetcount_relay.forwarding import Forwarder, ForwardingLimits, Upstream, open_upstream
from fleetcount_relay.metrics import RelayMetrics
from fleetcount_relay.service import RelayShell
from fleetcount_transport.admission.admission import Admission, AdmissionTable
from fleetcount_transport.key_files import TlsFiles

from tests.support.aggregators import START, Network, TestDevice, device_authority, device_identity
from tests.support.expiries import on_the_hour
from tests.support.pem import pem_pair

ForwarderType = Callable[[Upstream, RelayMetrics, ForwardingLimits], Forwarder]
QUICK = ForwardingLimits(linger_s=0.01, call_timeout_s=10, first_retry_s=0.05, longest_retry_s=0.2)


def _pem(authority: CertificateAuthority) -> bytes:
    return authority.certificate.public_bytes(Encoding.PEM)


@dataclass
class RelayedNetwork:
    """Two aggregators that listen for devices, and what is needed to reach them."""

    network: Network
    authority: CertificateAuthority
    servers: list[grpc.aio.Server] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    async def listen(self, position: int) -> None:
        """Let one aggregator listen, again on its port if it has one."""
        core = self.network.core(position)
        name = core.context.host.aggregator_id
        server = device_server(DeviceShell(core.service, core.context.host.metrics, core.context.host.admission))
        credentials = grpc.ssl_server_credentials(
            [pem_pair(self.authority.issue_aggregator(name, ["127.0.0.1"]))],
            root_certificates=_pem(device_authority()) + _pem(self.authority),
            require_client_auth=True,
        )
        port = self.ports[position] if position < len(self.ports) else 0
        bound = server.add_secure_port(f"127.0.0.1:{port}", credentials)
        await server.start()
        self.servers[position:] = [server, *self.servers[position + 1 :]]
        self.ports[position:] = [bound, *self.ports[position + 1 :]]

    def endpoint(self, position: int) -> str:
        """Return where an aggregator listens."""
        return f"127.0.0.1:{self.ports[position]}"

    @property
    def names(self) -> list[AggregatorId]:
        """The aggregators' ids."""
        return [seat.aggregator_id for seat in self.network.seats]

    def transport(self, device: int, relay: str, timeout_s: float = 10.0) -> GrpcTransport:
        """Return a device's way through a relay."""
        identity = device_identity(device)
        key, certificate = pem_pair(identity)
        return GrpcTransport(
            deployment="test",
            servers=[WindowServer(aggregator_id=name, endpoint=self.endpoint(n)) for n, name in enumerate(self.names)],
            tls=TlsFiles(authorities=_pem(self.authority), certificate=certificate, private_key=key),
            call_timeout_s=timeout_s,
            relay=relay,
        )


@asynccontextmanager
async def relayed() -> AsyncIterator[RelayedNetwork]:
    """Run two aggregators that listen for devices."""
    network = Network(2)
    await network.start_all()
    here = RelayedNetwork(network, CertificateAuthority.create("aggregators"))
    for position in range(2):
        await here.listen(position)
    yield here
    for server in here.servers:
        await server.stop(0)


@asynccontextmanager
async def running_relay(
    here: RelayedNetwork,
    make: ForwarderType = Forwarder,
    *,
    admission: AdmissionTable | None = None,
    limits: ForwardingLimits = QUICK,
) -> AsyncIterator[tuple[str, RelayMetrics]]:
    """Run a relay in this process; give its endpoint and metrics."""
    metrics = RelayMetrics()
    key, certificate = pem_pair(here.authority.issue_new(Purpose.RELAY, "relay-1", ["127.0.0.1"]))
    upstream = grpc.ssl_channel_credentials(_pem(here.authority), key, certificate)
    channels = {
        name: open_upstream(name, here.endpoint(position), upstream) for position, name in enumerate(here.names)
    }
    forwarders: Mapping[str, Forwarder] = {
        str(name): make(Upstream(aggregator_id=name, channel=channel), metrics, limits)
        for name, channel in channels.items()
    }
    running = [asyncio.create_task(one.run()) for one in forwarders.values()]
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((RelayShell(forwarders, metrics, Admission(admission, metrics.shed)).handlers(),))
    devices = grpc.ssl_server_credentials([(key, certificate)], _pem(device_authority()), True)
    port = server.add_secure_port("127.0.0.1:0", devices)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", metrics
    finally:
        await server.stop(0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for channel in channels.values():
            await channel.close()


def relay_files(here: RelayedNetwork, directory: Path, listen: str) -> Path:
    """Write a relay's certificate and configuration; return the configuration file."""
    credential = here.authority.issue_new(Purpose.RELAY, "relay-1", ["127.0.0.1"])
    save_private_key(directory / "relay.key", credential.private_key)
    save_certificates(directory / "relay.crt", [credential.certificate])
    save_certificates(directory / "aggregators.crt", [here.authority.certificate])
    save_certificates(directory / "devices.crt", [device_authority().certificate])
    upstreams = "".join(
        f'[[aggregators]]\nid = "{name}"\nendpoint = "{here.endpoint(position)}"\n'
        for position, name in enumerate(here.names)
    )
    path = directory / "relay.toml"
    path.write_text(
        f'[relay]\nlisten = "{listen}"\nlinger_s = 0.01\n'
        '[tls]\ncertificate_file = "relay.crt"\nkey_file = "relay.key"\n'
        f'aggregator_ca_file = "aggregators.crt"\ndevice_ca_file = "devices.crt"\n{upstreams}'
        '[metrics]\nlisten = "127.0.0.1:0"\n'
    )
    return path


async def open_sessions(here: RelayedNetwork, transport: GrpcTransport, window: Window, number: int) -> TestDevice:
    """Let one device open its sessions through its transport."""
    device = TestDevice(here.network, window, number)
    for seat in here.network.seats:
        aggregator = replace(seat.aggregator)
        request, opening = new_session(
            aggregator, aggregator.hpke_keys[0], device_identity(number), on_the_hour(START, 14), SystemRandom()
        )
        [reply] = await transport.open_sessions(aggregator, [request])
        assert isinstance(reply, SessionAccepted), reply
        device.secrets.append(opening.finish(reply))
    return device
