"""Two aggregators with stores in PostgreSQL: their server and one of them are killed, and the count is exact.

A short form of it, in one process, stands in tests/aggregator/roles/test_crashes.py.
"""

import asyncio
import time
from pathlib import Path

import pytest
from fleetcount_protocol.window.window import Window

from tests.support.deployment import NAMES, LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import check_release
from tests.support.postgres import Cluster, own_cluster
from tests.support.processes import pace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

ENDED_ITSELF = 137


@pytest.mark.nightly
async def test_killed_with_their_server_two_aggregators_release_the_one_exact_result(tmp_path: Path) -> None:
    with own_cluster() as cluster:
        deployment = LiveDeployment(tmp_path / "two", 2)
        for position in range(2):
            cluster.run(f"CREATE DATABASE {NAMES[position]}")
            with deployment.config(position).open("a") as file:
                file.write(f'\n[store]\nurl = "{cluster.url(NAMES[position])}"\n')
        try:
            deployment.start(0, "release.after_draw_store")
            deployment.start(1)
            await asyncio.to_thread(deployment.wait_ready)
            window = deployment.ask(16, lead_s=2.0, windows_s=(8.0, 8.0))
            fleet = Fleet(deployment, tmp_path, window.mechanism, ["grpc"], timeout_s=2.0)
            offer = await offer_of(deployment, window)

            await asyncio.gather(_murder(deployment, cluster, window), fleet.answer(offer))
            counted = await check_release(deployment, window, fleet)

            assert len(counted) >= len(fleet.devices) // 2
            assert deployment.children[0].ends == [ENDED_ITSELF]
            assert deployment.children[1].ends == []
            assert deployment.troubles() == []
            assert not list(tmp_path.glob("two/**/aggregator.db")), "nothing of it is in SQLite"
        finally:
            await asyncio.to_thread(deployment.stop_all)


async def _murder(deployment: LiveDeployment, cluster: Cluster, window: Window) -> None:
    """Kill the server in round one; the leader ends once its draw is stored and not told, and comes back."""
    await asyncio.sleep(max(0.0, window.round_one_opens + 0.7 - time.time()))
    await asyncio.to_thread(cluster.kill)
    await asyncio.to_thread(cluster.start)
    child = deployment.children[0]
    async with asyncio.timeout(max(0.0, window.round_two_closes - time.time()) + 40 * pace()):
        while child.running:
            await asyncio.sleep(0.02)
    deployment.start(0)
    await asyncio.to_thread(child.ready)
