"""`fleetcount relay` as a process of its own in front of a live deployment, and a device's way through it."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from fleetcount_client.grpc_transport import GrpcTransport, WindowServer
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_simulator.network.connections import tls_of
from fleetcount_simulator.network.deployments import HOST
from fleetcount_simulator.network.ports import free_ports

from tests.support.deployment import Deployed
from tests.support.processes import ChildProcess


class LiveRelay:
    """A relay of a deployment; it keeps its address over its lives."""

    def __init__(self, deployment: Deployed, directory: Path) -> None:
        self.address = f"{HOST}:{free_ports(HOST, 1)[0]}"
        command = deployment.written.relay_command(self.address, directory)
        self.child = ChildProcess.of("relay", command, directory)

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self.child.start()
        await asyncio.to_thread(self.child.ready)

    async def die_at(self, moment: float) -> None:
        """Be killed at a moment, and started again."""
        await asyncio.sleep(max(0.0, moment - time.time()))
        self.child.kill()
        await self.start()


def transport_through(
    relay: str,
    aggregators: Sequence[Aggregator],
    identity: DeviceIdentity,
    *,
    deployment: str,
    authorities: bytes,
    timeout_s: float,
) -> GrpcTransport:
    """Return a device's own connection to a relay, which carries its calls to these aggregators."""
    servers = [WindowServer(aggregator_id=one.aggregator_id, endpoint=one.grpc_endpoint) for one in aggregators]
    tls = tls_of(identity, authorities)
    return GrpcTransport(deployment=deployment, servers=servers, tls=tls, call_timeout_s=timeout_s, relay=relay)
