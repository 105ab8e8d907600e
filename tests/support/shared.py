"""What a whole run shares: whichever of its workers asks first starts it, the others find it, the run's end ends it.

Each shared thing has a host, a small process of its own, so that it outlives the worker that asked for it:

    python -m tests.support.shared KIND DIRECTORY CONTROLLER

starts it below the directory, describes it in `description`, and holds it until SIGTERM. Then it ends everything in
order and leaves in `found` what was not clean. When the process CONTROLLER, the run, is gone, it kills everything.
"""

import fcntl
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import pace

ROOT = Path(__file__).resolve().parents[2]
_END_S = 60.0
_LOOK_S = 1.0
_HOSTS: list[subprocess.Popen[bytes]] = []
"""Those that this process started; whoever starts one keeps it, since it is not waited for before the run's end."""
_FOUND = pytest.StashKey[list[str]]()


def common_place(config: pytest.Config) -> Path:
    """Return the directory that all workers of this run have in common."""
    base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # xdist asks it in this way too.
    place = (base.parent if hasattr(config, "workerinput") else base) / "shared"
    place.mkdir(exist_ok=True)
    return place


@contextmanager
def alone(config: pytest.Config, name: str) -> Iterator[Path]:
    """Let one worker at a time into the block of this name; gives the common directory."""
    place = common_place(config)
    with (place / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield place


def once(config: pytest.Config, name: str, step: Callable[[], None]) -> None:
    """Do a step in the first worker that comes; the others wait until it is done."""
    with alone(config, name) as place:
        if not (done := place / f"{name}.done").exists():
            step()
            done.touch()


def shared(config: pytest.Config, kind: str) -> Any:
    """Return the description of what the run shares under this name; the first worker starts its host.

    Raises:
        AssertionError: it did not start, for this worker or for one before; says why.
    """
    with alone(config, kind) as place:
        directory = place / kind
        if not directory.exists():
            directory.mkdir()
            _start(kind, directory, os.getppid() if hasattr(config, "workerinput") else os.getpid())
        description = directory / "description"
        if not description.exists():
            raise AssertionError(f"{kind} did not start: {(directory / 'host.log').read_text()[-2000:]}")
    return pickle.loads(description.read_bytes())


def _start(kind: str, directory: Path, controller: int) -> None:
    """Start a host and wait until it has described what it holds, or has ended."""
    with (directory / "host.log").open("wb") as log:
        host = subprocess.Popen(
            [sys.executable, "-m", "tests.support.shared", kind, str(directory), str(controller)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            start_new_session=True,
        )
    _HOSTS.append(host)
    assert host.stdout is not None
    with host.stdout as said:
        said.readline()


# The end of a run.


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what the run shared, the last that was started first; the run fails if something was not clean."""
    if hasattr(session.config, "workerinput"):
        return
    found: list[str] = []
    for directory in _started(common_place(session.config)):
        found += _end(directory)
    for host in _HOSTS:
        host.wait()
    session.config.stash[_FOUND] = found
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was not clean."""
    if found := config.stash.get(_FOUND, []):
        terminalreporter.section("what the run shared did not end clean", sep="=", red=True)
        for line in found:
            terminalreporter.line(line)


def _started(place: Path) -> list[Path]:
    hosts = [path.parent for path in place.glob("*/alive")]
    return sorted(hosts, key=lambda path: (path / "alive").stat().st_mtime_ns, reverse=True)


def _end(directory: Path) -> list[str]:
    """End a host; return what it found."""
    alive = directory / "alive"
    with alive.open("r+") as file:
        deadline = time.monotonic() + _END_S * pace()
        if not _taken(file.fileno()):
            os.kill(int(file.read()), signal.SIGTERM)
            while not _taken(file.fileno()):
                if time.monotonic() > deadline:
                    return [f"{directory.name}: its host, process {alive.read_text()}, has not ended"]
                time.sleep(0.02)
    if not (found := directory / "found").exists():
        return [f"{directory.name}: its host ended before the run: {(directory / 'host.log').read_text()[-2000:]}"]
    lines: list[str] = json.loads(found.read_text())["found"]
    return [f"{directory.name}: {line}" for line in lines]


def _taken(descriptor: int) -> bool:
    """Return whether nobody holds this file any more, its host is gone then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# A host. What it holds is imported there: a worker that asks for nothing needs none of it.


def _publish(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


@contextmanager
def _hosted(kind: str, directory: Path, found: list[str]) -> Iterator[Any]:
    """Hold one kind of thing; gives its description, and adds to `found` what was not clean at its end."""
    if kind == "postgres":
        from tests.support.postgres import hosted_cluster

        with hosted_cluster() as description:
            yield description
        return
    from tests.support.live import hosted_broker, hosted_deployment

    with hosted_broker(directory, found) if kind == "broker" else hosted_deployment(kind, directory, found) as one:
        yield one


def _until_told(controller: int, woken: int) -> bool:
    """Wait for SIGTERM, or until the run is gone; return whether it was told."""
    while not select.select([woken], [], [], _LOOK_S)[0]:
        try:
            os.kill(controller, 0)
        except ProcessLookupError:
            return False
    return True


class _RunGoneError(Exception):
    """Nobody waits for an end in order."""


def main(kind: str, directory: Path, controller: int) -> None:
    """Be a host."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    found: list[str] = []
    with (directory / "alive").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        alive.write(str(os.getpid()))
        alive.flush()
        with suppress(_RunGoneError), _hosted(kind, directory, found) as description:
            _publish(directory / "description", pickle.dumps(description))
            print("ready", flush=True)
            if not _until_told(controller, woken):
                raise _RunGoneError
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = {"found": found, "cpu_s": round(ended.ru_utime + ended.ru_stime, 1)}
        _publish(directory / "found", json.dumps(said).encode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
