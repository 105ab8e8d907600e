"""Two releases of one aggregator side by side over one database, with a window open (F50).

The other release is this code told of a schema that is one ahead (`tests/support/next_release.py`).
"""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

import psycopg
from fleetcount_aggregator.storage.postgres import GRANTED
from fleetcount_aggregator.storage.postgres_engine import _KNOWS as KNOWS
from fleetcount_aggregator.storage.schema import POSTGRES
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.messages import WindowState

from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import expected_difference, raw_cells
from tests.support.processes import wait_until
from tests.support.replicas import NEXT_RELEASE, Replicas, balanced

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

ALL = "intake,worker,coordinator"
DEVICES = 16


def version(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT version FROM schema_version").fetchone()
    assert row is not None
    return int(row[0])


def releases(url: str) -> set[int]:
    """Return the newest schema of every process that is connected."""
    known = f"SELECT objid::bigint - %s {GRANTED} AND objid::bigint BETWEEN %s AND %s"
    with psycopg.connect(url) as connection:
        rows = connection.execute(known.encode(), (KNOWS, KNOWS + 1, KNOWS + 9)).fetchall()
    return {int(version) for (version,) in rows}


def migrate(config: Path) -> tuple[int, str]:
    """Run `aggregator migrate` of the next release."""
    line = [*NEXT_RELEASE, "aggregator", "migrate", "--config", str(config)]
    done = subprocess.run(line, capture_output=True, check=False, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
async def test_two_releases_serve_one_window_and_the_older_ends_when_the_tables_are_brought_up(
    postgres_url: str, tmp_path: Path
) -> None:
    deployment = LiveDeployment(tmp_path / "two", 2)
    replicas = Replicas(deployment, postgres_url)
    old = replicas.add("old", ALL)
    replicas.add("new", ALL, program=NEXT_RELEASE)
    config = deployment.config(0).with_name("new.toml")
    async with balanced(deployment.written.plans[0].device_port) as balancer:
        try:
            await asyncio.to_thread(deployment.start, 1)
            said = await asyncio.to_thread(replicas.start, ["old"])
            balancer.targets = [("127.0.0.1", said["old"]["device_port"])]
            await asyncio.to_thread(deployment.children[1].ready)
            window = await asyncio.to_thread(deployment.ask, DEVICES, lead_s=2.0, windows_s=(6.0, 8.0))
            assert isinstance(window.mechanism, SamplingDie)
            fleet = Fleet(deployment, tmp_path, window.mechanism, ["grpc"], timeout_s=2.0)
            offer = await offer_of(deployment, window)
            answering = asyncio.create_task(fleet.answer(offer))

            said |= await asyncio.to_thread(replicas.start, ["new"])
            balancer.targets.append(("127.0.0.1", said["new"]["device_port"]))
            beside = await asyncio.to_thread(wait_until, lambda: len(releases(postgres_url)) == 2, "both are connected")
            refused = await asyncio.to_thread(migrate, config)
            unchanged = version(postgres_url)
            await asyncio.sleep(max(0.0, window.round_one_closes - time.time()))
            os.kill(old.pid, signal.SIGSTOP)
            await asyncio.to_thread(
                wait_until, lambda: len(releases(postgres_url)) == 1, "the session of the old one is over"
            )
            done = await asyncio.to_thread(migrate, config)
            os.kill(old.pid, signal.SIGCONT)
            code, last = await asyncio.to_thread(old.ended), old.last_lines(1)
            await answering
            statuses, answers = (
                await deployment.ended(window),
                [await deployment.release(window, one) for one in range(2)],
            )
            await asyncio.to_thread(old.start)
            again = await asyncio.to_thread(old.ended)
        finally:
            await asyncio.to_thread(deployment.children[1].terminate)
            await asyncio.to_thread(replicas.stop_all)
            await asyncio.to_thread(deployment.children[1].ended)

    newest = POSTGRES.version + 1
    assert beside
    assert (refused[0], unchanged) == (5, POSTGRES.version)
    assert f"an older release, which know schema version {newest - 1} at most; allowed are none" in refused[1]
    assert done == (
        0,
        f"{deployment_place(postgres_url)} has schema version {newest}, that of this version of fleetcount\n",
    )
    assert code == again == 5
    assert f"the database has schema version {newest}; this process knows {POSTGRES.version} at most" in last
    assert f"has schema version {newest}; this version of fleetcount knows" in old.last_lines(1)
    assert [status.state for status in statuses] == [WindowState.RELEASED] * 2, statuses
    assert answers[0] == answers[1]
    assert len(fleet.delivered) == DEVICES, fleet.failures
    assert raw_cells(answers[0].record) == expected_difference(DEVICES, [live.rounds for live in fleet.devices])
    assert replicas.troubles("new") == []


def deployment_place(url: str) -> str:
    """Return how an error names a database."""
    return url.partition("?")[0]
