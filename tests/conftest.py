"""What tests of every folder may ask for."""

import os
import signal
from pathlib import Path

# Everything here that forks begins another program; gRPC's own handlers of forks have ended a process in the middle.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets what it begins in the background ignore it, and all that this begins: some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.support.postgres import postgres_cluster, postgres_url

__all__ = ["postgres_cluster", "postgres_url"]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Leave word of the test that begins, for whoever finds the run hanging (`scripts/test`)."""
    if now := os.environ.get("FLEETCOUNT_TEST_NOW"):
        Path(now).write_text(nodeid)
