"""A real aggregator that loses its disk and gets an old backup back releases with the other one again."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window

from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import expected_difference, raw_cells
from tests.support.processes import pace, wait_until

DEVICES = 3


def command(deployment: LiveDeployment, name: str, *words: str) -> None:
    """Run a command of the operator of beta."""
    line = [sys.executable, "-m", "fleetcount", "aggregator", name, "--config", str(deployment.config(1)), *words]
    said = subprocess.run(line, capture_output=True, check=False, text=True, timeout=60 * pace())
    assert said.returncode == 0, said.stderr


async def released(deployment: LiveDeployment, directory: Path, seed: int) -> Window:
    """Ask a window of a few devices; return it once all have released the same record, and it counts each once."""
    window = deployment.ask(DEVICES)
    directory.mkdir()
    assert isinstance(window.mechanism, SamplingDie)
    fleet = Fleet(deployment, directory, window.mechanism, ["grpc"], devices=DEVICES, seed=seed, timeout_s=2.0)
    await fleet.answer(await offer_of(deployment, window))
    assert {one.state for one in await deployment.ended(window)} == {WindowState.RELEASED}
    answers = [await deployment.release(window, position) for position in range(2)]
    assert answers[0] == answers[1]
    assert raw_cells(answers[0].record) == expected_difference(DEVICES, [one.rounds for one in fleet.devices])
    return window


@pytest.mark.processes  # Three starts of real aggregators, and two windows with their windows.
@pytest.mark.timeout(300)
async def test_a_helper_that_got_an_old_backup_back_adopts_and_releases_again(tmp_path: Path) -> None:
    here = LiveDeployment(tmp_path / "pair").start_all()
    try:
        backup = tmp_path / "beta.backup"
        command(here, "backup", "--output", str(backup))
        first = await released(here, tmp_path / "first", 1)
        answer = await here.release(first)
        here.children[1].kill()
        shutil.rmtree(here.state_directory(1))
        command(here, "restore", str(backup))
        here.start(1)
        here.children[1].ready()
        log = here.children[1].log
        wait_until(lambda: "restored_store_settled" in log.read_text("utf-8", "replace"), "beta is whole again", 60)

        assert [await here.release(first, position) for position in range(2)] == [answer, answer], "one release"
        await released(here, tmp_path / "second", 2)
    finally:
        here.stop_all()
