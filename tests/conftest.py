"""What tests of every folder may ask for."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Everything here that forks begins another program; gRPC's own handlers of forks have ended a process in the middle.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets what it begins in the background ignore it, and all that this begins: some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.support.nightly import NIGHTLY
from tests.support.postgres import postgres_cluster, postgres_url
from tests.support.processes import pace

__all__ = ["postgres_cluster", "postgres_url"]

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

GIVES_WAY = 10
"""Niceness of a lane that computes while others wait for windows (`scripts/test`): it may get a tenth of a core."""


def _asks_for_a_server(item: pytest.Item) -> bool:
    """Return whether a test takes the tests' PostgreSQL, itself or as one of the stores it is repeated for."""
    stores = getattr(getattr(item, "callspec", None), "params", {}).values()
    return "postgres_cluster" in getattr(item, "fixturenames", ()) or any(
        isinstance(one, str) and one == "postgres" for one in stores
    )


@pytest.hookimpl(tryfirst=True)  # Before tests are chosen by their marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test's limit end what hangs, not what gets little of the machine; mark what needs a server."""
    factor = 10.0 if os.nice(0) >= GIVES_WAY else pace()
    for item in items:
        if _asks_for_a_server(item):
            item.add_marker(pytest.mark.processes)
        marked = item.get_closest_marker("timeout")
        limit_s = float(marked.args[0] if marked else item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(factor * limit_s), append=False)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Leave word of the test that begins, for whoever finds the run hanging (`scripts/test`)."""
    if now := os.environ.get("FLEETCOUNT_TEST_NOW"):
        Path(now).write_text(nodeid)
