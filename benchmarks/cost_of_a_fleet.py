"""What a million vehicles an hour cost an operator, by transport: cores, memory, disk, bytes on the wire.

    .venv/bin/python benchmarks/cost_of_a_fleet.py --vehicles 500,1500 --runs 1

Runs the demo (one answer a vehicle, 72 cells, sampling, two aggregators) with fewer and with more vehicles by each
transport and divides the differences: what starting takes is in both and falls out. Of every aggregator: CPU of all its
processes; their memory at its peak, each page by the share of it that is theirs (PSS); the files of its state. Of every
vehicle: what its process's sockets sent and received, from the kernel's own counts (`ss`, of iproute2), both
aggregators together: payload of TCP, so with TLS and HTTP/2 or MQTT, and 52 bytes a segment for TCP and IPv4, of which
loopback makes fewer than a radio. What a socket carried in the last second before it was closed is missing.
"""

import argparse
import os
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from compare_answers import AGGREGATORS, Cost, kinds_of, run
from meter import Process, pss_bytes

WAYS: Final = {
    "own gRPC connections": ("--connections", "own", "--transport", "grpc"),
    "shared gRPC connections": ("--connections", "shared", "--transport", "grpc"),
    "MQTT, own connections": ("--connections", "own", "--transport", "mqtt"),
    "relay, own connections": ("--connections", "own", "--transport", "relay"),
}
HOUR: Final = 1_000_000
_EVERY_S: Final = 1.0
_HEADERS: Final = 52
"""Bytes of a segment that TCP with timestamps and IPv4 add."""
_CONFIG: Final = re.compile(r"--config\0([^\0]+)/aggregator\.toml")
_OWNER: Final = re.compile(r"pid=(\d+)")
_NAMES: Final = ("bytes_sent", "bytes_received", "segs_out", "segs_in")
_COUNTS: Final = re.compile(rf"\b({'|'.join(_NAMES)}):(\d+)")


class Looking:
    """Looks once a second at the memory and the files of aggregators and at the sockets of devices."""

    def __init__(self) -> None:
        self.memory, self.disk = 0, dict[str, int]()
        self._sockets: dict[tuple[str, ...], dict[str, int]] = {}
        self._next_s = 0.0

    def __call__(self, found: Sequence[Process]) -> None:
        """Look, where it is time to."""
        if time.monotonic() < self._next_s:
            return
        kinds = kinds_of(found)
        of = {kind: [one for one in found if kinds[one.number] == kind] for kind in ("aggregator", "device")}
        self.memory = max(self.memory, sum(pss_bytes(one.number) for one in of["aggregator"]))
        for one in of["aggregator"]:
            if config := _CONFIG.search(one.command):
                self.disk[config[1]] = max(self.disk.get(config[1], 0), file_bytes(Path(config[1]) / "state"))
        self._sockets.update(sockets_of({one.number for one in of["device"]}))
        self._next_s = time.monotonic() + _EVERY_S

    def figures(self, cost: Cost) -> dict[str, float]:
        """Return what grows with vehicles: CPU seconds by party, and bytes; of one aggregator, and of all vehicles."""
        total = {name: sum(one.get(name, 0) for one in self._sockets.values()) for name in _NAMES}
        return {
            "aggregator": cost.cpu_s["aggregator"] / AGGREGATORS,
            "relay": cost.cpu_s["relay"],
            "broker": cost.cpu_s["broker"],
            "memory": self.memory / AGGREGATORS,
            "disk": sum(self.disk.values()) / AGGREGATORS,
            "up": total["bytes_sent"] + _HEADERS * total["segs_out"],
            "down": total["bytes_received"] + _HEADERS * total["segs_in"],
        }


def file_bytes(directory: Path) -> int:
    """Return the bytes that the files below a directory take on the disk."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += 512 * (Path(place) / name).stat().st_blocks
    return total


def sockets_of(processes: set[int]) -> dict[tuple[str, ...], dict[str, int]]:
    """Return what the kernel has counted of the TCP connections of processes, by process and both ends."""
    lines = subprocess.run(["ss", "-tinpOH"], capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for line in lines:
        owner = _OWNER.search(line)
        if owner and int(owner[1]) in processes:
            found[(owner[1], *line.split()[3:5])] = {name: int(count) for name, count in _COUNTS.findall(line)}
    return found


def main() -> None:
    """Print a row for each transport."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vehicles", default="500,1500", help="two numbers, the fewer first (500,1500)")
    parser.add_argument("--runs", type=int, default=1, help="of which the least counts (1)")
    parser.add_argument("--ways", default="", help="only transports whose names hold this")
    asked = parser.parse_args()
    few, many = (int(one) for one in asked.vehicles.split(","))
    checkout = Path(__file__).resolve().parent.parent
    print(f"load {os.getloadavg()[0]:.1f}; {few} and {many} vehicles; cores are those of a million vehicles an hour")
    for name, way in ((one, way) for one, way in WAYS.items() if asked.ways in one):
        runs = []
        for _ in range(asked.runs):
            seen = {}
            for vehicles in (few, many):
                looking = Looking()
                seen[vehicles] = looking.figures(run(checkout, vehicles, way, looking))
            runs.append({what: (seen[many][what] - seen[few][what]) / (many - few) for what in seen[few]})
        one = {what: min(each[what] for each in runs) for what in runs[0]}
        cores = {party: one[party] * HOUR / 3600 for party in ("aggregator", "relay", "broker")}
        print(
            f"{name}: aggregator {1000 * one['aggregator']:.2f} ms = {cores['aggregator']:.2f} cores,"
            f" relay {cores['relay']:.2f}, broker {cores['broker']:.2f} cores;"
            f" memory {one['memory'] / 1024:.1f} KiB, disk {one['disk']:.0f} B a vehicle;"
            f" up {one['up']:.0f} B, down {one['down']:.0f} B; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
