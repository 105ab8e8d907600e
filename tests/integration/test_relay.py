"""A whole count through a relay: real devices, real aggregators, and a relay that dies in the middle of each round."""

import asyncio
import sys
import time
from pathlib import Path

import pytest
from fleetcount_client.grpc_transport import GrpcTransport, TaskServer
from fleetcount_client.transport import Transport
from fleetcount_protocol.channel.certificates import Purpose, save_certificates, save_private_key
from fleetcount_simulator.network.connections import tls_of
from fleetcount_simulator.network.deployments import HOST, free_ports

from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, authorities_of, identity_of, signed_task_of
from tests.support.oracle import check_release
from tests.support.processes import ChildProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Relay:
    """`fleetcount relay` in front of a deployment."""

    def __init__(self, deployment: LiveDeployment, directory: Path) -> None:
        self.address = f"{HOST}:{free_ports(HOST, 1)[0]}"
        credential = deployment.written.authorities.aggregators.issue_new(Purpose.RELAY, "relay-1", ["127.0.0.1"])
        save_private_key(directory / "relay.key", credential.private_key)
        save_certificates(directory / "relay.crt", [credential.certificate])
        authorities = deployment.written.root / "ca"
        upstreams = "".join(
            f'[[aggregators]]\nid = "{one.aggregator_id}"\nendpoint = "{one.grpc_endpoint}"\n'
            for one in deployment.written.aggregators
        )
        (directory / "relay.toml").write_text(
            f'[relay]\nlisten = "{self.address}"\n[tls]\ncertificate_file = "relay.crt"\nkey_file = "relay.key"\n'
            f'aggregator_ca_file = "{authorities / "aggregators.crt"}"\n'
            f'device_ca_file = "{authorities / "devices.crt"}"\n{upstreams}'
        )
        command = [sys.executable, "-m", "fleetcount", "relay", "--config", str(directory / "relay.toml")]
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


async def test_a_count_through_a_relay_that_is_killed_in_each_round_is_exact(
    pair: LiveDeployment, tmp_path: Path
) -> None:
    relay = Relay(pair, tmp_path)
    await relay.start()

    def through(_: Transport, number: int) -> Transport:
        servers = [
            TaskServer(aggregator_id=one.aggregator_id, endpoint=one.grpc_endpoint) for one in pair.written.aggregators
        ]
        tls = tls_of(identity_of(pair), authorities_of(pair))
        return GrpcTransport(
            deployment=pair.written.name, servers=servers, tls=tls, call_timeout_s=1.5, relay=relay.address
        )

    try:
        task = pair.ask(20, windows_s=(8.0, 8.0))
        fleet = Fleet(pair, tmp_path, task.mechanism, ["grpc"], wrap=through, timeout_s=1.5)
        signed = await signed_task_of(pair, task)
        await asyncio.gather(
            fleet.answer(signed),
            relay.die_at(task.round_one_opens + 0.5),
            relay.die_at(task.round_one_closes + 0.5),
        )
        counted = await check_release(pair, task, fleet)
        relay.child.terminate()
        code = await asyncio.to_thread(relay.child.ended)
    finally:
        relay.child.reap()

    assert len(counted) >= 16, fleet.failures
    assert code == 0
    assert "Traceback" not in relay.child.last_lines(1000)
