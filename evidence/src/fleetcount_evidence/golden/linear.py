"""Golden numbers of linear answers: totals, zooms and cross tables as rows, priced and joined.

A linear answer is A x + noise, x the one-hot sum over the set, a row of small integers for each number that is opened,
with noise of its own; "none" is 0 in every row. One formula prices all of them, and one least-squares step joins them.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_positive
from fleetcount_mechanisms.sampled_gaussian import total_divergences

from fleetcount_evidence.golden.rows import MalformedGoldenError, shown

_PAIRS = ("P_a||P_b", "P_a||M_0", "M_0||P_a")
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
        for move in moves_of(rows)
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


def total_price(values: int, cell: Fraction, total: Fraction) -> Fraction:
    """Return the zCDP of the cells under N_Z(0, s) and their total under N_Z(0, tau), direct.

    Raises:
        MechanismError: no cell, or noise not above 0.
    """
    return gaussian_price([*_cells(values), [1] * values], [cell] * values + [total])


def total_pair(rate: Fraction, cell: Fraction, total: Fraction, order: int, pair: object) -> Fraction:
    """Return the divergence of one pair of answers in a window with a total, under a coin a window.

    Raises:
        MalformedGoldenError: a pair without a name, or a tau that is no multiple of s.
        MechanismError: p not in (0, 1), s not above 0, or an order that is not an integer in 2..4096.
    """
    ratio = total / cell
    if pair not in _PAIRS or ratio.denominator != 1:
        raise MalformedGoldenError(f"pair is {shown(pair)} and tau/s {ratio}; allowed: {_PAIRS} and a whole number")
    return total_divergences(rate, cell, ratio.numerator, order)[_PAIRS.index(str(pair))]


def presence_price(devices: int, cell: Fraction, total: object) -> Fraction:
    """Return the zCDP of so many devices in cells of their own that come or go, with a free total or "no" total.

    Raises:
        MechanismError: fewer than 1 device, or noise not above 0.
    """
    rows = _cells(devices) if total == "no" else [*_cells(devices), [1] * devices]
    return group_price(rows, [cell] * len(rows), devices)


def zooms_variance(values: int, block: int, cell: Fraction, coarse: Fraction, total: Fraction, of: object) -> Fraction:
    """Return the least-squares variance of a cell, a block or the total, of cells, blocks of so many cells and a total.

    Raises:
        MalformedGoldenError: another number than these.
        MechanismError: noise not above 0.
    """
    rows = [*_cells(values), *_blocks(values, block), [1] * values]
    noises = [cell] * values + [coarse] * (values // block) + [total]
    wanted = {"cell": _cells(values)[0], "block": _blocks(values, block)[0], "total": [1] * values}
    return least_squares_variance(rows, noises, _of(wanted, of))


def cross_variance(
    rows: int, columns: int, cell: Fraction, row: Fraction, column: Fraction, total: Fraction, of: object
) -> Fraction:
    """Return the least-squares variance of a cell, a column or the total of a cross table with margins and a total.

    Raises:
        MalformedGoldenError: another number than these.
        MechanismError: noise not above 0.
    """
    values = rows * columns
    sums = _blocks(values, columns)
    downs = [[int(place % columns == one) for place in range(values)] for one in range(columns)]
    noises = [cell] * values + [row] * rows + [column] * columns + [total]
    wanted = {"cell": _cells(values)[0], "column": downs[0], "total": [1] * values}
    return least_squares_variance([*_cells(values), *sums, *downs, [1] * values], noises, _of(wanted, of))


def _of(wanted: dict[str, list[int]], of: object) -> list[int]:
    if str(of) not in wanted:
        raise MalformedGoldenError(f"of is {shown(of)}; it must be one of {', '.join(wanted)}")
    return wanted[str(of)]


def _cells(values: int) -> list[list[int]]:
    return [[int(place == one) for place in range(values)] for one in range(values)]


def _blocks(values: int, block: int) -> list[list[int]]:
    return [[int(place // block == one) for place in range(values)] for one in range(values // block)]


def _checked(rows: Rows, parameters: Sequence[Fraction]) -> list[Fraction]:
    if not rows or not rows[0] or len({len(row) for row in rows}) != 1:
        raise MechanismError("there are no rows of one length, allowed: one or more, each of V numbers")
    if len(parameters) != len(rows):
        raise MechanismError(f"there are {len(parameters)} noises, allowed: one for each of {len(rows)} rows")
    return [require_positive("noise", one) for one in parameters]


def moves_of(rows: Rows) -> Iterator[tuple[int, ...]]:
    """Yield what each move of a value, or none, to another changes in every row."""
    values = range(len(rows[0]))
    for u, v in product((None, *values), values):
        if u != v:
            yield tuple(row[v] - (0 if u is None else row[u]) for row in rows)
