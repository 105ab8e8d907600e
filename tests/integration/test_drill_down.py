"""A drill-down over real processes: by gRPC and MQTT to the busy place, whoever is killed between the steps."""

import asyncio
import time
from pathlib import Path

import pytest
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import DrillDown, Participants
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.record import ReleaseRecord, decode_record
from fleetcount_protocol.release.walk import next_step
from fleetcount_protocol.window.domain import Prefixes

from tests.integration.test_crashes import revived
from tests.integration.test_question import MOST_NOISE, check_chain, standing_question
from tests.integration.test_question_devices import owned_device
from tests.support.broker import RunningBroker
from tests.support.deployment import Deployed, LiveDeployment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PLACES = (*[0xABC00000 + number for number in range(6)], 0x12300000)
"""Six vehicles in one place of twelve bits, one alone: noise of 3 or more at epsilon 10 has a chance below 1e-12."""
SIGNAL = "Vehicle.TestOfWalks"
"""No other test of the deployment asks for it, as `owned_device` needs."""


async def walked(deployment: Deployed, question: Question) -> list[ReleaseRecord]:
    """Return the records of the walk; after each step one's own aggregators are killed, the leader first."""
    records: list[ReleaseRecord] = []
    survivors: tuple[int, ...] = ()
    for index in range(question.schedule.windows):
        window = window_at(question, index, survivors)
        statuses = await deployment.ended(window, timeout_s=60)
        assert [status.state for status in statuses] == [WindowState.RELEASED] * 2, (index, statuses)
        answers = [await deployment.release(window, position) for position in range(2)]
        assert answers[0] == answers[1]
        records.append(decode_record(answers[0].record))
        if index + 1 < question.schedule.windows:
            found = next_step(question, records[-1])
            assert isinstance(found, tuple), (found, records[-1].released_at - question.schedule.opens(index + 1))
            survivors = found
            if isinstance(deployment, LiveDeployment):
                deployment.children[index % 2].kill()
                await revived(deployment, index % 2)
            assert time.time() < question.schedule.opens(index + 1) + question.schedule.round_one_s
    return records


async def test_a_walk_finds_the_busy_place_over_both_transports(pair: Deployed, tmp_path: Path) -> None:
    await walks(pair, tmp_path, levels=(4, 8), gap_s=5)


@pytest.mark.nightly
async def test_a_walk_finds_the_busy_place_over_both_transports_though_everybody_is_killed_once(
    tmp_path: Path, broker: RunningBroker
) -> None:
    deployment = LiveDeployment(tmp_path, 2, name="walk", broker=broker.started, largest_epsilon=100)
    try:
        await asyncio.to_thread(deployment.start_all)
        await walks(deployment, tmp_path, levels=(4, 8, 12), gap_s=8)
    finally:
        await asyncio.to_thread(deployment.stop_all)
    assert deployment.troubles() == []


async def walks(deployment: Deployed, directory: Path, *, levels: tuple[int, ...], gap_s: int) -> None:
    """Ask where the devices are, level by level, and check what each step finds."""
    question = standing_question(
        deployment,
        len(levels),
        gap_s=gap_s,
        signal=SIGNAL,
        domain=Prefixes(bits=4, cells=tuple(range(16))),
        drill_down=DrillDown(levels=levels, threshold=4, most_survivors=2),
        participants=Participants.HIDDEN,
    )
    devices = [
        owned_device(deployment, directory, number, 1, signal=SIGNAL, place=place, way=("grpc", "mqtt")[number % 2])
        for number, place in enumerate(PLACES)
    ]
    serving = [asyncio.create_task(device.serve()) for device in devices]
    try:
        records = await walked(deployment, question)
    finally:
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)
        for device in devices:
            await device.close()

    check_chain(records)
    busy = [{cell.label: cell.raw for cell in record.cells if cell.raw >= 4} for record in records]
    found = [f"{0xA0000000}/4", f"{0xAB000000}/8", f"{0xABC00000}/12"]
    assert [list(one) for one in busy] == [[one] for one in found[: len(levels)]]
    assert all(abs(raw - 6) <= MOST_NOISE for one in busy for raw in one.values())
    assert all([charge.sent for charge in device.spool.charges()] == [True] * len(levels) for device in devices)
