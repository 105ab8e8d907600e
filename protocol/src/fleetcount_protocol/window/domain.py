"""How a device's signal becomes one of the values 0..V of a window.

Run by the device. 0 is the baseline, "none of them". A domain must not see a coin, a share or a key: a number between
two points is rounded by `value_of`, before a mechanism tosses anything.
"""

import enum
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource, rounded_at_random

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.codes import Codes
from fleetcount_protocol.window.frame import Frame
from fleetcount_protocol.window.h3_index import check_h3
from fleetcount_protocol.window.signal import Signal, decimal_text, exact, name_of, normal_signal

MAX_VALUES: Final = 4095
"""Largest V: explicit shares go up to L = V + 1 = 4,096 elements (docs/wire.md, "Sizes")."""

MAX_OPENED: Final = 2 * MAX_VALUES
"""More numbers no release opens: bins of all zooms, each half as many as before, and the total; or margins, and it."""


def _check_count(values: int, what: str) -> None:
    if not 1 <= values <= MAX_VALUES:
        raise QuestionError(f"{what} gives {values} values; a window has 1 to {MAX_VALUES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Numbers in half-open bins: value v is [edges[v-1], edges[v]).

    With `open_above` the last edge starts a bin to infinity. `edges` are exact and strictly increasing; `unit` is the
    signal's unit as text, for people.
    """

    edges: tuple[Fraction, ...]
    open_above: bool
    unit: str

    def __post_init__(self) -> None:
        _check_count(self.values, "bins")
        if any(low >= high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise QuestionError("bin edges must be strictly increasing")

    @property
    def values(self) -> int:
        """V, the number of bins."""
        return len(self.edges) - (0 if self.open_above else 1)

    def value_of(self, signal: Signal) -> int:
        """Return the bin of a number, 1..V, or 0 for anything outside, missing, not finite or not a number.

        A number on an edge is in the bin above it; which number a float is says `exact`.
        """
        number = exact(signal)
        if number is None:
            return 0
        index = bisect_right(self.edges, number)
        return index if index <= self.values else 0

    def label(self, value: int) -> str:
        """Return the bin's name for people, for example '[12.4, ∞) V'; an edge without a decimal is a fraction."""
        low = decimal_text(self.edges[value - 1])
        high = decimal_text(self.edges[value]) if value < len(self.edges) else "∞"
        return f"[{low}, {high}) {self.unit}".rstrip()

    def beyond(self, low: Fraction | None, high: Fraction | None) -> bool:
        """Return whether no number from `low` to `high` is in any bin; None is an end that is not known."""
        below = high is not None and high < self.edges[0]
        return below or (low is not None and not self.open_above and low >= self.edges[-1])

    def coarser(self, together: int) -> "Bins":
        """Return so many neighbouring bins as one each, of which V must be a multiple."""
        return replace(self, edges=self.edges[::together])


class Outside(enum.Enum):
    """What a number below the first point or above the last one is: that point, or "none of them"."""

    CLAMP = 1
    NONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers from `low` to `high`, asked at V equally spaced points: value v is low + (v-1) (high-low) / (V-1).

    V is 2 to 4,095. A number between two points becomes one of them at random, right on average (`value_of`). The ends
    are exact; `unit` is the signal's unit as text, for people.
    """

    low: Fraction
    high: Fraction
    values: int
    unit: str
    outside: Outside = Outside.CLAMP

    def __post_init__(self) -> None:
        if type(self.values) is not int or not 2 <= self.values <= MAX_VALUES:
            raise QuestionError(f"points are {str(self.values)[:40]}, allowed: 2 to {MAX_VALUES}")
        if self.low >= self.high:
            raise QuestionError(f"low is {self.low}, allowed: below high = {self.high}")

    @property
    def points(self) -> tuple[Fraction, ...]:
        """The V points, ascending; `points[v-1]` is that of value v."""
        return tuple(self._point(value) for value in range(1, self.values + 1))

    def _point(self, value: int) -> Fraction:
        return self.low + (value - 1) * (self.high - self.low) / (self.values - 1)

    def place_of(self, signal: Signal) -> Fraction:
        """Return where a number lies among the points: exactly v at point v and between two of them in proportion.

        0 for anything missing, not finite or not a number, and for what is outside if that is "none of them".
        """
        number = exact(signal)
        if number is None or (self.outside is Outside.NONE and self.beyond(number, number)):
            return Fraction(0)
        return 1 + (min(max(number, self.low), self.high) - self.low) * (self.values - 1) / (self.high - self.low)

    def label(self, value: int) -> str:
        """Return the point with its unit, for example '12.5 km/h'; a point without a decimal is a fraction."""
        return f"{decimal_text(self._point(value))} {self.unit}".rstrip()

    def coarser(self, together: int) -> "Together":
        """Return so many neighbouring points as one each, of which V must be a multiple."""
        return Together(numbers=self, each=together)

    def beyond(self, low: Fraction | None, high: Fraction | None) -> bool:
        """Return whether no number from `low` to `high` is ever a value; None is an end that is not known."""
        outside = (high is not None and high < self.low) or (low is not None and low > self.high)
        return outside and self.outside is Outside.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Neighbouring points of numbers, so many together: what a larger cell of numbers counts."""

    numbers: Numbers
    each: int

    @property
    def values(self) -> int:
        """How many such cells there are."""
        return self.numbers.values // self.each

    def label(self, value: int) -> str:
        """Return the first and the last point, for example '0 to 12.5 km/h'."""
        first, last = (self.numbers.points[place] for place in ((value - 1) * self.each, value * self.each - 1))
        return f"{decimal_text(first)} to {decimal_text(last)} {self.numbers.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Categories:
    """Exact texts: value v is `names[v-1]`.

    Names are distinct, not empty, at most 200 UTF-8 bytes, NFC, without control characters (checked with the window).
    """

    names: tuple[str, ...]
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_count(self.values, "categories")
        places = {name: value for value, name in enumerate(self.names, start=1)}
        if len(places) != len(self.names):
            raise QuestionError("category names must be distinct")
        object.__setattr__(self, "_places", places)

    @property
    def values(self) -> int:
        """V, the number of names."""
        return len(self.names)

    def value_of(self, signal: Signal) -> int:
        """Return the position of the name, 1..V, or 0 for any other or nothing.

        A truth value is named "true" or "false", a whole number by its digits, a text as it is in NFC (`name_of`).
        """
        name = name_of(signal)
        # By a table: a search would take the longer the later the name stands, and so tell it.
        return 0 if name is None else self._places.get(name, 0)

    def label(self, value: int) -> str:
        """Return the name itself."""
        return self.names[value - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareGrid:
    """Squares of side `size` from the corner (`x0`, `y0`): value = 1 + column + row * columns.

    Rows count upwards in y. All lengths exact, in the position's own unit. `frame` says where on Earth that is; without
    one it is metres of somewhere.
    """

    x0: Fraction
    y0: Fraction
    size: Fraction
    columns: int
    rows: int
    frame: Frame | None = None

    def __post_init__(self) -> None:
        if self.size <= 0 or self.columns < 1 or self.rows < 1:
            raise QuestionError(
                f"grid of {self.columns} by {self.rows} squares of {self.size}: all three must be positive"
            )
        _check_count(self.values, "grid")

    @property
    def values(self) -> int:
        """V, columns times rows."""
        return self.columns * self.rows

    def value_of(self, signal: Signal) -> int:
        """Return the square that holds the position, 1..V, or 0 outside the grid or if it is not a position."""
        if not isinstance(signal, tuple) or len(signal) != 2:
            return 0
        x, y = (exact(part) for part in signal)
        if x is None or y is None:
            return 0
        column = math.floor((x - self.x0) / self.size)
        row = math.floor((y - self.y0) / self.size)
        inside = 0 <= column < self.columns and 0 <= row < self.rows
        return 1 + column + row * self.columns if inside else 0

    def label(self, value: int) -> str:
        """Return the square's name: 'column,row' counted from 0."""
        return f"{(value - 1) % self.columns},{(value - 1) // self.columns}"

    def coarser(self, side: int) -> "SquareGrid":
        """Return the same grid in squares of so many times the side, of which both sides must be multiples."""
        columns, rows = self.columns // side, self.rows // side
        return replace(self, size=self.size * side, columns=columns, rows=rows)


_CELL_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class H3Cells:
    """H3 cells of one resolution as 64-bit integers, ascending and distinct: value v is `cells[v-1]`.

    The device finds its own cell index (lower-case hexadecimal text) before it asks; this package does not depend on
    H3.
    """

    resolution: int
    cells: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_count(self.values, "cells")
        if not 0 <= self.resolution <= 15:
            raise QuestionError(f"H3 resolution is {self.resolution}, not 0 to 15")
        if any(low >= high for low, high in zip(self.cells, self.cells[1:], strict=False)):
            raise QuestionError("H3 cells must be ascending and distinct")
        for cell in self.cells:
            check_h3(cell, self.resolution)

    @property
    def values(self) -> int:
        """V, the number of cells."""
        return len(self.cells)

    def value_of(self, signal: Signal) -> int:
        """Return the position of the cell (hexadecimal text), 1..V, or 0 for any other."""
        if not isinstance(signal, str) or len(signal) > _CELL_DIGITS:
            return 0
        try:
            index = bisect_left(self.cells, int(signal, 16))
        except ValueError:
            return 0
        # int() reads many spellings of a cell; only the one that is the cell's name counts.
        return index + 1 if index < len(self.cells) and f"{self.cells[index]:x}" == signal else 0

    def label(self, value: int) -> str:
        """Return the cell's index in lower-case hexadecimal."""
        return f"{self.cells[value - 1]:x}"


PLACE_BITS: Final = 32
"""Places are named by whole numbers below 2**32, as the papers name locations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Places or codes that begin alike: value v is every one whose first `bits` bits are `cells[v-1]`.

    Without `codes` a place is a whole number below 2**32; with it, what is counted are codes of its form, whole numbers
    of its bits. `bits` is 1 to 32 or to those of a code; cells are below 2**bits, ascending and distinct, and with each
    of them some code begins.
    """

    bits: int
    cells: tuple[int, ...]
    codes: Codes | None = None

    def __post_init__(self) -> None:
        _check_count(self.values, "prefixes")
        if type(self.bits) is not int or not 1 <= self.bits <= self.width:
            raise QuestionError(f"prefixes of {str(self.bits)[:40]} bits, allowed: 1 to {self.width}")
        if any(type(cell) is not int for cell in self.cells):
            raise QuestionError("prefixes must be whole numbers")
        if any(low >= high for low, high in zip(self.cells, self.cells[1:], strict=False)):
            raise QuestionError("prefixes must be ascending and distinct")
        if self.cells[0] < 0 or self.cells[-1] >= 1 << self.bits:
            raise QuestionError(f"prefixes are {self.cells[0]} to {self.cells[-1]}, allowed: 0 to below 2**{self.bits}")
        codes = self.codes
        if codes is not None and not all(codes.begins(cell, self.bits) for cell in self.cells):
            raise QuestionError("prefixes of codes with which no code begins")

    @property
    def values(self) -> int:
        """V, the number of prefixes."""
        return len(self.cells)

    @property
    def width(self) -> int:
        """How many bits a place or a code has."""
        return PLACE_BITS if self.codes is None else self.codes.bits

    def number_of(self, signal: Signal) -> int | None:
        """Return the whole number of a place or a code, None for what is neither."""
        if self.codes is not None:
            return self.codes.number_of(signal) if isinstance(signal, str) else None
        place = exact(signal)
        return None if place is None or place.denominator != 1 else place.numerator

    def holder_of(self, number: int) -> int:
        """Return the position of the prefix of a whole number, 1..V, or 0 for any other."""
        prefix = number >> self.width - self.bits  # A number that is no place has a prefix that is no cell.
        index = bisect_left(self.cells, prefix)
        return index + 1 if index < len(self.cells) and self.cells[index] == prefix else 0

    def value_of(self, signal: Signal) -> int:
        """Return the position of the prefix of a place or a code, 1..V, or 0 for any other or what is neither."""
        number = self.number_of(signal)
        return 0 if number is None else self.holder_of(number)

    def label(self, value: int) -> str:
        """Return the codes of a prefix (`Codes.label`), or its smallest place and its bits, as in '3221225472/11'."""
        cell = self.cells[value - 1]
        return (
            f"{cell << PLACE_BITS - self.bits}/{self.bits}" if self.codes is None else self.codes.label(cell, self.bits)
        )


def all_prefixes(bits: int, codes: Codes | None = None) -> Prefixes:
    """Return every prefix of so many bits, 1 to 11, of places or of codes."""
    return prefixes_among(range(1 << bits), bits, codes)


def prefixes_among(cells: Iterable[int], bits: int, codes: Codes | None) -> Prefixes:
    """Return those of some ascending prefixes that a place or a code begins with."""
    some = cells if codes is None else (cell for cell in cells if codes.begins(cell, bits))
    return Prefixes(bits=bits, cells=tuple(some), codes=codes)


Measured = Bins | Numbers
"""The domains of numbers in a unit."""
FixedDomain = Bins | Categories | SquareGrid | H3Cells | Prefixes
"""The domains in which a reading is the same value whenever it is asked for."""
SingleDomain = FixedDomain | Numbers
"""The domains of one signal."""

CROSSED: Final = (2, 3)
"""How many parts a cross has, at least and at most."""
BETWEEN_PARTS: Final = " x "
"""Stands between the names of a value's parts, and between signals that are asked together."""
ANY: Final = "*"
"""Stands in a margin's name for the parts that are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A signal, and the domain that its readings are values of."""

    signal: str
    domain: SingleDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross:
    """Two or three signals at once, read at one moment: a value is one value of every part.

    The first part's values vary slowest: of parts with A, B and C values, value ((a-1) B + b-1) C + c stands for value
    a of the first, b of the second and c of the third. It is 0 where any part is none of its values. Parts are bins,
    categories, grids or H3 cells of different signals, and V, the product of their values, is 1 to 4,095.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        least, most = CROSSED
        if not least <= len(self.parts) <= most:
            raise QuestionError(f"cross has {len(self.parts)} parts, allowed: {least} or {most}")
        for part in self.parts:
            if not isinstance(part.domain, Bins | Categories | SquareGrid | H3Cells):
                what = type(part.domain).__name__
                raise QuestionError(f"cross has a part of {what}, allowed: bins, categories, grids and H3 cells")
            names = part.domain.names if isinstance(part.domain, Categories) else ()
            if strange := next((name for name in names if BETWEEN_PARTS in name or name == ANY), None):
                allowed = f"names without {BETWEEN_PARTS!r} and other than {ANY!r}"
                raise QuestionError(f"cross has a category {strange[:40]!r}, allowed: {allowed}")
        named = [normal_signal(part.signal) for part in self.parts]
        if twice := next((name for place, name in enumerate(named) if name in named[:place]), None):
            raise QuestionError(f"cross has the signal {twice[:40]!a} twice, allowed: a different one for each part")
        sizes = " times ".join(map(str, self.shape))
        _check_count(self.values, f"cross of {sizes} values")

    @property
    def shape(self) -> tuple[int, ...]:
        """How many values each part has."""
        return tuple(part.domain.values for part in self.parts)

    @property
    def values(self) -> int:
        """V, the product of `shape`."""
        return math.prod(self.shape)

    def together(self, values: Sequence[int]) -> int:
        """Return the value, 1..V, of one value of each part; 0 if any of them is 0."""
        place = 0
        for value, size in zip(values, self.shape, strict=True):
            place = place * size + value - 1
        return 0 if 0 in values else place + 1

    def apart(self, value: int) -> tuple[int, ...]:
        """Return the value of each part, from 1 on, that a value 1..V stands for."""
        found, place = list[int](), value - 1
        for size in reversed(self.shape):
            place, one = divmod(place, size)
            found.append(one + 1)
        return tuple(reversed(found))

    def label(self, value: int) -> str:
        """Return the names of the parts, as in '[0, 50) km/h x diesel'."""
        values = zip(self.parts, self.apart(value), strict=True)
        return BETWEEN_PARTS.join(part.domain.label(one) for part, one in values)

    def margin_label(self, dimension: int, value: int) -> str:
        """Return the name of a part's value whatever the others are, as in '* x diesel'; dimensions count from 0."""
        named = self.parts[dimension].domain.label(value)
        return BETWEEN_PARTS.join(named if one == dimension else ANY for one in range(len(self.parts)))


ValueDomain = SingleDomain | Cross


def parts_of(signal: str, domain: ValueDomain) -> tuple[Part, ...]:
    """Return what is read for a domain: the parts of a cross, of any other the signal alone."""
    return domain.parts if isinstance(domain, Cross) else (Part(signal=signal, domain=domain),)


def signals_text(parts: Iterable[Part]) -> str:
    """Return the signals that are read, for people."""
    return BETWEEN_PARTS.join(part.signal for part in parts)


def value_of(domain: SingleDomain, signal: Signal, source: RandomSource) -> int:
    """Return which value of a domain a signal is, 1..V, or 0 for none of them.

    A number among `Numbers` is rounded to the point below or above it, up with a probability of exactly its way from
    the one below as a part of the way between them, by the device's own `source`. No other domain draws.
    """
    if isinstance(domain, Numbers):
        return rounded_at_random(source, domain.place_of(signal))
    return domain.value_of(signal)
