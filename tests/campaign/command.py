"""Trials in some lanes side by side, for as long as asked or as many as asked; then docs/reliability.md.

    python -m tests.campaign --trials 1000 --seconds 3600 --result trials.json    # what `make campaign` runs
    python -m tests.campaign --seconds 60 --lanes 1 --no-page "kill -9 of the leader"
    python -m tests.campaign --seconds 0 --add monday.json --add tuesday.json     # a page of several runs
    python -m tests.campaign --seconds 0 --add clocks.json --part "Far clocks"    # the last part of the page alone

The lanes have SQLite, PostgreSQL, SQLite and replicas on PostgreSQL below them, in turn, if this machine has it. Exit
code 1 if anything did not hold.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.campaign.faults import FAULTS, fits
from tests.campaign.lanes import STORES, lane, stores_here
from tests.campaign.page import Run, page, read_lists, read_soak, with_part
from tests.campaign.trials import NOTHING, Lane, Trial
from tests.support.build import build, today

_PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
_IDLE: Final = 3
"""A lane that was set up so often and came to no trial is left alone."""
_STARTING: Final = 2
"""Lanes that are set up at once: each begins a dozen processes, and waits for them only so long."""
_MISSING: Final = ("a clock that jumps while a process runs (the lists of failures have it)",)


@dataclass
class Campaign:
    """What is tried, for how long, and what came of it; all lanes share it."""

    faults: Sequence[str]
    trials: int
    until: float
    directory: Path
    run: Run
    result: Path | None = None
    """Where the trials so far are after each episode, whatever becomes of this process."""
    begun: float = field(default_factory=time.monotonic)
    chosen: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    failed: list[str] = field(default_factory=list[str])
    troubles: list[str] = field(default_factory=list[str])
    tried: set[str] = field(default_factory=set[str])
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STARTING))

    @property
    def enough(self) -> bool:
        """Whether no trial begins any more."""
        struck = sum(trial.fault != NOTHING for trial in self.run.trials)
        return time.monotonic() > self.until or (0 < self.trials <= struck)

    def next_fault(self, one: Lane) -> str:
        """Return the fault that was tried least on a store, any of them if there are several; "" if none fits."""
        fitting = [fault for fault in self.faults if fits(fault, one)]
        if not fitting:
            return ""
        least = min((self.chosen[fault, one.store] for fault in fitting), default=0)
        fault = one.dice.choice([fault for fault in fitting if self.chosen[fault, one.store] == least])
        self.chosen[fault, one.store] += 1
        return fault

    def note(self, one: Lane, trials: Sequence[Trial]) -> bool:
        """Take trials up, show them, and return whether all held."""
        self.run.trials.extend(trials)
        ends = ", ".join(f"{end} {count}" for end, count in Counter(trial.end for trial in trials).most_common())
        struck = sum(trial.fault != NOTHING for trial in trials)
        names = " and ".join(sorted({trial.fault for trial in trials} - {NOTHING})) or NOTHING
        restarts = " ".join(f"{ready:.1f}" for trial in trials for ready in trial.ready_s)
        print(
            f"{len(self.run.trials)}: {names} ({one.store}): {struck} of {len(trials)} struck; {ends};"
            f" {sum(trial.delivered for trial in trials)} receipted; restarts {restarts or 'none'}",
            flush=True,
        )
        wrong = [f"{one.root.name}: {trial}" for trial in trials if trial.wrong]
        for line in wrong:
            print(line, flush=True)
        self.failed += wrong
        if self.result:
            self.run.took_s = time.monotonic() - self.begun
            self.run.write(self.result)
        return not wrong


async def _runs(campaign: Campaign, number: int, store: str, seed: int) -> None:
    """Go through episodes in a lane; one that did not hold, or that broke, is set up anew."""
    life = idle = 0
    while not campaign.enough and idle < _IDLE:
        done = len(campaign.run.trials)
        root = campaign.directory / f"lane{number}-{life}"
        try:
            async with AsyncExitStack() as stack:
                async with campaign.starting:
                    one = await stack.enter_async_context(lane(root, store, seed + 1000 * life))
                await _episodes(campaign, one)
        except Exception as error:
            print(f"lane {number} ({store}) broke: {_causes(error)}", flush=True)
            campaign.failed.append(f"lane {number} ({store}) broke: {_causes(error)}")
        idle = 0 if len(campaign.run.trials) > done else idle + 1
        life += 1


async def _episodes(campaign: Campaign, one: Lane) -> None:
    try:
        while not campaign.enough:
            if not (name := campaign.next_fault(one)):
                return
            campaign.tried.add(name)
            if not await _episode(campaign, one, name):
                return
        campaign.run.second += await one.second_releases()
    finally:
        campaign.troubles += one.deployment.troubles()


async def _episode(campaign: Campaign, one: Lane, name: str) -> bool:
    """Return whether it held and the lane can go on; otherwise its records are compared as far as it answers."""
    try:
        held = campaign.note(one, await one.episode(name, FAULTS[name]))
    except Exception as error:
        told = f"the lane broke: {_causes(error)}"
        held = campaign.note(one, [Trial(fault=name, store=one.store, end="none", wrong=[told])])
    if ended := one.ended_by_itself():
        held = campaign.note(one, [Trial(fault=name, store=one.store, end="none", wrong=ended)])
    return held


def _causes(error: BaseException) -> str:
    """Return what went wrong, of groups every part, on one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_causes(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}".replace("\n", " ")[-2000:]


async def _all(campaign: Campaign, lanes: int, seed: int, only: Collection[str]) -> None:
    """Go through all lanes; a signal ends them and everything they began, and what was tried is kept."""
    stores = [store for store in stores_here() if store in (only or STORES)]
    running = asyncio.gather(*(_runs(campaign, n, stores[n % len(stores)], seed + n) for n in range(lanes)))
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT is ignored in what a shell began in the background.
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        campaign.failed.append("ended by a signal")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="only these: " + "; ".join(FAULTS))
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no trial after so long (600)")
    parser.add_argument("--trials", type=int, default=0, help="nor after so many under a fault; 0: any number")
    parser.add_argument("--lanes", type=int, default=4, help="deployments side by side (4)")
    parser.add_argument(
        "--store",
        choices=sorted(set(STORES)),
        action="append",
        default=[],
        help="only lanes over this (may be repeated)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of faults and moments; 0: any")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the trials as JSON too")
    parser.add_argument("--add", type=Path, metavar="FILE", action="append", default=[], help="another run's result")
    parser.add_argument("--lists-result", type=Path, metavar="FILE", help="of `python -m tests.model --result`")
    parser.add_argument("--soak-result", type=Path, metavar="FILE", help="of `python -m tests.campaign.soak --result`")
    parser.add_argument("--part", metavar="TITLE", help="write the runs as the last part of the page, the rest stays")
    parser.add_argument("--no-page", action="store_true", help="leave docs/reliability.md alone")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.faults) - set(FAULTS):
        parser.error(f"no fault {sorted(unknown)}; there are: {'; '.join(FAULTS)}")
    runs = [Run.read(path) for path in chosen.add]
    read = ((read_lists, chosen.lists_result), (read_soak, chosen.soak_result))
    beside = [sentence(path) for sentence, path in read if path]
    faults, seed = chosen.faults or list(FAULTS), chosen.seed or random.SystemRandom().randrange(1 << 30)
    begun, failed = time.monotonic(), list[str]()
    if chosen.seconds > 0:
        run = Run(seed=seed, lanes=chosen.lanes, build=build(), day=today())
        with tempfile.TemporaryDirectory(prefix="fc-campaign-") as directory:
            campaign = Campaign(faults, chosen.trials, begun + chosen.seconds, Path(directory), run, chosen.result)
            asyncio.run(_all(campaign, chosen.lanes, seed, chosen.store))
        run.took_s, failed = time.monotonic() - begun, campaign.failed
        untried = [one for one in faults if one not in campaign.tried]
        run.missing = [*(f"{one} (no lane here could, or the time was over)" for one in untried), *_MISSING]
        print(f"seed {seed}", *failed, *campaign.troubles[:20], sep="\n", file=sys.stderr)
        if chosen.result:
            run.write(chosen.result)
        runs.append(run)
    written = with_part(_PAGE.read_text(), chosen.part, runs) if chosen.part else page(runs, *beside)
    if not chosen.no_page:
        _PAGE.write_text(written)
    print(written)
    return 1 if failed or any(run.second or any(trial.wrong for trial in run.trials) for run in runs) else 0
