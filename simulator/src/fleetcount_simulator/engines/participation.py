"""Who takes part in an epoch: devices that are on, that have joined, and whose own ledger still allows an answer.

It reads the population and counts; it must not draw.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from fleetcount_mechanisms.accounting.charges import ledger_budget, units_vector
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.statement import ledger_loss_of
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, Integers
from fleetcount_simulator.standing import StandingQuestion, membership_windows

ON: Final = 0
"""The device is there for every round."""
HALF: Final = 1
"""It is off in round two."""
ABSENT: Final = 2
"""It is off in round one, has not yet joined the question, or has left it."""
REFUSED: Final = 3
"""Its ledger has no room for one more answer, or none for the rest of the question."""

Presence = NDArray[np.uint8]
_CHUNK: Final = 1 << 20


def answers_allowed(case: Case) -> int | None:
    """Return how many releases a device's ledger allows in all when it judges each alone; None for no limit.

    Losses add up (basic composition). As in a real ledger, a release without a finite loss adds nothing, so
    the budget does not limit how many of those a device answers. A question is reserved whole: `earliest_joining`.

    Raises:
        ScenarioError: the loss holds with a delta above 0 only, and basic composition adds up losses of delta 0.
    """
    budget = case.epochs.device_epsilon
    if budget is None or case.epochs.question is not None:
        return None
    charged = ledger_loss_of(case.design)
    loss, delta = charged.epsilon, charged.delta
    if delta:
        raise ScenarioError(
            f"epochs.device_epsilon adds up losses of delta 0; {case.mechanism.name!r} loses {loss} at delta {delta:f}"
        )
    return None if loss is None or loss == 0 else int(budget // Fraction(loss))


def earliest_joining(case: Case) -> int:
    """Return the first window from which on the rest of the question fits into a device's ledger; 0 without a limit.

    The ledger is the filter of real devices (`fleetcount_mechanisms.accounting.vectors`) over one period: it allows
    (device_epsilon, the question's delta), and charges a device that joins within a unit for the windows left of it.

    Raises:
        ScenarioError: the design has no finite loss.
    """
    question, budget = case.epochs.question, case.epochs.device_epsilon
    if question is None or budget is None:
        return 0
    return _earliest(case.design, question, budget)


@lru_cache(maxsize=64)
def _earliest(design: Design, question: StandingQuestion, budget: Fraction) -> int:
    low, high = 0, question.windows
    try:
        limit = ledger_budget(design, [(Counter(question.shape.units),)], budget, question.delta)
        # Bisection: the later a device joins, the less the rest costs. `high` is past the last window: it never joins.
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if limit.fits(_rest(design, question, middle, limit.orders)) else (middle + 1, high)
            )
    except MechanismError as error:
        raise ScenarioError(f"question.device_epsilon: {error}") from error
    return low


def _rest(design: Design, question: StandingQuestion, first: int, orders: tuple[int, ...]) -> LossVector:
    """Return the loss of the windows from `first` to the last together."""
    left = Counter(Counter(question.unit(window) for window in range(first, question.windows)).values())
    return units_vector(design, orders, left)


def presence(case: Case, epoch: int, rounds: int, start: int, stop: int) -> Presence | None:
    """Return ON, HALF, ABSENT or REFUSED for devices start..stop-1; None when all of them are ON.

    A device pays for every epoch in whose first round it was on, counted or not. In a question it pays on joining, for
    all windows that are left, and so its ledger never stops it half way.
    """
    allowed, earliest = answers_allowed(case), earliest_joining(case)
    question = case.epochs.question
    is_plain = question is None or not question.changes
    if not case.faults.ignition and is_plain:
        spent = earliest > 0 or (allowed is not None and epoch >= allowed)
        return np.full(stop - start, REFUSED, dtype=np.uint8) if spent else None
    states = np.full(stop - start, ON, dtype=np.uint8)
    population, ignition = case.population, case.faults.ignition
    second = population.reachable(epoch, 2, start, stop) if ignition and rounds == 2 else None
    if second is not None:
        states[~second] = HALF
    if allowed is not None and epoch >= allowed:
        states[_answered_before(case, epoch, start, stop) >= allowed] = REFUSED
    if question is not None:
        came, gone = membership_windows(question, start, stop)
        states[came < earliest] = REFUSED
        states[(epoch < came) | (epoch >= gone)] = ABSENT
    first = population.reachable(epoch, 1, start, stop) if ignition else None
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


def states_and_values(case: Case, epoch: int, rounds: int) -> Iterator[tuple[Integers, int]]:
    """Yield (held + (H+1) * state of every device, number of the first device), 2^20 devices at a time.

    A device holds a value or a reading, 0..H.
    """
    population, width = case.population, case.population.question.held + 1
    for start in range(0, population.devices, _CHUNK):
        stop = min(start + _CHUNK, population.devices)
        found = population.truths(epoch, start, stop).astype(np.int64)
        states = presence(case, epoch, rounds, start, stop)
        if states is not None:
            found += width * states.astype(np.int64)
        yield found, start


def presence_histograms(case: Case, epoch: int, rounds: int) -> Integers:
    """Return shape (4, H+1): how many devices are ON, HALF, ABSENT and REFUSED, by what they hold.

    O(H) where all devices are alike; O(devices) with ignition, or with devices that join and leave.
    """
    population, width = case.population, case.population.question.held + 1
    question = case.epochs.question
    if not case.faults.ignition and (question is None or not question.changes):
        counts = np.zeros((4, width), dtype=np.int64)
        state = presence(case, epoch, rounds, 0, 1)
        counts[ON if state is None else int(state[0])] = population.histogram(epoch)
        return counts
    flat = np.zeros(4 * width, dtype=np.int64)
    for index, _ in states_and_values(case, epoch, rounds):
        flat += np.bincount(index, minlength=4 * width)
    return flat.reshape(4, width)
