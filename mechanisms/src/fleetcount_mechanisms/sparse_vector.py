"""Threshold answers in a fixed order, of which only aborts add to the loss: SALap in integers.

A run answers each query with fresh noise until the last abort, and no query after it. It must not reorder queries,
repeat one, or be run twice under one charge.

Notation: q = e^-eps, t_i the threshold and f_i the true count of query i, c the number of aborts allowed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import TypeVar

from fleetcount_mechanisms.asymmetric import asymmetric_row, ratio_above, safe_law
from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_counts, require_open_unit
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.randomness import RandomSource


class Mark(Enum):
    """An answer that is not a number."""

    SAFE = "safe"
    """The noisy count is at most the threshold: with one-sided noise, so is the true count."""
    ABOVE = "above"
    """The noisy count is above the threshold; no number is given."""
    UNANSWERED = "unanswered"
    """The run had ended before this query."""


Answer = int | Mark
NumberT = TypeVar("NumberT", Fraction, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneSidedRun:
    """Queries answered in turn with one-sided noise on each count, up to the c-th answer above its threshold."""

    epsilon: Fraction
    maximum: int
    thresholds: tuple[int, ...]
    aborts: int = 1
    _noise: OneSidedGeometric = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the public parameters and prepare the noise."""
        _require_queries(self.maximum, self.thresholds, self.aborts)
        object.__setattr__(self, "_noise", OneSidedGeometric(self.epsilon))
        object.__setattr__(self, "epsilon", self._noise.epsilon)

    @property
    def total_epsilon(self) -> Fraction:
        """Return the loss of a whole run, c eps."""
        return self.aborts * self.epsilon

    def run(self, counts: Sequence[int], source: RandomSource) -> tuple[Answer, ...]:
        """Answer all queries once, with as much noise drawn for unanswered queries as for answered ones.

        Raises:
            MechanismError: not one count for each threshold, or a count outside 0..n.
        """
        require_counts("counts", counts, len(self.thresholds))
        noisy = _noisy_counts(self._noise, self.maximum, counts, source)
        return read_out(noisy, self.thresholds, self.aborts, self._answer_above)

    @staticmethod
    def _answer_above(noisy_count: int) -> Answer:
        """Return the answer for a noisy count above its threshold: here the number itself."""
        return noisy_count


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitizedSparseVector(_OneSidedRun):
    """SALap in integers: AGeo on each count in turn; SAFE when z <= t_i, else z itself, and the run ends after c such
    numbers.

    (c eps, p)-ADP for any number of queries of p-sensitivity at most 1 each, decreasing along p: SAFE never grows
    likelier when a protected record is put back, so it costs nothing, and each number costs eps. c eps is attained.
    An aggregator runs it on exact counts. The fixed order of the queries is public.

    Source: [ADP] Algorithm 1 and Theorem V.7 (c = 1; its last inequalities should read e^eps), with the noise of Eq 26.

    Raises:
        MechanismError: eps is not an exact number in [10^-6, 100], n or c is below 1, a threshold is not in 0..n-1, or
            there is no threshold.
    """

    def law(self, counts: Sequence[int]) -> dict[tuple[Answer, ...], Fraction]:
        """Return the law of a whole run by enumeration, exact for a rational q within 2^-127 of e^-eps; for small
        cases."""
        return sanitized_law(ratio_above(self.epsilon), self.maximum, counts, self.thresholds, self.aborts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsymmetricSparseVector(_OneSidedRun):
    """The sparse vector of asymmetric privacy: SAFE or ABOVE for each query, ended by the c-th ABOVE; (c eps, p)-ADP.

    It is `SanitizedSparseVector` without the numbers, a post-processing that saves nothing: P[ABOVE] = q^(t+1-f)
    already moves by a factor e^eps a step. Unlike the plain sparse vector it needs no noise on the threshold.

    Raises:
        MechanismError: as for `SanitizedSparseVector`.
    """

    @staticmethod
    def _answer_above(noisy_count: int) -> Answer:
        return Mark.ABOVE

    def law(self, counts: Sequence[int]) -> dict[tuple[Answer, ...], Fraction]:
        """Return the law of a whole run by enumeration, exact for a rational q within 2^-127 of e^-eps."""
        return asymmetric_sparse_law(ratio_above(self.epsilon), counts, self.thresholds, self.aborts)


def sanitized_law(
    ratio: Fraction, maximum: int, counts: Sequence[int], thresholds: Sequence[int], aborts: int = 1
) -> dict[tuple[Answer, ...], Fraction]:
    """Return the exact law of SALap's integer form on these true counts, by enumeration; outcomes of probability 0
    left out.

    Raises:
        MechanismError: q is not in (0, 1), the public parameters are out of range, or a count is outside 0..n.
    """
    _require_queries(maximum, thresholds, aborts)
    require_counts("counts", counts, len(thresholds))
    rows = [asymmetric_row(ratio, count, maximum) for count in counts]
    steps: list[Mapping[Answer, Fraction]] = []
    for row, threshold in zip(rows, thresholds, strict=True):
        numbers: dict[Answer, Fraction] = {z: row[z] for z in range(threshold + 1, maximum + 1)}
        steps.append({Mark.SAFE: sum(row[: threshold + 1], Fraction(0)), **numbers})
    return _enumerate_runs(steps, aborts, Fraction(1))


def asymmetric_sparse_law(
    ratio: Fraction, counts: Sequence[int], thresholds: Sequence[int], aborts: int = 1
) -> dict[tuple[Answer, ...], Fraction]:
    """Return the exact law of `AsymmetricSparseVector` on these true counts, by enumeration.

    Raises:
        MechanismError: q is not in (0, 1), or not one count for each threshold.
    """
    require_open_unit("ratio", ratio)
    require_counts("counts", counts, len(thresholds))
    safe = [safe_law(ratio, count, threshold) for count, threshold in zip(counts, thresholds, strict=True)]
    return two_way_law(safe, require_at_least("aborts", aborts, 1), Fraction(1))


def two_way_law(safe: Sequence[NumberT], aborts: int, one: NumberT) -> dict[tuple[Answer, ...], NumberT]:
    """Return the law of a whole run from the chance that each query alone is called safe; `one` is 1 of that type."""
    steps: list[dict[Answer, NumberT]] = [{Mark.SAFE: p, Mark.ABOVE: one - p} for p in safe]
    return _enumerate_runs(steps, aborts, one)


def _enumerate_runs(
    steps: Sequence[Mapping[Answer, NumberT]], aborts: int, one: NumberT
) -> dict[tuple[Answer, ...], NumberT]:
    runs: dict[tuple[Answer, ...], NumberT] = {(): one}
    for step in steps:
        runs = _extend_runs(runs, step, aborts, one)
    return runs


def _extend_runs(
    runs: Mapping[tuple[Answer, ...], NumberT], step: Mapping[Answer, NumberT], aborts: int, one: NumberT
) -> dict[tuple[Answer, ...], NumberT]:
    unanswered: Mapping[Answer, NumberT] = {Mark.UNANSWERED: one}
    longer: dict[tuple[Answer, ...], NumberT] = {}
    for run, weight in runs.items():
        aborted = sum(answer is not Mark.SAFE for answer in run)
        turn = unanswered if aborted >= aborts else step
        longer.update({_extended(run, answer): weight * mass for answer, mass in turn.items() if mass > 0})
    return longer


def _extended(run: tuple[Answer, ...], answer: Answer) -> tuple[Answer, ...]:
    # A function of its own, because mypy cannot infer the type of this tuple inside the comprehension.
    return (*run, answer)


def _noisy_counts(noise: OneSidedGeometric, maximum: int, counts: Sequence[int], source: RandomSource) -> list[int]:
    for count in counts:
        if type(count) is not int or not 0 <= count <= maximum:
            raise MechanismError(f"a true count must be an int in 0..{maximum} (the value given is withheld)")
    noises = noise.sample_many(source, len(counts))
    return [min(count + drawn, maximum) for count, drawn in zip(counts, noises, strict=True)]


def read_out(
    noisy: Sequence[int], thresholds: Sequence[int], aborts: int, above: Callable[[int], Answer]
) -> tuple[Answer, ...]:
    """Return one answer for each noisy count, in order: SAFE up to its threshold, else the result of `above`.

    After `aborts` answers that are not SAFE all further ones are UNANSWERED.
    """
    answers: list[Answer] = []
    left = aborts
    for value, threshold in zip(noisy, thresholds, strict=True):
        if left == 0:
            answers.append(Mark.UNANSWERED)
        elif value <= threshold:
            answers.append(Mark.SAFE)
        else:
            answers.append(above(value))
            left -= 1
    return tuple(answers)


def _require_queries(maximum: int, thresholds: Sequence[int], aborts: int) -> None:
    require_at_least("maximum", maximum, 1)
    require_at_least("aborts", aborts, 1)
    require_at_least("number of thresholds", len(thresholds), 1)
    for threshold in thresholds:
        if not 0 <= threshold < maximum:
            raise MechanismError(f"threshold is {threshold}, allowed: 0..{maximum - 1} (at n everything is safe)")
