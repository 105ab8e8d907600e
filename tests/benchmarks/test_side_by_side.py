"""A benchmark that waits for its processes ends with an error that names who is missing; the meter sees children."""

import multiprocessing
import os
import time
from typing import Any

import pytest
from meter import Meter
from side_by_side import in_both

from tests.support.processes import wait_until
from tests.support.seats import dies, fills_memory, reports, reports_and_stays, stays

pytestmark = pytest.mark.processes


def test_reports_come_by_number() -> None:
    assert in_both(reports, {"alpha": 0, "beta": 1}, 60) == {0: {"seat": 0}, 1: {"seat": 1}}


@pytest.mark.parametrize(
    ("what", "seats", "limit_s", "message"),
    [
        (dies, {"alpha": 0, "beta": 1}, 60, r"^the process of beta died without a report, exit codes \[3\]$"),
        # Alone: one that does report may on a busy machine not have begun within the second.
        (stays, {"beta": 1}, 1, r"^the process of beta did not report within 1 s$"),
        (reports_and_stays, {"alpha": 0, "beta": 1}, 60, r"^the process of beta reported and did not end$"),
    ],
    ids=["dies", "stays", "reports-and-stays"],
)
def test_one_that_does_not_report_or_end_is_named(
    what: Any, seats: dict[str, int], limit_s: float, message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        in_both(what, seats, limit_s, ending_s=1)

    assert multiprocessing.active_children() == []


def test_memory_and_cpu_are_those_of_the_children_too() -> None:
    with Meter() as meter:
        context = multiprocessing.get_context("spawn")
        seen = context.Event()
        child = context.Process(target=fills_memory, args=(100, seen))
        child.start()
        wait_until(lambda: meter.memory()["workers"] > 100 * 2**20, "a child's memory is seen")
        seen.set()
        child.join()
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    memory = meter.memory()
    assert memory["workers"] > 100 * 2**20
    assert 2**20 < memory["files"] < 2**30
    assert meter.cpu_s() > 0.1
    assert os.getpid() in meter.own
