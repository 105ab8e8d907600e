"""A population that is a histogram: devices of equal truth are stored as a count, for any number of devices.

Memory and time are O(V). It does not change, so it can be asked any number of times. It must not read data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.cells.model import value_type
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers

MAX_DEVICES: Final = 10**12
ANY_NUMBER_OF_TIMES: Final = 2**31 - 1
"""The epochs of a population that does not change."""


def shared_out(weights: Sequence[int] | Sequence[Fraction], total: int) -> Integers:
    """Return whole numbers that sum to `total`, in proportion to `weights`: the largest remainders are rounded up.

    Shape (weights,), int64. Of equal remainders the first are rounded up. Exact, in integers. `weights` are not
    negative and not all zero.
    """
    whole = sum(weights)
    exact = [weight * total for weight in weights]
    shares = [int(share // whole) for share in exact]
    rests = [share - quota * whole for share, quota in zip(exact, shares, strict=True)]
    order = sorted(range(len(rests)), key=lambda place: (-rests[place], place))
    for place in order[: total - sum(shares)]:
        shares[place] += 1
    return np.array(shares, dtype=np.int64)


def check_range(start: int, stop: int, devices: int) -> None:
    """Refuse a range of devices that does not exist.

    Raises:
        ScenarioError: not 0 <= start <= stop <= devices.
    """
    if not 0 <= start <= stop <= devices:
        raise ScenarioError(f"devices {start} to {stop} do not exist; there are {devices}")


def block_of(ends: Integers, start: int, stop: int) -> NDArray[Any]:
    """Return the values of devices start..stop-1 when devices are sorted by their values.

    `ends[v]` is the number of devices with a value up to v.
    """
    bounded = np.clip(ends, start, stop)
    counts = np.diff(bounded, prepend=start)
    return np.repeat(np.arange(len(ends), dtype=value_type(len(ends) - 1)), counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedPopulation:
    """Counts of devices per value; devices are sorted by their values, those without a value first."""

    question: AnswerSpace
    counts: Integers = field(repr=False)
    _ends: Integers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum(self.counts))

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return int(self._ends[-1])

    @property
    def epochs(self) -> int:
        """`ANY_NUMBER_OF_TIMES`."""
        return ANY_NUMBER_OF_TIMES

    def histogram(self, epoch: int) -> Integers:
        """Return shape (V+1,): how many devices hold each value."""
        return self.counts

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[Any]:
        """Return the values of devices start..stop-1.

        Raises:
            ScenarioError: devices that do not exist.
        """
        check_range(start, stop, self.devices)
        return block_of(self._ends, start, stop)

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> None:
        """Return None: every device is always on."""


def fixed(
    question: AnswerSpace, elsewhere: int, counts: Sequence[int], devices: int | None, key: str
) -> FixedPopulation:
    """Return a population of `elsewhere` devices without a value and `counts` with each, scaled to `devices`.

    Raises:
        ScenarioError: fewer than 2 or more than 10^12 devices, naming `key`.
    """
    total = elsewhere + sum(counts)
    if total == 0:
        raise ScenarioError(f"{key}: every count is 0")
    if not 2 <= (devices or total) <= MAX_DEVICES:
        raise ScenarioError(f"{key}: {total} devices in all; it must be 2 to {MAX_DEVICES}")
    everyone = [elsewhere, *counts]
    return FixedPopulation(question=question, counts=shared_out(everyone, devices or total))
