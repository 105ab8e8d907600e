"""On which side of a threshold a count is shown to be: the three answers and the one rule that gives them.

It must not know how sure the ends of a count are: who has them says so.
"""

from enum import Enum


class Side(Enum):
    """On which side of its threshold t a count is."""

    SAFE = "safe"
    """The count is at most t."""
    DANGER = "danger"
    """The count is above t."""
    UNKNOWN = "not known"
    """Neither is shown; a cell of either kind may be here."""


def side_of(low: int, high: int, threshold: int) -> Side:
    """Return the side of a count that lies in `low` to `high`, as surely as it does; run by whoever reads a release."""
    if high <= threshold:
        return Side.SAFE
    return Side.DANGER if low > threshold else Side.UNKNOWN
