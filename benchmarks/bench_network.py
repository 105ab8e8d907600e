"""The network engine: seconds from nothing to a signed release for real clients, and whether it lost or doubled any.

Starts aggregators, a broker and client processes of its own on free ports; see `fleetcount_simulator.network.engine`.
"""

import argparse
import os
import sys
import threading
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_simulator.model import AnswerSpace, Case, Integers, Mechanism
from fleetcount_simulator.network.engine import engine
from fleetcount_simulator.network.run import WindowAsked
from numpy.typing import NDArray
from rows import Row, quick, report, smoke

FLOWER_S: Final = 42.0
FLOWER_NOTE: Final = (
    "Flower's figure is a fixed one, measured once on two such cores (186 messages/s, two rounds, 1,000 clients, 9"
    " values, its simulation engine); it is not run here"
)
MUST_S: Final = 20.0
AIM_S: Final = 5.0
AIM_MANY_S: Final = 120.0
MUST_MIB: Final = 8 * 1024.0
VALUES: Final = 9


@dataclass(frozen=True)
class Fleet:
    """Devices whose values go round, 0 included."""

    devices: int
    epochs: int = 1

    @property
    def question(self) -> AnswerSpace:
        """Nine values."""
        return AnswerSpace(title="nine values", labels=tuple(f"value {value}" for value in range(1, VALUES + 1)))

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.uint16]:
        """Device i holds i modulo 10."""
        return (np.arange(start, stop) % (VALUES + 1)).astype(np.uint16)

    def histogram(self, epoch: int) -> Integers:
        """How many hold each value."""
        return np.bincount(self.truths(epoch, 0, self.devices), minlength=VALUES + 1).astype(np.int64)

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> None:
        """Everybody always is."""
        return


class PeakMemory:
    """The largest sum of the resident memory of this process's descendants, MiB, looked at four times a second.

    Pages that processes share count once for each of them, so the true figure is smaller.
    """

    def __init__(self) -> None:
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scheduler, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._stop.set()
        self._thread.join()

    def _scheduler(self) -> None:
        while not self._stop.wait(0.25):
            self.mib = max(self.mib, _descendants_mib())


def _descendants_mib() -> float:
    pages: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields:
            pages[int(entry.name)] = (int(fields[1]), int(fields[21]))
    ours = {os.getpid()}
    total, grown = 0, True
    while grown:
        born = {number for number, (parent, _) in pages.items() if parent in ours} - ours
        total += sum(pages[number][1] for number in born)
        ours |= born
        grown = bool(born)
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


def ask(devices: int, transport: str) -> tuple[WindowAsked, float, float]:
    """Ask a fleet once, with new processes; return what came of it, the seconds from nothing, the peak memory (MiB)."""
    mechanism = Mechanism(name="m", kind="sampling", sampling_rate=Fraction(1, 20), noise_epsilon=Fraction(1))
    case = Case(index=0, point={}, population=Fleet(devices), mechanism=mechanism)
    started = time.perf_counter()
    with PeakMemory() as peak:
        (asked,) = engine(transport=transport, progress=_show).ask(case, 0, [0], np.random.SeedSequence(1))
    return asked, time.perf_counter() - started, peak.mib


def _show(stage: str, done: int, total: int) -> None:
    """Show progress on a terminal, in one line that is written over; nothing in a file."""
    if sys.stderr.isatty():
        print(f"\r{stage}: {done:,} of {total:,}      ", end="", file=sys.stderr, flush=True)


def _note(asked: WindowAsked) -> str:
    tallies, stages = asked.account.tallies, asked.stages
    return (
        f"counted {int(asked.account.counted.sum()):,}, lost {asked.account.missing},"
        f" counted twice {tallies['counted_twice']}; {stages['ready']:.1f} s until all processes were there,"
        f" {stages['asked']:.1f} s from the opening of the window to the record, of which {stages['release']:.1f} s"
        " after its close"
        f"{f'; MQTT through {asked.broker}' if asked.broker else ''}"
    )


def main() -> int:
    """Run both measurements; exit 1 when a device was lost or counted twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=30 if smoke() else 200 if quick() else 1_000)
    parser.add_argument("--many", type=int, default=0 if smoke() else 400 if quick() else 20_000, help="0: leave out")
    options = parser.parse_args()

    asked, seconds, _ = ask(options.clients, "grpc")
    good = _complete(asked)
    full = options.clients == 1_000
    report(
        Row(
            path=f"network: {options.clients:,} clients, {VALUES} values, k = 2, to a release",
            ours=seconds,
            unit="s",
            peer="Flower, s",
            peer_value=FLOWER_S if full else None,
            ratio=seconds / FLOWER_S if full else None,
            must=MUST_S / FLOWER_S if full else None,
            aim=AIM_S / FLOWER_S if full else None,
            larger_is_better=False,
            note=f"{_note(asked)}. {FLOWER_NOTE}",
        )
    )
    if options.many:
        asked, seconds, mib = ask(options.many, "both")
        good = good and _complete(asked)
        name = f"network: {options.many:,} clients, gRPC and MQTT"
        full = options.many == 20_000
        report(
            Row(
                path=name,
                ours=seconds,
                unit="s",
                peer="limit" if full else "",
                peer_value=AIM_MANY_S if full else None,
                ratio=seconds / AIM_MANY_S if full else None,
                aim=1.0 if full else None,
                larger_is_better=False,
                note=_note(asked),
            )
        )
        report(
            Row(
                path=f"{name}, memory of all processes",
                ours=mib,
                unit="MiB",
                peer="8 GiB",
                peer_value=MUST_MIB,
                ratio=mib / MUST_MIB,
                must=1.0,
                larger_is_better=False,
            )
        )
    return 0 if good else 1


def _complete(asked: WindowAsked) -> bool:
    return asked.record is not None and asked.account.missing == 0 and asked.account.tallies["counted_twice"] == 0


if __name__ == "__main__":
    sys.exit(main())
