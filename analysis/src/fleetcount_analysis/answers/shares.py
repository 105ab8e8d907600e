"""What a reader believes of the share of a group that has a value, from its noised numbers ([INF] Theorem 2).

It must not decide. The model is that of `metering`: the size x of the group is any number, each as likely, the share of
the value is beforehand Beta, and the person is any device of the group. What is believed is E[y/x | numbers].
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetcount_analysis.answers.metering import share_prior
from fleetcount_analysis.channels import AnySum

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LOG_TAIL: Final = 28.0
"""Counts with a probability below 1e-12 under the noise are omitted."""
OUTWARD: Final = 1e-9
"""Added to a posterior: more than rounding and omitted tails."""
COARSE: Final = 1e-3
"""Added to a posterior if counts are taken in steps: more than the measured effect of the steps."""
_MOST_STEPS: Final = 1024
_GROWTH: Final = 32
"""By a step a count grows by at most a 32nd, so that what falls like 1/y between two steps is added up to 1e-4."""

Number = tuple[int, AnySum]
"""A noised number, and the law of its noise."""


class Counts(NamedTuple):
    """Some counts, int64 ascending, the log of how many each stands for, and whether all are there."""

    counts: Integers
    log_widths: Floats
    exact: bool

    @property
    def span(self) -> int:
        """How far the last is from the first."""
        return int(self.counts[-1] - self.counts[0])


def counts_between(low: int, high: int) -> Counts:
    """Return the counts from low to high that are not negative: all of them, or steps where these are many.

    Small counts are all there, since a share that is mostly 0 beforehand makes 0 far likelier than 1: steps grow with
    the count, to a 1,024th of all. A count stands for those half way to its neighbours.
    """
    low, high = max(0, low), max(0, high)
    widest = 1 + (high - low) // _MOST_STEPS
    if widest == 1:
        counts = np.arange(low, high + 1, dtype=np.int64)
        return Counts(counts, np.zeros(counts.size), exact=True)
    found = [low]
    while found[-1] < high:
        found.append(min(high, found[-1] + min(widest, max(1, found[-1] // _GROWTH))))
    counts = np.array(found, dtype=np.int64)
    ends = np.concatenate(([low - 0.5], (counts[1:] + counts[:-1]) / 2, [high + 0.5]))
    return Counts(counts, np.asarray(np.log(np.diff(ends)), dtype=np.float64), exact=False)


def reached(numbers: Sequence[Number]) -> tuple[int, int]:
    """Return the smallest and the largest count, at least 0, behind all of these numbers of one count."""
    spans = [(seen, law.reach_of(LOG_TAIL)) for seen, law in numbers]
    low = max(0, *(seen - reach for seen, reach in spans))
    return low, max(low, min(seen + reach for seen, reach in spans))


def log_masses(numbers: Sequence[Number], counts: Integers) -> Floats:
    """Return the log probability that these counts give all of the numbers, float64 of the same shape."""
    found = np.zeros(counts.shape)
    for seen, law in numbers:
        found = found + law.log_mass(seen - counts)
    return found


def mean_share(x: Integers, y: Integers, evidence: Floats, prior: float, weight: int, *, exact: bool) -> float | None:
    """Return E[y/x | numbers], rounded up; None if the group is empty, 1 if no counts can have given the numbers.

    `x` and `y` are counts of the group and of those with the value, `evidence` the log probability of the numbers given
    both, plus the log of how many counts each stands for, broadcast. `prior` is the share's mean, above 0 and below 1,
    `weight` the devices that it counts for. `exact` says whether all counts are there.
    """
    belief = np.where(x > 0, share_prior(x, y, prior, weight), -np.inf) + evidence
    top = float(belief.max())
    if top == -np.inf:
        return 1.0 if np.any(x > 0) else None
    mass = np.exp(belief - top)
    share = float(np.sum(mass * np.minimum(y / np.maximum(x, 1), 1)) / mass.sum())
    return min(1.0, share + (OUTWARD if exact else COARSE))
