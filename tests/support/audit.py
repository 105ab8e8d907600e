"""A privacy audit: lower bounds on a loss from many outputs, and the test that links a sampler to its law.

It knows outputs and counts only, never a formula of the mechanism it audits.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.999
LEAST_EXPECTED = 5

Counts = npt.NDArray[np.int64]
Law = Mapping[Hashable, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What an adversary sees of two neighbouring databases, and the loss claimed for it.

    A view without a finite eps claims a delta instead. `one_sided` claims Pr[first] <= e^eps Pr[second] only.
    `samplers` draw the same outputs with the real code; `tight` says that the claim is the exact loss of the two laws.
    """

    name: str
    first: Law
    second: Law
    claim: float
    delta: float = 0.0
    one_sided: bool = False
    tight: bool = True
    samplers: tuple[Callable[[int], Iterable[Hashable]], ...] = ()


def law_loss(first: Law, second: Law) -> float:
    """Return ln of the largest ratio first/second of two laws, inf when an output of the first is new to the second."""
    largest = max(
        float("inf") if second.get(output, 0) == 0 else float(mass / second[output])
        for output, mass in first.items()
        if mass > 0
    )
    return float(np.log(largest))


def draw_codes(law: Sequence[Fraction], trials: int, rng: np.random.Generator) -> Counts:
    """Draw `trials` positions of a law by comparing 63-bit words with its cumulative sums: exact to 2^-63."""
    cumulative = np.cumsum(np.array(law, dtype=object))
    thresholds = np.array([int(edge * 2**63) for edge in cumulative[:-1]], dtype=np.uint64)
    words = rng.integers(0, 2**63, size=trials, dtype=np.uint64)
    return np.asarray(np.searchsorted(thresholds, words, side="right"), dtype=np.int64)


def histograms(view: View, trials: int, rng: np.random.Generator) -> tuple[Counts, Counts, Counts, Counts]:
    """Return counts of each output: first and second database, each once to choose an event and once to judge it."""
    outputs = sorted(set(view.first) | set(view.second), key=repr)
    laws = [[law.get(output, Fraction(0)) for output in outputs] for law in (view.first, view.second)]
    first, second = (draw_codes(law, 2 * trials, rng) for law in laws)
    size = len(outputs)
    return (
        np.bincount(first[:trials], minlength=size),
        np.bincount(second[:trials], minlength=size),
        np.bincount(first[trials:], minlength=size),
        np.bincount(second[trials:], minlength=size),
    )


def clopper_pearson_low(hits: Counts, trials: int, error: float) -> npt.NDArray[np.float64]:
    """Return the exact lower confidence bound of a probability; wrong with probability at most `error`."""
    return np.where(hits == 0, 0.0, stats.beta.ppf(error, np.maximum(hits, 1), trials - hits + 1))


def clopper_pearson_high(hits: Counts, trials: int, error: float) -> npt.NDArray[np.float64]:
    """Return the exact upper confidence bound of a probability; wrong with probability at most `error`."""
    return np.where(hits == trials, 1.0, stats.beta.ppf(1 - error, hits + 1, np.maximum(trials - hits, 1)))


def epsilon_lower_bound(counts: Sequence[Counts], *, one_sided: bool = False, delta: float = 0.0) -> float:
    """Return a loss that the mechanism surely reaches: wrong with probability at most 1 - CONFIDENCE (0.001).

    An event is chosen on the first two histograms, among the single outputs and the prefixes of the outputs ordered by
    their ratio, and judged by Clopper-Pearson on the last two, which the choice has not seen. Two-sided: the better of
    the two directions, each at half the error.
    """
    first, second, judged_first, judged_second = counts
    error = (1 - CONFIDENCE) / (2 if one_sided else 4)
    bounds = [_one_direction(first, second, judged_first, judged_second, error, delta)]
    if not one_sided:
        bounds.append(_one_direction(second, first, judged_second, judged_first, error, delta))
    return max(bounds)


def _one_direction(
    first: Counts, second: Counts, judged_first: Counts, judged_second: Counts, error: float, delta: float
) -> float:
    events = _candidates(first, second)
    chosen = events[
        int(np.argmax(_log_ratio(events @ first, events @ second, first.sum(), second.sum(), error, delta)))
    ]
    hits = np.array([chosen @ judged_first]), np.array([chosen @ judged_second])
    return float(_log_ratio(*hits, int(judged_first.sum()), int(judged_second.sum()), error, delta)[0])


def _candidates(first: Counts, second: Counts) -> Counts:
    order = np.argsort(-(first + 0.5) / (second + 0.5), kind="stable")
    prefixes = np.zeros((len(order), len(order)), dtype=np.int64)
    for size, _ in enumerate(order, start=1):
        prefixes[size - 1, order[:size]] = 1
    return np.concatenate([prefixes, np.eye(len(order), dtype=np.int64)])


def _log_ratio(
    hits: Counts, other: Counts, trials: int, other_trials: int, error: float, delta: float
) -> npt.NDArray[np.float64]:
    low = clopper_pearson_low(hits, trials, error) - delta
    high = clopper_pearson_high(other, other_trials, error)
    return np.log(np.maximum(low, 1e-300) / high)


def delta_lower_bound(counts: Sequence[Counts], epsilon: float) -> float:
    """Return a delta that the mechanism surely has at this eps: wrong with probability at most 1 - CONFIDENCE."""
    first, second, judged_first, judged_second = counts
    error = (1 - CONFIDENCE) / 2
    events = _candidates(first, second)
    chosen = events[int(np.argmax(events @ first / first.sum() - np.exp(epsilon) * (events @ second) / second.sum()))]
    low = clopper_pearson_low(np.array([chosen @ judged_first]), int(judged_first.sum()), error)
    high = clopper_pearson_high(np.array([chosen @ judged_second]), int(judged_second.sum()), error)
    return float(low[0] - np.exp(epsilon) * high[0])


def chi_square_p(outputs: Iterable[Hashable], law: Law) -> float:
    """Return the p-value of Pearson's test that the outputs follow the law; 0 for an output the law excludes.

    Outputs expected fewer than 5 times are pooled into one cell.
    """
    observed = Counter(outputs)
    trials = observed.total()
    if any(law.get(output, 0) == 0 for output in observed):
        return 0.0
    expected = {output: float(mass) * trials for output, mass in law.items() if mass > 0}
    rare = [output for output, count in expected.items() if count < LEAST_EXPECTED]
    cells = [(observed[output], count) for output, count in expected.items() if count >= LEAST_EXPECTED]
    pooled = (sum(observed[output] for output in rare), sum(expected[output] for output in rare))
    cells += [pooled] if pooled[1] > 0 else []
    if len(cells) < 2:
        return 1.0
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1))
