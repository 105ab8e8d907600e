"""Small fleets for tests of engines and attackers: a population held in arrays, and cases of every kind of mechanism.

Knows the model alone; a population of a billion devices here has a histogram and no devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from fleetcount_mechanisms.responses import Flips
from fleetcount_simulator.model import AnswerSpace, Attacker, Case, Epochs, Faults, Integers, Mechanism, Population
from numpy.typing import NDArray

SAMPLING = Mechanism(name="sampling", kind="sampling", sampling_rate=Fraction(3, 10))
RESPONSES = (
    Mechanism(name="two-coin", kind="two-coin", epsilon_local=Fraction(1)),
    Mechanism(name="warner", kind="warner", epsilon_local=Fraction(1)),
    Mechanism(name="mangat", kind="mangat", epsilon_local=Fraction(1)),
)
K_ARY = Mechanism(name="k-ary", kind="k-ary", epsilon_local=Fraction(3, 2))
BITS = (
    Mechanism(name="mangat-vector", kind="mangat-vector", epsilon_local=Fraction(1)),
    Mechanism(name="unary", kind="unary", epsilon_local=Fraction(1)),
)
ASYMMETRIC = Mechanism(
    name="asymmetric", kind="asymmetric", epsilon_local=Fraction(1), flips=(Flips.UP, Flips.DOWN, Flips.BOTH)
)
DIRECT = Mechanism(name="direct", kind="direct", noise_epsilon=Fraction(1))
ONE_SIDED = Mechanism(name="one-sided", kind="one-sided", noise_epsilon=Fraction(1), direction="up")


@dataclass(frozen=True, eq=False)
class Held:
    """Devices whose truths, and whose being on, are given: `values` is (epochs, devices), `on` (epochs, 2, devices)."""

    values: NDArray[np.uint16]
    largest: int
    on: NDArray[np.bool_] | None = None

    @property
    def question(self) -> AnswerSpace:
        return _question(self.largest)

    @property
    def devices(self) -> int:
        return self.values.shape[1]

    @property
    def epochs(self) -> int:
        return self.values.shape[0]

    def histogram(self, epoch: int) -> Integers:
        return np.bincount(self.values[epoch], minlength=self.largest + 1).astype(np.int64)

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.uint16]:
        return self.values[epoch, start:stop]

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> NDArray[np.bool_] | None:
        return None if self.on is None else self.on[epoch, round_number - 1, start:stop]


@dataclass(frozen=True, eq=False)
class Counted:
    """A histogram and nothing else: whoever asks for a single device fails."""

    counts: Sequence[int]
    epochs: int = 1
    _asked: list[str] = field(default_factory=list)

    @property
    def question(self) -> AnswerSpace:
        return _question(len(self.counts) - 1)

    @property
    def devices(self) -> int:
        return sum(self.counts)

    def histogram(self, epoch: int) -> Integers:
        return np.array(self.counts, dtype=np.int64)

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.int32]:
        raise AssertionError("the law needs no device")

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> None:
        raise AssertionError("the law needs no device")


def _question(values: int) -> AnswerSpace:
    return AnswerSpace(title="where?", labels=tuple(f"cell {value}" for value in range(1, values + 1)))


def fleet(counts: Sequence[int]) -> Held:
    """Return devices in the order of their values, so many of each of 0..V."""
    values = np.repeat(np.arange(len(counts)), counts).astype(np.uint16)
    return Held(values[None, :], len(counts) - 1)


def case(population: Population, mechanism: Mechanism, **more: Any) -> Case:
    """Return a case of one point; any batch is large enough unless said otherwise."""
    settings: dict[str, Any] = {"min_batch_size": 0, "faults": Faults(), "epochs": Epochs(), "attackers": ()}
    return Case(index=0, point={}, population=population, mechanism=mechanism, **(settings | more))


def attacker(kind: Any, **parameters: str) -> Attacker:
    """Return an attacker of that kind."""
    return Attacker(name="mallory", kind=kind, parameters=tuple(parameters.items()))


def seed(number: int = 1) -> np.random.SeedSequence:
    """Return a seed as the experiment gives it: case 0, epoch 0."""
    return np.random.SeedSequence(number, spawn_key=(0, 0))
