"""The engines that draw, beside NumPy tossing the same coins plainly: a billion devices by law, ten million one by one,
a coverage study, and a hundred million devices in bounded memory.

Truths are made before the clock starts; a plain NumPy draw is what one writes without an engine: whether a device is
sampled, its face, both answers, both histograms.
"""

import resource
import time
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from fleetcount_simulator.engines import engine
from fleetcount_simulator.model import AnswerSpace, Case, Faults, Integers, Mechanism
from fleetcount_simulator.study.readings import read_releases
from fleetcount_simulator.study.scores import score_releases
from numpy.typing import NDArray
from rows import Row, best_s, quick, report, smoke

LARGE: Mechanism = Mechanism(
    name="large", kind="sampling", sampling_rate=Fraction(1, 10), noise_epsilon=Fraction(2749, 1000)
)
DEVICES = 10**5 if smoke() else 10**6 if quick() else 10**7
SIZE_NOTE = "" if DEVICES == 10**7 else f"quick run: {DEVICES:,} devices one by one instead of 10,000,000"
AIM_LAW_S = 0.005
MUST_STUDY_S, AIM_STUDY_S = 20.0, 2.0


@dataclass(frozen=True)
class Even:
    """Devices spread evenly over 0..V; device i holds a scrambled i modulo V + 1."""

    devices: int
    values: int
    epochs: int = 1

    @cached_property
    def question(self) -> AnswerSpace:
        """V values; a population knows its question, and does not write its labels anew for every release."""
        return AnswerSpace(title="where?", labels=tuple(f"cell {value}" for value in range(1, self.values + 1)))

    def histogram(self, epoch: int) -> Integers:
        """As many of each value as any other, but for the remainder."""
        width = self.values + 1
        return np.full(width, self.devices // width) + (np.arange(width) < self.devices % width)

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.uint16]:
        """See the class; the multiplier is a prime, so that neighbours are far apart."""
        return ((np.arange(start, stop) % (self.values + 1)) * 7919 % (self.values + 1)).astype(np.uint16)

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> None:
        """Everybody always is."""
        return


@dataclass(frozen=True)
class Held(Even):
    """The same, with all truths in memory, so that making them is not what is timed."""

    made: NDArray[np.uint16] = None  # type: ignore[assignment] # always given

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.uint16]:
        """A part of what is held."""
        return self.made[start:stop]


def held(devices: int, values: int) -> Held:
    """Return so many devices with their truths in memory."""
    return Held(devices, values, 1, Even(devices, values).truths(0, 0, devices))


def case(population: Even, faults: Faults | None = None) -> Case:
    """Return a case of one point."""
    return Case(index=0, point={}, population=population, mechanism=LARGE, faults=faults or Faults())


def seed() -> np.random.SeedSequence:
    """Return the seed of every run."""
    return np.random.SeedSequence(1, spawn_key=(0, 0))


def plain_numpy(truths: NDArray[np.uint16], values: int, generator: np.random.Generator) -> Integers:
    """Return the difference of the rounds of Sampling Privacy, as one would write it."""
    sampled = generator.random(truths.size) < 0.1
    face = generator.integers(0, values + 1, truths.size)
    first, second = np.where(sampled, 0, face), np.where(sampled, truths, face)
    return (np.bincount(second, minlength=values + 1) - np.bincount(first, minlength=values + 1))[1:]


def measure_plain(values: int) -> float:
    """Return the seconds NumPy takes for `DEVICES` devices, scaled to ten million."""
    truths, generator = held(DEVICES, values).made, np.random.default_rng(1)
    return best_s(lambda: plain_numpy(truths, values, generator), 4.0) * 10**7 / DEVICES


def law_row() -> Row:
    """Return a release of a billion devices by its law."""
    one, law = case(Even(10**9, 5835)), engine("exact-law")
    peer = measure_plain(5835)
    ours = best_s(lambda: law.run(one, 0, [0], seed()))
    return Row(
        path="exact law: a release of 10^9 devices, V = 5,835",
        ours=ours * 1000,
        unit="ms",
        peer="NumPy, 10^7 devices, both rounds, ms",
        peer_value=peer * 1000,
        ratio=peer / ours,
        must=100,
        aim=peer / AIM_LAW_S,
        note=("the aim is 5 ms; " + SIZE_NOTE).strip("; "),
    )


def device_row() -> Row:
    """Return a release of ten million devices, each followed."""
    one, devices = case(held(DEVICES, 1000)), engine("per-device")
    devices.run(case(held(1000, 1000)), 0, [0], seed())  # Loads the compiled loops.
    peer = measure_plain(1000)
    ours = best_s(lambda: devices.run(one, 0, [0], seed()), 2.0) * 10**7 / DEVICES
    return Row(
        path="per device: 10^7 devices, V = 1,000, both rounds",
        ours=ours * 1000,
        unit="ms",
        peer="NumPy, the same, ms",
        peer_value=peer * 1000,
        ratio=peer / ours,
        must=2.5,
        aim=5,
        note=SIZE_NOTE,
    )


def faulty_row() -> Row:
    """Return the same with every fault of a device."""
    tenth = Fraction(1, 10)
    faults = Faults(loss=tenth, drop_out=tenth, late=tenth, duplicates=tenth, clock_skew_s=Fraction(30))
    one, devices = case(held(DEVICES, 1000), faults), engine("per-device")
    devices.run(case(held(1000, 1000), faults), 0, [0], seed())
    ours = best_s(lambda: devices.run(one, 0, [0], seed()), 2.0) * 10**7 / DEVICES
    return Row(path="per device: the same with every fault at once", ours=ours * 1000, unit="ms", note=SIZE_NOTE)


def study_row() -> Row:
    """Return a coverage study: a thousand releases, their estimates, intervals and scores."""
    runs = range(100 if smoke() else 1000)
    population = Even(10**7, 100)
    one, law = case(population), engine("exact-law")
    start = time.perf_counter()
    outcome = law.run(one, 0, runs, seed())
    scores = score_releases(read_releases(one, outcome), outcome, population.histogram(0)[1:], 0, runs)
    ours = time.perf_counter() - start
    covered = float(np.mean(scores["coverage"]))
    return Row(
        path=f"coverage study: {len(runs):,} releases of 10^7 devices, V = 100",
        ours=ours,
        unit="s",
        peer="limit, s",
        peer_value=MUST_STUDY_S,
        ratio=ours / MUST_STUDY_S,
        must=1.0,
        aim=AIM_STUDY_S / MUST_STUDY_S,
        larger_is_better=False,
        note=f"with estimates, intervals and scores; {100 * covered:.2f} % covered",
    )


def memory_row() -> Row:
    """Return the memory that following 10^8 devices adds to the process; their truths are made chunk by chunk."""
    number = 10 * DEVICES
    devices = engine("per-device")
    devices.run(case(Even(10**6, 1000)), 0, [0], seed())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    devices.run(case(Even(number, 1000)), 0, [0], seed())
    seconds = time.perf_counter() - start
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return Row(
        path=f"per device: what {number:,} devices add to the peak of memory",
        ours=more,
        unit="MiB",
        note=f"{seconds:.1f} s, truths made included",
    )


def main() -> None:
    """Print every row; memory first, while the peak of this process is still low."""
    for measured in (memory_row, law_row, device_row, faulty_row, study_row):
        report(measured())


if __name__ == "__main__":
    main()
