"""A line a test in the file that FLEETCOUNT_TEST_RECORD names, as the run goes: a killed run has said what it saw.

Each line is a JSON object: `begins` with the id of a test that a worker starts, later `ends` with its id, its outcome,
the seconds it took by the clock and of CPU (its own process and the children it waited for), and what it said where it
failed or was skipped. `scripts/test` reads the file; hooks of the controller write it, workers send what they measured.
"""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "FLEETCOUNT_TEST_RECORD"
WORKER = "PYTEST_XDIST_WORKER"
ORDER = ("passed", "skipped", "failed")
"""The outcomes of setup, call and teardown; a test's own is the worst of the three."""
_BEGUN = pytest.StashKey[float]()


def cpu_s() -> float:
    """Return the seconds of CPU of this process and of the children it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Record:
    """The hooks of the process that writes `path`.

    That is the controller, which hears of every test. Of modules that are skipped as a whole it does not hear: of them
    the first worker writes.
    """

    def __init__(self, path: Path, *, tests: bool) -> None:
        self._path = path
        self._tests = tests
        self._phases: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write that a test begins."""
        if self._tests:
            self._write({"begins": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write how a test ended, once its last phase is known."""
        if not self._tests:
            return
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when != "teardown":
            return
        del self._phases[report.nodeid]
        worst = max(phases, key=lambda one: ORDER.index(one.outcome))
        seconds = sum(one.duration for one in phases)
        self._end(report.nodeid, worst, seconds=round(seconds, 3), cpu_s=report.__dict__.get("cpu_s", 0.0))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write that a module could not be collected, or was skipped as a whole."""
        if report.outcome != "passed" and (self._tests or report.outcome == "skipped"):
            self._end(report.nodeid, report, seconds=0.0, cpu_s=0.0)

    def _end(self, name: str, report: pytest.TestReport | pytest.CollectReport, **measured: float) -> None:
        row: dict[str, Any] = {"ends": name, "outcome": report.outcome, **measured}
        if report.outcome != "passed":
            skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            row["why"] = skipped.removeprefix("Skipped: ")
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        with self._path.open("a") as record:
            record.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to write, where this is a run that shall and not one that a test of it started."""
    path, worker = os.environ.get(VARIABLE), getattr(config, "workerinput", {}).get("workerid")
    if path and (worker == "gw0" or (worker is None and WORKER not in os.environ)):
        config.pluginmanager.register(Record(Path(path), tests=worker is None))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Take the CPU before a test's setup."""
    item.stash[_BEGUN] = cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Let each report of a test carry the CPU that its test has taken so far; xdist sends it to the controller."""
    report: pytest.TestReport = yield
    report.__dict__["cpu_s"] = round(cpu_s() - item.stash[_BEGUN], 3)
    return report
