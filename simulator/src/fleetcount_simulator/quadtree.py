"""Places of a large square as numbers of 32 bits whose first bits name the squares that hold them.

Pure arithmetic, the map between a position and the prefixes that a drill-down asks about. It must not know a fleet.
"""

from dataclasses import dataclass

from fleetcount_protocol.window.domain import PLACE_BITS

_SIDE_BITS = PLACE_BITS // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadtree:
    """A square of 2^16 by 2^16 places of `size` metres, its lower left corner at (x0, y0).

    A place is its Morton number (Morton 1966): the bits of row and column in turn, the highest first, the row's before
    the column's. So the first 2n bits name the square of 2^(16 - n) places a side that holds it.
    """

    x0: float
    y0: float
    size: float

    def place_of(self, x: float, y: float) -> int | None:
        """Return the place of a position, 0 to 2^32 - 1; None outside the square."""
        column, row = (x - self.x0) // self.size, (y - self.y0) // self.size
        if not (0 <= column < 1 << _SIDE_BITS and 0 <= row < 1 << _SIDE_BITS):
            return None
        place = 0
        for bit in reversed(range(_SIDE_BITS)):
            place = place << 2 | (int(row) >> bit & 1) << 1 | int(column) >> bit & 1
        return place

    def corners(self, cell: int, bits: int) -> tuple[float, float, float, float]:
        """Return (left, lower, right, upper) of the places whose first `bits` bits are `cell`, in metres.

        An odd number of bits gives a rectangle twice as wide as high.
        """
        place, column, row = cell << PLACE_BITS - bits, 0, 0
        for bit in range(_SIDE_BITS):
            column |= (place >> 2 * bit & 1) << bit
            row |= (place >> 2 * bit + 1 & 1) << bit
        left, lower = self.x0 + column * self.size, self.y0 + row * self.size
        wide, high = 1 << _SIDE_BITS - bits // 2, 1 << _SIDE_BITS - (bits + 1) // 2
        return left, lower, left + wide * self.size, lower + high * self.size
