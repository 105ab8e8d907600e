"""The byte layouts that are hashed, signed and sealed: writers and a reader of their fields (docs/wire.md, "Notation").

It defines how numbers, texts and fractions are written; the modules of the messages define their fields.
"""

import unicodedata
from fractions import Fraction
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.limits import MAX_TERM

_MAX_WIDE_BYTES: Final = 64
_REFUSED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are refused in every text."""


def prints(text: str) -> bool:
    """Return whether every character prints: none controls, formats, ends a line or is unassigned.

    Blanks of every width print, a no-break space too: names hold them, and `str.isprintable` says that they do not.
    """
    # Most texts are printable ASCII; looking up the category of each character takes ten times as long.
    if text.isascii() and text.isprintable():
        return True
    return not any(unicodedata.category(character) in _REFUSED for character in text)


def check_text(text: str, smallest: int, largest: int) -> None:
    """Refuse a text that is not NFC, holds control or format characters, or is too short or too long in UTF-8.

    Raises:
        ValueError: which of them (the text itself is shown escaped and cut).
    """
    shown = ascii(text[:40])
    if not prints(text):
        raise ValueError(f"{shown} holds a control, format or unassigned character")
    if not unicodedata.is_normalized("NFC", text):
        raise ValueError(f"{shown} is not in Unicode normal form NFC")
    size = len(text.encode())
    if not smallest <= size <= largest:
        raise ValueError(f"{shown} has {size} UTF-8 bytes, not {smallest} to {largest}")
    if text != text.strip():
        raise ValueError(f"{shown} begins or ends with white space")


def uint(value: int, size: int) -> bytes:
    """Return an unsigned big-endian integer of `size` bytes.

    Raises:
        ValueError: it does not fit.
    """
    try:
        return value.to_bytes(size)
    except OverflowError:
        raise ValueError(f"{value} does not fit {size} unsigned bytes") from None


def sized(data: bytes, size: int) -> bytes:
    """Return the length of `data` as a `size`-byte integer, then `data`.

    Raises:
        ValueError: the length does not fit.
    """
    return uint(len(data), size) + data


def text_bytes(text: str) -> bytes:
    """Return the length of the UTF-8 text in two bytes, then the text."""
    return sized(text.encode(), 2)


def fraction_bytes(value: Fraction) -> bytes:
    """Return a fraction in lowest terms: numerator, 8 bytes two's complement; denominator, 8 bytes unsigned.

    Raises:
        ValueError: a term is beyond 2**63 - 1.
    """
    if abs(value.numerator) > MAX_TERM or value.denominator > MAX_TERM:
        raise ValueError(f"{str(value)[:40]} has a term beyond 2**63 - 1")
    return value.numerator.to_bytes(8, signed=True) + value.denominator.to_bytes(8)


def wide_fraction_bytes(value: Fraction) -> bytes:
    """Return a fraction in lowest terms with terms of any length to 64 bytes: sign (0, 1), then two sized magnitudes.

    Raises:
        ValueError: a term has more than 64 bytes.
    """
    terms = [_magnitude(abs(value.numerator)), _magnitude(value.denominator)]
    if any(len(term) > _MAX_WIDE_BYTES for term in terms):
        raise ValueError("a term of the fraction has more than 64 bytes")
    return uint(value < 0, 1) + b"".join(sized(term, 1) for term in terms)


def _magnitude(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8)


class Reader:
    """Reads the fields of a layout from `data` in order; every length is checked before anything is allocated.

    Raises:
        DecodeError: from every method, for anything but the one allowed spelling.
    """

    __slots__ = ("_data", "_position", "_what")

    def __init__(self, data: bytes, what: str, largest: int) -> None:
        if len(data) > largest:
            raise DecodeError(f"{what} has {len(data)} bytes, more than {largest}")
        self._data = data
        self._position = 0
        self._what = what

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        end = self._position + size
        if end > len(self._data):
            missing = end - len(self._data)
            raise DecodeError(f"{self._what} ends {missing} bytes short at byte {self._position}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def expect(self, label: bytes) -> None:
        """Refuse anything but this label."""
        if self.take(len(label)) != label:
            raise DecodeError(f"{self._what} does not begin with {label!r}")

    def uint(self, size: int) -> int:
        """Return an unsigned big-endian integer of `size` bytes."""
        return int.from_bytes(self.take(size))

    def int64(self) -> int:
        """Return a two's complement big-endian integer of 8 bytes."""
        return int.from_bytes(self.take(8), signed=True)

    def count(self, size: int, smallest: int, largest: int) -> int:
        """Return a count of `size` bytes within its range."""
        value = self.uint(size)
        if not smallest <= value <= largest:
            raise DecodeError(f"{self._what} counts {value} parts, not {smallest} to {largest}")
        return value

    def sized(self, size: int, smallest: int, largest: int) -> bytes:
        """Return bytes that follow their length; the range of the length is checked first."""
        return self.take(self.count(size, smallest, largest))

    def text(self, smallest: int, largest: int) -> str:
        """Return UTF-8 text that follows its length and passes `check_text`."""
        try:
            text = self.sized(2, smallest, largest).decode()
            check_text(text, smallest, largest)
        except ValueError as error:
            raise DecodeError(f"{self._what} holds a text that is not allowed") from error
        return text

    def flag(self) -> bool:
        """Return one byte that is 0 or 1."""
        return bool(self.count(1, 0, 1))

    def fraction(self) -> Fraction:
        """Return a fraction in lowest terms (`fraction_bytes`)."""
        numerator, denominator = self.int64(), self.uint(8)
        if abs(numerator) > MAX_TERM or denominator > MAX_TERM:
            raise DecodeError(f"{self._what} holds a term beyond 2**63 - 1")
        return self._lowest(numerator, denominator)

    def wide_fraction(self) -> Fraction:
        """Return a fraction in lowest terms (`wide_fraction_bytes`)."""
        negative = self.flag()
        terms = [self.sized(1, 0, _MAX_WIDE_BYTES) for _ in range(2)]
        if any(term[:1] == b"\0" for term in terms):
            raise DecodeError(f"{self._what} holds a number with a leading zero byte")
        numerator, denominator = (int.from_bytes(term) for term in terms)
        if negative and not numerator:
            raise DecodeError(f"{self._what} holds a negative zero")
        return self._lowest(-numerator if negative else numerator, denominator)

    def _lowest(self, numerator: int, denominator: int) -> Fraction:
        if denominator == 0:
            raise DecodeError(f"{self._what} holds a fraction over zero")
        value = Fraction(numerator, denominator)
        if (value.numerator, value.denominator) != (numerator, denominator):
            raise DecodeError(f"{self._what} holds a fraction that is not in lowest terms")
        return value

    def finish(self) -> None:
        """Refuse trailing bytes."""
        rest = len(self._data) - self._position
        if rest:
            raise DecodeError(f"{self._what} has {rest} trailing bytes")
