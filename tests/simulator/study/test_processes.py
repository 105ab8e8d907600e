"""Worker processes: results as they come, errors of the work, and workers that die."""

import os
import signal
import time
from pathlib import Path

import pytest
from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.study.processes import carry_out

pytestmark = pytest.mark.processes

LARGE = 8 << 20
"""Bytes of a result that no pipe takes at once: its worker waits in the middle of it."""


def doubled(number: int) -> int:
    return 2 * number


def refused(number: int) -> int:
    raise ValueError(f"{number} is refused")


def large_after(file: Path | None) -> bytes:
    """Return little at once, or much once `file` is there, in which it leaves its process."""
    if file is None:
        return b""
    while not file.exists():
        time.sleep(0.01)
    file.write_text(str(os.getpid()), encoding="utf-8")
    return b"x" * LARGE


def test_every_job_is_carried_out_once_by_few_or_many_workers() -> None:
    jobs = list(range(7))

    for workers in (1, 3, 20):
        assert sorted(carry_out(doubled, jobs, workers)) == [(job, 2 * job) for job in jobs]
    assert list(carry_out(doubled, [], 2)) == []


def test_what_the_work_raises_is_raised_and_says_where() -> None:
    with pytest.raises(ValueError, match="3 is refused") as caught:
        list(carry_out(refused, [3], 1))

    assert any("in refused" in note for note in caught.value.__notes__)


def test_a_worker_that_is_killed_in_the_middle_of_a_result_is_told_and_nothing_waits_for_the_rest(
    tmp_path: Path,
) -> None:
    file = tmp_path / "begin"
    results = carry_out(large_after, [file, None], 2)
    assert next(results) == (None, b"")

    file.touch()
    while not (process := file.read_text(encoding="utf-8")):
        time.sleep(0.01)
    while Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)
    os.kill(int(process), signal.SIGKILL)

    with pytest.raises(ProcessError, match="worker process died"):
        next(results)


def test_an_early_end_ends_the_workers(tmp_path: Path) -> None:
    file = tmp_path / "begin"
    file.touch()
    results = carry_out(large_after, [None, file], 1)
    next(results)
    while not (process := file.read_text(encoding="utf-8")):
        time.sleep(0.01)

    results.close()

    assert not Path(f"/proc/{process}").exists()
