"""How long programs take until they are of use, and their memory then: a device, an aggregator, the simulator.

Every start is a fresh process. The first start of compiled code on a machine compiles; what later ones load lies in a
directory of the user's, which a temporary one stands for here. Decides nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench_intake import deploy
from rows import NOT_QUICK, Row, Unit, quick, report, smoke

RUNS = 1 if smoke() else 2 if quick() else 5
FOLLOW = """
import numpy as np
from bench_simulator import case, held, seed
from fleetcount_simulator.engines import engine
engine("per-device").run(case(held(1_000, 1_000)), 0, [0], seed())
"""
"""Follows a thousand devices: what a study of the per-device engine does first."""


TELL = "\nprint(open('/proc/self/status').read())"
"""Makes a program say what it needed; what the parent is told at its end counts the parent's own memory too."""


@dataclass(frozen=True)
class Started:
    """Seconds until a process was of use, and the peak of its memory then, MiB."""

    seconds: float
    mib: float


def peak_mib(status: str) -> float:
    """Return the peak of a process's memory, of the text of its /proc/PID/status."""
    [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kib) / 1024


def environment_with(cache: str) -> dict[str, str]:
    """Return the environment of a start; `cache` is the directory for compiled code, by default the user's own."""
    own = {"NUMBA_CACHE_DIR": cache} if cache else {}
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **own}


def python(program: str, cache: str = "") -> Started:
    """Run a program in a fresh interpreter to its end."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program + TELL],
        env=environment_with(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return Started(time.perf_counter() - began, peak_mib(done.stdout))


def serving(config: str) -> Started:
    """Start an aggregator until it says that it listens, and end it."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", config]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        seconds = time.perf_counter() - began
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        process.terminate()
    if ready["event"] != "ready" or process.returncode != 0:
        raise SystemExit(f"the aggregator said {ready} and ended with {process.returncode}")
    return Started(seconds, peak_mib(status))


def least(starting: Callable[[], Started]) -> Started:
    """Return the least of several starts."""
    every = [starting() for _ in range(RUNS)]
    return Started(min(one.seconds for one in every), min(one.mib for one in every))


def rows(what: str, ours: Started, bare: Started) -> None:
    """Report the seconds and the memory of a start beside those of an interpreter that does nothing."""
    values: tuple[tuple[str, float, float, Unit], ...] = (
        (what, 1e3 * ours.seconds, 1e3 * bare.seconds, "ms"),
        (f"{what}: its memory", ours.mib, bare.mib, "MiB"),
    )
    for path, mine, its, unit in values:
        report(
            Row(
                path=path,
                ours=mine,
                unit=unit,
                peer="a Python that does nothing",
                peer_value=its,
                ratio=mine / its,
                larger_is_better=False,
                note=f"least of {RUNS} starts",
            )
        )


def first_and_later(what: str, starting: Callable[[str], Started]) -> None:
    """Report a start that loads compiled code beside the first, which compiles; a quick run has neither."""
    if quick():
        why = f"{NOT_QUICK}it compiles anew"
        report(Row(path=f"{what}: later starts", ours=None, unit="s", note=why))
        return
    with tempfile.TemporaryDirectory() as cache:
        first = starting(cache)
        later = least(lambda: starting(cache))
    report(
        Row(
            path=f"{what}: later starts",
            ours=later.seconds,
            unit="s",
            peer="the first start, which compiles",
            peer_value=first.seconds,
            ratio=first.seconds / later.seconds,
        )
    )


def main() -> None:
    """Report every start; an aggregator's worker processes are not in its memory."""
    bare = least(lambda: python("pass"))
    rows("device: importing the library", least(lambda: python("from fleetcount_client import Device")), bare)
    rows(
        "analysis: importing it with NumPy and SciPy",
        least(lambda: python("import fleetcount_analysis.intervals")),
        bare,
    )
    with tempfile.TemporaryDirectory() as directory:
        config = str(deploy(Path(directory)).config_of(0))
        rows("aggregator until it listens", least(lambda: serving(config)), bare)
    first_and_later("simulator, per device", lambda cache: python(FOLLOW, cache))


if __name__ == "__main__":
    main()
