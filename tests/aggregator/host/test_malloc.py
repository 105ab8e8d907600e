"""Large arrays that are let go of go back to the system, and those of a worker's batches stay for the next."""

import resource
import subprocess
import sys

import numpy as np
import pytest
from fleetcount_aggregator.host.malloc import return_large_arrays
from fleetcount_aggregator.verification.workers import ProcessWorkers

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
import numpy as np
from fleetcount_aggregator.host.malloc import return_large_arrays

def resident():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))

if sys.argv[1] == "told":
    assert return_large_arrays()
held = []
for _ in range(4):
    arrays = [np.ones(1_000_000) for _ in range(20)]
    held += [bytes(1_000) for _ in range(1_000)]
    before = resident()
    del arrays
    held += [bytes(1_000) for _ in range(1_000)]
small = [np.ones(500_000) for _ in range(20)]
held.append(np.ones(500_000))
before = resident()
del small
print(before - resident())
"""


BATCHES = 50


@pytest.fixture(autouse=True)
def _needs_a_library_that_can_be_told() -> None:
    # Not when this module is loaded: a worker loads it too.
    if not return_large_arrays():
        pytest.skip("the C library here cannot be told")


def faults() -> int:
    """Return how often the system gave a page for batches of 12 MiB that come and go, after the first."""
    for number in range(1 + BATCHES):
        if number == 1:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.ones(4 * 1024 * 1024, dtype=np.uint8) for _ in range(3)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def given_back(argument: str) -> int:
    """Return how many of 80 MiB a program gives back that it no longer holds, below an array that it does hold."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_arrays_go_back_to_the_system_though_one_behind_them_stays() -> None:
    assert given_back("told") > 70
    assert given_back("not told") < 10


async def test_a_worker_fetches_the_memory_of_its_batches_once() -> None:
    workers = ProcessWorkers(1, warm=False)
    try:
        fetched = await workers.run(faults)
    finally:
        await workers.close()

    assert fetched < BATCHES  # Each batch anew is 3 faults with huge pages, and 3,072 without.
