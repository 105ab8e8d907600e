"""One aggregator as several processes: whichever of them is killed, one question is counted to the last coin.

Two serve devices behind a balancer, one verifies, one of two coordinates; the other aggregator is one process.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window

from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import expected_difference, raw_cells
from tests.support.replicas import Balancer, Replicas, balanced

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

ROLES = {
    "intake-1": "intake",
    "intake-2": "intake",
    "worker": "worker",
    "coordinator-1": "coordinator",
    "coordinator-2": "coordinator",
}
COORDINATORS = ("coordinator-1", "coordinator-2")


@asynccontextmanager
async def replicated(root: Path, url: str) -> AsyncIterator[tuple[LiveDeployment, Replicas, Balancer]]:
    """Aggregator alpha as five processes, beta as one."""
    deployment = LiveDeployment(root, 2)
    replicas = Replicas(deployment, url)
    for name, roles in ROLES.items():
        replicas.add(name, roles)
    async with balanced(deployment.written.plans[0].device_port) as balancer:
        try:
            await asyncio.to_thread(deployment.start, 1)
            said = await asyncio.to_thread(replicas.start, list(ROLES))
            balancer.targets = [("127.0.0.1", said[name]["device_port"]) for name in ("intake-1", "intake-2")]
            await asyncio.to_thread(deployment.children[1].ready)
            yield deployment, replicas, balancer
        finally:
            await asyncio.to_thread(deployment.children[1].terminate)
            await asyncio.to_thread(replicas.stop_all)
            await asyncio.to_thread(deployment.children[1].ended)


async def test_a_coordinator_and_an_intake_are_killed_and_the_sum_is_exact(postgres_url: str, tmp_path: Path) -> None:
    async with replicated(tmp_path / "alpha-of-five", postgres_url) as (deployment, replicas, _):
        first = await asyncio.to_thread(replicas.coordinator, COORDINATORS)
        second = next(name for name in COORDINATORS if name != first)
        window = await asyncio.to_thread(deployment.ask, 16, lead_s=2.0, windows_s=(6.0, 8.0))
        die = window.mechanism
        assert isinstance(die, SamplingDie)
        fleet = Fleet(deployment, tmp_path, die, ["grpc"], timeout_s=2.0)
        offer = await offer_of(deployment, window)

        await asyncio.gather(fleet.answer(offer), _murder(replicas, window, "intake-1", first))

        statuses = await deployment.ended(window)
        assert [status.state for status in statuses] == [WindowState.RELEASED] * 2, statuses
        assert len({status.set_digest for status in statuses}) == 1, statuses
        answers = [await deployment.release(window, position) for position in range(2)]
        assert answers[0] == answers[1]
        # Everybody who holds its receipts was counted, and nobody else: the sum is what their coins say.
        assert len(fleet.delivered) == len(fleet.devices), fleet.failures
        assert raw_cells(answers[0].record) == expected_difference(16, [live.rounds for live in fleet.devices])
        assert replicas.coordinator([second]) == second
        for name in ("intake-2", second):
            assert replicas.troubles(name) == []


async def _murder(replicas: Replicas, window: Window, intake: str, coordinator: str) -> None:
    """Kill an intake in round one, and the coordinator in round two."""
    await _until(window.round_one_opens + (window.round_one_closes - window.round_one_opens) / 3)
    await asyncio.to_thread(replicas.processes[intake].kill)
    await _until(window.round_one_closes + 1)
    await asyncio.to_thread(replicas.processes[coordinator].kill)


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.time()))
