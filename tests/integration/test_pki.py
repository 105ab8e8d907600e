"""An operator's commands as docs/operating.md has them, and what follows at real aggregators behind a real broker."""

import asyncio
import os
import re
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import pytest
from fleetcount.__main__ import run_command
from fleetcount_client.grpc_transport import GrpcTransport, TaskServer, TlsFiles
from fleetcount_client.mqtt_transport import MqttLogin, MqttTransport
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.session import DeviceIdentity, new_session
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.messages import SessionAccepted, SessionRefused, SessionReply, SessionRequest
from fleetcount_protocol.task.task import Aggregator
from fleetcount_protocol.wire.topics import task_filter
from fleetcount_simulator.network.brokers import find_mosquitto
from fleetcount_simulator.network.deployments import free_ports

from tests.support.deployment import LiveDeployment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
NAME = "bologna"
LIMIT_S = 10.0
"""Far beyond the second after which a file is looked at: no time of this machine decides."""


def documented() -> list[str]:
    """Return the commands of the chapter, in order; hosts are this machine."""
    page = (ROOT / "docs" / "operating.md").read_text()
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


@asynccontextmanager
async def mosquitto(root: Path, port: int) -> AsyncIterator[None]:
    """Run the shipped configuration; nothing of it is changed but where files lie and the port."""
    for file in ("broker.crt", "broker.key", "PKI/clients.crt"):
        shutil.copy(root / file, root / "etc" / Path(file).name)
    shutil.copy(ROOT / "deploy" / "mosquitto.acl", root / "etc")
    for name in ("mosquitto.acl", "mosquitto.conf"):
        text = (ROOT / "deploy" / name).read_text().replace("DEPLOYMENT", NAME)
        text = text.replace("/etc/fleetcount", str(root / "etc")).replace("/var/lib/mosquitto", str(root / "var"))
        (root / "etc" / name).write_text(text.replace("listener 8883", f"listener {port}"))
        (root / "etc" / name).chmod(0o600)
    if os.geteuid() == 0:  # It would give up the rights to its own directory below the test's private one.
        with (root / "etc" / "mosquitto.conf").open("a") as file:
            file.write("user root\n")
    program = find_mosquitto()
    assert program is not None
    log = (root / "mosquitto.log").open("wb")
    child = await asyncio.create_subprocess_exec(
        program, "-c", str(root / "etc" / "mosquitto.conf"), stdout=log, stderr=log
    )
    try:
        for _ in range(200):
            assert child.returncode is None, (root / "mosquitto.log").read_text()
            try:
                _, writer = await asyncio.open_connection("localhost", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break
        yield
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()
        log.close()


def client(root: Path, port: int, name: str | None) -> aiomqtt.Client:
    """Return a raw MQTT client with a party's certificate, or with none."""
    context = ssl.create_default_context(cafile=str(root / "PKI" / "aggregators.crt"))
    if name is not None:
        context.load_cert_chain(root / f"{name}.crt", root / f"{name}.key")
    return aiomqtt.Client("localhost", port, tls_context=context, timeout=5)


def transports(root: Path, port: int, deployment: LiveDeployment) -> dict[str, Transport]:
    """Return the car's two ways to the aggregators."""
    files = {"ca_file": root / "PKI" / "aggregators.crt", "certificate_file": root / "car.crt"}
    login = MqttLogin(**files, key_file=root / "car.key")
    servers = [
        TaskServer(aggregator_id=one.aggregator_id, endpoint=one.grpc_endpoint)
        for one in deployment.written.aggregators
    ]
    return {
        "mqtt": MqttTransport(deployment=NAME, broker=f"localhost:{port}", login=login, call_timeout_s=2),
        "grpc": GrpcTransport(
            deployment=NAME, servers=servers, tls=TlsFiles.read(*files.values(), root / "car.key"), call_timeout_s=5
        ),
    }


def requests(root: Path, deployment: LiveDeployment) -> list[SessionRequest]:
    """Return the car's session requests, one an aggregator."""
    identity = DeviceIdentity.load(root / "car.crt", root / "car.key")
    return [
        new_session(one, one.hpke_keys[0], identity, int(time.time()) + 86_400, SystemRandom())[0]
        for one in deployment.written.aggregators
    ]


async def answered(transport: Transport, aggregator: Aggregator, request: SessionRequest) -> SessionReply:
    """Return an aggregator's answer; one that is not at the broker yet hears the request later."""
    while True:
        try:
            [answer] = await transport.open_sessions(aggregator, [request])
        except Unreachable:
            continue
        return answer


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
    for name in ("etc", "var"):
        (tmp_path / name).mkdir()
    commands = documented()
    first = next(place for place, command in enumerate(commands) if command.startswith("pki revoke"))
    for command in commands[:first]:
        run(command)
    [port] = free_ports("127.0.0.1", 1)
    deployment = deployed(tmp_path, port)
    async with mosquitto(tmp_path, port):
        ways = transports(tmp_path, port, deployment)
        try:
            await asyncio.to_thread(deployment.start_all)
            async with client(tmp_path, port, "car") as spy:
                await spy.subscribe("fleetcount/#", qos=1)
                asked = requests(tmp_path, deployment)
                for way in ways.values():
                    for aggregator, request in zip(deployment.written.aggregators, asked, strict=True):
                        assert isinstance(await answered(way, aggregator, request), SessionAccepted)
                heard = [str(message.topic) for message in await so_far(spy)]
            await check_the_broker(tmp_path, port)

            began = time.monotonic()
            for command in commands[first:]:
                run(command)
            refusals = {name: await refused_after(way, deployment, asked) for name, way in ways.items()}
            print(f"refused everywhere {time.monotonic() - began:.2f} s after the first command")
        finally:
            for way in ways.values():
                await way.close()
            await asyncio.to_thread(deployment.stop_all)

    assert heard
    assert {topic.split("/")[3] for topic in heard} <= {"session-reply"}, "a device reads what others send"
    assert refusals == {"mqtt": [RejectReason.BAD_CERTIFICATE] * 2, "grpc": ["permission_denied"] * 2}
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


async def check_the_broker(root: Path, port: int) -> None:
    """Nobody comes in without a certificate; what a device keeps on a task's topic reaches nobody."""
    with pytest.raises(aiomqtt.MqttError):
        async with client(root, port, None):
            pass
    topic = task_filter(NAME).replace("+", "0" * 64)
    async with client(root, port, "car") as car, client(root, port, "alpha") as alpha:
        await car.publish(topic, b"forged", qos=1, retain=True)
        await alpha.subscribe("fleetcount/#", qos=1)
        assert topic not in {str(message.topic) for message in await so_far(alpha)}


async def test_the_shipped_files_name_every_party_once_and_hold_no_comment_behind_a_value() -> None:
    rows = (ROOT / "deploy" / "mosquitto.conf").read_text().splitlines()

    assert [row for row in rows if "#" in row and not row.startswith("#")] == []
