"""Reading of a one-sided release: the cells that are certainly safe, the unknown ones, and the expected yield.

It must not turn "not known" into a claim: only one of the two answers is certain.

AGeo noise has one sign ([ADP] section V). Noise >= 0 ("up"): an output z <= t proves count <= t, so
"safe" is never wrong. Noise <= 0 ("down"): z >= t proves count >= t, so "reached" is never wrong. With k aggregators
the noise is negative binomial: P[noise <= m] = sum over i <= m of C(i+k-1, i) (1-q)^k q^i, q = exp(-epsilon).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import scipy
from fleetcount_mechanisms.asymmetric import approximate_detection
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.channels import whole_outputs
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.estimates import Direction

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ANSWERS: Final = {"up": ("safe", "not known"), "down": ("reached", "not known")}


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSidedMap:
    """The proven answers of a one-sided release, cell by cell.

    `proven` is True for the certain answer; `thresholds` are in devices, int64; both have one entry for each cell.
    """

    proven: NDArray[np.bool_]
    thresholds: Integers
    direction: Direction

    @property
    def answers(self) -> list[str]:
        """The answer of every cell: "safe" (or "reached"), or "not known"."""
        certain, unknown = _ANSWERS[self.direction]
        return [certain if proof else unknown for proof in self.proven]


def one_sided_map(outputs: Sequence[int], thresholds: ArrayLike, direction: Direction = "up") -> OneSidedMap:
    """Return the cells for which one-sided noise proves count <= t ("up") or count >= t ("down").

    `thresholds` is one number, or one for each cell.

    Raises:
        ShapeError: the thresholds are neither one whole number nor one for each cell.
        RangeError: the direction is neither "up" nor "down".
    """
    _check_direction(direction)
    values = whole_outputs(outputs)
    limits = _per_cell(thresholds, values)
    proven = values <= limits if direction == "up" else values >= limits
    return OneSidedMap(proven=proven, thresholds=limits, direction=direction)


def found_probabilities(
    counts: ArrayLike, thresholds: ArrayLike, epsilon: Fraction, aggregators: int = 1, direction: Direction = "up"
) -> Floats:
    """Return, for every true count, the probability of its certain answer, float64: 0 where the answer would be false.

    One noise: 1 - e^{-epsilon (t+1-f)}, the optimum ([ADP] Prop IV.7 at alpha = 0). k noises: the negative binomial cdf
    I_{1-q}(k, m+1) with m = t - f ("up") or f - t ("down").

    Raises:
        RangeError: epsilon is not positive, no aggregator, or a negative count.
        ShapeError: the thresholds are neither one whole number nor one for each count.
    """
    _check_direction(direction)
    if epsilon <= 0 or aggregators < 1:
        allowed = "epsilon above 0, aggregators 1 or more"
        raise RangeError("(epsilon, aggregators)", f"({epsilon}, {aggregators})", allowed)
    truth = _checked_counts(counts)
    slack = _per_cell(thresholds, truth) - truth
    slack = slack if direction == "up" else -slack
    keep = -np.expm1(-float(epsilon))
    found = scipy.special.betainc(aggregators, np.maximum(slack, 0) + 1, keep)
    return np.asarray(np.where(slack >= 0, found, 0.0), dtype=np.float64)


def competitor_probabilities(counts: ArrayLike, thresholds: ArrayLike, epsilon: Fraction, delta: Fraction) -> Floats:
    """Return the largest probability of a "safe" that is never false, of any (epsilon, delta)-DP mechanism, by count.

    The tight recursion of `fleetcount_mechanisms.asymmetric` over t+1-f steps.

    Raises:
        RangeError: a negative count.
        ShapeError: the thresholds are neither one whole number nor one for each count.
        MechanismError: epsilon or delta outside their ranges.
    """
    truth = _checked_counts(counts)
    steps = np.maximum(_per_cell(thresholds, truth) + 1 - truth, 0)
    different, place = np.unique(steps, return_inverse=True)
    reached = [approximate_detection(epsilon, delta, int(step)) if step else 0.0 for step in different]
    return np.asarray(np.array(reached, dtype=np.float64)[place], dtype=np.float64).reshape(truth.shape)


def expected_yield(
    counts: ArrayLike, thresholds: ArrayLike, epsilon: Fraction, aggregators: int = 1, direction: Direction = "up"
) -> float:
    """Return the expected number of cells with their certain answer ([ADP]: 5,031.14 for the paper's city).

    Raises:
        RangeError, ShapeError: as `found_probabilities`.
    """
    return float(np.sum(found_probabilities(counts, thresholds, epsilon, aggregators, direction)))


def _check_direction(direction: str) -> None:
    if direction not in _ANSWERS:
        raise RangeError("direction", direction, '"up" (noise >= 0) or "down" (noise <= 0)')


def _checked_counts(counts: ArrayLike) -> Integers:
    values = np.asarray(counts)
    if values.size and (values.dtype.kind not in "iu" or int(values.min()) < 0):
        raise RangeError("counts", f"{values.dtype} from {values.min()}", "whole numbers from 0")
    return values.astype(np.int64)


def _per_cell(thresholds: ArrayLike, cells: Integers) -> Integers:
    limits = np.asarray(thresholds)
    if limits.dtype.kind not in "iu" or limits.shape not in {(), cells.shape}:
        raise ShapeError(
            f"thresholds are {limits.dtype} of shape {limits.shape}; allowed is one whole number, or one a cell "
            f"{cells.shape}"
        )
    return np.broadcast_to(limits.astype(np.int64), cells.shape).copy()
