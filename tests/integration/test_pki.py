"""An operator's commands as docs/operating-keys.md has them, and their effect at real aggregators and a real broker."""

import asyncio
import re
import shutil
import time
from pathlib import Path

import aiomqtt
import pytest
from fleetcount.__main__ import run_command
from fleetcount_client.grpc_transport import GrpcTransport, WindowServer
from fleetcount_client.mqtt_transport import MqttLogin, MqttTransport
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import load_certificate
from fleetcount_protocol.channel.session import DeviceIdentity, new_session
from fleetcount_protocol.channel.user_names import certified_name
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.messages import SessionAccepted, SessionRefused, SessionRequest
from fleetcount_simulator.network.brokers import find_mosquitto
from fleetcount_simulator.network.ports import free_ports
from fleetcount_transport.key_files import TlsFiles

from tests.support.deployment import LiveDeployment
from tests.support.expiries import on_the_hour
from tests.support.fleet import answered
from tests.support.shipped_broker import client, mosquitto

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
NAME = "bologna"
LIMIT_S = 10.0
"""Far beyond the second after which a file is looked at: no time of this machine decides."""


def documented() -> list[str]:
    """Return the commands of the chapter, in order; hosts are this machine."""
    page = (ROOT / "docs" / "operating-keys.md").read_text()
    chapter = page.partition("\n## Certificates\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^ {4}fleetcount (.*)$", chapter, re.MULTILINE)
    return [re.sub(r"[a-z]+\.example\.org", "localhost", command) for command in commands]


def run(command: str) -> None:
    assert run_command(command.split()) == 0, command


def deployed(root: Path, port: int) -> LiveDeployment:
    """Return two aggregators with the operator's certificates, at the broker, under the operator's deny list."""
    deployment = LiveDeployment(root / "deployed", 2, name=NAME)
    for name in ("aggregators", "devices"):
        shutil.copy(root / "PKI" / f"{name}.crt", deployment.written.root / "ca" / f"{name}.crt")
    for position, plan in enumerate(deployment.written.plans):
        config = deployment.config(position)
        for end in ("crt", "key"):
            shutil.copy(root / f"{plan.aggregator_id}.{end}", config.parent / "keys" / f"aggregator.{end}")
        text = config.read_text().replace(
            "\n[grpc]\n",
            f'deny_list_file = "{root / "PKI" / "deny-list"}"\n\n[mqtt]\nbroker = "localhost:{port}"\ninflight = 1000\n'
            'ca_file = "../ca/aggregators.crt"\ncertificate_file = "keys/aggregator.crt"\n'
            'key_file = "keys/aggregator.key"\n\n[grpc]\n',
        )
        config.write_text(text)
    return deployment


def transports(root: Path, port: int, deployment: LiveDeployment) -> dict[str, Transport]:
    """Return the car's two ways to the aggregators."""
    files = {"ca_file": root / "PKI" / "aggregators.crt", "certificate_file": root / "car.crt"}
    login = MqttLogin(**files, key_file=root / "car.key")
    servers = [
        WindowServer(aggregator_id=one.aggregator_id, endpoint=one.grpc_endpoint)
        for one in deployment.written.aggregators
    ]
    return {
        "mqtt": MqttTransport(
            deployment=NAME,
            broker=f"localhost:{port}",
            user=lambda: certified_name(load_certificate(root / "car.crt")),
            login=login,
            call_timeout_s=2,
        ),
        "grpc": GrpcTransport(
            deployment=NAME, servers=servers, tls=TlsFiles.read(*files.values(), root / "car.key"), call_timeout_s=5
        ),
    }


def requests(root: Path, deployment: LiveDeployment) -> list[SessionRequest]:
    """Return the car's session requests, one an aggregator."""
    identity = DeviceIdentity.load(root / "car.crt", root / "car.key")
    return [
        new_session(one, one.hpke_keys[0], identity, on_the_hour(time.time(), 24), SystemRandom())[0]
        for one in deployment.written.aggregators
    ]


async def refused_after(transport: Transport, deployment: LiveDeployment, asked: list[SessionRequest]) -> list[object]:
    """Ask again and again until every aggregator refuses; return how each does."""
    found: list[object] = []
    for aggregator, request in zip(deployment.written.aggregators, asked, strict=True):
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    [answer] = await transport.open_sessions(aggregator, [request])
                except Unreachable as error:
                    found.append(str(error).partition(": ")[2])
                    break
                if isinstance(answer, SessionRefused):
                    found.append(answer.reason)
                    break
                await asyncio.sleep(0.02)
    return found


async def test_the_documented_commands_enrol_and_revoke_at_real_aggregators_and_a_real_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): TLS and ACL NOT tested")
    monkeypatch.chdir(tmp_path)
    commands = documented()
    first = next(place for place, command in enumerate(commands) if command.startswith("pki revoke"))
    for command in (
        *commands[:first],
        "pki request --output spy",
        "pki enrol --pki PKI --csr spy.csr --output spy.crt",
    ):
        run(command)
    [port] = free_ports("127.0.0.1", 1)
    deployment = deployed(tmp_path, port)
    async with mosquitto(tmp_path, port, NAME):
        ways = transports(tmp_path, port, deployment)
        try:
            await asyncio.to_thread(deployment.start_all)
            async with client(tmp_path, port, "spy") as spy:
                await spy.subscribe("fleetcount/#", qos=1)
                asked = requests(tmp_path, deployment)
                for way in ways.values():
                    for aggregator, request in zip(deployment.written.aggregators, asked, strict=True):
                        assert isinstance(await answered(way, aggregator, request), SessionAccepted)
                heard = [str(message.topic) for message in await so_far(spy)]

            began = time.monotonic()
            for command in commands[first:]:
                run(command)
            refusals = {name: await refused_after(way, deployment, asked) for name, way in ways.items()}
            print(f"refused everywhere {time.monotonic() - began:.2f} s after the first command")
        finally:
            for way in ways.values():
                await way.close()
            await asyncio.to_thread(deployment.stop_all)

    assert heard == [], "a device reads what others send, or are answered"
    denied = "permission_denied (not authorised: this certificate is denied there"
    assert refusals["mqtt"] == [RejectReason.BAD_CERTIFICATE] * 2
    assert [str(one).startswith(denied) for one in refusals["grpc"]] == [True, True], refusals
    assert deployment.troubles() == []


async def so_far(spy: aiomqtt.Client) -> list[aiomqtt.Message]:
    """Return what came in, and for half a second more."""
    found: list[aiomqtt.Message] = []
    try:
        async with asyncio.timeout(0.5):
            async for message in spy.messages:
                found.append(message)
    except TimeoutError:
        pass
    return found
