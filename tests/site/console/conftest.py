"""A console over a store that aggregators of this process wrote, and pages that a test decides."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.roles.readiness import Readiness, Watched
from fleetcount_simulator.network.children import Children
from fleetcount_simulator.network.parties import Parties
from fleetcount_site import serving
from fleetcount_site.console.server import LatestState, console_app
from fleetcount_site.console.state import StateReader

from tests.support.aggregators import Network


@dataclass
class Process:
    """What an aggregator answers at its pages; None for nothing."""

    pages: dict[str, bytes] | None = field(default_factory=dict)

    def ask(self, path: str) -> bytes | None:
        """Return a page."""
        return None if self.pages is None else self.pages.get(path)

    def show(self, context: Context) -> None:
        """Answer what the aggregator of this context would."""
        readiness = Readiness(context, Watched(certificate_ends={}))
        asked: Any = SimpleNamespace(query={}, accept="")
        self.pages = {path: page(asked).body for path, page in readiness.pages().items()}
        context.host.metrics.registry.unregister(readiness)

    def say(self, *checks: Mapping[str, Any], windows: Mapping[str, Any] | None = None) -> None:
        """Answer these checks on /readyz, else that one holds, and these windows."""
        told = {"/readyz": {"checks": checks or [{"name": "store", "ok": True}]}, "/windows": windows or {}}
        self.pages = {path: json.dumps(page).encode() for path, page in told.items()}


@contextlib.contextmanager
def served(reader: StateReader) -> Iterator[str]:
    """Serve a console that reads all the time until the block ends."""
    listener = serving.listen()
    with listener, LatestState(reader, every_s=0.2) as latest:
        running = serving.server(console_app(latest))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield serving.address_of(listener)
        finally:
            running.should_exit = True
            thread.join(10)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of an aggregator that was never started."""
    root = tmp_path_factory.mktemp("deployment")
    parties = Parties(Children(root), root)
    parties.write("test", 2)
    return parties.deployment.config_of(0)


@pytest.fixture
def configured(written: Path, tmp_path: Path) -> AggregatorConfig:
    """Return a configuration whose store lies in the test's folder."""
    return load_config(written, {"FLEETCOUNT_AGGREGATOR__STATE_DIRECTORY": str(tmp_path)})


@pytest.fixture
def process() -> Process:
    """Return a process without pages yet."""
    return Process()


@pytest.fixture
async def network(tmp_path: Path) -> Network:
    """Return two aggregators; the first keeps its store where `configured` says."""
    made = Network(2, directory=tmp_path)
    made.seats[0].store_path = StorePlace(directory=tmp_path).file
    await made.start_all()
    return made


@pytest.fixture
def reader(configured: AggregatorConfig, process: Process, network: Network) -> StateReader:
    """Return what reads both, at the network's time."""
    return StateReader(configured, process.ask, network.clock.now)


@pytest.fixture
def console(configured: AggregatorConfig, process: Process) -> Iterator[str]:
    """Return where a console without a store is shown, with a check that fails."""
    process.say({"name": "peers", "ok": False, "reason": "beta: <b>silent</b> since 40 s"})
    with served(StateReader(configured, process.ask)) as address:
        yield address
