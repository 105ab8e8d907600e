"""Golden numbers of linear answers: totals, zooms and cross tables as rows, priced and joined."""

from fractions import Fraction

from fleetcount_mechanisms.linear import gaussian_price, group_price, least_squares_variance
from fleetcount_mechanisms.sampled_gaussian import total_divergences

from fleetcount_evidence.golden.rows import MalformedGoldenError, shown

_PAIRS = ("P_a||P_b", "P_a||M_0", "M_0||P_a")
_Rows = list[list[int]]


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


def _cells(values: int) -> _Rows:
    return [[int(place == one) for place in range(values)] for one in range(values)]


def _blocks(values: int, block: int) -> _Rows:
    return [[int(place // block == one) for place in range(values)] for one in range(values // block)]
