"""SIGTERM in every state of an open window (F51): exit code 0 in a bounded time, and everybody is counted
afterwards.
"""

import asyncio
from pathlib import Path

import pytest
from fleetcount_protocol.window.window import Window

from tests.integration.test_crashes import ENDED_ITSELF, deployed, ended_itself, revived, until
from tests.support.broker import RunningBroker
from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import check_release

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

POINTS = {
    0: ("helper.after_seal_store", "helper.after_sign_store"),
    1: ("leader.after_helpers_sealed", "leader.before_release"),
}
"""Where the other one ends itself: whoever is told to end waits for it then, in agreeing and in releasing."""


@pytest.mark.nightly
async def test_told_to_end_in_every_state_an_aggregator_ends_with_zero_and_loses_nothing(
    tmp_path: Path, broker: RunningBroker
) -> None:
    # Deployments side by side: most of the time they wait for windows.
    names = {1: "helper", 0: "leader"}
    await asyncio.gather(*(drains(tmp_path / name, broker, told) for told, name in names.items()))


async def drains(root: Path, broker: RunningBroker, told: int) -> None:
    """Tell one aggregator to end in every state of one window, and check the release."""
    async with deployed(root, 2, broker) as deployment:
        # Of each window a start takes half where others compute; the devices have the rest.
        window = deployment.ask(16, lead_s=4.0, windows_s=(14.0, 14.0))
        fleet = Fleet(deployment, root, window.mechanism, ("grpc", "mqtt"), timeout_s=2.0)
        offer = await offer_of(deployment, window)

        await asyncio.gather(tell(deployment, told, window), fleet.answer(offer))
        counted = await check_release(deployment, window, fleet)

        # One that takes longer than any call may, is killed.
        assert deployment.children[told].ends == [0] * 5, root.name
        assert deployment.children[1 - told].ends == [0, ENDED_ITSELF, ENDED_ITSELF], root.name
        assert len(counted) >= len(fleet.devices) // 2, root.name
        assert deployment.troubles() == []


async def tell(deployment: LiveDeployment, told: int, window: Window) -> None:
    """Tell it to end while announced, in round one, in round two, agreeing and releasing; start it again each time."""
    other = 1 - told
    for moment in (0.0, window.round_one_opens + 0.7, window.round_one_closes + 0.7):
        await until(moment)
        await ends(deployment, told)
        await revived(deployment, told)
    for point in POINTS[told]:
        if deployment.children[other].running:
            deployment.children[other].terminate()
            await asyncio.to_thread(deployment.children[other].ended)
        await revived(deployment, other, point)
        await ended_itself(deployment, other, window.round_two_closes)
        await ends(deployment, told)
        await revived(deployment, told)
    await revived(deployment, other)


async def ends(deployment: LiveDeployment, position: int) -> None:
    """Tell an aggregator to end, and wait."""
    deployment.children[position].terminate()
    await asyncio.to_thread(deployment.children[position].ended)
