"""What a window of a question over a question of one such window costs a device, from the offer to the last receipt.

One device on a told clock answers the windows of one question, and as many questions of one window one after the other,
each on offer by itself; aggregators are in this process, and their time is taken off. Least of several passes; it
decides nothing.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from fleetcount_client.contact import Outcome, OutcomeKind
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.policy import JoinRule
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.messages import Instalment, QuestionOffer, Receipt, Refusal
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Release, ReleaseKind
from fleetcount_protocol.window.window import Window
from rows import Row, quick, report, smoke

from tests.client.deployment import START, Deployment, open_policy

WINDOWS = 3 if smoke() else 40 if quick() else 120
PASSES = 1 if smoke() else 3
MUST, AIM = 1.05, 0.8
"""The project's own, of the ratio."""
EVERY_S = 300
CELLS = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=37, rows=27)  # V = 999, L = 1,000.
SHAPE = {"domain": CELLS, "mechanism": SamplingDie.uniform(Fraction(1, 10), CELLS.values)}
RELEASE = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20))
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
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """See `MemoryTransport`."""
        begun = time.process_time()
        try:
            return await super().upload(window, position, instalments)
        finally:
            self.cpu_s += time.process_time() - begun


def of_windows(directory: Path) -> float:
    """Return the CPU seconds of a device that answers every window of a question."""
    world = Deployment()
    schedule = Schedule(
        first=START + 600, every_s=EVERY_S, windows=WINDOWS, round_one_s=100, round_two_s=100, expiry_s=1000
    )
    return _answered_s(world, directory / "question.db", [[world.offer(world.question(schedule=schedule, **SHAPE))]])


def of_questions(directory: Path) -> float:
    """Return the CPU seconds of a device that answers as many questions of one window, one after the other."""
    world = Deployment()
    asked = [
        world.offer(world.once(START + 600 + number * EVERY_S, name=f"question {number}", release=RELEASE, **SHAPE))
        for number in range(WINDOWS)
    ]
    return _answered_s(world, directory / "questions.db", [[one] for one in asked])


def _answered_s(world: Deployment, state_file: Path, offers: Sequence[list[QuestionOffer]]) -> float:
    transport = TimedAggregators(world.intakes, lambda: tuple(world.offers), world.releases)
    position = (4321.0, 1234.0)
    device = world.device(state_file, transport, truth=position, policy=POLICY, join=JoinRule.AUTO)

    async def answer() -> list[Outcome]:
        ended = []
        for one in offers:
            world.offers = one
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
    windows, questions = [], []
    for _ in range(PASSES):
        with tempfile.TemporaryDirectory() as directory:
            questions.append(of_questions(Path(directory)))
            windows.append(of_windows(Path(directory)))
    ours, peer = (1e3 * min(taken) / WINDOWS for taken in (windows, questions))
    report(
        Row(
            path="device: a window of a question over a question of one, from offer to receipt, L = 1,000, k = 2",
            ours=ours,
            unit="ms",
            peer="a question of one such window",
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
