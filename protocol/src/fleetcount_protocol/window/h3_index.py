"""Which 64-bit integers are H3 cells, without the library."""

from typing import Final

from fleetcount_protocol.errors import QuestionError

_PENTAGONS: Final = frozenset({4, 14, 24, 38, 49, 58, 63, 72, 83, 97, 107, 117})


def check_h3(cell: int, resolution: int) -> None:
    """Refuse an integer that is not a cell of this resolution (H3 index bit layout: h3geo.org, "H3 Index").

    Bits from the top: 1 zero, 4 mode (1 = cell), 3 zero, 4 resolution, 7 base cell (0..121), fifteen digits of 3 bits,
    of which those beyond the resolution are 7. Below a pentagon the first digit that is not 0 is never 1. One
    resolution for all cells means that no cell can hold another.
    """
    digits = [cell >> 3 * (14 - place) & 7 for place in range(15)]
    base = cell >> 45 & 127
    used = digits[:resolution]
    good = cell >> 56 == 0x08 and cell >> 52 & 15 == resolution and base <= 121
    good = good and all(digit < 7 for digit in used) and all(digit == 7 for digit in digits[resolution:])
    if not good or (base in _PENTAGONS and next((digit for digit in used if digit), 0) == 1):
        raise QuestionError(f"{cell:x} is not an H3 cell of resolution {resolution}")
