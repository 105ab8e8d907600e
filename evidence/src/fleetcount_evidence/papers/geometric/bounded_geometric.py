"""The range-restricted geometric mechanism G_n, its exact matrix and the worked examples of its paper.

It must not be used for a sum of several noises: their channel is different, and the paper's optimality does not hold
for it. Source: Ghosh, Roughgarden, Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms" [GEO]. a = e^-eps
is the ratio; laws are functions of a rational a and exact.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_open_unit

Matrix = tuple[tuple[Fraction, ...], ...]
LossFunction = Callable[[int, int], Fraction]


def bounded_geometric_row(ratio: Fraction, count: int, maximum: int) -> tuple[Fraction, ...]:
    """Return the law of the answers 0..n of G_n for the true count i, exactly.

    P(0|i) = a^i / (1+a), P(n|i) = a^(n-i) / (1+a), P(j|i) = (1-a)/(1+a) a^|i-j| between. Source: [GEO] section 5, G_n.

    Raises:
        MechanismError: a is not in (0, 1), n is below 1, or i is outside 0..n.
    """
    require_open_unit("ratio", ratio)
    require_count(count, maximum)
    inner = ((1 - ratio) / (1 + ratio) * ratio ** abs(count - answer) for answer in range(1, maximum))
    return (ratio**count / (1 + ratio), *inner, ratio ** (maximum - count) / (1 + ratio))


def bounded_geometric_matrix(ratio: Fraction, maximum: int) -> Matrix:
    """Return all rows of G_n, exactly: entry [i][j] is P(answer j | count i), an n + 1 by n + 1 matrix.

    Raises:
        MechanismError: a is not in (0, 1), or n is below 1.
    """
    return tuple(bounded_geometric_row(ratio, count, maximum) for count in range(maximum + 1))


def remapped(matrix: Matrix, remap: Sequence[int]) -> Matrix:
    """Return the mechanism whose answer j is read as remap[j]: columns with equal targets are added up.

    Source: [GEO] section 2.3 for deterministic remaps.

    Raises:
        MechanismError: the remap does not give one answer in range for each column.
    """
    width = len(matrix[0])
    if len(remap) != width or not all(0 <= target < width for target in remap):
        raise MechanismError(f"remap is {list(remap)}, allowed: {width} answers in 0..{width - 1}")
    return tuple(
        tuple(sum((row[j] for j in range(width) if remap[j] == target), Fraction(0)) for target in range(width))
        for row in matrix
    )


def figure_two() -> Matrix:
    """Return [GEO] Figure 2, an optimal 1/2-DP mechanism of one user: G_5(1/2) with the answer 1 read as 2."""
    return remapped(bounded_geometric_matrix(Fraction(1, 2), 5), (0, 2, 2, 3, 4, 5))


def zero_one_loss(count: int, answer: int) -> Fraction:
    """Return 0 if the answer is the count, else 1."""
    return Fraction(count != answer)


def expected_loss(matrix: Matrix, prior: Sequence[Fraction], loss: LossFunction) -> Fraction:
    """Return sum over i of prior_i times the mean loss of row i ([GEO] Eq 1).

    Raises:
        MechanismError: the prior does not have one weight for each row, has a negative weight, or a sum other than 1.
    """
    if len(prior) != len(matrix) or sum(prior) != 1 or min(prior) < 0:
        raise MechanismError(
            f"prior: {len(prior)} weights of sum {sum(prior)}, allowed: {len(matrix)}, all >= 0, of sum 1"
        )
    return sum(
        (
            weight * sum((mass * loss(count, answer) for answer, mass in enumerate(row)), Fraction(0))
            for count, (weight, row) in enumerate(zip(prior, matrix, strict=True))
        ),
        Fraction(0),
    )


class ExtremesExample(NamedTuple):
    """The three expected losses of [GEO] Example 2.2: a user who knows the count is 0 or n, with 0/1 loss."""

    face_value_unbounded: Fraction
    face_value_bounded: Fraction
    remapped: Fraction


def extremes_example(maximum: int, ratio: Fraction) -> ExtremesExample:
    """Return Example 2.2 for an odd n: 2a/(1+a) and a/(1+a) at face value, a^((n+1)/2) / (1+a) after the remap.

    The remap reads answers of at least (n+1)/2 as n and the others as 0. The bounded figures are computed from the
    matrix.

    Raises:
        MechanismError: n is not odd, or a is not in (0, 1).
    """
    if require_at_least("maximum", maximum, 1) % 2 == 0:
        raise MechanismError(f"maximum is {maximum}, allowed: odd numbers")
    matrix = bounded_geometric_matrix(ratio, maximum)
    prior = (Fraction(1, 2), *(Fraction(0),) * (maximum - 1), Fraction(1, 2))
    remap = tuple(maximum if answer >= (maximum + 1) // 2 else 0 for answer in range(maximum + 1))
    return ExtremesExample(
        face_value_unbounded=1 - (1 - ratio) / (1 + ratio),
        face_value_bounded=expected_loss(matrix, prior, zero_one_loss),
        remapped=expected_loss(remapped(matrix, remap), prior, zero_one_loss),
    )


def single_device_losses(ratio: Fraction) -> tuple[Fraction, float]:
    """Return [GEO] section 6.1: the 0/1 loss of one device, uniform prior, under G_1 and under rounded Laplace noise.

    a/(1+a), exactly from the matrix, against P[Laplace > 1/2] = sqrt(a)/2; their ratio has no bound as a goes to 0.

    Raises:
        MechanismError: a is not in (0, 1).
    """
    geometric = expected_loss(bounded_geometric_matrix(ratio, 1), (Fraction(1, 2), Fraction(1, 2)), zero_one_loss)
    return geometric, math.sqrt(ratio) / 2


def require_count(count: int, maximum: int) -> None:
    """Check that the count is in 0..n.

    Raises:
        MechanismError: n is below 1, or the count is not in 0..n; the message does not contain the count.
    """
    require_at_least("maximum", maximum, 1)
    if type(count) is not int or not 0 <= count <= maximum:
        raise MechanismError(f"a true count must be an int in 0..{maximum} (the value given is withheld)")
