"""The specifications that are shipped: the command creates, signs and submits each, and real devices answer it."""

import asyncio
import json
import math
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from fractions import Fraction
from importlib import resources
from pathlib import Path

import pytest
from fleetcount.keys.deployment import write_device
from fleetcount.keys.descriptors import encode_descriptor
from fleetcount_client.config import DeliverySettings, load_settings
from fleetcount_client.device import Device
from fleetcount_client.policy import JoinRule
from fleetcount_protocol.release import record_from_json

from tests.integration.test_three_terminals import ran, run
from tests.support.deployment import Deployed
from tests.support.processes import pace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DEVICES = 12
SPEED, PLACE = 63, 0xABC00000
WALKERS = 40
"""Noise of a cell of the drill-down deviates by about 3: 40 fall below its threshold of 8 by a chance below 1e-9."""
FIRST_FOLDER = 500
"""Of the devices' folders: below are those of other tests of the same deployment."""
MOST_NOISE = 150
"""Twice 7.16 times sqrt(2) over the sampling rate is 41: an estimate is as far off with a chance below 1e-12."""


def prepared(pair: Deployed, folder: Path, name: str) -> None:
    """Create, sign and submit a sample as its deployment's operators do."""
    text = resources.files("fleetcount.samples").joinpath(f"{name}.toml").read_text()
    text = text.replace('deployment = "test"', f'deployment = "{pair.written.name}"')
    (folder / f"{name}.toml").write_text(text)
    for one in pair.written.aggregators:
        (folder / f"{one.aggregator_id}.descriptor.toml").write_text(encode_descriptor(one))
    run(folder, "question", "create", "--spec", f"{name}.toml", "--output", f"{name}.question")
    for step, position in (("sign", 0), ("sign", 1), ("submit", 0)):
        run(folder, "question", step, "--config", str(pair.config(position)), f"{name}.question")


@asynccontextmanager
async def driven(
    pair: Deployed, number: int, *, count: int = DEVICES, allow_direct: bool = False
) -> AsyncGenerator[list[Device]]:
    """Let devices with the limits of `keys init` run, each with a fast car in one busy place."""
    devices: list[Device] = []
    first = FIRST_FOLDER + DEVICES * number
    for one in range(first, first + count):
        config = await asyncio.to_thread(write_device, pair.written, one, transport="grpc")
        (config.parent / "speed.json").write_text(json.dumps(SPEED))
        (config.parent / "currentlocation.json").write_text(json.dumps(PLACE))
        settings = load_settings(config)
        delivery = DeliverySettings(poll_interval_s=1.0)
        policy = replace(settings.policy, allow_direct=allow_direct)
        owned = replace(settings, delivery=delivery, join=JoinRule.AUTO, policy=policy)
        devices.append(Device.from_settings(owned))
    serving = [asyncio.create_task(device.serve()) for device in devices]
    try:
        yield devices
    finally:
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)
        for device in devices:
            await device.close()


async def test_the_sample_of_one_window_counts_all_devices(pair: Deployed, tmp_path: Path) -> None:
    async with driven(pair, 0):
        await asyncio.to_thread(prepared, pair, tmp_path, "window")
        await fetched(pair, tmp_path, "window", "--wait", str(math.ceil(150 * pace())))

    assert all(abs(estimate - DEVICES) < MOST_NOISE for estimate in estimates(tmp_path / "got" / "release.json"))


@pytest.mark.nightly
async def test_the_sample_of_a_month_is_asked_until_it_is_stopped(pair: Deployed, tmp_path: Path) -> None:
    async with driven(pair, 1) as devices:
        await asyncio.to_thread(prepared, pair, tmp_path, "month")
        async with asyncio.timeout(300 * pace()):
            while not (tmp_path / "got" / "00000.json").exists():
                await asyncio.sleep(1)
                await asyncio.to_thread(ran, tmp_path, *release(pair, "month"))
        # Before the stop, which frees the windows that are not asked any more.
        charged = [[charge.sent for charge in device.spool.charges()] for device in devices]
        stop = ("question", "stop", "--yes", "--config", str(pair.config(1)), "month.question")
        stopped = await asyncio.to_thread(run, tmp_path, *stop)

    assert "stop from window 1 on" in stopped
    assert [(sent.count(True), len(sent)) for sent in charged] == [(1, 720)] * DEVICES
    found = estimates(tmp_path / "got" / "00000.json")
    assert all(abs(one - count) < MOST_NOISE for one, count in zip(found, [0, 0, DEVICES, 0], strict=True))


@pytest.mark.nightly
async def test_the_sample_of_a_drill_down_finds_the_one_busy_place(pair: Deployed, tmp_path: Path) -> None:
    async with driven(pair, 2, count=WALKERS, allow_direct=True):
        await asyncio.to_thread(prepared, pair, tmp_path, "drill-down")
        await fetched(pair, tmp_path, "drill-down", "--wait", str(math.ceil(300 * pace())))

    found = await asyncio.to_thread(run, tmp_path, "question", "places", "--records", "got")
    assert len(list((tmp_path / "got").glob("0*.json"))) == 3
    assert f"{PLACE >> 20:#05x}" in found


def estimates(path: Path) -> list[Fraction]:
    record, _ = record_from_json(path.read_text())
    return [cell.estimate for cell in record.cells]


def release(pair: Deployed, name: str) -> tuple[str, ...]:
    return ("question", "release", "--question", f"{name}.question", "--config", str(pair.analyst), "--output", "got")


async def fetched(pair: Deployed, folder: Path, name: str, *further: str) -> None:
    """Fetch the records as an analyst who waits for them."""
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleetcount", *release(pair, name), *further),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await done.communicate()
    assert done.returncode == 0, out.decode()
