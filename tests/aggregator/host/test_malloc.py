"""Large arrays that are let go of go back to the system."""

import subprocess
import sys

import pytest
from fleetcount_aggregator.host.malloc import return_large_arrays

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


def given_back(argument: str) -> int:
    """Return how many of 80 MiB a program gives back that it no longer holds, below an array that it does hold."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not return_large_arrays(), reason="the C library here cannot be told")
def test_arrays_go_back_to_the_system_though_one_behind_them_stays() -> None:
    assert given_back("told") > 70
    assert given_back("not told") < 10
