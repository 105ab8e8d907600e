"""What benchmarks read of processes below another: each is known by its command line until it is forgotten."""

import os
import subprocess
import sys

import pytest
from meter import Below, processes_below

pytestmark = pytest.mark.processes


def test_a_process_that_has_ended_is_still_known_by_its_command_and_its_cpu() -> None:
    below = Below(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "sum(range(10**7)); input()"], stdin=subprocess.PIPE) as child:
        below.look()
        child.stdin.close()  # type: ignore[union-attr]  # It has a pipe.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # It has ended, and nobody has waited for it.
        below.look()

        assert [one.command for one in processes_below(os.getpid()) if one.number == child.pid] == [""]
    assert "sum(range(10**7))" in below.seen[child.pid].command
    assert below.cpu_s >= 0.05


def test_processes_come_after_their_parents() -> None:
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = processes_below(os.getpid())

        numbers = [one.number for one in found]
        [grandchild] = [one for one in found if one.parent == child.pid]
        assert numbers.index(child.pid) < numbers.index(grandchild.number)
        child.stdin.close()  # type: ignore[union-attr]  # As above.
