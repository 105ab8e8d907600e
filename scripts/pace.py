"""How much longer things take here than on the idle machine of two cores for which the windows of tests were made."""

import os
import resource
import subprocess
import sys
from typing import Final

CROWDED: Final = 2.0
"""How many times longer windows are at least than on an idle machine: tests side by side share the cores."""
LONGEST: Final = 4.0
LOAD_S: Final = 0.55
"""What loading an aggregator's program takes of a processor for whose speed the windows of tests were made."""


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pace(python: str = sys.executable) -> str:
    """Return the factor, 2 to 4, as FLEETCOUNT_TEST_PACE says it to tests/support/processes.py.

    `python`: the interpreter that runs the tests.
    """
    busy = os.getloadavg()[0] / cores()
    return f"{min(LONGEST, max(CROWDED, busy) * _slowness(python)):.1f}"


def _slowness(python: str) -> float:
    """Return how many times longer than there a program takes to load here, 1 at least; the first time compiles it."""
    taken = 0.0
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([python, "-c", "import fleetcount_aggregator.process.app"], check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return max(1.0, taken / LOAD_S)
