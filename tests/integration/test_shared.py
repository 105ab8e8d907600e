"""What a run shares is one for all its workers, ends with the run, and makes a run fail that left it broken."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import pace, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import json
import os
import re
from pathlib import Path

import pytest

from tests.support.live import _compiled, broker, pair
from tests.support.shared import pytest_sessionfinish, pytest_terminal_summary

HERE = Path(__file__).parent


def record(name, *children):
    seen = {"by": os.environ.get("PYTEST_XDIST_WORKER"), "pids": [child.pid for child in children]}
    (HERE / f"{name}.json").write_text(json.dumps(seen))
"""
ASKS = """
from conftest import record


def test_asks(broker, pair):
    record({name!r}, broker.child, *pair.children)
"""
BREAKS = """
import os
import re
import signal

from conftest import record


def test_breaks(broker):
    record("broken", broker.child)
    os.kill({whom}, signal.SIGKILL)
"""


def run(directory: Path, files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a directory of their own as a run of its own; return what became of it."""
    for name, text in {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\n", **files}.items():
        (directory / name).write_text(text)
    of_this_run = ("PYTEST_", "FLEETCOUNT_TEST_NOW")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", f"--basetemp={directory / 'tmp'}", *options],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith(of_this_run)}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200 * pace(),
    )


def alive(pids: list[int]) -> list[int]:
    """Return which of these processes run; one that has ended may wait for whoever adopted it to hear of it."""
    states: dict[int, str] = {}
    for pid in pids:
        with suppress(OSError):
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, state in states.items() if state not in "ZX"]


def hosts(directory: Path) -> list[int]:
    return [int(path.read_text()) for path in directory.glob("tmp/shared/*/alive")]


def test_two_workers_ask_one_deployment_which_ends_with_the_run(tmp_path: Path) -> None:
    files = {f"test_{name}.py": ASKS.format(name=name) for name in ("one", "two")}

    done = run(tmp_path, files, "-n", "2", "--dist", "loadfile")

    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert {one["by"], two["by"]} == {"gw0", "gw1"}
    assert one["pids"] == two["pids"]
    assert len(set(one["pids"])) == 3
    assert len(hosts(tmp_path)) == 2
    wait_until(lambda: not alive(one["pids"] + hosts(tmp_path)), "what the run shared and its hosts have gone")


def test_a_run_that_left_a_shared_process_broken_fails_and_says_what(tmp_path: Path) -> None:
    done = run(tmp_path, {"test_it.py": BREAKS.format(whom="broker.child.pid")})

    assert done.returncode == 1
    assert "1 passed" in done.stdout
    # Of a child that ends while it is sent a signal asyncio may have lost the code, and says 255.
    assert re.search("broker: the broker ended with code (-9|255)", done.stdout)


def test_what_a_killed_run_shared_goes_with_it(tmp_path: Path) -> None:
    done = run(tmp_path, {"test_it.py": BREAKS.format(whom="os.getpid()")})

    assert done.returncode == -9
    pids = json.loads((tmp_path / "broken.json").read_text())["pids"] + hosts(tmp_path)
    assert len(pids) == 2
    wait_until(lambda: not alive(pids), "the broker and its host have gone")
