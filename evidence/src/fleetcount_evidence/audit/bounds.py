"""Lower bounds on a loss from counts of outcomes: an event chosen on one half of the trials, judged on the other.

It uses counts only, never the law of the audited mechanism.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

CONFIDENCE: Final = 0.999
_ERROR: Final = (1 - CONFIDENCE) / 4
"""Error probability of each single bound.

An attack's bound on a loss uses one probability's bound from below and one from above, in either of two directions:
four bounds, whose errors add up to 0.1 %.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A proved lower bound on a loss (an epsilon, or a delta): wrong with probability below 0.1 %.

    `pair` is the index of the attacked pair of truths; `hits` and `trials` are the number of times that the event
    occurred, and of trials, under each truth of the pair.
    """

    bound: float
    pair: int
    hits: tuple[int, int]
    trials: tuple[int, int]


def clopper_pearson(hits: Integers, trials: int) -> tuple[Floats, Floats]:
    """Return exact lower and upper bounds of probabilities, each wrong with probability at most 0.00025.

    `hits` is (n,), integers 0..trials; both results are (n,) float64. Clopper and Pearson's interval, by the beta law.
    """
    low = np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1), trials - hits + 1.0, _ERROR))
    high = np.where(hits == trials, 1.0, betaincinv(hits + 1.0, np.maximum(trials - hits, 1), 1 - _ERROR))
    return low, high


def strongest_attack(counts: Integers, pairs: Sequence[tuple[int, int]], *, delta: float | None) -> Attack:
    """Return the lower bound on eps at this delta, or on delta at eps = 0 where `delta` is None.

    `counts` is (2, T, outcomes), integers: how often each outcome occurred, for each half of the trials and each of T
    truths. Events are single outcomes, and unions of the outcomes whose estimated likelihood ratio is above a
    threshold. Pair and event are chosen on the first half and judged on the second: the choice would bias its own half.

    Raises:
        ValueError: `pairs` is empty.
    """
    choosing, judging = counts
    best: tuple[float, int, NDArray[np.bool_]] | None = None
    for place, (one, other) in enumerate(pairs):
        for event in _events(choosing[one], choosing[other], delta):
            value = float(_bound(choosing, (one, other), event, delta))
            if best is None or value > best[0]:
                best = value, place, event
    if best is None:
        raise ValueError("an attack needs at least one pair of neighbouring truths")
    _, place, event = best
    one, other = pairs[place]
    hits = int(judging[one][event].sum()), int(judging[other][event].sum())
    trials = int(judging[one].sum()), int(judging[other].sum())
    bound = _bound(judging, (one, other), event, delta)
    return Attack(bound=float(bound), pair=place, hits=hits, trials=trials)


def _events(one: Integers, other: Integers, delta: float | None) -> list[NDArray[np.bool_]]:
    """Return the best union of outcomes by likelihood ratio and the best single outcome, as masks."""
    trials = int(one.sum()), int(other.sum())
    order = np.argsort(-(one + 0.5) / (other + 0.5), kind="stable")
    union = _best(np.cumsum(one[order]), np.cumsum(other[order]), trials, delta)
    single = _best(one, other, trials, delta)
    places = np.arange(len(one))
    return [np.isin(places, order[: union + 1]), places == single]


def _best(one: Integers, other: Integers, trials: tuple[int, int], delta: float | None) -> int:
    return int(np.argmax(_proved(one, other, trials, delta)))


def _bound(counts: Integers, pair: tuple[int, int], event: NDArray[np.bool_], delta: float | None) -> float:
    one, other = (counts[truth] for truth in pair)
    hits = np.array([one[event].sum()]), np.array([other[event].sum()])
    return float(_proved(*hits, (int(one.sum()), int(other.sum())), delta)[0])


def _proved(one: Integers, other: Integers, trials: tuple[int, int], delta: float | None) -> Floats:
    """Return the loss proved by each event's hits: ln((low - delta)/high) for eps, low - high for delta at eps = 0.

    `low` is a lower bound of the event's probability under one truth, `high` an upper bound under the other.
    """
    low, high = clopper_pearson(one, trials[0])[0], clopper_pearson(other, trials[1])[1]
    if delta is None:
        return np.asarray(np.maximum(low - high, 0.0))
    return np.asarray(np.log(np.maximum((low - delta) / high, 1.0)))
