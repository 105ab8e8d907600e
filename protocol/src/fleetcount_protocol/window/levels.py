"""The levels at which the values of a domain can be counted: which larger cells, margins and sums it has."""

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.domain import Bins, Cross, Numbers, SquareGrid, ValueDomain


def shape_of(domain: ValueDomain) -> tuple[int, ...] | None:
    """Return how many values each dimension of a table has, None for a domain that is none."""
    return domain.shape if isinstance(domain, Cross) else None


def levels_of(
    domain: ValueDomain,
    sides: tuple[int, ...] = (1,),
    *,
    margins: bool = False,
    weighted: bool = False,
    total: bool = False,
) -> Levels:
    """Return the levels at which the values of a domain are counted: larger cells or margins, a weighted sum, a total.

    `sides` are how many times the side of a cell the squares of a level have, or how many bins or points are together.

    Raises:
        QuestionError: a domain whose values lie in no larger ones, such as a grid of a single row; larger cells that do
            not fill it; margins of what is no table, or a weighted sum of what are no numbers; or a total of a single
            value.
    """
    grid, zoomed, shape = None, False, shape_of(domain)
    if isinstance(domain, SquareGrid):
        # Squares in a line have larger cells, but these are no squares.
        grid, zoomed = (domain.columns, domain.rows), domain.columns > 1 < domain.rows
    elif isinstance(domain, Bins | Numbers):
        grid, zoomed = (domain.values, 1), True
    if len(sides) > 1 and not zoomed:
        what = f"a grid of {grid[0]} by {grid[1]} squares" if grid else type(domain).__name__
        raise QuestionError(f"zooms are asked of {what}, allowed: 1; bins, numbers and grids of several rows have more")
    if margins and shape is None:
        raise QuestionError(f"margins are asked of {type(domain).__name__}, allowed: of a table of several signals")
    if weighted and not isinstance(domain, Numbers):
        raise QuestionError(f"a weighted sum is asked of {type(domain).__name__}, allowed: of Numbers")
    try:
        return Levels(domain.values, grid, sides, total, (shape or ()) if margins else (), weighted)
    except MechanismError as error:
        raise QuestionError(str(error)) from None
