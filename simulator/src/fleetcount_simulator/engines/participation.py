"""Who takes part in an epoch: devices that are on, and whose own ledger still allows an answer.

It reads the population and counts; it must not draw.
"""

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, Integers

__all__ = [
    "ABSENT",
    "HALF",
    "ON",
    "REFUSED",
    "Presence",
    "answers_allowed",
    "presence",
    "presence_histograms",
]

ON: Final = 0
"""The device is there for every round."""
HALF: Final = 1
"""It is off in round two."""
ABSENT: Final = 2
"""It is off in round one."""
REFUSED: Final = 3
"""Its ledger has no room for one more answer."""

Presence = NDArray[np.uint8]
_CHUNK: Final = 1 << 20


def answers_allowed(case: Case) -> int | None:
    """Return how many releases a device's ledger allows in all; None for no limit.

    Losses add up (basic composition). As in a real ledger, a release without a finite loss adds nothing, so
    the budget does not limit how many of those a device answers.

    Raises:
        ScenarioError: a loss that holds with a delta only, which such a ledger must not add up.
    """
    budget = case.epochs.device_epsilon
    if budget is None:
        return None
    loss, delta = case.design.ledger_loss.epsilon, case.design.ledger_loss.delta
    if delta:
        raise ScenarioError(
            f"epochs.device_epsilon adds up losses of delta 0; {case.mechanism.name!r} loses {loss} at delta {delta:f}"
        )
    return None if loss is None or loss == 0 else int(budget // Fraction(loss))


def presence(case: Case, epoch: int, rounds: int, start: int, stop: int) -> Presence | None:
    """Return ON, HALF, ABSENT or REFUSED for devices start..stop-1; None when all of them are ON.

    A device is charged for every epoch in whose first round it was on, counted or not.
    """
    allowed = answers_allowed(case)
    if not case.faults.ignition:
        spent = allowed is not None and epoch >= allowed
        return np.full(stop - start, REFUSED, dtype=np.uint8) if spent else None
    population = case.population
    first = population.reachable(epoch, 1, start, stop)
    second = population.reachable(epoch, 2, start, stop) if rounds == 2 else None
    states = np.full(stop - start, ON, dtype=np.uint8)
    if second is not None:
        states[~second] = HALF
    if allowed is not None and epoch >= allowed:
        states[_answered_before(case, epoch, start, stop) >= allowed] = REFUSED
    if first is not None:
        states[~first] = ABSENT
    return states


def _answered_before(case: Case, epoch: int, start: int, stop: int) -> Integers:
    """Return in how many epochs before this one each device was on in round one."""
    answered = np.zeros(stop - start, dtype=np.int64)
    for earlier in range(epoch):
        reached = case.population.reachable(earlier, 1, start, stop)
        answered += 1 if reached is None else reached
    return answered


def presence_histograms(case: Case, epoch: int, rounds: int) -> Integers:
    """Return shape (4, V+1): how many devices are ON, HALF, ABSENT and REFUSED, by their values.

    O(V) without ignition; with it every device is looked at once, a million at a time.
    """
    population, width = case.population, case.population.question.values + 1
    if not case.faults.ignition:
        counts = np.zeros((4, width), dtype=np.int64)
        state = presence(case, epoch, rounds, 0, 1)
        counts[ON if state is None else int(state[0])] = population.histogram(epoch)
        return counts
    flat = np.zeros(4 * width, dtype=np.int64)
    for start in range(0, population.devices, _CHUNK):
        stop = min(start + _CHUNK, population.devices)
        truths = population.truths(epoch, start, stop).astype(np.int64)
        states = presence(case, epoch, rounds, start, stop)
        flat += np.bincount(truths if states is None else truths + width * states.astype(np.int64), minlength=4 * width)
    return flat.reshape(4, width)
