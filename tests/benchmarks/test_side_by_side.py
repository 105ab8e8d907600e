"""A benchmark that waits for its processes ends with an error that names who is missing; the meter sees children."""

import multiprocessing
import os
import time
from typing import Any

import numpy as np
import pytest
from meter import Meter
from side_by_side import in_both

from tests.support.seats import dies, fills_memory, reports, reports_and_stays, stays


def test_reports_come_by_number() -> None:
    assert in_both(reports, {"alpha": 0, "beta": 1}, 60) == {0: {"seat": 0}, 1: {"seat": 1}}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (dies, r"^the process of beta died without a report, exit codes \[3\]$"),
        (stays, r"^the process of beta did not report within 3 s$"),
        (reports_and_stays, r"^the process of beta reported and did not end$"),
    ],
)
def test_one_that_does_not_report_or_end_is_named(what: Any, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        in_both(what, {"alpha": 0, "beta": 1}, 3, ending_s=1)

    assert multiprocessing.active_children() == []


def test_memory_and_cpu_are_those_of_the_children_too() -> None:
    with Meter() as meter:
        child = multiprocessing.get_context("spawn").Process(target=fills_memory, args=(100,))
        child.start()
        child.join()
        here = np.ones(10_000_000)
        until = time.process_time() + 0.1
        while time.process_time() < until or len(meter.own) < 1:
            here += 1

    memory = meter.memory()
    assert memory["workers"] > 100 * 2**20
    assert 2**20 < memory["files"] < 2**30
    assert meter.cpu_s() > 0.1
    assert os.getpid() in meter.own
