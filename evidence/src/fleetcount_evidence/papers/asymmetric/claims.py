"""Computes the claims of [ADP]; claims.toml has the claims.

Every number of ours comes from the mechanisms, by enumeration, or from a linear program; the module contains no result.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from fleetcount_analysis.one_sided import found_probabilities
from fleetcount_mechanisms.asymmetric import (
    Direction,
    approximate_detection,
    expected_safe_answers,
    optimal_detection,
    simulation_only_safe_detection,
)
from fleetcount_mechanisms.sparse_vector import Mark, sanitized_law
from scipy import integrate, optimize

from fleetcount_evidence.papers.asymmetric.optimum import add_optimality
from fleetcount_evidence.papers.asymmetric.osdp import approximate_dp_delta_required, dp_epsilon_required
from fleetcount_evidence.papers.asymmetric.policies import (
    Intersection,
    Monotonicity,
    OrPolicy,
    exact_loss_ratio,
    find_boolean_policy,
    monotonicity,
    place_policy,
    vector_place_policy,
    worst_case_risk,
)
from fleetcount_evidence.papers.asymmetric.theorems import TRIPS, Q, Trip, add_theorems, noisy_visits, visits
from fleetcount_evidence.papers.asymmetric.yields import all_found
from fleetcount_evidence.papers.catalogue import Catalogue
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.results import Results, Settings

ONE: Final = Fraction(1)
DELTA: Final = Fraction(1, 10**4)
City = Mapping[int, int]


def add_claims(extracts: Extracts, settings: Settings, results: Results) -> None:
    """State every claim of the paper with our result."""
    catalogue = Catalogue.load("asymmetric")
    _insufficiency(catalogue)
    _definitions(catalogue)
    _noise(catalogue)
    _policies(catalogue)
    add_theorems(catalogue)
    add_optimality(catalogue, settings)
    _figure_two(catalogue, extracts.city())
    _figure_four(catalogue, extracts.city())
    _figure_five(catalogue, extracts.city())
    results.claims.extend(catalogue.finished())


def expected_answers(city: City, threshold: int, detection: Callable[[int], float]) -> float:
    """Return the expected number of safe locations found.

    `detection(k)` is the probability of finding a location that is k = t + 1 - f steps from unsafe.
    """
    return math.fsum(places * detection(threshold + 1 - count) for count, places in city.items() if count <= threshold)


def _insufficiency(catalogue: Catalogue) -> None:
    needed = dp_epsilon_required(1e-4, 0.5, 1)
    delta, two = (approximate_dp_delta_required(1.0, 0.0, 0.5, steps) for steps in (3, 2))
    without = [approximate_detection(epsilon * ONE, Fraction(0), 1) for epsilon in (1, 10, 100)]
    printed = float(DELTA) * math.fsum(math.exp(i) for i in range(6))
    catalogue.number("ADP-III-A-epsilon", needed)
    catalogue.fact("ADP-III-A-alpha-zero", without, holds=not any(without))
    catalogue.number("ADP-III-B-delta", delta, two=two)
    catalogue.number("ADP-I-A-large-delta", delta)
    catalogue.number("ADP-III-B-bound", approximate_detection(ONE, DELTA, 6), paper=printed)


# Definitions and mechanisms, by enumeration.


@dataclass(frozen=True)
class _Printed:
    """Definition IV.1 as printed: p(x) and not p(x'), with p = "did not visit A"."""

    def protects(self, record: Trip, replacement: Trip) -> bool:
        return "A" not in record and "A" in replacement


def _definitions(catalogue: Catalogue) -> None:
    up = noisy_visits(Direction.DECREASING)
    printed = exact_loss_ratio(up, _Printed(), TRIPS, 2)
    meant = exact_loss_ratio(up, place_policy("A"), TRIPS, 2)
    mangat = {True: {1: Fraction(1)}, False: {1: Q, 0: 1 - Q}}
    leak = worst_case_risk(mangat, lambda visited: not visited)
    kept = worst_case_risk(mangat, lambda visited: visited)
    ours = f"printed: {_ratio(printed)}; meant: {_ratio(meant)}"
    catalogue.fact("ADP-IV.1-neighbours", ours, holds=printed == 1 / Q)
    catalogue.fact("ADP-IV.3-leak", "unbounded" if leak is None else float(leak), holds=leak is None)
    catalogue.number("ADP-IV.4-protected", math.inf if kept is None else kept)


def _ratio(loss_ratio: Fraction | None) -> str:
    return "unbounded" if loss_ratio is None else f"e^eps = {loss_ratio} at q = {Q}"


def _noise(catalogue: Catalogue) -> None:
    down = exact_loss_ratio(noisy_visits(Direction.INCREASING), place_policy("A"), TRIPS, 2)
    up = exact_loss_ratio(noisy_visits(Direction.DECREASING), place_policy("A"), TRIPS, 2)
    as_printed, with_minus = (_integral(_exponential(sign), 10) for sign in (1, -1))
    one_sided = _integral(_mean_of_exponential, math.inf)
    # The density of Laplace noise is 1/2 e^-|x|: both halves add up to the mean of |x|.
    laplace = 2 * _integral(_half_mean_of_laplace, math.inf)
    ours = f"noise <= 0: {_ratio(down)}; noise >= 0: {_ratio(up)}"
    catalogue.fact("ADP-V.3-sign", ours, holds=down == 1 / Q)
    catalogue.number("ADP-V.3-density", as_printed, with_minus=with_minus)
    catalogue.number("ADP-V.5-mean", one_sided)
    catalogue.number("ADP-V-A3-laplace", laplace)


def _exponential(sign: int) -> Callable[[float], float]:
    """Return the sum of both halves of the density 1/2 e^(sign |x|), a function of x >= 0."""

    def density(noise: float) -> float:
        return math.exp(sign * noise)

    return density


def _mean_of_exponential(noise: float) -> float:
    return noise * math.exp(-noise)


def _half_mean_of_laplace(noise: float) -> float:
    return noise * math.exp(-noise) / 2


def _integral(function: Callable[[float], float], end: float) -> float:
    return float(integrate.quad(function, 0, end)[0])


def _policies(catalogue: Catalogue) -> None:
    places = ("A", "B")

    def counts(database: tuple[Trip, ...]) -> tuple[int, int]:
        return visits(database, "A"), visits(database, "B")

    def law(database: tuple[Trip, ...]) -> Mapping[tuple[int | Mark, ...], Fraction]:
        return sanitized_law(Q, 2, counts(database), (1, 1))

    vector = vector_place_policy(places)
    either = OrPolicy(may_leak=vector.may_leak)
    moves = {name: monotonicity(counts, policy, TRIPS, 2) for name, policy in (("or", either), ("v", vector))}
    named = {name: ", ".join(move.value for move in found) for name, found in moves.items()}
    both = Intersection(parts=tuple(place_policy(place) for place in places))
    single = find_boolean_policy(both, TRIPS)
    loss = exact_loss_ratio(law, vector, TRIPS, 2)
    decreasing = all(move is Monotonicity.DECREASING for move in moves["or"])
    catalogue.number("ADP-V.7-salap", math.inf if loss is None else loss)
    catalogue.fact("ADP-VI-A3-or", named["or"], holds=decreasing, vector=named["v"])
    catalogue.fact("ADP-VIII.6-sum", single is not None, holds=single is not None)


# The city.


def _figure_two(catalogue: Catalogue, city: City) -> None:
    locations, users = sum(city.values()), sum(count * places for count, places in city.items())
    safe = sum(places for count, places in city.items() if count <= 2)
    found = round(expected_safe_answers(city, 2, ONE))
    few, many = (_competitor(2, safe, found, users, locations, sign) for sign in (1, -1))
    five = _competitor(5, safe, found, users, locations, 1)
    catalogue.number("ADP-Fig2-locations", [locations, users])
    catalogue.number("ADP-Fig2-answers", expected_safe_answers(city, 2, ONE))
    catalogue.measured("ADP-Fig2-approximate", max(_apart(4, few), -_apart(4, many)), ours=[few, many])
    catalogue.measured("ADP-VI-B1-threshold", _apart(4, five), ours=five)
    pure, approximate = (
        expected_answers(city, 5, _approximate(delta, Fraction(1, 1000))) for delta in (Fraction(0), DELTA)
    )
    catalogue.measured("ADP-Fig3-pure", approximate / pure, ours=[pure, approximate])


def _apart(seen: int, expected: float) -> float:
    """Return by how many standard deviations a count is below its expectation, at its largest possible variance.

    A sum of independent indicators has a variance of at most its expectation.
    """
    return (expected - seen) / math.sqrt(expected)


def _competitor(threshold: int, safe: int, found: int, users: int, locations: int, sign: int) -> float:
    """Return the least (sign 1) or largest (-1) number of answers expected of (1, 0.0001)-DP in a city of these totals.

    The numbers of safe locations with 0, ..., t visitors are unknown. Known are their sum, the number of answers that
    ADP finds (to half an answer), and the largest number of visitors of safe locations: each of the other locations
    has at least t + 1 of the users.
    """
    steps = [threshold + 1 - count for count in range(threshold + 1)]
    detection = np.array([optimal_detection(ONE, k) for k in steps])
    competitor = np.array([approximate_detection(ONE, DELTA, k) for k in steps])
    left = users - (locations - safe) * (threshold + 1)
    solved = optimize.linprog(
        sign * competitor,
        A_ub=np.array([detection, -detection, np.arange(threshold + 1)]),
        b_ub=np.array([found + 0.5, 0.5 - found, left]),
        A_eq=np.ones((1, threshold + 1)),
        b_eq=[safe],
        method="highs",
    )
    return float(sign * solved.fun) if solved.success else math.nan


def _approximate(delta: Fraction, alpha: Fraction) -> Callable[[int], float]:
    """Return the probability that the best (1, delta)-DP mechanism finds a location k steps from unsafe, by k."""
    return lambda steps: approximate_detection(ONE, delta, steps, alpha)


def _mean(city: City, threshold: int, detection: Callable[[int], float]) -> float:
    return expected_answers(city, threshold, detection) / sum(p for count, p in city.items() if count <= threshold)


def _figure_four(catalogue: Catalogue, city: City) -> None:
    def integer(steps: int) -> float:
        return optimal_detection(ONE, steps)

    def continuous(steps: int) -> float:
        return simulation_only_safe_detection(1.0, steps)

    thousandth, hundredth = Fraction(1, 1000), Fraction(1, 100)
    locations, safe = 5_835, 5_343  # Figure 2 as printed; safe is "fewer than 3".
    at_one = _mean(city, 1, _approximate(DELTA, thousandth))
    by_alpha = [_mean(city, 5, _approximate(DELTA, hundredth)), _mean(city, 5, integer)]
    by_delta = [_mean(city, 5, _approximate(Fraction(1, 10), thousandth)), _mean(city, 5, integer)]
    share = 0.4 / simulation_only_safe_detection(1.0, 2)
    catalogue.number("ADP-Fig4-t1", _mean(city, 1, continuous), integer=_mean(city, 1, integer), share=share)
    catalogue.number("ADP-Fig4-t1-approximate", at_one)
    catalogue.measured("ADP-Fig4-alpha", by_alpha[0] / by_alpha[1], ours=by_alpha)
    catalogue.number("ADP-Fig4-fifty", hundredth * (locations - safe), unsafe=locations - safe)
    catalogue.measured("ADP-Fig4-delta", by_delta[0] / by_delta[1], ours=by_delta)


def _figure_five(catalogue: Catalogue, city: City) -> None:
    """State the claims about the sparse vector over the city in a random order."""
    counts = np.repeat(list(city), list(city.values()))

    def laws(threshold: int, epsilon: Fraction, depth: int) -> list[float]:
        return [float(p) for p in all_found(found_probabilities(counts, threshold, epsilon), depth)]

    ten = laws(5, ONE, 10)
    together = 10 * float(found_probabilities(counts, 5, ONE / 10).mean())
    means = [math.fsum(laws(t, eps, 200)[1:]) for t, eps in ((5, ONE), (5, ONE / 2), (2, ONE))]
    catalogue.number("ADP-Fig5-ten", ten[-1])
    catalogue.number("ADP-Fig5-one", together, salap=math.fsum(ten[1:]))
    catalogue.measured("ADP-Fig6-small", max(means[1:]) / means[0], ours=means)
