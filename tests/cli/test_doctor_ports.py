"""`fleetcount doctor` asks who listens at a port for its certificate: not every program there is the party."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetcount_aggregator.host.moment import Skew
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose, save_credential
from prometheus_client import generate_latest

from tests.support.listening import listening
from tests.support.town import Town

RELAY = """[relay]
listen = "{alpha}"
[tls]
certificate_file = "dep/alpha/keys/aggregator.crt"
key_file = "dep/alpha/keys/aggregator.key"
aggregator_ca_file = "dep/ca/aggregators.crt"
device_ca_file = "dep/ca/devices.crt"
[[aggregators]]
id = "alpha"
endpoint = "{at_alpha}"
[[aggregators]]
id = "beta"
endpoint = "{beta}"
"""
BROKER = '\n[mqtt]\nbroker = "{}"\nca_file = "../ca/aggregators.crt"\n'


async def test_doctor_takes_no_other_program_for_the_party_of_a_port(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fleetcount.run.doctor_checks.CONNECT_S", 0.5)
    config, relay = tmp_path / "dep/alpha/aggregator.toml", tmp_path / "relay.toml"

    async def says_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def says_hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    async def said(file: Path, *, what: str = "own device port") -> str:
        ran = await asyncio.to_thread(fleetcount, "doctor", "--config", file)
        [line] = [one for one in ran.out.splitlines() if f" {what}: " in one]
        return str(line)

    async with (
        Town(tmp_path, fleetcount, devices=1) as town,
        listening(says_nothing) as silent,
        listening(says_hello) as ssh,
    ):
        text, other = config.read_text(), (tmp_path / "dep/beta/aggregator.toml").read_text()
        alpha, beta = (one.partition('device_listen = "')[2].partition('"')[0] for one in (text, other))
        assert await said(config) == f"ok      own device port: {alpha} listens, with the certificate of 'alpha'"
        for at in (beta, f"127.0.0.1:{silent}"):
            config.write_text(text.replace(alpha, at))
            wrong = await said(config)
            assert wrong.startswith(f"FAILED  own device port: {at}: what listens there does not prove"), wrong
            assert "that it is 'alpha': " in wrong
        assert wrong.endswith("no answer within 0.5 s"), "of what listens and is silent"
        config.write_text(text.replace(alpha, "127.0.0.1:1") + BROKER.format(f"127.0.0.1:{ssh}"))
        assert (await said(config)).startswith("note    own device port: 127.0.0.1:1: "), "it need not run"
        assert "what listens there does not prove that it is '127.0.0.1'" in await said(config, what="MQTT broker")
        config.write_text(text + BROKER.replace("ca_file", "#").format(f"127.0.0.1:{silent}"))
        assert (await said(config, what="MQTT broker")).startswith("note    MQTT broker: "), "nothing proves it"
        # A relay shows its own, and asks each aggregator for the certificate of its id.
        relay.write_text(RELAY.format(alpha=alpha, at_alpha=f"localhost:{alpha.rpartition(':')[2]}", beta=beta))
        assert (await said(relay)).startswith("ok ")
        assert (await said(relay, what="aggregator beta")).startswith("ok ")
        page = generate_latest(town.network.core(0).context.host.metrics.registry).decode()
        assert "fleetcount_handshakes_failed_total{" not in page, "an operator who asks alarms nobody"
        theirs = CertificateAuthority.create("theirs").issue_new(Purpose.RELAY, "alpha")
        save_credential(tmp_path, "theirs", theirs)
        relay.write_text(relay.read_text().replace("dep/alpha/keys/aggregator", "theirs"))
        refused = await said(relay, what="aggregator beta")
        assert refused == f"FAILED  aggregator beta: {beta}: hung up at this certificate, which it may not accept"
        # Its own port takes certificates of devices alone: never that of any relay which an operator has admitted.
        assert (await said(relay)).startswith("ok ")
        relay.write_text(RELAY.format(alpha=beta, at_alpha=f"localhost:{beta.rpartition(':')[2]}", beta=alpha))
        assert (await said(relay)).startswith("FAILED ")
        assert "that it is 'beta': " in await said(relay, what="aggregator beta")


@pytest.mark.parametrize(("seconds", "said"), [(2.0, "ok"), (-119.0, "FAILED")])
async def test_doctor_asks_the_running_aggregator_for_its_clock(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, said: str
) -> None:
    """A clock of the machine that was set right stands beside a process that goes on by the wrong one."""
    monkeypatch.chdir(tmp_path)
    config, asked = tmp_path / "dep/alpha/aggregator.toml", list[tuple[str, str]]()

    async def ask(_: Path, name: str, endpoint: str) -> tuple[str, Skew]:
        asked.append((name, endpoint))
        return "", Skew(seconds, 0.1)

    monkeypatch.setattr("fleetcount.run.doctor.ask_peer", ask)
    async with Town(tmp_path, fleetcount, devices=1):
        text = config.read_text()
        device = text.partition('device_listen = "')[2].partition('"')[0]
        peer = text.partition('peer_listen = "')[2].partition('"')[0]
        config.write_text(text.replace(device, "127.0.0.1:1").replace(peer, device))
        ran = await asyncio.to_thread(fleetcount, "doctor", "--config", config)

    assert asked[0] == ("alpha", device)
    [line] = [one for one in ran.out.splitlines() if "clock of the running aggregator" in one]
    assert line.startswith(f"{said:<7} clock of the running aggregator: {seconds:+.1f} s from this one"), line
    assert ("allowed: 30 s ([limits] largest_skew_s)" in line) is (said == "FAILED")
