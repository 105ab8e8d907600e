"""What a window of a series over a single task of its shape costs a device, from the offer to the last receipt.

One device on a told clock answers the windows of one series, and as many single tasks one after the other, each on
offer by itself; aggregators are in this process, and their time is taken off. Least of several passes; decides nothing.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.policy import JoinRule
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.messages import Instalment, Receipt, Refusal
from fleetcount_protocol.series.fields import Schedule
from fleetcount_protocol.task.domain import SquareGrid
from fleetcount_protocol.task.task import SignedTask, Task
from rows import Row, quick, report, smoke

from tests.client.deployment import START, Deployment, open_policy

WINDOWS = 3 if smoke() else 40 if quick() else 120
PASSES = 1 if smoke() else 3
MUST, AIM = 1.05, 0.8
"""The project's own, of the ratio."""
EVERY_S = 300
CELLS = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=37, rows=27)  # V = 999, L = 1,000.
SHAPE = {"domain": CELLS, "mechanism": SamplingDie.uniform(Fraction(1, 10), CELLS.values)}
POLICY = open_policy(
    largest_local_epsilon=Fraction(16), total_epsilon=Fraction(700), largest_expected_answers=Fraction(10_000)
)


class TimedAggregators(MemoryTransport):
    """Aggregators in this process, whose CPU seconds are added up."""

    cpu_s = 0.0

    async def open_sessions(self, *arguments: Any) -> Any:
        """See `MemoryTransport`."""
        begun = time.process_time()
        try:
            return await super().open_sessions(*arguments)
        finally:
            self.cpu_s += time.process_time() - begun

    async def upload(
        self, task: Task, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """See `MemoryTransport`."""
        begun = time.process_time()
        try:
            return await super().upload(task, position, instalments)
        finally:
            self.cpu_s += time.process_time() - begun


def of_windows(directory: Path) -> float:
    """Return the CPU seconds of a device that answers every window of a series."""
    world = Deployment()
    schedule = Schedule(
        first=START + 600, every_s=EVERY_S, windows=WINDOWS, round_one_s=100, round_two_s=100, expiry_s=1000
    )
    world.offers = [world.offer(world.series(schedule=schedule, **SHAPE))]
    return _answered_s(world, directory / "series.db", [()])


def of_tasks(directory: Path) -> float:
    """Return the CPU seconds of a device that answers as many single tasks, one after the other."""
    world = Deployment()
    tasks = []
    for number in range(WINDOWS):
        opens = START + 600 + number * EVERY_S
        times = {"round_one_opens": opens, "round_one_closes": opens + 100, "round_two_closes": opens + 200}
        release = replace(world.task().release, noise_epsilon=Fraction(1, 2))
        task = world.task(name=f"task {number}", expiry=opens + 1000, release=release, **times, **SHAPE)
        tasks.append((world.sign(task),))
    return _answered_s(world, directory / "tasks.db", tasks)


def _answered_s(world: Deployment, state_file: Path, offers: Sequence[tuple[SignedTask, ...]]) -> float:
    transport = TimedAggregators((), world.intakes, lambda: tuple(world.offers), world.releases)
    position = (4321.0, 1234.0)
    device = world.device(state_file, transport, truth=position, policy=POLICY, join=JoinRule.AUTO)

    async def answer() -> list[Outcome]:
        ended = []
        for one in offers:
            transport._tasks = one
            ended.append(await device.answer())
        return list(itertools.chain(*ended))

    begun = time.process_time()
    outcomes = asyncio.run(answer())
    taken_s = time.process_time() - begun - transport.cpu_s
    delivered = sum(one.kind is OutcomeKind.DELIVERED for one in outcomes)
    if delivered != WINDOWS:
        raise AssertionError(f"{delivered} of {WINDOWS} answers delivered: {outcomes[-1:]}")
    return taken_s


def main() -> None:
    """Report the row."""
    windows, tasks = [], []
    for _ in range(PASSES):
        with tempfile.TemporaryDirectory() as directory:
            tasks.append(of_tasks(Path(directory)))
            windows.append(of_windows(Path(directory)))
    ours, peer = (1e3 * min(taken) / WINDOWS for taken in (windows, tasks))
    report(
        Row(
            path="device: a window of a series over a single task, from offer to receipt, L = 1,000, k = 2",
            ours=ours,
            unit="ms",
            peer="a single task of the same shape",
            peer_value=peer,
            ratio=ours / peer,
            must=MUST,
            aim=AIM,
            larger_is_better=False,
            note=f"pure Python, CPU of the device, no fsync; the mean of {WINDOWS}, least of {PASSES} passes",
        )
    )


if __name__ == "__main__":
    main()
