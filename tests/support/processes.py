"""Processes of a test: children of the simulator's runner, for code that runs on no event loop or on its own.

Fixtures outlive the loop of one test, so the runner's functions run on one loop in a thread, as long as the tests do.
"""

import asyncio
import atexit
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

from fleetcount_simulator.network.children import Child, Children

T = TypeVar("T")

_START_S = 60.0
_END_S = 15.0
_SILENCE_S = 0.2
_WITHOUT_NUMBA = Path(__file__).parent / "without_numba"


def pace() -> float:
    """Return how much longer than on an idle machine of two cores things take here: 1 to 6.

    FLEETCOUNT_TEST_PACE says what was seen before the tests began; without it that is looked at once. What else the
    machine has come to do since then, beside the run's own workers, is looked at each time.
    """
    # The run's own workers, and what they wait for, are in the limits of the tests.
    own = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")) + len(os.sched_getaffinity(0))
    before = float(os.environ.get("FLEETCOUNT_TEST_PACE") or _pace_before())
    return min(max(before, 6.0), before * max(1.0, os.getloadavg()[0] / own))


@lru_cache(maxsize=1)
def _pace_before() -> float:
    """Return how much longer things took when this was first asked, 1 to 3; later the load is the tests' own."""
    cores = len(os.sched_getaffinity(0))
    alone = 1.5 if cores == 1 else 1.0
    return min(3.0, alone * max(1.0, os.getloadavg()[0] / cores))


def without_numba() -> dict[str, str]:
    """Return the environment of a machine without Numba: processes verify in plain Python, with the same results.

    Loading and checking compiled code takes three seconds of CPU each time an aggregator starts, and as long again in
    its worker. Who looks at what starts and kills aggregators has dozens of starts and a few reports.
    """
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{_WITHOUT_NUMBA}{os.pathsep}{before}"}


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Return the condition's first true value; the limit, seconds on an idle machine, follows this one."""
    limit_s = timeout_s * pace()
    begun = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - begun
        if waited_s > limit_s:
            raise AssertionError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(min(0.2, 0.02 + waited_s / 50))  # To ask costs as much as what is waited for.
    return value


@lru_cache(maxsize=1)
def _runner() -> asyncio.AbstractEventLoop:
    """Return the loop on which the runner lives; it ends with this process."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="runner", daemon=True)
    thread.start()

    def close() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    atexit.register(close)
    return loop


def _run(step: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(step, _runner()).result()


def under_clock(command: Sequence[str], ahead_s: float) -> list[str]:
    """Return the command of a Python program with a wall clock that is ahead by so much; the same if it is right."""
    python, *words = command
    return [python, "-m", "tests.support.off_clock", str(ahead_s), *words] if ahead_s else list(command)


class _Process:
    """What can be seen of a program: its log, and what the kernel says."""

    name: str
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        raise NotImplementedError

    @property
    def peak_mib(self) -> float:
        """The largest resident memory of its present life so far."""
        [row] = [row for row in Path(f"/proc/{self.pid}/status").read_text().splitlines() if row.startswith("VmHWM:")]
        return int(row.split()[1]) / 1024

    def last_lines(self, count: int = 5) -> str:
        """Return the end of its log."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-count:])


class SeenProcess(_Process):
    """A program that somebody else started and ends: it can be seen, and not be touched."""

    def __init__(self, name: str, log: Path, pid: int, ready: dict[str, Any]) -> None:
        self.name = name
        self.log = log
        self._pid = pid
        self._ready = ready

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        return True

    def ready(self) -> dict[str, Any]:
        """Return its line of JSON on standard output."""
        return self._ready

    def said(self) -> bytes:
        """Return what it has written to standard output since that line."""
        return self.log.with_suffix(".out").read_bytes()


class ChildProcess(_Process):
    """One program that may be started, killed and started again, each life a child of the runner; stderr in NAME.log.

    `begin` is the runner's function that starts it, given the name of a fail point or "".
    """

    def __init__(self, name: str, begin: Callable[[str], Coroutine[Any, Any, Child]], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.clock_s = 0.0
        """By so much the wall clock of what `of` or a deployment starts from now on is ahead."""
        self._begin = begin
        self._lives: list[Child] = []
        self._ready: dict[str, Any] = {}

    @classmethod
    def of(
        cls, name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Return a program without fail points; `environment` is what it gets beside our own."""
        children = Children(directory)
        made = cls(
            name,
            lambda _: children.start(name, under_clock(command, made.clock_s), environment=environment),
            directory,
        )
        return made

    def start(self, failpoint: str = "") -> None:
        """Start it; returns when `begin` does."""
        self.reap()
        self._ready = {}
        self._lives.append(_run(self._begin(failpoint)))

    def ready(self) -> dict[str, Any]:
        """Wait for its line of JSON on standard output and return it."""
        self._ready = self._ready or _run(self._lives[-1].ready(_START_S * pace()))
        return self._ready

    def said(self) -> bytes:
        """Return what its present life has written to standard output and nobody has been given yet."""
        return _run(_said(self._lives[-1]))

    def follow(self) -> None:
        """Write what its present life says on standard output from now on to NAME.out, for others to read."""
        asyncio.run_coroutine_threadsafe(_copied(self._lives[-1], self.log.with_suffix(".out")), _runner())

    @property
    def pid(self) -> int:
        """Its process id, also after its end."""
        return self._lives[-1].process.pid

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return len(self.ends) < len(self._lives)

    @property
    def ends(self) -> list[int]:
        """The exit codes so far, in order."""
        return [life.process.returncode for life in self._lives if life.process.returncode is not None]

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL, and nothing else."""
        _run(_end(self._lives[-1], signal.SIGKILL, _END_S))

    def terminate(self) -> None:
        """Ask it to end."""
        _run(_end(self._lives[-1], signal.SIGTERM, 0))

    def ended(self) -> int:
        """Wait for its end and return its exit code; kill it if it takes too long."""
        _run(_end(self._lives[-1], None, _END_S * pace()))
        self.reap()
        return self.ends[-1]

    def reap(self) -> None:
        """End it if it still runs."""
        if self.running:
            self.kill()


async def _end(child: Child, number: signal.Signals | None, patience_s: float) -> None:
    """Send a signal, if one is given, and wait for the end."""
    if number is not None:
        child.send(number)
    if patience_s:
        await asyncio.wait([asyncio.ensure_future(child.process.wait())], timeout=patience_s)


async def _copied(child: Child, path: Path) -> None:
    """Copy a child's standard output to a file until its end."""
    assert child.process.stdout is not None
    with path.open("ab", buffering=0) as file:
        while part := await child.process.stdout.read(1 << 16):
            file.write(part)


async def _said(child: Child) -> bytes:
    """Read a child's standard output until it is silent."""
    text = bytearray()
    while part := await _part(child):
        text += part
    return bytes(text)


async def _part(child: Child) -> bytes:
    assert child.process.stdout is not None
    try:
        return await asyncio.wait_for(child.process.stdout.read(1 << 16), _SILENCE_S)
    except TimeoutError:
        return b""
