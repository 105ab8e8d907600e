"""The operate quick start as a newcomer does it: two operators, a device, an analyst, and nothing but the command."""

import asyncio
import base64
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ChildProcess, pace, wait_until, without_numba
from tests.support.wire_reader import verify_record

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

KEYS_INIT_S = 0.5
"""How long `keys init` takes on an idle machine."""

SPEC = """
[question]
name = "how fast"
deployment = "test"
signal = "Vehicle.Speed"
min_batch_size = 2

[domain]
kind = "bins"
edges = ["0", "30", "60"]
open_above = true
unit = "km/h"

[schedule]
opens = "in {opens} s"
window = "{window} s"
round_one = "{one} s"

[mechanism]
sampling_rate = "1/3"

[release]
epsilon = "0.9"

[[aggregators]]
descriptor = "d/alpha.descriptor.toml"

[[aggregators]]
descriptor = "d/beta.descriptor.toml"
"""


def ran(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command as a person does."""
    return subprocess.run(
        [sys.executable, "-m", "fleetcount", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def run(directory: Path, *arguments: str, expect: int = 0) -> str:
    """Run the command, which ends with this code; return its standard output."""
    done = ran(directory, *arguments)
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + (done.stderr if expect else "")


@pytest.fixture
def slowness(tmp_path: Path) -> float:
    """Make keys as a newcomer does; return how much longer than on an idle machine a command takes here and now."""
    started = time.monotonic()
    made = run(tmp_path, "keys", "init", "--output", "d", "--devices", "4", "--base-port", "0")
    assert "fleetcount aggregator serve --config d/alpha/aggregator.toml" in made
    return min(8.0, max(pace(), (time.monotonic() - started) / KEYS_INIT_S))


@pytest.fixture
def terminals(tmp_path: Path, slowness: float) -> Iterator[dict[str, ChildProcess]]:
    """A terminal an operator."""
    del slowness  # It made the keys.
    serve = [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config"]
    names = ("alpha", "beta")
    children = {
        n: ChildProcess.of(n, [*serve, str(tmp_path / "d" / n / "aggregator.toml")], tmp_path, without_numba())
        for n in names
    }
    try:
        for child in children.values():
            child.start()
        for child in children.values():
            child.ready()
        yield children
    finally:
        for child in children.values():
            child.reap()


async def test_two_operators_four_devices_and_an_analyst_get_a_signed_result_from_the_command_alone(
    tmp_path: Path, terminals: dict[str, ChildProcess], slowness: float
) -> None:
    # Ten commands lie between the first and the first device's answer, and four devices start side by side.
    opens, one, window = (int(seconds * slowness) for seconds in (9, 5, 9))
    (tmp_path / "speed.toml").write_text(SPEC.format(opens=opens, one=one, window=window))
    for number, speed in enumerate((10, 45, 45, 90), start=1):
        (tmp_path / "d" / "devices" / f"{number:04d}" / "speed.json").write_text(str(speed))

    shown = run(tmp_path, "question", "create", "--spec", "speed.toml", "--output", "speed.question")
    first = run(tmp_path, "question", "sign", "--config", "d/alpha/aggregator.toml", "speed.question")
    early = run(tmp_path, "question", "submit", "--config", "d/alpha/aggregator.toml", "speed.question", expect=2)
    second = run(tmp_path, "question", "sign", "--config", "d/beta/aggregator.toml", "speed.question")
    elsewhere = run(tmp_path, "question", "submit", "--config", "d/beta/aggregator.toml", "speed.question", expect=2)
    run(tmp_path, "question", "submit", "--config", "d/alpha/aggregator.toml", "speed.question")
    beta = ("--config", "d/beta/aggregator.toml")
    asked = ("question", "status", *beta, "--question", "speed.question", "--json")
    wait_until(lambda: ran(tmp_path, *asked).returncode == 0, "both have the window")
    # Before any device answers: later, on a slow machine, it may be released.
    not_yet = run(tmp_path, *release(tmp_path, "early"), expect=3)

    assert "speed.seed" in shown
    assert stat.S_IMODE((tmp_path / "speed.seed").stat().st_mode) == 0o600
    assert "others have still to sign" in first
    assert "complete" in second
    assert "not signed by beta" in early
    assert "led by 'alpha'" in elsewhere

    devices = await asyncio.gather(*(device(tmp_path, number) for number in range(1, 5)))
    assert [code for code, _ in devices] == [0] * 4, devices
    result = run(tmp_path, *release(tmp_path, "out"), "--wait", str(int(60 * slowness)))
    again = run(tmp_path, *release(tmp_path, "out-again"))
    status = run(tmp_path, "question", "status", "--config", "d/beta/aggregator.toml", "--question", "speed.question")
    own = run(tmp_path, "aggregator", "status", "--config", "d/alpha/aggregator.toml")
    ledger = run(tmp_path, "device", "ledger", "--config", "d/devices/0001/device.toml")
    told = json.loads(run(tmp_path, *asked))
    stored = json.loads(run(tmp_path, "aggregator", "status", *beta, "--json"))
    listed = json.loads(run(tmp_path, "aggregator", "windows", *beta, "--json"))

    assert all("delivered" in out for _, out in devices)
    assert not (tmp_path / "early").exists(), not_yet
    assert "\nPrivacy:\n" in result
    assert "95 % interval" in result
    assert {one["aggregator"]: one["state"] for one in told} == {"alpha": "released", "beta": "released"}
    assert listed == stored["windows"]
    assert (listed[0]["state"], stored["ledger"][0]["window_id"]) == ("released", listed[0]["window_id"])
    assert (tmp_path / "out" / "release.json").read_bytes() == (tmp_path / "out-again" / "release.json").read_bytes()
    assert result.split("wrote")[0] == again.split("wrote")[0]
    record = json.loads((tmp_path / "out" / "release.json").read_text())
    assert len(record["cells"]) == 3
    signatures = [base64.b64decode(one["signature"]) for one in record["signatures"]]
    signed = verify_record(base64.b64decode(record["record"]), signatures)
    assert [cell.raw for cell in signed.cells] == [cell["raw"] for cell in record["cells"]]
    assert status.count("released") == 2
    assert "set digests: equal" in status
    assert "released" in own
    assert "answered 1" in ledger


def release(directory: Path, output: str) -> list[str]:
    return [
        "question",
        "release",
        "--question",
        "speed.question",
        "--config",
        "d/analyst/analyst.toml",
        "--output",
        str(directory / output),
    ]


async def device(directory: Path, number: int) -> tuple[int, str]:
    """Run one device until it has answered what is on offer."""
    config = f"d/devices/{number:04d}/device.toml"
    # The window is shown within a second of its submission: a device that comes too early asks again.
    for _ in range(20):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleetcount", "device", "run", "--once", "--config", config),
            cwd=directory,
            env=dict(os.environ),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        if b"no question on offer" not in out:
            break
        await asyncio.sleep(0.2)
    return process.returncode or 0, out.decode()
