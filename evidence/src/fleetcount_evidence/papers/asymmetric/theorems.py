"""Computes the propositions and theorems of [ADP]; claims.toml has the claims.

Each is enumerated over a few trips to two places, or solved as a linear program over all mechanisms; the module
contains no result.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Final

import numpy as np
from fleetcount_mechanisms.asymmetric import (
    Direction,
    asymmetric_row,
    optimal_detection,
    simulation_only_safe_detection,
)
from numpy.typing import NDArray
from scipy import integrate, optimize

from fleetcount_evidence.papers.asymmetric.osdp import (
    BlowfishPolicy,
    OneSidedPolicy,
    blowfish_revealing_law,
    blowfish_widest_one_sided,
    osdp_required_non_sensitive,
    osdp_revealing_law,
)
from fleetcount_evidence.papers.asymmetric.policies import (
    EverythingProtected,
    Monotonicity,
    OrPolicy,
    Policy,
    databases,
    exact_loss_ratio,
    monotonicity,
    neighbours,
    place_policy,
    sensitivity,
    vector_place_policy,
    worst_case_risk,
)
from fleetcount_evidence.papers.catalogue import Catalogue

ONE: Final = Fraction(1)
Q: Final = Fraction(1, 3)
"""e^-eps of the enumerated laws."""
Trip = frozenset[str]
TRIPS: Final = (frozenset[str](), frozenset("A"), frozenset("B"), frozenset("AB"))
AT_A: Final = place_policy("A")
Database = tuple[Trip, ...]
Floats = NDArray[np.float64]


def add_theorems(catalogue: Catalogue) -> None:
    """State the claims that sections III to V and VIII of [ADP] prove."""
    _necessary_condition(catalogue)
    _blowfish(catalogue)
    _one_sided_privacy(catalogue)
    _beyond(catalogue)
    _detection(catalogue)
    _continuous(catalogue)
    _integer(catalogue)


def visits(database: Database, place: str) -> int:
    """Return the number of trips of a database that visit a place."""
    return sum(place in trip for trip in database)


def noisy_visits(direction: Direction) -> Callable[[Database], dict[int, Fraction]]:
    """Return AGeo's law of the visitors of A among two trips, q = 1/3."""
    return lambda trips: dict(enumerate(asymmetric_row(Q, visits(trips, "A"), 2, direction)))


# Why (q, alpha, beta)-one-sided answers need a new definition: section III.


def _necessary_condition(catalogue: Catalogue) -> None:
    """State Proposition III.1, checked for every answer with two values and over all sets S of values."""
    eighths = [Fraction(i, 8) for i in range(9)]
    strict, equal = [0, 0], [0, 0]
    for alpha, beta, unsafe, safe in itertools.product(eighths, repeat=4):
        sets = [(ONE, ONE), (unsafe, safe), (1 - unsafe, 1 - safe), (0 * ONE, 0 * ONE)]
        holds = any(alpha * right > beta * wrong for wrong, right in sets)
        if any(wrong < alpha and right >= beta for wrong, right in sets):
            strict[holds] += 1
        elif any(wrong <= alpha and right >= beta for wrong, right in sets):
            equal[holds] += 1
    catalogue.fact(
        "ADP-III.1-necessary", strict[False] == 0, holds=strict[False] == 0, cases=sum(strict), equal=equal[False]
    )


def _best_detection(
    policy: Policy[Trip],
    domain: Sequence[Trip],
    devices: int,
    threshold: int,
    alpha: float,
    goals: Iterable[Database] = (),
) -> float:
    """Return the largest beta with which a mechanism finds "at most `threshold` visitors of A" in all goals at eps = 1.

    It answers Yes with probability b(X), at most alpha where X is unsafe; along every protected change the probability
    of each answer may change by a factor of at most e^eps. Without `goals`, the goals are the safe databases.
    """
    places = {database: place for place, database in enumerate(databases(domain, devices))}
    safe = [database for database in places if visits(database, "A") <= threshold]
    step = math.e
    rows: list[Floats] = []
    bounds: list[float] = []
    for database, other in neighbours(policy, domain, devices):
        for sign, bound in ((1.0, 0.0), (-1.0, step - 1)):
            row = np.zeros(len(places) + 1)
            row[places[database]], row[places[other]] = sign, -sign * step
            rows.append(row)
            bounds.append(bound)
    for database in goals or safe:
        row = np.zeros(len(places) + 1)
        row[places[database]], row[-1] = -1.0, 1.0
        rows.append(row)
        bounds.append(0.0)
    most = [(0.0, 1.0 if database in safe else alpha) for database in places]
    goal = np.append(np.zeros(len(places)), -1.0)
    solved = optimize.linprog(goal, A_ub=np.array(rows), b_ub=bounds, bounds=[*most, (0.0, 1.0)], method="highs")
    return -float(solved.fun)


def _allows(policy: Policy[Trip]) -> bool:
    """Return whether the policy allows a one-sided answer: two trips, eps = 1, alpha = 1/1000, beta = 1/2."""
    return _best_detection(policy, TRIPS, 2, 0, 1e-3) >= 0.5


def _at_a(trip: Trip) -> bool:
    return "A" in trip


def _blowfish(catalogue: Catalogue) -> None:
    """State Proposition III.2, checked for every policy graph over the four trips, and the Risk that follows."""
    pairs = list(itertools.combinations(TRIPS, 2))
    graphs = [chosen for size in range(len(pairs) + 1) for chosen in itertools.combinations(pairs, size)]
    as_proved = [
        _allows(BlowfishPolicy.from_pairs(graph)) is all(_at_a(x) == _at_a(y) for x, y in graph) for graph in graphs
    ]
    premise = math.log(1e-3 / 0.5)
    law = blowfish_revealing_law(TRIPS, _at_a)
    loss = exact_loss_ratio(lambda trips: law[trips[0]], blowfish_widest_one_sided(TRIPS, _at_a), TRIPS, 1)
    risks = [worst_case_risk(law, secret) for secret in (_at_a, _not_at_a)]
    ours = f"printed: eps < {premise:.3f}; with ln(beta / alpha): holds for {sum(as_proved)} graphs"
    catalogue.fact("ADP-III.2-graph", ours, holds=premise > 0, graphs=len(graphs))
    shown = ", ".join("unbounded" if risk is None else str(risk) for risk in risks)
    catalogue.fact("ADP-III.2-risk", shown, holds=risks == [None, None], loss=loss)


def _not_at_a(trip: Trip) -> bool:
    return "A" not in trip


def _one_sided_privacy(catalogue: Catalogue) -> None:
    """State Proposition III.3, checked for every set of non-sensitive trips, and the Risk that follows."""
    sets = [frozenset(chosen) for size in range(5) for chosen in itertools.combinations(TRIPS, size)]
    allowed = [chosen for chosen in sets if _allows(OneSidedPolicy(non_sensitive=chosen))]
    needed = {name: frozenset(filter(test, TRIPS)) for name, test in (("visitors", _at_a), ("non-visitors", _not_at_a))}
    exactly = [name for name, trips in needed.items() if allowed == [chosen for chosen in sets if trips <= chosen]]
    policy = OneSidedPolicy(non_sensitive=osdp_required_non_sensitive(TRIPS, _at_a))
    law = osdp_revealing_law(policy, Q, TRIPS)
    secrets = [chosen & needed["non-visitors"] for chosen in sets if chosen & needed["non-visitors"]]
    unbounded = [worst_case_risk(law, secret.__contains__) is None for secret in secrets]
    loss = exact_loss_ratio(lambda trips: law[trips[0]], policy, TRIPS, 1)
    catalogue.fact("ADP-III.3-records", ", ".join(exactly), holds=exactly == ["visitors"], sets=len(sets))
    catalogue.fact("ADP-III.3-risk", all(unbounded), holds=all(unbounded), predicates=len(secrets), loss=loss)


# The protection of asymmetric privacy: section IV.


def _beyond(catalogue: Catalogue) -> None:
    """State Proposition IV.5, checked for every mechanism with two values and probabilities in sixths."""
    sixths = [Fraction(i, 6) for i in range(7)]
    known = [trip for trip in TRIPS if _not_at_a(trip)]
    secrets = [frozenset(chosen) for size in range(1, len(known)) for chosen in itertools.combinations(known, size)]
    worst: list[Fraction] = []
    for chances in itertools.product(sixths, repeat=len(TRIPS)):
        law = {trip: {True: chance, False: 1 - chance} for trip, chance in zip(TRIPS, chances, strict=True)}
        loss = exact_loss_ratio(partial(_of_one, law), AT_A, TRIPS, 1)
        if loss is not None:
            risks = [worst_case_risk({trip: law[trip] for trip in known}, secret.__contains__) for secret in secrets]
            worst += [2 * ONE if found is None else found / loss for found in risks]
    catalogue.number("ADP-IV.5-beyond", max(worst), mechanisms=len(worst) // len(secrets))


def _exponential(noise: float) -> float:
    return math.exp(-noise)


def _of_one(law: Mapping[Trip, Mapping[bool, Fraction]], trips: Database) -> Mapping[bool, Fraction]:
    """Return the law of a database of one trip."""
    return law[trips[0]]


def _detection(catalogue: Catalogue) -> None:
    """State Proposition IV.7 (three devices, at most two visitors are safe, nobody visited) and those of section V."""
    domain = (frozenset[str](), frozenset("A"))
    best = _best_detection(AT_A, domain, 3, 2, 0.0, goals=[(domain[0],) * 3])
    integer = optimal_detection(ONE, 3)
    catalogue.number("ADP-IV.7-bound", best, paper=1 - math.exp(-3), attained=integer)
    catalogue.number("ADP-V-A3-optimal", simulation_only_safe_detection(1.0, 3), paper=1 - math.exp(-3))
    threshold = visitors = 5
    steps = threshold + 1 - visitors
    found = float(integrate.quad(_exponential, 0, threshold - visitors)[0])
    integer = optimal_detection(ONE, steps)
    catalogue.number("ADP-V.6-detection", found, paper=1 - math.exp(-steps), integer=integer)


# Privacy of the mechanisms: Theorems V.4 and VIII.2.

Query = Callable[[Database], tuple[int, ...]]


def _seen(database: Database) -> tuple[int, ...]:
    return visits(database, "A"), visits(database, "B")


def _missing(database: Database) -> tuple[int, ...]:
    return tuple(len(database) - count for count in _seen(database))


VECTOR: Final = vector_place_policy(("A", "B"))
EITHER: Final = OrPolicy(may_leak=VECTOR.may_leak)


def _continuous(catalogue: Catalogue) -> None:
    """State Theorem V.4, checked for counts of two trips that fall, rise, or do both along the policy."""
    settings: tuple[tuple[Query, Policy[Trip]], ...] = ((_seen, VECTOR), (_missing, VECTOR), (_seen, EITHER))
    catalogue.number("ADP-V.4-loss", max(_largest_loss(query, policy) for query, policy in settings))


def _largest_loss(query: Query, policy: Policy[Trip]) -> float:
    """Return the largest log ratio of the densities of ALap at eps = 1 along the policy, infinite where one is 0."""
    scale = sensitivity(query, policy, TRIPS, 2)
    moves = monotonicity(query, policy, TRIPS, 2)
    grid = [place / 2 for place in range(-4, 9)]
    losses = [0.0]
    for database, other in neighbours(policy, TRIPS, 2):
        # The density is a product over the counts, each with its own noise: the largest ratio is the product of theirs.
        ratios = [
            max(_log_ratio(move, (place - before) / scale, (place - after) / scale) for place in grid)
            for move, before, after in zip(moves, query(database), query(other), strict=True)
        ]
        losses.append(math.fsum(ratios))
    return max(losses)


def _log_ratio(move: Monotonicity, noise: float, against: float) -> float:
    if move is Monotonicity.NEITHER:
        return abs(against) - abs(noise)
    sign = -1 if move is Monotonicity.INCREASING else 1
    if sign * noise < 0:
        return -math.inf
    return math.inf if sign * against < 0 else sign * (against - noise)


def _integer(catalogue: Catalogue) -> None:
    """State Theorem VIII.2, checked by enumeration, at sensitivity 1 and, for comparison, at 2."""
    hour = (frozenset[str](), frozenset("A"), frozenset("B"))
    up, down = Direction.DECREASING, Direction.INCREASING

    def one(query: Query, direction: Direction | None, policy: Policy[Trip]) -> Fraction | None:
        return exact_loss_ratio(lambda trips: _integer_law(query(trips)[:1], direction), policy, TRIPS, 2)

    def two(domain: Sequence[Trip]) -> Fraction | None:
        return exact_loss_ratio(lambda trips: _integer_law(_seen(trips), up), VECTOR, domain, 2)

    found = [one(_seen, up, AT_A), one(_missing, down, AT_A), one(_seen, None, EverythingProtected()), two(hour)]
    losses = [math.inf if loss is None else loss for loss in found]
    catalogue.number("ADP-VIII.2-loss", max(losses), twice=two(TRIPS))


def _integer_law(counts: Sequence[int], direction: Direction | None) -> Mapping[tuple[int, ...], Fraction]:
    """Return AGeo's law for counts of two trips; without a direction the two-sided law, whose ends repeat its ratio."""
    if direction is None:
        rows = [{answer: Q ** abs(answer - count) * (1 - Q) / (1 + Q) for answer in range(-3, 6)} for count in counts]
    else:
        rows = [dict(enumerate(asymmetric_row(Q, count, 2, direction))) for count in counts]
    return {
        tuple(answer for answer, _ in each): math.prod((p for _, p in each), start=ONE)
        for each in itertools.product(*(row.items() for row in rows))
    }
