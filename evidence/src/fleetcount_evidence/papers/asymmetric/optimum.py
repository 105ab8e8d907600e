"""Computes the claims of [ADP] about the best one-sided mechanism: Theorem VIII.3 and its lemmas.

claims.toml has the claims. The optimum is that of a linear program over all mechanisms that satisfy the definition.
"""

from fractions import Fraction
from typing import Final

import numpy as np
from fleetcount_analysis.remap import loss_matrix, optimal_remap
from fleetcount_mechanisms.asymmetric import asymmetric_row
from numpy.typing import NDArray
from scipy import optimize

from fleetcount_evidence.papers.catalogue import Catalogue
from fleetcount_evidence.papers.results import Settings

SMALL: Final = Fraction(1, 3)
"""An e^-eps at which Lemma VIII.4, which is false in general, holds."""
Floats = NDArray[np.float64]


def add_optimality(catalogue: Catalogue, settings: Settings) -> None:
    """State Theorem VIII.3 and its lemmas, compared with the best mechanism for a user by a linear program."""
    n, ratio = 6, Fraction(9, 10)
    prior, losses = np.full(n + 1, 1 / (n + 1)), loss_matrix("absolute", n)
    channel = np.array([[float(p) for p in asymmetric_row(ratio, i, n)] for i in range(n + 1)])
    best = _least_loss(prior, losses, float(ratio))
    remapped = optimal_remap(prior, channel, "absolute").expected_loss
    catalogue.number(
        "ADP-VIII.3-lowest", float(np.sum(prior[:, None] * channel * losses)) - best, remapped=remapped - best
    )
    # The entries that an upper triangular matrix has at 0.
    below = np.eye((n + 1) ** 2)[[i * (n + 1) + j for i in range(n + 1) for j in range(i)]]
    small = _least_loss(prior, losses, float(SMALL), below) - _least_loss(prior, losses, float(SMALL))
    catalogue.number("ADP-VIII.4-triangle", _least_loss(prior, losses, float(ratio), below) - best, small=small)
    row = [asymmetric_row(SMALL, count, n) for count in range(n + 1)]
    ratios = {row[i][j] / row[i + 1][j] for i in range(n) for j in range(i + 1, n + 1)}
    generator, users = settings.generator(13), settings.either(20, 200)
    gaps = [_gap_above_diagonal(generator) for _ in range(users)]
    catalogue.number("ADP-VIII.5-ratio", max(gaps), users=users, ratios=", ".join(map(str, sorted(ratios))))


def _gap_above_diagonal(generator: np.random.Generator) -> float:
    """Return the increase of a random user's least absolute loss under the constraint of Lemma VIII.5."""
    n, ratio = int(generator.integers(2, 7)), float(generator.uniform(0.05, 0.95))
    prior, losses = generator.dirichlet(np.full(n + 1, generator.choice([0.3, 1.0, 5.0]))), loss_matrix("absolute", n)
    return _least_loss(prior, losses, ratio, _above_diagonal(n + 1, ratio)) - _least_loss(prior, losses, ratio)


def _above_diagonal(size: int, ratio: float) -> Floats:
    """Return the rows of the constraints M[i,j] - q M[i+1,j] = 0 for j > i, over the entries of M row by row."""
    entries = np.eye(size * size)
    return np.array(
        [entries[i * size + j] - ratio * entries[(i + 1) * size + j] for i in range(size) for j in range(i + 1, size)]
    )


def _least_loss(prior: Floats, losses: Floats, ratio: float, zero: Floats | None = None) -> float:
    """Return min sum prior_i x_ij loss_ij subject to x_ij <= x_(i-1)j / q, rows of sum 1, x >= 0, and `zero` x = 0.

    `prior` is (n,), `losses` (n, n), `zero` (constraints, n^2).
    """
    size = prior.size
    private = np.array(
        [
            ratio * np.eye(size * size)[i * size + j] - np.eye(size * size)[(i - 1) * size + j]
            for i in range(1, size)
            for j in range(size)
        ]
    )
    rows = np.kron(np.eye(size), np.ones((1, size)))
    zeros = np.zeros((0, size * size)) if zero is None else zero
    solved = optimize.linprog(
        (prior[:, None] * losses).ravel(),
        A_ub=private,
        b_ub=np.zeros(len(private)),
        A_eq=np.vstack([rows, zeros]),
        b_eq=np.append(np.ones(size), np.zeros(len(zeros))),
        method="highs",
    )
    return float(solved.fun)
