"""Linear answers: A x + noise, x the one-hot sum over the set, a row of small integers for each number that is opened.

Cells, zooms, totals, margins of a cross table and weighted sums are rows, each with noise of its own; "none" is 0 in
every row. One formula prices them all, and one least-squares step joins them. It must not know a question or a window.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_positive

Rows = Sequence[Sequence[int]]
"""One row a number, with what each of the values 1..V adds to it."""


def gaussian_price(rows: Rows, variances: Sequence[Fraction]) -> Fraction:
    """Return the zCDP of numbers under N_Z(0, s_i): the most over moves u -> v of sum of (A_iu - A_iv)**2/(2 s_i) (F4).

    Any value, or none, may become any other.

    Raises:
        MechanismError: no row, rows of different lengths, another number of variances, or one not above 0.
    """
    checked = _checked(rows, variances)
    return max(
        sum((Fraction(apart**2) / (2 * one) for apart, one in zip(move, checked, strict=True)), Fraction(0))
        for move in _moves(rows)
    )


def geometric_price(rows: Rows, epsilons: Sequence[Fraction]) -> Fraction:
    """Return the pure epsilon of numbers under geometric noise e_i: the most over moves of sum of |A_iu - A_iv| e_i.

    Raises:
        MechanismError: as `gaussian_price`.
    """
    checked = _checked(rows, epsilons)
    return max(
        sum((abs(apart) * one for apart, one in zip(move, checked, strict=True)), Fraction(0)) for move in _moves(rows)
    )


def group_price(rows: Rows, variances: Sequence[Fraction], devices: int) -> Fraction:
    """Return the zCDP of so many devices, each in a cell of its own, that come or go together.

    Raises:
        MechanismError: as `gaussian_price`, or not 1 to V devices.
    """
    checked, values = _checked(rows, variances), len(rows[0])
    if require_at_least("devices", devices, 1) > values:
        raise MechanismError(f"devices is {devices}, allowed: 1..{values}, each in a cell of its own")
    pairs = [(row, 1 / (2 * s)) for row, s in zip(rows, checked, strict=True)]
    return max(
        sum((sum(row[v] for v in cells) ** 2 * price for row, price in pairs), Fraction(0))
        for cells in combinations(range(values), devices)
    )


def least_squares_variance(rows: Rows, variances: Sequence[Fraction], wanted: Sequence[int]) -> Fraction:
    """Return the variance of a weighted sum of the cells, estimated from all numbers by least squares, exactly.

    `variances` are those of the numbers' noises, `wanted` the weight of each cell: w'(A' S**-1 A)**-1 w.

    Raises:
        MechanismError: as `gaussian_price`; other than V weights, or rows that do not determine every cell.
    """
    checked, values = _checked(rows, variances), len(rows[0])
    if len(wanted) != values:
        raise MechanismError(f"there are {len(wanted)} weights, allowed: one for each of {values} cells")
    system = [[Fraction(0)] * values + [Fraction(weight)] for weight in wanted]
    for row, s in zip(rows, checked, strict=True):
        counted = [place for place in range(values) if row[place]]
        for u, v in product(counted, counted):
            system[u][v] += row[u] * row[v] / s
    # The matrix is symmetric and positive: eliminating downwards leaves w' M**-1 w as a sum over the pivots.
    variance = Fraction(0)
    for column, lead in enumerate(system):
        if not lead[column]:
            raise MechanismError("the rows do not determine every cell, allowed: rows of rank V")
        variance += lead[values] ** 2 / lead[column]
        for below in system[column + 1 :]:
            if share := below[column] / lead[column]:
                below[column:] = [one - share * two for one, two in zip(below[column:], lead[column:], strict=True)]
    return variance


def _checked(rows: Rows, parameters: Sequence[Fraction]) -> list[Fraction]:
    if not rows or not rows[0] or len({len(row) for row in rows}) != 1:
        raise MechanismError("there are no rows of one length, allowed: one or more, each of V numbers")
    if len(parameters) != len(rows):
        raise MechanismError(f"there are {len(parameters)} noises, allowed: one for each of {len(rows)} rows")
    return [require_positive("noise", one) for one in parameters]


def _moves(rows: Rows) -> Iterator[tuple[int, ...]]:
    """Yield what each move of a value, or none, to another changes in every row."""
    values = range(len(rows[0]))
    for u, v in product((None, *values), values):
        if u != v:
            yield tuple(row[v] - (0 if u is None else row[u]) for row in rows)
