"""How the CPU an answer costs grows: from one fleet to the next, and with other questions open at both aggregators.

    .venv/bin/python benchmarks/answer_growth.py --fleets 1000,5000,20000
    .venv/bin/python benchmarks/answer_growth.py --fleets 1000,3000 --open-questions 10000

Asks fleets of the demo (72 cells, sampling, two aggregators, shared gRPC connections) and divides what the larger of
two fleets took more by the vehicles it has more: what starting takes is in both and falls out. CPU is read from /proc
by what processes are, from the moment at which aggregators that have started have nothing left to do; what they take a
second after that, before anybody asks, is taken off.

With `--open-questions` both stores hold so many questions before the aggregators start, each of one window that takes
answers all day and gets none; each fleet is asked with and without them, in turns, and all windows are as long as those
of the first run. An aggregator has at most 16,384 questions (`MAX_QUESTIONS`), the fleet's own among them. Writing
1,000 into both stores takes half a minute, and an aggregator starts 5 to 10 s later for each 1,000.
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench_lifecycle import open_many, seat_of
from compare_answers import AGGREGATORS, Cost, answer_ms, by_kind
from fleetcount.show.demo_question import DemoOptions, question_of
from fleetcount_aggregator.verification.compile_ahead import compile_ahead
from fleetcount_protocol.limits import MAX_QUESTIONS
from fleetcount_simulator.network.children import Children
from fleetcount_simulator.network.parties import Parties
from fleetcount_simulator.network.plan import faultless_plan
from fleetcount_simulator.network.run import Ask, ask_question
from fleetcount_simulator.network.windows import Windows
from fleetcount_transport.logs import configure
from meter import Below

LIMIT: Final = 1.1
"""An answer costs at most so many times as much as with fewer vehicles, or without the other questions."""
PARTIES: Final = ("aggregator", "device")
_LOOK_S: Final = 2.0
_AT_REST: Final = 0.15
"""Of a core, both aggregators together: they still read, decide or hand over what was stored while they take more."""
_SETTLING_S: Final = 600
_RESTING_S: Final = 15


@dataclass(frozen=True)
class Asked:
    """One run: what it cost after the aggregators were at rest, and the windows it had."""

    cost: Cost
    windows: Windows


def demo_of(vehicles: int) -> DemoOptions:
    """Return the options of the demo with shared gRPC connections."""
    return DemoOptions(
        vehicles=vehicles,
        aggregators=AGGREGATORS,
        transport="grpc",
        mode="sampling",
        epsilon=None,
        sampling_rate=None,
        truths=None,
        yes=None,
        output=Path("out"),
        seed=1,
        insecure_coins=False,
        connections="shared",
        keep=False,
    )


async def ask(directory: Path, vehicles: int, questions: int, windows: Windows | None) -> Asked:
    """Ask a fleet at aggregators that have so many other questions open; `windows` None: as long as it needs."""
    wanted = question_of(demo_of(vehicles))
    plan = faultless_plan(wanted.scenario.domain, wanted.scenario.readings, wanted.walk)
    used: list[Windows] = []

    def shape(needed: Windows, _: float) -> Windows:
        used.append(windows or needed)
        return used[-1]

    asked = Ask(
        name=wanted.scenario.name,
        question=wanted.network,
        transports=("grpc",),
        connections="shared",
        shape=shape,
        progress=lambda *_: None,
    )
    (directory / "logs").mkdir()
    async with Children(directory / "logs") as children:
        parties = Parties(children, directory)
        try:
            parties.write("bench", AGGREGATORS)
            opens = int(time.time()) - 10
            for position in range(AGGREGATORS):
                await open_many(seat_of(parties.deployment, position), opens, questions)
            with Below(os.getpid()) as below:
                for position in range(AGGREGATORS):
                    await parties.start(position)
                for position in range(AGGREGATORS):
                    await parties.ready(position)
                before = await at_rest(below)
                started = time.perf_counter()
                await asyncio.sleep(_RESTING_S)
                resting = Cost(time.perf_counter() - started, by_kind(below.seen.values()))
                await ask_question(parties, asked, plan, directory)
                wall_s = time.perf_counter() - started
        finally:
            await parties.close()
    return Asked(beyond(before, resting, Cost(wall_s, by_kind(below.seen.values()))), used[0])


def beyond(before: dict[str, float], resting: Cost, whole: Cost) -> Cost:
    """Return what a run took beyond what its processes take when nobody asks anything, which goes by the second.

    `before` are CPU seconds of each kind when they came to rest; `resting` and `whole` are what each had taken some
    seconds later and at the end, and how long after that moment these were.
    """
    rates = {kind: (resting.cpu_s[kind] - before[kind]) / resting.wall_s for kind in before}
    cpu_s = {kind: whole.cpu_s[kind] - before[kind] - rates[kind] * whole.wall_s for kind in before}
    return Cost(whole.wall_s - resting.wall_s, cpu_s)


async def at_rest(below: Below) -> dict[str, float]:
    """Wait until the aggregators have nothing left to do; return the CPU seconds of each kind until then.

    Raises:
        SystemExit: they still work after ten minutes.
    """
    until, before = time.monotonic() + _SETTLING_S, by_kind(below.seen.values())
    while time.monotonic() < until:
        await asyncio.sleep(_LOOK_S)
        now = by_kind(below.seen.values())
        if now["aggregator"] - before["aggregator"] < _AT_REST * _LOOK_S:
            return now
        before = now
    raise SystemExit(f"the aggregators are not at rest after {_SETTLING_S} s")


def least(costs: Sequence[Cost]) -> Cost:
    """Return the least CPU of each kind of process in several runs of the same: other work only makes it dearer."""
    return Cost(
        min(one.wall_s for one in costs),
        {kind: min(one.cpu_s[kind] for one in costs) for kind in costs[0].cpu_s},
    )


def growth(found: Mapping[tuple[int, int], Cost]) -> list[str]:
    """Return the rows of a table of costs, by (open questions, vehicles).

    First what an answer costs between each fleet and the next larger one, then how many times as much as between the
    two before, and with open questions how many times as much as without.
    """
    fleets = sorted({vehicles for _, vehicles in found})
    by_pair = {
        (questions, pair): answer_ms(found[questions, pair[0]], found[questions, pair[1]], pair)
        for questions in sorted({questions for questions, _ in found})
        for pair in pairwise(fleets)
    }
    rows = [f"{said(*key):58} {one['aggregator']:10.2f} {one['device']:10.2f}" for key, one in by_pair.items()]
    for (questions, pair), one in by_pair.items():
        smaller = [key for key in by_pair if key[0] == questions and key[1][1] == pair[0]]
        without = [key for key in by_pair if key[0] < questions and key[1] == pair]
        for base in (*smaller, *without):
            times = {party: one[party] / by_pair[base][party] for party in PARTIES}
            over = "" if max(times.values()) <= LIMIT else f"  above {LIMIT}"
            rows.append(
                f"{f'{said(questions, pair)}, times that of {said(*base)}':58}"
                f" {times['aggregator']:10.2f} {times['device']:10.2f}{over}"
            )
    return rows


def said(questions: int, pair: tuple[int, int]) -> str:
    """Return the name of a row: from how many vehicles to how many, and the other questions that are open."""
    return f"{pair[0]:,} to {pair[1]:,} vehicles" + (f", {questions:,} questions open" if questions else "")


def options() -> argparse.Namespace:
    """Return what is asked for on the command line; `fleets` as ascending numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fleets", default="1000,5000,20000", help="vehicles, fewest first (1000,5000,20000)")
    parser.add_argument("--open-questions", type=int, default=0, help=f"others, at most {MAX_QUESTIONS - 1} (none)")
    parser.add_argument("--runs", type=int, default=1, help="of which the least counts (1)")
    asked = parser.parse_args()
    asked.fleets = [int(one) for one in asked.fleets.split(",")]
    if len(asked.fleets) < 2 or asked.fleets != sorted(set(asked.fleets)):
        parser.error(f"--fleets is {asked.fleets}, allowed: two or more numbers, the fewest first")
    if not 0 <= asked.open_questions < MAX_QUESTIONS:
        parser.error(f"--open-questions is {asked.open_questions}, allowed: 0 to {MAX_QUESTIONS - 1}")
    return asked


def main() -> None:
    """Print the rows, after one line for each run."""
    configure("error")  # Else this process says of every question that it was taken up.
    # As an interrupt does, the end of this process ends the aggregators and devices.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = options()
    asyncio.run(compile_ahead())  # Else the first run does, for longer than many answers take.
    numbers = sorted({0, asked.open_questions})
    windows: Windows | None = None
    costs: dict[tuple[int, int], list[Cost]] = {}
    for _ in range(asked.runs):
        for vehicles in reversed(asked.fleets):
            for questions in numbers:
                with tempfile.TemporaryDirectory() as place:
                    one = asyncio.run(ask(Path(place), vehicles, questions, windows))
                if asked.open_questions:
                    windows = windows or one.windows
                costs.setdefault((questions, vehicles), []).append(one.cost)
                print(
                    f"{vehicles:,} vehicles, {questions:,} questions open: aggregators"
                    f" {one.cost.cpu_s['aggregator']:.2f} s, devices {one.cost.cpu_s['device']:.2f} s of CPU in"
                    f" {one.cost.wall_s:.0f} s, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    print(f"{'CPU an answer, ms':58} {'aggregator':>10} {'device':>10}")
    print("\n".join(growth({key: least(each) for key, each in costs.items()})))


if __name__ == "__main__":
    main()
