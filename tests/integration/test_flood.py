"""One enrolled device publishes session requests without end, at the shipped broker: another is answered as before."""

import asyncio
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount.__main__ import run_command
from fleetcount_client.mqtt_transport import MqttLogin, MqttTransport
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import load_certificate
from fleetcount_protocol.channel.session import DeviceIdentity, new_session
from fleetcount_protocol.channel.user_names import certified_name
from fleetcount_protocol.messages import SessionAccepted
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.wire.device import SESSION_REQUEST
from fleetcount_protocol.wire.topics import session_topic
from fleetcount_simulator.network.brokers import find_mosquitto
from fleetcount_simulator.network.ports import free_ports

from tests.integration.test_pki import NAME, answered, deployed
from tests.support.expiries import on_the_hour
from tests.support.nightly import NIGHTLY
from tests.support.shipped_broker import mosquitto

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

FLOOD = int(os.environ.get("FLEETCOUNT_FLOOD", "40000" if NIGHTLY else "10000"))
"""Bad requests; a review sent 159,000 in 20 s."""
RATE = 8_000
GROWTH_MIB = 64


def enrol(names: dict[str, list[str]]) -> None:
    assert run_command(["pki", "init", "--output", "PKI", "--deployment", NAME]) == 0
    for name, (command, *options) in names.items():
        assert run_command(["pki", "request", "--output", name]) == 0
        issue = ["pki", command, "--pki", "PKI", "--csr", f"{name}.csr", "--output", f"{name}.crt", *options]
        assert run_command(issue) == 0


def bad_requests(root: Path, aggregator: Aggregator, count: int) -> bytes:
    """Return session requests of the thief, well-formed, each with a wrong signature, as the flood reads them."""
    thief = DeviceIdentity.load(root / "thief.crt", root / "thief.key")
    request, _ = new_session(aggregator, aggregator.hpke_keys[0], thief, on_the_hour(time.time(), 24), SystemRandom())
    forged = [
        SESSION_REQUEST.encode(replace(request, ephemeral_key=one.to_bytes(32, "little")))
        for one in range(1, count + 1)
    ]
    return b"".join(len(one).to_bytes(4) + one for one in forged)


async def seconds(transport: MqttTransport, root: Path, aggregator: Aggregator) -> float:
    """Open a new session as the car; return how long it took."""
    car = DeviceIdentity.load(root / "car.crt", root / "car.key")
    request, _ = new_session(aggregator, aggregator.hpke_keys[0], car, on_the_hour(time.time(), 24), SystemRandom())
    began = time.monotonic()
    assert isinstance(await answered(transport, aggregator, request), SessionAccepted)
    return time.monotonic() - began


async def test_a_flood_of_one_device_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): floods NOT tested")
    monkeypatch.chdir(tmp_path)
    listening = dict.fromkeys(("alpha", "beta"), "aggregator") | {"broker": "broker"}
    issued = {name: [kind, "--name", name, "--host", "localhost"] for name, kind in listening.items()}
    enrol(issued | {"car": ["enrol"], "thief": ["enrol"]})
    [port] = free_ports("127.0.0.1", 1)
    deployment = deployed(tmp_path, port)
    [alpha, _] = deployment.written.aggregators
    (tmp_path / "bad").write_bytes(bad_requests(tmp_path, alpha, 1_000))
    transport = car_transport(tmp_path, port)
    async with mosquitto(tmp_path, port, NAME):
        try:
            await asyncio.to_thread(deployment.start_all)
            idle = [await seconds(transport, tmp_path, alpha) for _ in range(6)]
            before = deployment.children[0].peak_mib
            flood = await flooding(tmp_path, port, alpha)
            loaded: list[float] = []
            while flood.returncode is None and len(loaded) < 8:
                await asyncio.sleep(0.3)
                loaded.append(await seconds(transport, tmp_path, alpha))
            took, _ = await flood.communicate()
            names = [f'fleetcount_shed_total{{reason="{reason}"}}' for reason in ("calls", "faults")]
            shed = 0.0
            async with asyncio.timeout(60):
                while shed < 0.9 * FLOOD:
                    shed = sum([await asyncio.to_thread(deployment.metric, 0, name) for name in names])
            peak = deployment.children[0].peak_mib
            print(
                f"{FLOOD} in {float(took):.1f} s; a session idle {statistics.median(idle):.3f} s, "
                f"loaded {statistics.median(loaded):.3f} s, at most {max(loaded):.3f} s; "
                f"shed {shed:.0f}; memory {before:.0f} MiB, at most {peak:.0f} MiB"
            )
        finally:
            await transport.close()
            await asyncio.to_thread(deployment.stop_all)

    assert peak < before + GROWTH_MIB, f"{peak:.0f} MiB, {before:.0f} before the flood"
    assert loaded
    assert deployment.troubles() == []


def car_transport(root: Path, port: int) -> MqttTransport:
    """Return the honest device's connection."""
    certificate, key = (root / f"car.{end}" for end in ("crt", "key"))
    login = MqttLogin(ca_file=root / "PKI" / "aggregators.crt", certificate_file=certificate, key_file=key)
    name = certified_name(load_certificate(certificate))
    broker = f"localhost:{port}"
    return MqttTransport(deployment=NAME, broker=broker, user=lambda: name, login=login, call_timeout_s=60)


async def flooding(root: Path, port: int, aggregator: Aggregator) -> asyncio.subprocess.Process:
    """Let the thief publish bad requests under its own name; return its process, which has begun."""
    topic = session_topic(NAME, aggregator.aggregator_id, certified_name(load_certificate(root / "thief.crt")))
    said = (str(port), str(root), "thief", topic, str(root / "bad"), str(FLOOD), str(RATE))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.flooding", *said),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process
