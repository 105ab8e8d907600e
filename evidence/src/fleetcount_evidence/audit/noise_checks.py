"""Whether aggregators' noise follows its law and is independent: across cells, releases, aggregators and restarts.

The laws are written out here once more, on purpose: a check must not take the expected law from the tested code.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, OneSidedNoise
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_simulator.study.processes import carry_out
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtr

from fleetcount_evidence.audit.questions import AuditedDesign, counted_of
from fleetcount_evidence.audit.releases import draw_releases

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

LEAST_P_VALUE: Final = 1e-20
"""Least p-value that passes: the right law practically never falls below; 1.05 times its scale does at 10^6 draws."""
_LEAST_EXPECTED: Final = 5
_REACH: Final = 2
_RELEASES: Final = 1000
"""Number of releases drawn one by one, with one call each, as an aggregator does."""
_CELLS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one test, which correct code passes: its p-value is not below `LEAST_P_VALUE`."""

    name: str
    p_value: float
    draws: int

    @property
    def passed(self) -> bool:
        """Whether the p-value is high enough."""
        return self.p_value >= LEAST_P_VALUE


def mass_of(law: NoiseLaw, values: Integers) -> Floats:
    """Return P[Z = z] for each z of `values`, float64 of the same shape.

    Two-sided: (1-a)/(1+a) a^|z|; one-sided: (1-a) a^|z| on its side; a = exp(-epsilon). Gaussian: exp(-z^2/(2s)) over
    the sum of all such terms. Without noise: 1 at 0.
    """
    if isinstance(law, GaussianNoise):
        twice = 2 * float(law.variance)
        end = math.ceil(math.sqrt(30 * twice)) + 1
        return np.asarray(np.exp(-(values**2) / twice) / np.exp(-(np.arange(-end, end + 1) ** 2) / twice).sum())
    if law.epsilon is None:
        return np.asarray(values == 0, dtype=np.float64)
    epsilon = float(law.epsilon)
    if isinstance(law, OneSidedNoise):
        sizes = values if law.direction == "up" else -values
        return np.where(sizes >= 0, -math.expm1(-epsilon) * np.exp(-epsilon * np.abs(sizes)), 0.0)
    return np.asarray(math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(values)))


def law_p(drawn: Integers, law: NoiseLaw) -> float:
    """Return the p-value of Pearson's test that draws follow the law; values expected below 5 times are pooled."""
    edge = 0
    while len(drawn) * mass_of(law, np.array([edge, -edge])).max() >= _LEAST_EXPECTED and edge < 10_000:
        edge += 1
    inner = np.arange(-edge + 1, edge)
    probabilities = mass_of(law, inner)
    observed = np.bincount(np.clip(drawn, -edge, edge) + edge, minlength=2 * edge + 1)
    cells = np.append(observed[1:-1], observed[0] + observed[-1])
    return _chi_square_p(cells, np.append(probabilities, max(1 - probabilities.sum(), 0.0)))


def independence_p(first: Integers, second: Integers, law: NoiseLaw) -> float:
    """Return the p-value of Pearson's test that pairs of draws, cut to -2..2, follow the product of their laws."""
    inner = mass_of(law, np.arange(-_REACH + 1, _REACH))
    tails = [_tail(law, -1), _tail(law, 1)]
    one = np.concatenate([tails[:1], inner, tails[1:]])
    side = 2 * _REACH + 1
    codes = (np.clip(first, -_REACH, _REACH) + _REACH) * side + np.clip(second, -_REACH, _REACH) + _REACH
    return _chi_square_p(np.bincount(codes, minlength=side**2), np.outer(one, one).ravel())


def _tail(law: NoiseLaw, sign: int) -> float:
    return float(mass_of(law, sign * np.arange(_REACH, 4000)).sum())


def _chi_square_p(observed: Integers, probabilities: Floats) -> float:
    possible, expected = probabilities > 0, probabilities * observed.sum()
    if observed[~possible].any():
        return 0.0
    frequent = possible & (expected >= _LEAST_EXPECTED)
    rare = possible & ~frequent
    seen, wanted = observed[frequent].astype(np.float64), expected[frequent]
    if expected[rare].sum() >= _LEAST_EXPECTED:
        seen, wanted = np.append(seen, observed[rare].sum()), np.append(wanted, expected[rare].sum())
    return float(chdtrc(len(wanted) - 1, ((seen - wanted) ** 2 / wanted).sum())) if len(wanted) > 1 else 1.0


# The checks of one law of noise.


def check_noise(law: NoiseLaw, draws: int, restarted: Sequence[list[int]]) -> list[Check]:
    """Return the checks of the aggregators' noise: its law over `draws` draws, and its independence.

    `restarted` are the draws of this law by two processes, one started after the other (`draws_after_restarts`).
    """
    noise = SystemNoise(SystemRandom())
    many = np.array(noise.draw(law, draws), dtype=np.int64)
    one = np.array([noise.draw(law, _CELLS) for _ in range(_RELEASES)], dtype=np.int64)
    other = np.array([SystemNoise(SystemRandom()).draw(law, _CELLS) for _ in range(_RELEASES)], dtype=np.int64)
    before, after = (np.array(drawn, dtype=np.int64) for drawn in restarted)
    pairs = {
        "cells of one release": (one[:, :-1], one[:, 1:]),
        "cells drawn in one call": (many[:-1], many[1:]),
        "releases": (one[:-1], one[1:]),
        "aggregators": (one, other),
        "restarts": (before, after),
    }
    title = ", ".join([law.name, *(f"{name} {float(value):.4f}" for name, value in law.parameters.items())])
    checks = [Check(name=f"{title}: law", p_value=law_p(many, law), draws=draws)]
    for name, (first, second) in pairs.items():
        p_value = independence_p(first.ravel(), second.ravel(), law)
        checks.append(Check(name=f"{title}: independent across {name}", p_value=p_value, draws=first.size))
    return checks


def draws_after_restarts(laws: Sequence[NoiseLaw]) -> list[tuple[list[int], ...]]:
    """Return, for each law, the draws of an aggregator's noise in two processes, one started after the other."""
    drawn: list[list[list[int]]] = []
    for _ in range(2):
        drawn += [result for _, result in carry_out(_drawn, [tuple(laws)], workers=1)]
    return list(zip(*drawn, strict=True))


def _drawn(laws: Sequence[NoiseLaw]) -> list[list[int]]:
    noise = SystemNoise(SystemRandom())
    return [noise.draw(law, _CELLS * _RELEASES) for law in laws]


# The reading of releases.


def check_reading(question: AuditedDesign, releases: int) -> Check:
    """Return the check that the estimates of records are right on average, for every truth of the one device.

    Tests the mean of `releases` estimates against the truth by the normal law, with Bonferroni's correction over cells
    and truths.
    """
    p_values = [
        2 * ndtr(-abs(score))
        for truth in question.truths
        for score in _scores(np.array(_estimates(question, truth, releases)), counted_of(question.design, truth))
    ]
    design = question.design
    name = f"{question.label}, V = {design.values}, k = {design.aggregators}: estimates right on average"
    worst = min(1.0, len(p_values) * float(min(p_values)))
    return Check(name=name, p_value=worst, draws=releases * len(question.truths))


def _estimates(question: AuditedDesign, truth: Sequence[int], releases: int) -> list[list[float]]:
    # Imported here: it is half of the time that a worker process needs to start, and workers read no release.
    from fleetcount_analysis.reading import exact_estimates

    opened = draw_releases(question, tuple(truth), releases).opened.tolist()
    return [[float(cell) for cell in exact_estimates(question.design, row)] for row in opened]


def _scores(estimates: Floats, truth: Sequence[int]) -> Floats:
    error = np.maximum(estimates.std(axis=0) / math.sqrt(len(estimates)), 1e-9)
    return np.asarray((estimates.mean(axis=0) - np.array(truth)) / error)
