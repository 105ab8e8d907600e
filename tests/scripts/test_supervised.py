"""A run that ends, in whatever way, leaves no process behind: scripts/supervised.py, under which `make test` runs."""

import contextlib
import importlib.util
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "supervised.py"
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="orphans are followed by Linux's child subreaper"),
]

# A program of a session of its own, and one whose parent has ended: what a group or a session does not find.
PROGRAM = """
import os, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
own = subprocess.Popen(sleeper, start_new_session=True).pid
leaves = f"import subprocess as s; print(s.Popen({sleeper}, stdout=s.DEVNULL, start_new_session=True).pid)"
orphan = subprocess.check_output([sys.executable, "-c", leaves], text=True)
print(os.getppid(), os.getpid(), own, orphan, flush=True)
"""
STAYS = PROGRAM + "time.sleep(600)"


def runs(process: int) -> bool:
    """Whether a process is there and has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def gone(processes: list[int]) -> None:
    """Wait until none of them is left."""
    wait_until(lambda: not any(map(runs, processes)), f"{processes} have ended")


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a program under the supervisor; in the end it is killed, and with it all that it started."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(SCRIPT), sys.executable, "-c", program]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.communicate()


def said(front: "subprocess.Popen[str]") -> list[int]:
    """Return the keeper, the command, and what it started."""
    assert front.stdout is not None
    return [int(word) for word in front.stdout.readline().split()]


def test_a_command_that_ends_alone_gives_its_exit_code(start: Callable[..., "subprocess.Popen[str]"]) -> None:
    front = start("print('done'); raise SystemExit(7)")

    assert front.communicate()[0] == "done\n"
    assert front.returncode == 7


def test_a_command_that_leaves_programs_fails_and_they_are_named_and_ended(
    start: Callable[..., "subprocess.Popen[str]"],
) -> None:
    front = start(PROGRAM)

    keeper, command, own, orphan = said(front)
    _, words = front.communicate()

    assert front.returncode == 3
    assert f"({own})" in words
    assert f"({orphan})" in words
    gone([keeper, command, own, orphan])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_front_that_is_ended_takes_all_with_it(
    start: Callable[..., "subprocess.Popen[str]"], number: signal.Signals
) -> None:
    front = start(STAYS)
    below = said(front)

    front.send_signal(number)
    front.wait()

    gone(below)


@pytest.mark.parametrize("which", [0, 1], ids=["keeper", "command"])
def test_a_keeper_or_a_command_that_is_killed_takes_all_with_it(
    start: Callable[..., "subprocess.Popen[str]"], which: int
) -> None:
    front = start(STAYS)
    below = said(front)

    os.kill(below[which], signal.SIGKILL)

    assert front.wait() == 128 + signal.SIGKILL
    gone(below)


def test_a_command_that_does_not_end_when_it_is_told_to_is_killed(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("supervised", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    program = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import supervised; supervised.GRACE_S = 0.1; "
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    program += f"sys.exit(supervised.run([sys.executable, '-c', {deaf!r}]))"
    front = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    assert front.stdout.readline() == "up\n"

    front.terminate()

    assert front.wait() == 128 + signal.SIGTERM
    front.stdout.close()


SEMAPHORE = """
import multiprocessing, os, time
lock = multiprocessing.get_context("spawn").Lock()
print(os.getpid(), lock._semlock.name, flush=True)
time.sleep(600)
"""


def test_a_run_that_is_killed_leaves_no_semaphore_in_memory(start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """Its tracker, which removes it, is below the run as well: killed with the rest it would leave the file."""
    front = start(SEMAPHORE)
    assert front.stdout is not None
    process, name = front.stdout.readline().split()
    file = Path("/dev/shm", f"sem.{name.removeprefix('/')}")
    assert file.exists()

    front.kill()

    gone([int(process)])
    wait_until(lambda: not file.exists(), f"{file} is removed", 10)


RUN = """
import json, os, pathlib, shutil, subprocess, time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext

from tests.support.broker import embedded_broker, find_mosquitto, mosquitto_broker
from tests.support.deployment import LiveDeployment
from tests.support.postgres import find_postgres, own_cluster


def browser(place):
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={place}"]
    process = subprocess.Popen(["chromium", *options, "about:blank"], stderr=subprocess.DEVNULL, start_new_session=True)
    while not (place / "DevToolsActivePort").exists():
        time.sleep(0.05)
    return process.pid


def test_that_hangs(tmp_path):
    broker = mosquitto_broker(tmp_path) if find_mosquitto() else embedded_broker(tmp_path)
    deployment = LiveDeployment(tmp_path / "pair", 2, broker=broker.started).start_all()
    held = [os.getpid(), os.getppid(), broker.child.pid, *(child.pid for child in deployment.children)]
    pool = ProcessPoolExecutor(1)
    held.append(pool.submit(os.getpid).result())
    held += [browser(tmp_path / "browser")] if shutil.which("chromium") else []
    with own_cluster() if find_postgres() else nullcontext() as cluster:
        held += [cluster.postmaster] if cluster else []
        pathlib.Path(os.environ["HELD"]).write_text(json.dumps(held))
        time.sleep(600)
"""


@pytest.mark.timeout(240)
def test_a_run_of_tests_whose_terminal_is_closed_leaves_no_broker_postgres_aggregator_worker_or_browser(
    tmp_path: Path,
) -> None:
    """As a developer does it: the window with `make test` in it is closed, which ends its programs with SIGHUP."""
    (tmp_path / "test_run.py").write_text(RUN)
    held = tmp_path / "held"
    environment = {**os.environ, "HELD": str(held), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command = [sys.executable, str(SCRIPT), *pytest_, "--basetemp", str(tmp_path / "t"), str(tmp_path / "test_run.py")]
    terminal, inside = pty.openpty()
    front = in_terminal(command, environment, inside)
    os.close(inside)
    try:
        wait_until(lambda: held.exists() and held.read_text(), "the run holds its programs", 120)
        below = json.loads(held.read_text())
        assert all(map(runs, below))
    finally:
        os.close(terminal)
        front.wait()

    gone([front.pid, *below])


def in_terminal(command: list[str], environment: dict[str, str], terminal: int) -> "subprocess.Popen[bytes]":
    """Start a command in a session whose terminal this is: when that is closed, it gets SIGHUP."""
    taking = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", taking, *command],
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
