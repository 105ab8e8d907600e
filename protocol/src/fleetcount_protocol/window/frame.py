"""Where on Earth a grid lies. Pure values; which codes can be placed is for who draws the map."""

import re
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.errors import QuestionError

EPSG_CODES: Final = (1024, 32767)
"""Smallest and largest code of a reference system in the EPSG register."""
MAX_OFFSET_BYTES: Final = 16
"""Longest offset of a frame: sign, eight digits, point, six digits; the Earth is 40 million metres around."""
OFFSET_FORM: Final = "at most 8 digits before and 6 behind the point, without needless zeros, as text"
OFFSET_PATTERN: Final = r"0|-?(?:[1-9][0-9]{0,7}(?:\.[0-9]{0,5}[1-9])?|0\.[0-9]{0,5}[1-9])"
"""A decimal in its only spelling; `OFFSET_FORM` says it to people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where on Earth the positions of a grid are: a position is the place in the reference system plus the offset.

    `epsg` is the system's code in the EPSG register, 1024..32767. x is always its easting or longitude and y its
    northing or latitude, in the system's unit, whatever the order in the register. The offsets are decimals of at most
    eight digits before and six behind the point in their only spelling: no plus, no leading or trailing zero, no -0.
    Which codes can be placed is for who draws the map; here every code in range is legal.
    """

    epsg: int
    offset_x: str
    offset_y: str

    def __post_init__(self) -> None:
        low, high = EPSG_CODES
        if type(self.epsg) is not int or not low <= self.epsg <= high:
            raise QuestionError(f"EPSG code is {str(self.epsg)[:40]}, allowed: a whole number from {low} to {high}")
        for name in ("offset_x", "offset_y"):
            offset = getattr(self, name)
            if not isinstance(offset, str) or not re.fullmatch(OFFSET_PATTERN, offset):
                raise QuestionError(f"{name} of the frame is {str(offset)[:40]!a}, allowed: {OFFSET_FORM}")
