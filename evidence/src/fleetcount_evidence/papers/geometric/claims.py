"""Computes the claims of [GEO]; claims.toml has the claims.

Every number of ours comes from an exact matrix, an integral or a linear program; the module contains no result.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
from fleetcount_analysis.remap import geometric_channel, geometric_remap, loss_matrix, user_optimum
from numpy.typing import NDArray
from scipy import integrate, optimize

from fleetcount_evidence.papers.catalogue import Catalogue
from fleetcount_evidence.papers.geometric import bounded_geometric
from fleetcount_evidence.papers.geometric.bounded_geometric import (
    bounded_geometric_matrix,
    extremes_example,
    figure_two,
    single_device_losses,
)
from fleetcount_evidence.papers.results import Results, Settings

Floats = NDArray[np.float64]
HALF: Final = Fraction(1, 2)
_TIGHT: Final = 1e-8
SETS: Final = tuple(frozenset(row for row in (1, 2, 3) if code >> (row - 1) & 1) for code in range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserResult:
    """A random user's expected loss: least of all mechanisms, with the remapped G_n, and with G_n at face value."""

    largest: int
    ratio: float
    optimum: float
    remapped: float
    face_value: float

    @property
    def gap(self) -> float:
        """The loss of the remapped geometric mechanism less the user's optimum."""
        return self.remapped - self.optimum


def constraint_matrix(mechanism: Sequence[Sequence[float]] | Floats, ratio: float) -> list[list[str]]:
    """Return [GEO]'s constraint matrix: row i compares the rows of the counts i and i + 1.

    Z: both entries are 0. ↓: x_i+1 = a x_i. ↑: x_i = a x_i+1. S: neither equation holds.
    """
    matrix = np.asarray(mechanism, dtype=np.float64)
    return [
        [_constraint(float(here), float(below), ratio) for here, below in zip(matrix[i], matrix[i + 1], strict=True)]
        for i in range(len(matrix) - 1)
    ]


def _constraint(here: float, below: float, ratio: float) -> str:
    if max(here, below) < _TIGHT:
        return "Z"
    if abs(below - ratio * here) < _TIGHT:
        return "↓"
    return "↑" if abs(here - ratio * below) < _TIGHT else "S"


def add_claims(users: Sequence[UserResult], settings: Settings, results: Results) -> None:
    """State every claim of the paper with our result."""
    catalogue = Catalogue.load("geometric")
    _examples(catalogue)
    _optimality(catalogue, users)
    _structure(catalogue, settings)
    _laplace(catalogue)
    _uniqueness(catalogue)
    alone, both = _inducible(both=False), _inducible(both=True)
    catalogue.fact("GEO-6.3-impossible", not both, holds=alone and not both)
    results.claims.extend(catalogue.finished())


def _examples(catalogue: Catalogue) -> None:
    bounded, two = bounded_geometric_matrix(HALF, 5), figure_two()
    largest = max(max(a / b, b / a) for i in range(5) for a, b in zip(bounded[i], bounded[i + 1], strict=True))
    example = extremes_example(5, HALF)
    extremes = [0.5, 0, 0, 0, 0, 0.5]
    remapped = geometric_remap(extremes, "zero-one", HALF).expected_loss
    constraints = constraint_matrix([[float(p) for p in row] for row in two], 0.5)
    slack = [(i, j) for i, row in enumerate(constraints) for j, entry in enumerate(row) if entry == "S"]
    empty = [j for j in range(6) if all(row[j] == "Z" for row in constraints)]
    remap = [0, 2, 2, 3, 4, 5]
    catalogue.number("GEO-2.1-private", largest)
    catalogue.number(
        "GEO-2.2-face",
        example.face_value_unbounded,
        paper=float(2 * HALF / (1 + HALF)),
        bounded=float(example.face_value_bounded),
    )
    catalogue.number("GEO-2.2-remapped", remapped, paper=float(HALF**3 / (1 + HALF)))
    ours = [str(p) for p in two[0]]
    catalogue.fact(
        "GEO-Fig2-matrix", str(ours), holds=two == bounded_geometric.remapped(bounded, remap) and two == PRINTED
    )
    where = f"Z in column {empty}, S at {slack}"
    catalogue.fact("GEO-Fig3-constraints", where, holds=slack == [(1, 2)] and empty == [1])


def _printed(row: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(entry) for entry in row.split())


PRINTED: Final = (
    _printed("2/3 0 1/4 1/24 1/48 1/48"),
    _printed("1/3 0 1/2 1/12 1/24 1/24"),
    _printed("1/6 0 1/2 1/6 1/12 1/12"),
    _printed("1/12 0 1/4 1/3 1/6 1/6"),
    _printed("1/24 0 1/8 1/6 1/3 1/3"),
    _printed("1/48 0 1/16 1/12 1/6 2/3"),
)
"""[GEO] Figure 2 as printed, for comparison."""


def _optimality(catalogue: Catalogue, users: Sequence[UserResult]) -> None:
    gains = [user.face_value > 1.01 * user.remapped for user in users]
    never_worse = all(user.remapped <= user.face_value + 1e-9 for user in users)
    catalogue.number("GEO-3.1-gap", max(abs(user.gap) for user in users), users=len(users))
    catalogue.fact("GEO-3.1-face", sum(gains) / len(gains), holds=never_worse and any(gains))


def _structure(catalogue: Catalogue, settings: Settings) -> None:
    """State Lemmas 5.5 and 5.8, checked on the vertices that the linear programs of random users return."""
    generator, users = settings.generator(22), settings.either(20, 200)
    patterns: list[bool] = []
    counts: list[bool] = []
    for _ in range(users):
        n, ratio = int(generator.integers(2, 9)), float(generator.uniform(0.2, 0.8))
        prior = generator.dirichlet(np.full(n + 1, 2.0))
        steps = np.cumsum(0.2 + generator.random((n + 1, n)), axis=1)
        losses = np.array([[0 if i == j else steps[i, abs(i - j) - 1] for j in range(n + 1)] for i in range(n + 1)])
        rows = constraint_matrix(user_optimum(prior, losses, ratio).mechanism, ratio)
        empty = {j for j in range(n + 1) if all(row[j] == "Z" for row in rows)}
        kept = [[entry for j, entry in enumerate(row) if j not in empty] for row in rows]
        patterns += [re.fullmatch("↓*S?↑*", "".join(row)) is not None for row in kept]
        counts.append(sum(entry == "S" for row in kept for entry in row) == len(empty))
    catalogue.fact("GEO-5.5-rows", sum(patterns) / len(patterns), holds=all(patterns), users=users)
    catalogue.fact("GEO-5.8-count", sum(counts) / len(counts), holds=all(counts))


def _laplace(catalogue: Catalogue) -> None:
    quarter = Fraction(1, 4)
    geometric, _ = single_device_losses(quarter)
    rate = -math.log(0.25)
    beyond = float(integrate.quad(_laplace_density, 0.5, math.inf, args=(rate,))[0])
    falling = [Fraction(1, 100**power) for power in range(1, 7)]
    ratios = [laplace / float(g) for g, laplace in map(single_device_losses, falling)]
    catalogue.number("GEO-6.1-geometric", geometric, paper=float(quarter / (1 + quarter)))
    catalogue.number("GEO-6.1-laplace", beyond, paper=math.sqrt(0.25) / 2)
    catalogue.measured("GEO-6.1-ratio", min(b / a for a, b in pairwise(ratios)), ours=ratios)


def _laplace_density(noise: float, rate: float) -> float:
    return rate / 2 * math.exp(-rate * abs(noise))


def _uniqueness(catalogue: Catalogue) -> None:
    """State Theorem 6.1, checked by the range of each entry over all optimal mechanisms of the uniform 0/1 user.

    n = 5 and e^-eps = 1/2.
    """
    n = 5
    prior, ratio = np.full(n + 1, 1 / (n + 1)), 0.5
    cost = (prior[:, None] * loss_matrix("zero-one", n)).ravel()
    least = user_optimum(prior, "zero-one", ratio).expected_loss
    private, rows = _private_rows(n + 1, ratio)
    bounded = geometric_channel(n, ratio).ravel()
    farthest = 0.0
    for entry in range(cost.size):
        for sign in (1.0, -1.0):
            goal = np.zeros(cost.size)
            goal[entry] = sign
            solved = optimize.linprog(
                goal,
                A_ub=np.vstack([private, cost]),
                b_ub=np.append(np.zeros(len(private)), least + 1e-10),
                A_eq=rows,
                b_eq=np.ones(n + 1),
                method="highs",
            )
            farthest = max(farthest, abs(float(sign * solved.fun) - float(bounded[entry])))
    catalogue.number("GEO-6.1-theorem", farthest)


def _private_rows(size: int, ratio: float) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return the coefficients of a x_i+1 - x_i <= 0 and a x_i - x_i+1 <= 0, and those of the sums of the rows."""
    here, below = np.eye(size - 1, size), np.eye(size - 1, size, k=1)
    columns = np.eye(size)
    private = np.vstack([np.kron(ratio * below - here, columns), np.kron(ratio * here - below, columns)])
    return private, np.kron(columns, np.ones((1, size)))


FIGURE_4: Final = {
    frozenset({1}): Fraction(11, 12),
    frozenset({2}): Fraction(2, 3),
    frozenset({1, 3}): Fraction(5, 6),
    frozenset({2, 3}): Fraction(1, 3),
}
"""[GEO] Figure 4: the probability that the first user's optimum answers 1, for the databases whose rows are printed."""


def _inducible(*, both: bool) -> bool:
    """Return whether a 1/2-private mechanism over labels l, m, n, o induces the first (or both) users' optima.

    [GEO] Figure 5: the first user reads l and m as 1, the second l and n; the second's optimum exchanges rows 1 and 2.
    """
    size = 4 * len(SETS)
    equal: list[Floats] = []
    values: list[float] = []
    for place in range(len(SETS)):
        equal.append(_labels(place, (0, 1, 2, 3)))
        values.append(1.0)
    for database, probability in FIGURE_4.items():
        equal.append(_labels(SETS.index(database), (0, 1)))
        values.append(float(probability))
        if both:
            exchanged = frozenset({1: 2, 2: 1}.get(row, row) for row in database)
            equal.append(_labels(SETS.index(exchanged), (0, 2)))
            values.append(float(probability))
    private = [
        _labels(a, (label,)) / 2 - _labels(b, (label,))
        for a, first in enumerate(SETS)
        for b, second in enumerate(SETS)
        if len(first ^ second) == 1
        for label in range(4)
    ]
    solved = optimize.linprog(
        np.zeros(size), A_ub=np.array(private), b_ub=np.zeros(len(private)), A_eq=np.array(equal), b_eq=values
    )
    return bool(solved.success)


def _labels(database: int, labels: Sequence[int]) -> Floats:
    row = np.zeros(4 * len(SETS))
    row[[4 * database + label for label in labels]] = 1.0
    return row
