"""The real command in its own process: killed with SIGKILL at any moment it goes on with the same coins; exit codes."""

import asyncio
import base64
import dataclasses
import math
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from fleetcount_client.spool import SpoolFile
from fleetcount_client.spool_rows import Phase
from fleetcount_client.timer import SystemTimer
from fleetcount_protocol.channel.certificates import CertificateAuthority, save_certificates, save_private_key
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.clock import utc_text
from fleetcount_transport import failpoints

from tests.client.databroker import FakeDatabroker, databroker
from tests.client.deployment import SIGNAL, Deployment
from tests.client.shells import free_port, grpc_servers
from tests.support.processes import pace, wait_until

pytestmark = pytest.mark.processes

KILLED = 137


def write_device(world: Deployment, directory: Path, authority: CertificateAuthority, policy: str = "") -> Path:
    """Write the folder of one device and return its configuration file."""
    directory.mkdir()
    identity: DeviceIdentity = world.identity()
    save_certificates(directory / "device.crt", [identity.certificate])
    save_private_key(directory / "device.key", identity.private_key)
    save_certificates(directory / "aggregators.crt", [authority.certificate])
    rows = [
        "[device]",
        'deployment = "test"',
        'state_file = "device.db"',
        'certificate_file = "device.crt"',
        'key_file = "device.key"',
        'transport = "grpc"',
        "[grpc]",
        'ca_file = "aggregators.crt"',
        "[policy]",
        f'signals = ["{SIGNAL}"]',
        'largest_epsilon = "3"',
        'fresh_ledger = "allow"',
        policy,
        "[delivery]",
        'spread = "0.3"',
        "retry_base_s = 0.1",
        "retry_cap_s = 0.5",
        f'[signals."{SIGNAL}"]',
        'value = "B"',
    ]
    for one in world.described:
        rows += ["[[aggregators]]", f'id = "{one.aggregator_id}"', f'operator = "{one.operator}"']
        rows += [f'signing_public_key = "{base64.b64encode(one.signing_public_key).decode()}"']
        rows += [f'grpc_endpoint = "{one.grpc_endpoint}"']
    (directory / "device.toml").write_text("\n".join(rows))
    return directory / "device.toml"


async def start(config: Path, *options: str, **environment: str) -> asyncio.subprocess.Process:
    arguments = ["-m", "fleetcount", "device", *options, "--config", str(config)]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def command(config: Path, *options: str, **environment: str) -> tuple[int, str, str]:
    return await ended(await start(config, *options, **environment))


@pytest.mark.nightly
@pytest.mark.timeout(240)  # The windows alone are 32 s, three times that on a loaded machine.
async def test_a_device_killed_at_any_point_delivers_one_valid_report_with_its_first_coins(tmp_path: Path) -> None:
    world = Deployment(timer=SystemTimer())  # type: ignore[arg-type]
    authority = CertificateAuthority.create("test aggregators")
    async with grpc_servers(world, authority):
        opens = int(world.timer.now()) + 1
        length = math.ceil(16 * pace())
        window = world.ask(opens, round_one_s=length, round_two_s=length)

        async def killed_at(name: str) -> tuple[Path, tuple[int, str, str]]:
            config = write_device(world, tmp_path / name, authority)
            environment = {"FLEETCOUNT_TESTING": "1", "FLEETCOUNT_FAILPOINT": name}
            code, _, err = await command(config, "run", "--once", **environment)
            assert code == KILLED, err
            return config, await command(config, "run", "--once")

        async def killed_at_random() -> tuple[Path, tuple[int, str, str]]:
            config = write_device(world, tmp_path / "random", authority)
            while world.timer.now() < opens + 9 * pace():
                process = await start(config, "run", "--once")
                await asyncio.sleep(random.uniform(0.3, 3))
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                await ended(process)
            return config, await command(config, "run", "--once")

        lives = await asyncio.gather(killed_at_random(), *map(killed_at, failpoints.DEVICE_FAILPOINTS))

    for config, (code, out, err) in lives:
        spool, told = SpoolFile(config.parent / "device.db").device(), "delivered" in out
        # One that ended before it was killed tells its owner by what it has kept.
        assert (code, told) == (0, config.parent.name != "after_round_two_receipts"), (config.parent.name, out, err)
        assert [one.phase for one in spool.answers()] == [Phase.DELIVERED]
        assert len(spool.charges()) == 1
    reports = world.report_ids(window, 2)
    assert len(reports) == len(lives)
    for intake in world.intakes.values():
        assert {report for _, report, _ in intake.instalments} == reports
    for report_id in reports:
        words = world.decoded(window, report_id)
        assert words[4:].index(1) in (words[:4].index(1), 2)
        world.verifies(window, report_id)


@pytest.fixture
def world() -> Deployment:
    deployment = Deployment()
    deployment.described = tuple(
        dataclasses.replace(one, grpc_endpoint=f"127.0.0.1:{free_port()}") for one in deployment.described
    )
    return deployment


BLOCKED = """
import pathlib, sys, time
from fleetcount_client.signals import FileSource
def blocked(source):
    pathlib.Path(source._path).write_text("reading")
    time.sleep(3600)
FileSource.__call__ = blocked
from fleetcount.__main__ import main
sys.argv[0] = "fleetcount"
main()
"""


@pytest.mark.parametrize("source", ["databroker", "blocked"])
async def test_sigterm_ends_a_device_within_seconds_whatever_a_source_does(tmp_path: Path, source: str) -> None:
    world = Deployment(timer=SystemTimer())  # type: ignore[arg-type]
    authority, fake = CertificateAuthority.create("test aggregators"), FakeDatabroker(delay_s=3600)
    fake.values[SIGNAL] = ({"string": "B"}, 0.0)
    async with grpc_servers(world, authority), databroker(fake) as address:
        world.ask(int(world.timer.now()) + 1, round_one_s=600, round_two_s=600)
        config = write_device(world, tmp_path / "d", authority)
        hangs = f'kuksa = "{SIGNAL}"\n[kuksa]\naddress = "{address}"\ntimeout_s = 20'
        rows = hangs if source == "databroker" else 'file = "read"'
        config.write_text(config.read_text().replace('value = "B"', rows).replace('"0.3"', '"0.001"'))
        if source == "blocked":
            arguments = ["-c", BLOCKED, "device", "run", "--config", str(config)]
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
        else:
            process = await start(config, "run")
        async with asyncio.timeout(60 * pace()):
            while not fake.asked and not (tmp_path / "d" / "read").exists():
                await asyncio.sleep(0.05)

        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            code, _, err = await ended(process)

    assert code == 0, err


async def test_a_pipe_and_a_device_file_are_answered_as_none_and_said(tmp_path: Path) -> None:
    world = Deployment(timer=SystemTimer())  # type: ignore[arg-type]
    authority = CertificateAuthority.create("test aggregators")
    async with grpc_servers(world, authority):
        length = math.ceil(5 * pace())
        window = world.ask(int(world.timer.now()) + 1, round_one_s=length, round_two_s=length)
        configs = [write_device(world, tmp_path / name, authority) for name in ("pipe", "zero")]
        os.mkfifo(tmp_path / "pipe" / "read")
        for config, file in zip(configs, ("read", "/dev/zero"), strict=True):
            config.write_text(config.read_text().replace('value = "B"', f'file = "{file}"'))
        lives = await asyncio.gather(*(command(config, "run", "--once") for config in configs))

    assert [(code, "delivered" in out) for code, out, _ in lives] == [(0, True)] * 2, lives
    assert all(f"the last closes at {utc_text(window.round_two_closes)}" in err for _, _, err in lives), lives
    for report_id in world.report_ids(window, 2):
        words = world.decoded(window, report_id)
        assert words[4:].index(1) in (words[:4].index(1), 0)


async def test_who_answers_once_says_first_what_it_waits_for_and_until_when(tmp_path: Path) -> None:
    world = Deployment(timer=SystemTimer())  # type: ignore[arg-type]
    authority = CertificateAuthority.create("test aggregators")
    async with grpc_servers(world, authority):
        window = world.ask(int(world.timer.now()) + 3_600, round_one_s=60, round_two_s=60)
        process = await start(write_device(world, tmp_path / "d", authority), "run", "--once")
        assert process.stderr is not None
        async with asyncio.timeout(60 * pace()):
            said = (await process.stderr.readline()).decode()
        process.send_signal(signal.SIGTERM)
        code, out, rest = await ended(process)

    opens, closes = map(utc_text, (window.round_one_opens, window.round_two_closes))
    assert f"'which brand': window 0 of 1 opens at {opens}; waits until the last closes at {closes}" in said
    assert (code, out, rest) == (0, "", "")


async def test_nobody_to_reach_is_exit_code_four_and_one_line(tmp_path: Path, world: Deployment) -> None:
    config = write_device(world, tmp_path / "d", CertificateAuthority.create("test"))

    code, out, err = await command(config, "run", "--once")

    assert (code, out, len(err.splitlines())) == (4, "", 1), err
    assert "unavailable" in err


async def test_a_wrong_configuration_is_exit_code_two_and_names_the_key(tmp_path: Path, world: Deployment) -> None:
    config = write_device(world, tmp_path / "d", CertificateAuthority.create("test"), policy="allow_dirct = true")

    for options in (("run", "--once"), ("ledger",), ("spool",)):
        code, out, err = await command(config, *options)
        assert (code, out, len(err.splitlines())) == (2, "", 1), err
        assert "policy.allow_dirct" in err
        assert "allow_direct" in err


async def test_a_refused_question_is_exit_code_three_and_the_owner_reads_why(tmp_path: Path) -> None:
    world = Deployment(timer=SystemTimer())  # type: ignore[arg-type]
    authority = CertificateAuthority.create("test aggregators")
    async with grpc_servers(world, authority):
        opens = int(world.timer.now()) + 1
        world.ask(opens)
        config = write_device(world, tmp_path / "d", authority, policy="smallest_min_batch_size = 1000")

        code, out, err = await command(config, "run", "--once")
        ledger = await command(config, "ledger")
        spool = await command(config, "spool")

    assert (code, len(err.splitlines())) == (3, 1), err
    assert "min_batch_size is 10; the smallest allowed is 1000" in err
    assert out.startswith("refused")
    assert "smallest_min_batch_size" in ledger[1]
    assert "answered 0" in ledger[1]
    assert (ledger[0], spool[0], "0 answers" in spool[1]) == (0, 0, True)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_a_running_device_ends_on_a_signal_without_a_traceback(
    tmp_path: Path, world: Deployment, number: int, expected: int
) -> None:
    config = write_device(world, tmp_path / "d", CertificateAuthority.create("test"))
    process = await start(config, "run")
    await asyncio.to_thread(wait_until, (tmp_path / "d" / "device.db").exists, "the device has begun", 60)

    process.send_signal(number)
    code, _, err = await ended(process)

    assert code == expected, err
    assert "Traceback" not in err


async def test_a_device_that_has_not_run_has_no_ledger_to_read(tmp_path: Path, world: Deployment) -> None:
    config = write_device(world, tmp_path / "d", CertificateAuthority.create("test"))

    code, _, err = await command(config, "ledger")

    assert code == 2
    assert "has not run yet" in err
