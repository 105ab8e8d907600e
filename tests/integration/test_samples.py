"""The specifications that are shipped: the command creates, signs and submits each, and real devices answer it."""

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from fractions import Fraction
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import pytest
from fleetcount.keys.deployment import write_device
from fleetcount.keys.describing import encode_descriptor
from fleetcount_client.config import DeliverySettings, load_settings
from fleetcount_client.device import Device
from fleetcount_client.policy import JoinRule
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.release.record_json import record_from_json

from tests.client.databroker import FakeDatabroker, databroker
from tests.integration.test_three_terminals import ran, run
from tests.support.deployment import Deployed
from tests.support.processes import pace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DEVICES = 12
SPEED, PLACE = 63, 0xABC00000
WALKERS = 40
"""Noise of a cell of the drill-down deviates by about 3: 40 fall below its threshold of 8 by a chance below 1e-9."""
FAULTY = 60
"""Noise of a cell of the fault codes deviates by about 4: 60 fall below its threshold of 23 by a chance below 1e-7."""
FIRST_FOLDER = 500
"""Of the devices' folders: below are those of other tests of the same deployment."""
FIRST_BRAKES = 700
MOST_NOISE = 150
"""Twice 7.16 times sqrt(2) over the sampling rate is 41: an estimate is as far off with a chance below 1e-12."""


def prepared(pair: Deployed, folder: Path, name: str, changes: Mapping[str, str] = MappingProxyType({})) -> None:
    """Create, sign and submit a sample, with some of its texts changed, as its deployment's operators do."""
    text = resources.files("fleetcount.samples").joinpath(f"{name}.toml").read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
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


BRAKES = "Vehicle.Chassis.IsBrakesWorn"
WHEELS = ("front-left", "front-right", "rear-left", "rear-right")
AXLES = ("Row1.Wheel.Left", "Row1.Wheel.Right", "Row2.Wheel.Left", "Row2.Wheel.Right")
PATHS = [f"Vehicle.Chassis.Axle.{wheel}.Brake.IsBrakesWorn" for wheel in AXLES]
VEHICLES = 30
"""A third each with files, lines and a databroker; of each ten four have a worn brake and one a wheel unknown."""


def brakes_of(number: int) -> list[bool | None]:
    """Return what the four wheels of a vehicle say: of each ten four are worn, one is not known, five are whole."""
    wheels: list[bool | None] = [False] * 4
    if number % 10 < 5:
        wheels[number % 4] = True if number % 10 < 4 else None
    return wheels


def written(config: Path, number: int, address: str) -> FakeDatabroker:
    """Write what the vehicle's wheels say where its source is: files, lines, or a databroker that never changes it."""
    fake = FakeDatabroker(metadata={path: {"data_type": 2, "entry_type": 2} for path in PATHS})
    text = config.read_text()
    start = text.index(f'[signals."{BRAKES}"]')
    said = dict(zip(WHEELS, brakes_of(number), strict=True))
    for path, worn in zip(PATHS, said.values(), strict=True):
        fake.published[path] = ({} if worn is None else {"bool": worn}, time.time() - 90_000)
    if number < VEHICLES // 3:
        for wheel, worn in said.items():
            (config.parent / f"worn-{wheel}.json").write_text(json.dumps(worn))
        return fake
    rows = f"lines = 'bus.jsonl'\nkey = {json.dumps(WHEELS)}"
    if number >= 2 * VEHICLES // 3:
        rows = f"kuksa = {json.dumps(PATHS)}\nfresh_s = 'any'\n[kuksa]\naddress = '{address}'"
    (config.parent / "bus.jsonl").write_text("".join(f"{json.dumps({wheel: worn})}\n" for wheel, worn in said.items()))
    config.write_text(f'{text[:start]}[signals."{BRAKES}"]\nany = true\n{rows}\n')
    return fake


async def test_the_question_about_brakes_counts_every_vehicle_with_a_worn_one(pair: Deployed, tmp_path: Path) -> None:
    """The sample, asked exactly: what the thirty devices said is the count."""
    async with AsyncExitStack() as stack:
        devices: list[Device] = []
        for number in range(VEHICLES):
            config = await asyncio.to_thread(write_device, pair.written, FIRST_BRAKES + number, transport="grpc")
            fake = FakeDatabroker()
            address = await stack.enter_async_context(databroker(fake))
            said = written(config, number, address)
            fake.published, fake.metadata = said.published, said.metadata
            settings = load_settings(config)
            policy = replace(
                settings.policy, allow_direct=True, largest_epsilon=Fraction(40), total_epsilon=Fraction(80)
            )
            devices.append(Device.from_settings(replace(settings, policy=policy)))
            stack.push_async_callback(devices[-1].close)
        exactly = {
            'mode = "sampling"': 'mode = "direct"',
            '[mechanism]\nsampling_rate = "0.45"': "[mechanism]",
            # Noise that is 0 but for a chance of a millionth of a millionth.
            'epsilon = "1"': 'epsilon = "40"',
            '"20 s after': f'"{math.ceil(5 * pace())} s after',
            'window = "60 s"': f'window = "{math.ceil(15 * pace())} s"',
        }
        await asyncio.to_thread(prepared, pair, tmp_path, "brakes", exactly)
        offers = await until_offered(devices[0], "How many vehicles have a worn brake?")
        outcomes = await asyncio.gather(*(device.answer_question(offers) for device in devices))
        statuses = [device.status().signals for device in devices]
        await fetched(pair, tmp_path, "brakes", "--wait", str(math.ceil(150 * pace())))

    assert [(one.kind.value, one.fault) for (one,) in outcomes] == [("delivered", "")] * VEHICLES, outcomes
    assert sum(one.why_none != "" for (one,) in statuses) == 3
    wheels = [brakes_of(number) for number in range(VEHICLES)]
    truth = [sum(True in one for one in wheels), sum(set(one) == {False} for one in wheels)]
    assert truth == [12, 15]
    assert estimates(tmp_path / "got" / "release.json") == [*truth, sum(truth)]


async def until_offered(device: Device, name: str) -> QuestionOffer:
    """Return the offer of a question as soon as an aggregator makes it."""
    async with asyncio.timeout(60 * pace()):
        while True:
            for offer in await device._transport.list_questions():
                if offer.signed.question.name == name:
                    return offer
            await asyncio.sleep(0.2)


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
        said = await fetched(pair, tmp_path, "drill-down", "--wait", str(math.ceil(300 * pace())))

    assert "3 of 3 windows released" in said, said
    found = await asyncio.to_thread(run, tmp_path, "question", "places", "--records", "got")
    assert len(list((tmp_path / "got").glob("0*.json"))) == 3
    assert f"{PLACE >> 20:#05x}" in found


@pytest.mark.nightly
async def test_the_sample_of_fault_codes_finds_the_code_that_all_have_alone(pair: Deployed, tmp_path: Path) -> None:
    async with driven(pair, 8, count=FAULTY, allow_direct=True) as devices:
        for number in range(FIRST_FOLDER + DEVICES * 8, FIRST_FOLDER + DEVICES * 8 + len(devices)):
            folder = pair.written.root / "devices" / f"{number:04d}"
            (folder / "dtclist.json").write_text(json.dumps(["p0301"] if number % 2 else "P0301"))
        await asyncio.to_thread(prepared, pair, tmp_path, "fault-codes")
        said = await fetched(pair, tmp_path, "fault-codes", "--wait", str(math.ceil(300 * pace())))

    assert "2 of 2 windows released" in said, said
    found = await asyncio.to_thread(run, tmp_path, "question", "places", "--records", "got", "--json")
    (walk,) = json.loads(found)
    assert walk["found"][0]["code"] == "P0301"
    assert abs(walk["found"][0]["told"] - FAULTY) < FAULTY - 23
    assert len(walk["found"]) < 4


def estimates(path: Path) -> list[Fraction]:
    record, _ = record_from_json(path.read_text())
    return [cell.estimate for cell in record.cells]


def release(pair: Deployed, name: str) -> tuple[str, ...]:
    return ("question", "release", "--question", f"{name}.question", "--config", str(pair.analyst), "--output", "got")


async def fetched(pair: Deployed, folder: Path, name: str, *further: str) -> str:
    """Fetch the records as an analyst who waits for them; return what the command says."""
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleetcount", *release(pair, name), *further),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await done.communicate()
    assert done.returncode == 0, out.decode()
    return out.decode()
