"""Small cases for the network engine: devices whose values go round, asked without noise unless a test says so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from fleetcount_protocol.window.domain import Cross, SquareGrid
from fleetcount_simulator.model import AnswerSpace, Case, Mechanism
from numpy.typing import NDArray

EXACT = Mechanism(name="exact", kind="sampling", sampling_rate=Fraction(2, 5))


@dataclass(frozen=True)
class People:
    """Devices whose values go round: device i holds i modulo V + 1."""

    devices: int
    values: int
    off: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    epochs: int = 1
    domain: SquareGrid | Cross | None = None

    @property
    def question(self) -> AnswerSpace:
        labels = tuple(f"place {value}" for value in range(1, self.values + 1))
        return AnswerSpace(title="where?", labels=labels, domain=self.domain)

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.uint16]:
        return (np.arange(start, stop) % (self.values + 1)).astype(np.uint16)

    def histogram(self, epoch: int) -> NDArray[np.int64]:
        return np.bincount(self.truths(epoch, 0, self.devices), minlength=self.values + 1).astype(np.int64)

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> NDArray[np.bool_] | None:
        on = np.ones(self.devices, dtype=np.bool_)
        on[list(self.off.get(round_number, ()))] = False
        return on[start:stop]


def case_of(devices: int = 40, values: int = 3, mechanism: Mechanism = EXACT, **changes: Any) -> Case:
    people = changes.pop("population", People(devices, values))
    return Case(index=0, point={}, population=people, mechanism=mechanism, min_batch_size=2, **changes)
