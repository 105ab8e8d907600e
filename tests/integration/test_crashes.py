"""kill -9 in every state, on either side: the aggregator comes back, the set stays one, and no receipt is broken.

Announced, round one and round two are met by SIGKILL from outside; agreeing and releasing are too short for that, so
the process ends itself there, as SIGKILL would, at a fail point (docs/operating-trouble.md, "Fail points").
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window

from tests.support.broker import RunningBroker
from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.nightly import NIGHTLY
from tests.support.oracle import check_release
from tests.support.processes import pace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]

KILLED = -9
ENDED_ITSELF = 137

POINTS = {
    "leader": (
        "leader.after_combine",
        "leader.after_helpers_sealed",
        "release.after_draw_store",
        "leader.before_release",
    ),
    "helper": (
        "helper.after_propose_store",
        "helper.after_seal_store",
        "release.after_draw",
        "helper.after_sign_store",
    ),
}
"""Two points of agreeing, then two of releasing, in the order a window passes them."""
if not NIGHTLY:  # One of each: tests/aggregator/roles/test_crashes.py ends the process at all of them.
    POINTS = {side: points[1:3] for side, points in POINTS.items()}


@asynccontextmanager
async def deployed(root: Path, count: int, broker: RunningBroker) -> AsyncIterator[LiveDeployment]:
    """A deployment of this test's own: it will not stay whole."""
    one = LiveDeployment(root, count, name=root.name, broker=broker.started)
    try:
        await asyncio.to_thread(one.start_all)
        yield one
    finally:
        await asyncio.to_thread(one.stop_all)


async def revived(deployment: LiveDeployment, position: int, failpoint: str = "") -> None:
    """Start an aggregator again and wait until it is ready."""
    deployment.start(position, failpoint)
    await asyncio.to_thread(deployment.children[position].ready)


async def until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.time()))


async def test_killed_in_every_state_the_leader_releases_the_one_exact_result(
    tmp_path: Path, broker: RunningBroker
) -> None:
    await survives(tmp_path / "two-leader", broker, 2, "leader", ("grpc", "mqtt"))


@pytest.mark.nightly
async def test_killed_in_every_state_a_helper_releases_the_one_exact_result(
    tmp_path: Path, broker: RunningBroker
) -> None:
    # Two deployments side by side: most of the time they wait for windows.
    await asyncio.gather(
        survives(tmp_path / "two-helper", broker, 2, "helper", ("grpc", "mqtt")),
        survives(tmp_path / "three-helper", broker, 3, "helper", ("mqtt", "grpc")),
    )


async def survives(root: Path, broker: RunningBroker, count: int, side: str, kinds: tuple[str, str]) -> None:
    """Kill one aggregator in every state of one window, and check the release."""
    async with deployed(root, count, broker) as deployment:
        victim = 0 if side == "leader" else count - 1
        child = deployment.children[victim]
        window = deployment.ask(16, lead_s=4.0, windows_s=(8.0, 8.0))
        fleet = Fleet(deployment, root, window.mechanism, kinds, timeout_s=2.0)
        offer = await offer_of(deployment, window)

        await asyncio.gather(murder(deployment, victim, window, POINTS[side]), fleet.answer(offer))
        counted = await check_release(deployment, window, fleet)

        assert child.ends == [KILLED] * 3 + [ENDED_ITSELF] * len(POINTS[side]), root.name
        assert len(counted) >= len(fleet.devices) // 2, root.name
        assert [len(live.transport.names) for live in counted] == [1] * len(counted)
        assert deployment.troubles() == []


async def murder(deployment: LiveDeployment, victim: int, window: Window, points: Sequence[str]) -> None:
    """Kill while announced, in round one and in round two, then at every point; start again each time."""
    child = deployment.children[victim]
    child.kill()
    await revived(deployment, victim)
    await until(window.round_one_opens + 0.7)
    child.kill()
    await revived(deployment, victim)
    await until(window.round_one_closes + 0.7)
    child.kill()
    for point in (*points, ""):
        await revived(deployment, victim, point)
        await ended_itself(deployment, victim, window.round_two_closes) if point else None


async def ended_itself(deployment: LiveDeployment, victim: int, closes: float) -> None:
    """Wait until the armed fail point has ended the process."""
    async with asyncio.timeout(max(0.0, closes - time.time()) + 40 * pace()):
        while deployment.children[victim].running:
            await asyncio.sleep(0.02)


async def test_ended_twice_in_the_middle_of_streams_before_and_after_a_commit_it_loses_and_doubles_nothing(
    tmp_path: Path, broker: RunningBroker
) -> None:
    # The streams have brought sessions, and parts without an answer are on them, the second time stored ones.
    async with deployed(tmp_path / "streams", 2, broker) as deployment:
        child = deployment.children[1]
        child.kill()
        await revived(deployment, 1, "intake.before_commit")
        window = deployment.ask(8, lead_s=4.0, windows_s=(8.0, 8.0))
        fleet = Fleet(deployment, tmp_path, window.mechanism, ["grpc"], timeout_s=2.0)
        offer = await offer_of(deployment, window)

        async def lives() -> None:
            for point in ("intake.after_commit", ""):
                await ended_itself(deployment, 1, window.round_one_closes)
                await revived(deployment, 1, point)

        await asyncio.gather(lives(), fleet.answer(offer))
        counted = await check_release(deployment, window, fleet)

        assert child.ends == [KILLED, ENDED_ITSELF, ENDED_ITSELF]
        assert len(counted) >= len(fleet.devices) // 2
        assert [len(live.transport.names) for live in counted] == [1] * len(counted)
        assert deployment.troubles() == []


async def test_killed_between_release_and_delivery_the_leader_still_hands_out_the_same_bytes(
    tmp_path: Path, broker: RunningBroker
) -> None:
    async with deployed(tmp_path / "late", 2, broker) as deployment:
        await delivers_late(deployment, tmp_path)


async def delivers_late(deployment: LiveDeployment, tmp_path: Path) -> None:
    """Kill the leader after its own release, ask the helper meanwhile, and start the leader twice."""
    deployment.children[0].kill()
    await revived(deployment, 0, "leader.after_release")  # Before the window begins, however long a start takes.
    window = deployment.ask(8)
    fleet = Fleet(deployment, tmp_path, window.mechanism, ["grpc"])
    offer = await offer_of(deployment, window)

    await fleet.answer(offer)
    await ended_itself(deployment, 0, window.round_two_closes)
    waiting = (await deployment.statuses(window, asker=1))[1]
    await revived(deployment, 0)
    first = await deployment.release(window, 0)
    await check_release(deployment, window, fleet)
    deployment.children[0].kill()
    await revived(deployment, 0)

    assert waiting.state is not WindowState.ABORTED  # type: ignore[union-attr]
    assert first.state is WindowState.RELEASED
    assert await deployment.release(window, 0) == first
