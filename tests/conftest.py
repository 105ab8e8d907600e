"""What tests of every folder may ask for."""

import os
from pathlib import Path

from tests.support.postgres import postgres_cluster, postgres_url

__all__ = ["postgres_cluster", "postgres_url"]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Leave word of the test that begins, for whoever finds the run hanging (`scripts/test`)."""
    if now := os.environ.get("FLEETCOUNT_TEST_NOW"):
        Path(now).write_text(nodeid)
