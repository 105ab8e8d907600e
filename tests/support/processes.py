"""Child processes of a test: started with a ready line, killed or ended by their id, their output kept in files."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["ChildProcess", "free_port", "pace", "wait_until"]

_START_S = 60.0
_END_S = 15.0


@lru_cache(maxsize=1)
def pace() -> float:
    """Return how much longer than on an idle machine of two cores things take here: 1 to 3.

    Looked at once: later the load is the tests' own. FLEETCOUNT_TEST_PACE says it in its place.
    """
    if said := os.environ.get("FLEETCOUNT_TEST_PACE"):
        return float(said)
    cores = len(os.sched_getaffinity(0))
    alone = 1.5 if cores == 1 else 1.0
    return min(3.0, alone * max(1.0, os.getloadavg()[0] / cores))


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Return the condition's first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.02)
    return value


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    from fleetcount.deployment import free_ports

    return free_ports("127.0.0.1", 1)[0]


class ChildProcess:
    """One program that may be started, killed and started again; its output is appended to NAME.out and NAME.log."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        self.command = list(command)
        self.out = directory / f"{name}.out"
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.ends: list[int] = []
        """The exit codes so far, in order."""
        self._read_from = 0

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it; returns at once."""
        self.reap()
        self._read_from = self.out.stat().st_size if self.out.exists() else 0
        with self.out.open("ab") as out, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def ready(self) -> dict[str, Any]:
        """Wait for its line of JSON on standard output and return it."""
        return dict(wait_until(self._first_line, f"{self.name} is ready", _START_S * pace()))

    def _first_line(self) -> dict[str, Any] | None:
        if not self.running:
            raise AssertionError(f"{self.name} ended with {self.ends[-1:]}: {self.last_lines()}")
        for line in self.out.read_bytes()[self._read_from :].splitlines(keepends=True):
            if line.startswith(b"{") and line.endswith(b"\n"):
                return dict(json.loads(line))
        return None

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        self._note_end()
        return self.process is not None

    def _note_end(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            self.ends.append(self.process.returncode)
            self.process = None

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL, and nothing else."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(_END_S)
            self._note_end()

    def terminate(self) -> None:
        """Ask it to end."""
        if self.process is not None:
            self.process.terminate()

    def ended(self) -> int:
        """Wait for its end and return its exit code; kill it if it takes too long."""
        if self.process is not None:
            try:
                self.process.wait(_END_S * pace())
            except subprocess.TimeoutExpired:
                self.kill()
        self._note_end()
        return self.ends[-1]

    def reap(self) -> None:
        """End it if it still runs."""
        if self.running:
            self.kill()

    def last_lines(self, count: int = 5) -> str:
        """Return the end of its log."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-count:])
