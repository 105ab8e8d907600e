"""Codes that nobody listed: how a text becomes a whole number, and how the codes that begin alike are named.

Run by the device, which has codes, and by every reader of a record. It must not know a question.
"""

import enum
import re
from dataclasses import dataclass, field
from typing import Final

from fleetcount_protocol.errors import QuestionError

MAX_CODE_BITS: Final = 32
"""A prefix has four bytes on the wire."""
MAX_CODE_LENGTH: Final = 8
CODE_ALPHABET_SIZE: Final = (2, 64)
"""Fewest and most characters that a text is made of."""
CODE_ALPHABET: Final = "2 to 64 different printable characters of ASCII without the space"
_PRINTABLE: Final = re.compile("[!-~]*", re.ASCII)
_END: Final = ""
_SYSTEMS: Final = tuple("PCBU")
_QUARTERS: Final = tuple("0123")
_HEXADECIMAL: Final = tuple("0123456789ABCDEF")
_FEW: Final = 2


class CodeForm(enum.Enum):
    """How codes are spelled."""

    DTC = 1
    """A diagnostic trouble code of two bytes, as in P0301 (SAE J2012, ISO 15031-6): a letter P, C, B or U, a digit 0 to
    3, three hexadecimal digits."""
    DTC_24 = 2
    """The same with the failure type byte, as in P0301-1F: two hexadecimal digits more."""
    TEXT = 3
    """A text over an alphabet."""

    @property
    def label(self) -> str:
        """The name in files: "dtc", "dtc-24", "text"."""
        return self.name.lower().replace("_", "-")


_SPELLED: Final = {
    CodeForm.DTC: re.compile("[PCBU][0-3][0-9A-F]{3}", re.ASCII | re.IGNORECASE),
    CodeForm.DTC_24: re.compile("[PCBU][0-3][0-9A-F]{3}-[0-9A-F]{2}", re.ASCII | re.IGNORECASE),
}
_HYPHEN_AFTER: Final = 5
"""In a code with its failure type byte so many characters stand before the hyphen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """All codes of a form: a code is a whole number below 2**bits, its first character in the highest bits.

    A character is told by its place among those that may stand there, from 0 on, in as many bits as these need: of a
    trouble code P, C, B, U and the digits. A text of 1 to `length` (1 to 8) characters of `alphabet` (2 to 64
    different printable ones of ASCII without the space, in their order) has `length` numbers, each of
    ceil(log2(size + 1)) bits: 1 is the alphabet's first character, and 0 fills up behind the last one of a shorter
    text. It has 32 bits at most. Trouble codes have neither alphabet nor length.
    """

    form: CodeForm
    alphabet: str = ""
    length: int = 0
    _places: tuple[dict[str, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.form is CodeForm.TEXT:
            self._check_text()
            choices = ((_END, *self.alphabet),) * self.length
        else:
            if self.alphabet or self.length:
                raise QuestionError(f"alphabet and length of {self.form.label} codes, allowed: of texts only")
            digits = 3 if self.form is CodeForm.DTC else 5
            choices = (_SYSTEMS, _QUARTERS, *(_HEXADECIMAL,) * digits)
        places = tuple({symbol: number for number, symbol in enumerate(symbols)} for symbols in choices)
        object.__setattr__(self, "_places", places)

    def _check_text(self) -> None:
        least, most = CODE_ALPHABET_SIZE
        size = len(set(self.alphabet))
        if size != len(self.alphabet) or not least <= size <= most or not _PRINTABLE.fullmatch(self.alphabet):
            raise QuestionError(f"alphabet is {self.alphabet[:70]!a}, allowed: {CODE_ALPHABET}")
        if type(self.length) is not int or not 1 <= self.length <= min(MAX_CODE_LENGTH, MAX_CODE_BITS // self._width):
            raise QuestionError(
                f"length is {str(self.length)[:40]}, allowed with {size} characters of {self._width} bits each: 1 to"
                f" {min(MAX_CODE_LENGTH, MAX_CODE_BITS // self._width)}"
            )

    @property
    def _width(self) -> int:
        return len(self.alphabet).bit_length()

    @property
    def bits(self) -> int:
        """How many bits a code has: 16, 24, or those of a text, at most 32."""
        return sum(map(_width_of, self._places))

    def number_of(self, text: str) -> int | None:
        """Return the number of a code, None for what is none; letters of trouble codes may be small ones."""
        if self.form is CodeForm.TEXT:
            filled = len(text) if 1 <= len(text) <= self.length else 0
            symbols = [*text[:filled], *[_END] * (self.length - filled)] if filled else []
        else:
            symbols = [*text.upper().replace("-", "")] if _SPELLED[self.form].fullmatch(text) else []
        number = 0
        for places, symbol in zip(self._places, symbols, strict=False):
            place = places.get(symbol)
            if place is None:
                return None
            number = number << _width_of(places) | place
        return number if symbols else None

    def begins(self, prefix: int, bits: int) -> bool:
        """Return whether any code begins with these bits; a trouble code does with all."""
        if self.form is not CodeForm.TEXT:
            return True
        # As `_possible`, in whole numbers: a decoder asks it for thousands of prefixes.
        behind, ended = bits, False
        for position in range(self.length):
            behind -= self._width
            free = min(self._width, max(0, -behind))
            low = (prefix >> max(0, behind) & (1 << self._width - free) - 1) << free
            if low > len(self.alphabet) or (ended and low) or (not position and not low and not free):
                return False
            ended = ended or not (low or free)
        return True

    def label(self, prefix: int, bits: int) -> str:
        """Return the codes that begin with these bits, of which there must be one, for people.

        A whole code is itself: P0301. Of trouble codes a point is any digit, and brackets hold the first and the last
        character that may stand in their place: P03.. and P0[0-3].. . Of texts "AB…" are AB and those that begin so,
        "A[B-D]…" those that begin with AB, AC or AD, and "A, A[B-D]…" these and A alone.
        """
        possible = self._possible(prefix, bits)
        if self.form is CodeForm.TEXT:
            return self._text_label(possible)
        parts = [
            "." if len(symbols) == len(places) else _shown(symbols)
            for symbols, places in zip(possible, self._places, strict=True)
        ]
        return _spelled(parts)

    def first_of(self, prefix: int, bits: int) -> str:
        """Return the code of the smallest number that begins with these bits, of which there must be one."""
        symbols = [symbols[0] for symbols in self._possible(prefix, bits)]
        return "".join(symbols) if self.form is CodeForm.TEXT else _spelled(symbols)

    def _possible(self, prefix: int, bits: int) -> list[tuple[str, ...]]:
        """Return what may stand in each place of a code that begins with these bits; nothing where none does."""
        found: list[tuple[str, ...]] = []
        behind = bits
        for places in self._places:
            width = _width_of(places)
            behind -= width  # So many bits are known behind this character; below 0 not all of its own.
            known = min(width, max(0, width + behind))
            first = prefix >> max(0, behind) & (1 << known) - 1
            symbols = tuple(symbol for symbol, place in places.items() if place >> width - known == first)
            if not found:
                symbols = tuple(filter(None, symbols))  # No code is empty.
            elif found[-1] == (_END,):
                symbols = tuple(symbol for symbol in symbols if symbol == _END)
            found.append(symbols)
        return found

    def _text_label(self, possible: list[tuple[str, ...]]) -> str:
        fixed = ""
        for position, symbols in enumerate(possible, start=1):
            if len(symbols) > len(self.alphabet):
                return f"{fixed}…"
            if len(symbols) == 1:
                fixed += symbols[0]
                continue
            more = "…" if position < self.length else ""
            named = f"{fixed}{_shown(tuple(filter(None, symbols)))}{more}"
            return f"{fixed}, {named}" if _END in symbols else named
        return fixed


def _spelled(parts: list[str]) -> str:
    return "-".join(filter(None, ("".join(parts[:_HYPHEN_AFTER]), "".join(parts[_HYPHEN_AFTER:]))))


def _width_of(places: dict[str, int]) -> int:
    return (len(places) - 1).bit_length()


def _shown(symbols: tuple[str, ...]) -> str:
    if len(symbols) == 1:
        return symbols[0]
    return f"[{''.join(symbols)}]" if len(symbols) <= _FEW else f"[{symbols[0]}-{symbols[-1]}]"
