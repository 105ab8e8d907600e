"""Lists of operations against real aggregators on virtual time, by the thousand.

    python -m tests.model --lists 10000 --processes 2       # seeds 0 to 9999
    python -m tests.model --seed 4711                       # one list again, with all its operations

Exit code 1 if anything did not hold; each failing list is shown with its seed, made as short as it goes. Ctrl-C ends a
run with what was done so far (130 if all of it held).
"""

import argparse
import gc
import json
import logging
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import structlog

from tests.model.lists import Operation, Runner, draw, shrunk
from tests.model.remembering import remembered
from tests.support.build import build, today

_CHUNK = 50
_SAID = 10
"""How often a run says how far it is."""
_LASTING = ExitStack()


def _run(seeds: Sequence[int]) -> tuple[Counter[str], list[tuple[int, list[str]]]]:
    """Run some lists in this process; return how they ended, and which failed."""
    runner = _runner()
    runner.ends, failed = {}, []
    for seed in seeds:
        wrong = runner.run(seed, *draw(seed))
        if wrong:
            failed.append((seed, wrong))
    return Counter(runner.ends), failed


@cache
def _runner() -> Runner:
    """Return this process's runner, which remembers for as long as the process lives."""
    silence()
    _LASTING.enter_context(remembered())
    gc.set_threshold(50_000, 20, 100)  # A list makes ten thousand objects and lets go of them at its end.
    return Runner()


def _begin() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def silence() -> None:
    """Let the aggregators write no logs: building them would take a tenth of the time."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )


def show(seed: int, wrong: Sequence[str]) -> None:
    """Print a failing list, made short."""
    parties, operations = draw(seed)
    short: list[Operation] = shrunk(_runner(), seed, parties, operations)
    said = _runner().run(seed, parties, short)
    print(f"seed {seed}, {parties} parties: {'; '.join(said or wrong)}")
    for one in short:
        print("   ", *one)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__.partition("\n")[0])
    parser.add_argument("--lists", type=int, default=1000, help="how many, from the first seed on")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no list after so long; 0: run all")
    parser.add_argument("--result", type=Path, help="write sums there, which `python -m tests.campaign` takes up")
    parser.add_argument("--seed", type=int, help="run this list alone")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        wrong = _runner().run(chosen.seed, *draw(chosen.seed))
        parties, operations = draw(chosen.seed)
        print(f"{parties} parties", *operations, sep="\n    ")
        if wrong:
            show(chosen.seed, wrong)
        print(_runner().ends)
        return 1 if wrong else 0
    return _many(chosen)


@dataclass
class _Sums:
    """What a run has come to so far."""

    chosen: argparse.Namespace
    begun: float = field(default_factory=time.monotonic)
    done: int = 0
    failed: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    said: int = 1

    @property
    def took_s(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.begun

    @property
    def is_late(self) -> bool:
        """Whether no other list is begun."""
        return 0 < self.chosen.seconds < self.took_s

    def take(self, found: Counter[str], wrong: Sequence[tuple[int, list[str]]]) -> None:
        """Take what a chunk of lists gave; show the first of those that failed, and how far the run is."""
        self.ends += found
        self.done += found.total()
        self.failed += len(wrong)
        for seed, said in wrong[:3]:
            show(seed, said)
        way = max(self.done / self.chosen.lists, self.chosen.seconds and self.took_s / self.chosen.seconds)
        if self.said <= _SAID * way < _SAID:
            self.said = int(_SAID * way) + 1
            print(f"{self.done} lists, {self.failed} failed, {self.took_s:.0f} s", flush=True)

    def tell(self) -> None:
        """Print the sums, and write them where they are wanted."""
        took_s, ends = self.took_s, dict(self.ends.most_common())
        print(f"{self.done} lists in {took_s:.0f} s ({self.done / took_s:.0f}/s), {self.failed} failed; ended: {ends}")
        if self.chosen.result is not None:
            sums = {
                "build": build(),
                "day": today(),
                "lists": self.done,
                "seconds": round(took_s, 1),
                "failed": self.failed,
                "ends": ends,
            }
            self.chosen.result.parent.mkdir(parents=True, exist_ok=True)
            self.chosen.result.write_text(json.dumps(sums) + "\n", encoding="utf-8")


def _many(chosen: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # A shell lets what it begins in the background ignore SIGINT.
        signal.signal(number, signal.default_int_handler)
    sums, last, stopped = _Sums(chosen), chosen.first + chosen.lists, True
    chunks = [range(start, min(last, start + _CHUNK)) for start in range(chosen.first, last, _CHUNK)]
    with multiprocessing.get_context("spawn").Pool(chosen.processes, _begin) as pool, suppress(KeyboardInterrupt):
        for found, wrong in pool.imap_unordered(_run, chunks):
            sums.take(found, wrong)
            if sums.is_late:
                break
        stopped = False
    sums.tell()
    return 1 if sums.failed else 130 if stopped else 0
