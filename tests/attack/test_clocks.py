"""Aggregators as real processes that start with a clock that is wrong: what was receipted is counted all the same."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetcount_protocol.messages import WindowState

from tests.attack.suite import FIGURE
from tests.support.broker import RunningBroker
from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import check_release

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

HOUR, DAY = 3600.0, 86_400.0
CASES = [
    (0, HOUR),
    (1, DAY),
    (0, 400 * DAY),
    (1, -HOUR),
    (0, -DAY),
    (1, -400 * DAY),
    (1, HOUR),
    (0, DAY),
    (1, 400 * DAY),
]


async def restart(deployment: LiveDeployment, position: int, wrong_s: float) -> None:
    """Start an aggregator again, its clock wrong by so much, and wait until it is ready."""
    deployment.children[position].kill()
    deployment.children[position].clock_s = wrong_s
    deployment.start(position)
    await asyncio.to_thread(deployment.children[position].ready)


async def logged(deployment: LiveDeployment, position: int, event: str) -> None:
    """Wait until an aggregator has logged an event."""
    async with asyncio.timeout(60):
        while event not in {record["event"] for record in deployment.log_records(position)}:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("position", "wrong_s"), [CASES[0], *(pytest.param(*one, marks=pytest.mark.nightly) for one in CASES[1:])]
)
async def test_a_start_with_a_wrong_clock_loses_no_report(
    tmp_path: Path, broker: RunningBroker, position: int, wrong_s: float, record_property: Callable[[str, object], None]
) -> None:
    deployment = LiveDeployment(tmp_path / "pair", 2, give_up_s=60.0, broker=broker.started)
    try:
        await asyncio.to_thread(deployment.start_all)
        window = deployment.ask(8, windows_s=(4.0, 8.0))
        fleet = Fleet(deployment, tmp_path, window.mechanism, ["grpc"])
        await fleet.answer(await offer_of(deployment, window))
        keys = deployment.keys(position)

        await restart(deployment, position, wrong_s)
        await logged(deployment, position, "clock_not_confirmed")
        await asyncio.sleep(max(0.0, window.round_two_closes + 3.0 - time.time()))
        there = await deployment.statuses(window, asker=1 - position)
        await restart(deployment, position, 0.0)
        counted = await check_release(deployment, window, fleet)
    finally:
        await asyncio.to_thread(deployment.stop_all)

    assert WindowState.ABORTED not in [getattr(one, "state", None) for one in there]
    assert len(counted) == len(fleet.devices)
    assert len(keys) > 0
    assert keys == deployment.keys(position)
    record_property(FIGURE, f"{len(counted)} of {len(fleet.devices)} receipted reports counted")
