"""`fleetcount console` from the command line: what it refuses before it serves, each in one line."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_simulator.network.children import Children
from fleetcount_simulator.network.parties import Parties
from fleetcount_site.serving import listen


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of an aggregator that was never started."""
    root = tmp_path_factory.mktemp("deployment")
    parties = Parties(Children(root), root)
    parties.write("test", 2)
    return parties.deployment.config_of(0)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorePlace:
    """Return a place of a store that is not there yet."""
    monkeypatch.setenv("FLEETCOUNT_AGGREGATOR__STATE_DIRECTORY", str(tmp_path))
    return StorePlace(directory=tmp_path)


def test_what_cannot_be_shown_is_refused_in_one_line(fleetcount: Callable, config: Path, state: StorePlace) -> None:
    absent = fleetcount("console", "--config", config, "--port", "0")
    state.file.write_bytes(b"no database" * 100)
    damaged = fleetcount("console", "--config", config, "--port", "0")
    unknown = fleetcount("console", "--config", config.with_name("none.toml"))
    wrong = state.directory / "wrong.toml"
    wrong.write_text("[aggregator]\n")
    missing = fleetcount("console", "--config", wrong)

    assert [one.code for one in (absent, damaged, unknown, missing)] == [5, 5, 2, 2]
    assert [len(one.err.splitlines()) for one in (absent, damaged, unknown, missing)] == [1] * 4
    assert "has not been started yet" in absent.err
    assert "cannot be read" in damaged.err


def test_a_port_that_is_taken_and_one_out_of_range_are_refused(
    fleetcount: Callable, config: Path, state: StorePlace
) -> None:
    open_engine(state).close()
    with listen() as taken:
        said = fleetcount("console", "--config", config, "--port", taken.getsockname()[1])
    beyond = fleetcount("console", "--config", config, "--port", "65536")

    assert (said.code, beyond.code) == (2, 2)
    assert "give another port" in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.processes
def test_it_serves_on_loopback_until_it_is_interrupted(config: Path, state: StorePlace) -> None:
    open_engine(state).close()
    command = [sys.executable, "-m", "fleetcount", "console", "--config", str(config), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as child:
        assert child.stdout is not None
        name, _, address = child.stdout.readline().strip().partition(": ")
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                page = answer.read().decode()
        finally:
            child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)

    assert (name, child.returncode) == ("alpha", 130)
    assert address.startswith("http://127.0.0.1:")
    assert "<h1>Aggregator alpha</h1>" in page
    assert "Traceback" not in err
