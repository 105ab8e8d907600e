"""What tests of every folder may ask for."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Everything here that forks begins another program; gRPC's own handlers of forks have ended a process in the middle.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # As of a command.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets what it begins in the background ignore it, and all that this begins: some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.support import record
from tests.support.compiled import compile_tests
from tests.support.nightly import NIGHTLY
from tests.support.postgres import postgres_cluster, postgres_url
from tests.support.processes import pace
from tests.support.shared import pytest_sessionfinish, pytest_terminal_summary

__all__ = ["postgres_cluster", "postgres_url", "pytest_sessionfinish", "pytest_terminal_summary"]

# Before any test is read, since each takes what holds at that moment. How long an example takes says how busy the
# machine is, how many come too large what was drawn, and neither that a test is wrong. `make test` draws the same
# examples of a test each time, so that it says the same of the same commit; `make nightly` looks for others. With an
# example that fails stands the line that repeats it.
settings.register_profile(
    "fleetcount",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=not NIGHTLY,
    print_blob=True,
)
settings.load_profile("fleetcount")

SIDE_BY_SIDE = 5.0
"""How much longer a test's limit is where other tests compute beside it: it may get a fifth of a core."""


def pytest_configure(config: pytest.Config) -> None:
    """Let the run write a line a test; before its workers begin, compile what they all read."""
    config.pluginmanager.register(record, "record")
    if config.getoption("numprocesses", None):
        compile_tests(config)


def pytest_unconfigure() -> None:
    """Remove the stores that tests left, if one of them had any."""
    if (stores := sys.modules.get("tests.support.stores")) is not None:
        stores.remove_left()


def _asks_for_a_server(item: pytest.Item) -> bool:
    """Return whether a test takes the tests' PostgreSQL, itself or as one of the stores it is repeated for."""
    stores = getattr(getattr(item, "callspec", None), "params", {}).values()
    return "postgres_cluster" in getattr(item, "fixturenames", ()) or any(
        isinstance(one, str) and one == "postgres" for one in stores
    )


@pytest.hookimpl(tryfirst=True)  # Before tests are chosen by their marks.
def pytest_runtest_setup() -> None:
    """Close the stores of tests before: the next one may open the same database. Loads no store that no test did."""
    if (stores := sys.modules.get("tests.support.stores")) is not None:
        stores.shut_ended()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that took longest, let a test's limit end what hangs, mark what needs a server."""
    factor = SIDE_BY_SIDE if record.WORKER in os.environ else pace()
    for item in items:
        if _asks_for_a_server(item):
            item.add_marker(pytest.mark.processes)
        marked = item.get_closest_marker("timeout")
        limit_s = float(marked.args[0] if marked else item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(factor * limit_s), append=False)
    items.sort(key=_place_in_queue(Path(__file__).parent / "durations.json"))


def _place_in_queue(durations: Path) -> Callable[[pytest.Item], float]:
    """Return where a test stands in the queue of the run, 0 to 1, by what its file took in a run that was recorded.

    The longest begin. Files that mostly wait for processes and files that compute are spread over the run alike, so
    that neither the processors nor the workers idle. Files that took less than a second, or are not known, come last.
    """
    took: dict[str, tuple[float, float]] = json.loads(durations.read_text())
    longest = sorted(took, key=lambda name: -took[name][0])
    waits = {name for name in longest if took[name][0] > 2 * took[name][1]}
    places: dict[str, float] = {}
    for files in ([name for name in longest if name in waits], [name for name in longest if name not in waits]):
        before, every = 0.0, sum(took[name][0] for name in files)
        for name in files:
            places[name] = before / every
            before += took[name][0]
    return lambda item: places.get(item.nodeid.split("::")[0], 1.0)
