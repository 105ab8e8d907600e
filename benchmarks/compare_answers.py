"""What an answer costs in two checkouts of this repository, in turns on one machine: CPU and memory, by party.

    .venv/bin/python benchmarks/compare_answers.py BEFORE AFTER --vehicles 500,1500 --runs 2

Runs the demo of each checkout, by each kind of connection, with fewer and with more vehicles, and divides the
difference: what starting takes is in both and falls out. CPU is read from /proc while processes live, by what they are:
an aggregator with its workers, a process of devices, all others. Memory is that of an aggregator's processes at its
peak in the larger run, each page by the share of it that is theirs (PSS). Both checkouts run on this interpreter's
libraries.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from meter import Below, Process, pss_bytes

WAYS: Final = {
    "own gRPC connections": ("--connections", "own", "--transport", "grpc"),
    "shared gRPC connections": ("--connections", "shared", "--transport", "grpc"),
    "MQTT, shared": ("--connections", "shared", "--transport", "mqtt"),
}
KINDS: Final = ("aggregator", "device", "relay", "broker")
AGGREGATORS: Final = 2
MIB: Final = 1 << 20
_LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True)
class Cost:
    """What one run took: seconds by the clock, and of CPU by kind of process."""

    wall_s: float
    cpu_s: dict[str, float]
    memory_bytes: int = 0


class Memory:
    """Looks once a second at the memory of all processes of aggregators."""

    def __init__(self) -> None:
        self.peak_bytes, self._next_s = 0, 0.0

    def __call__(self, found: Sequence[Process]) -> None:
        """Look, where it is time to."""
        if time.monotonic() < self._next_s:
            return
        kinds = kinds_of(found)
        held = sum(pss_bytes(one.number) for one in found if kinds[one.number] == "aggregator")
        self.peak_bytes, self._next_s = max(self.peak_bytes, held), time.monotonic() + _LOOK_EVERY_S


def kind_of(line: str, parent: str) -> str:
    """Return what a process is, by its command line and its parent's kind."""
    if "aggregator\0serve" in line:
        return "aggregator"
    if "fleetcount_simulator.network.fleet" in line:
        return "device"
    if "\0relay\0--config" in line:
        return "relay"
    if "mosquitto\0" in line:
        return "broker"
    return parent if parent in KINDS else "other"


def kinds_of(seen: Iterable[Process]) -> dict[int, str]:
    """Return what processes are, by their numbers; each comes after its parent."""
    kinds = dict[int, str]()
    for one in seen:
        kinds[one.number] = kind_of(one.command, kinds.get(one.parent, "other"))
    return kinds


def by_kind(seen: Iterable[Process]) -> dict[str, float]:
    """Return the CPU seconds of processes by their kinds; each comes after its parent."""
    cpu = dict.fromkeys((*KINDS, "other"), 0.0)
    for one, kind in zip(found := list(seen), kinds_of(found).values(), strict=True):
        cpu[kind] += one.cpu_s
    return cpu


def run(
    checkout: Path, vehicles: int, way: tuple[str, ...], look: Callable[[list[Process]], None] = lambda _: None
) -> Cost:
    """Run the demo of a checkout once; `look` is called with its processes, five times a second.

    Raises:
        SystemExit: it failed.
    """
    paths = os.pathsep.join(str(one) for one in sorted(checkout.glob("*/src")))
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "fleetcount", "demo", "--vehicles", str(vehicles), *way]
        started = time.perf_counter()
        with (
            subprocess.Popen(
                [*command, "--output", f"{place}/out"],
                cwd=place,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as child,
            Below(os.getpid(), look) as below,
        ):
            _, error = child.communicate()
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} in {checkout} ended with {child.returncode}: {error[-500:]}")
        wall_s = time.perf_counter() - started
    return Cost(wall_s, by_kind(below.seen.values()))


def answer_ms(few: Cost, many: Cost, vehicles: tuple[int, int]) -> dict[str, float]:
    """Return milliseconds of CPU an answer: of one aggregator, and of a device for all aggregators."""
    more = vehicles[1] - vehicles[0]
    apart = {kind: 1000 * (many.cpu_s[kind] - few.cpu_s[kind]) / more for kind in ("aggregator", "device")}
    return {"aggregator": apart["aggregator"] / AGGREGATORS, "device": apart["device"]}


def main() -> None:
    """Print a row for each way and party, and the wall and CPU of the larger runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--vehicles", default="500,1500", help="two numbers, the fewer first (500,1500)")
    parser.add_argument("--runs", type=int, default=2, help="of which the least counts (2)")
    asked = parser.parse_args()
    few, many = (int(one) for one in asked.vehicles.split(","))
    builds = {"before": asked.before.resolve(), "after": asked.after.resolve()}
    print(f"{'what':60} {'before':>9} {'after':>9} {'ratio':>6}", flush=True)
    for name, way in WAYS.items():
        costs: dict[tuple[str, int], list[Cost]] = {}
        for _ in range(asked.runs):
            for build, checkout in builds.items():
                for number in (few, many):
                    memory = Memory()
                    cost = replace(run(checkout, number, way, memory), memory_bytes=memory.peak_bytes)
                    costs.setdefault((build, number), []).append(cost)
        found = {
            build: [answer_ms(*pair, (few, many)) for pair in zip(costs[build, few], costs[build, many], strict=True)]
            for build in builds
        }
        for party in ("aggregator", "device"):
            values = [statistics.median(one[party] for one in found[build]) for build in builds]
            show(f"{name}: {party}, CPU an answer, ms", values)
        show(f"{name}: {many} vehicles: wall, s", [min(one.wall_s for one in costs[build, many]) for build in builds])
        every = [min(sum(one.cpu_s.values()) for one in costs[build, many]) for build in builds]
        show(f"{name}: {many} vehicles: CPU of all processes, s", every)
        held = [min(one.memory_bytes for one in costs[build, many]) / AGGREGATORS / MIB for build in builds]
        show(f"{name}: memory of an aggregator, MiB", held)


def show(what: str, values: list[float]) -> None:
    """Print one row: before, after and their ratio."""
    before, after = values
    print(f"{what:60} {before:9.2f} {after:9.2f} {after / before:6.2f}", flush=True)


if __name__ == "__main__":
    main()
