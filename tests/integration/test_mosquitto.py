"""A real broker that loses everything it has acknowledged: devices send again until the aggregators' own receipts."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import LiveBroker, find_mosquitto, mosquitto_broker
from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, signed_task_of
from tests.support.oracle import check_release
from tests.support.processes import pace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KILLS = 6


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[LiveBroker]:
    """A running mosquitto; without the program the test is skipped, and the summary says so."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): kill -9 of a broker NOT tested")
    broker = mosquitto_broker(tmp_path)
    yield broker
    broker.stop()


async def test_a_broker_killed_again_and_again_under_load_loses_and_doubles_no_report(
    mosquitto: LiveBroker, tmp_path: Path
) -> None:
    deployment = LiveDeployment(tmp_path / "d", 2, name="mosquitto", broker=mosquitto.started)
    try:
        await asyncio.to_thread(deployment.start_all)
        task = deployment.ask(40, windows_s=(6.0, 9.0))
        fleet = Fleet(deployment, tmp_path, task.mechanism, ["mqtt"], timeout_s=1.5)
        signed = await signed_task_of(deployment, task, "mqtt")

        killer = asyncio.create_task(kill_under_load(mosquitto, (task.round_one_opens, task.round_one_closes)))
        await fleet.answer(signed)
        await killer
        counted = await check_release(deployment, task, fleet)

        assert mosquitto.child.ends == [-9] * KILLS
        assert sum(live.transport.attempts for live in fleet.devices) > 4 * len(fleet.devices), "nothing was sent twice"
        # The end of each window is quiet, longer than anybody waits before connecting again.
        assert fleet.failures == []
        assert counted == fleet.devices
        assert deployment.troubles() == []
    finally:
        await asyncio.to_thread(deployment.stop_all)


async def kill_under_load(broker: LiveBroker, openings: tuple[float, float]) -> None:
    """Kill the broker three times in the first part of each round, while reports are on their way."""
    for opens in openings:
        for number in range(KILLS // 2):
            await asyncio.sleep(max(0.0, opens + (0.3 + 0.9 * number) * pace() - time.time()))
            await asyncio.to_thread(broker.child.kill)
            await asyncio.to_thread(broker.child.start)
