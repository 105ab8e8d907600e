"""One table of a scenario file, read key by key: type, exact number, range and spelling.

Every refusal is one line: file, line when it is known, dotted key, value and what is allowed. Numbers are exact: a
number with a point arrives as `Decimal`, never as a float. Nothing here knows what a key means.
"""

import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Final, cast

from fleetcount_mechanisms.errors import did_you_mean

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.scenario.places import line_of_key

__all__ = ["Range", "Section", "Source", "exact_number", "shown"]

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_RATIO: Final = re.compile(r"[+-]?[0-9]{1,30}/0*[1-9][0-9]{0,29}", re.ASCII)
_DOTTED: Final = re.compile(r"(population|question|faults|attacker)(\.[A-Za-z0-9_-]+)*(?=[:, ])")
_SHOWN: Final = 60
_LARGEST_EXPONENT: Final = 400


def shown(value: object) -> str:
    """Return a value as a message shows it: as the file spells it, cut at 60 characters."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, Decimal | Fraction):
        text = str(value)
    elif isinstance(value, dict):
        text = "a table"
    else:
        try:
            text = repr(value)
        except ValueError:  # Python does not print whole numbers of more than 4,300 digits.
            text = "a very long number"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def exact_number(value: object) -> Fraction | None:
    """Return a whole number, a decimal or a text like "0.05" or "1/20" as its exact value; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if isinstance(value, Decimal):
        sound = value.is_finite() and abs(value.adjusted()) <= _LARGEST_EXPONENT
        return Fraction(value) if sound else None
    if isinstance(value, str) and (_DECIMAL.fullmatch(value) or _RATIO.fullmatch(value)):
        return Fraction(value)
    return None


class Range:
    """The allowed values of an exact number, written as mathematicians do: `Range("(0, 1/2)")`, `Range("[0, 1]")`."""

    __slots__ = ("_high", "_high_included", "_low", "_low_included")

    def __init__(self, text: str) -> None:
        low, high = text[1:-1].split(",")
        self._low, self._high = Fraction(low.strip()), Fraction(high.strip())
        self._low_included, self._high_included = text.startswith("["), text.endswith("]")

    def __contains__(self, value: Fraction) -> bool:
        above = value >= self._low if self._low_included else value > self._low
        return above and (value <= self._high if self._high_included else value < self._high)

    def __str__(self) -> str:
        low = f"{'at least' if self._low_included else 'above'} {self._low}"
        return f"{low} and {'at most' if self._high_included else 'below'} {self._high}"


class Source:
    """The file a section comes from: what messages start with."""

    __slots__ = ("_name", "_text")

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def refuse(self, path: str, problem: str) -> ScenarioError:
        """Return the error "FILE line N: PATH PROBLEM"."""
        return ScenarioError(f"{self._name}{self._line(path)}: {path} {problem}".rstrip())

    def located(self, error: ScenarioError) -> ScenarioError:
        """Return an error whose message starts with a dotted key of this file, with file and line before it."""
        text = str(error)
        path = _DOTTED.match(text)
        return ScenarioError(f"{self._name}{self._line(path[0])}: {text}") if path else error

    def _line(self, path: str) -> str:
        line = line_of_key(self._text, f"sweep.{path}", exact=True) or line_of_key(self._text, path)
        return "" if line is None else f" line {line}"


class Section:
    """One table; each method takes a key out, with its default when it may be absent."""

    __slots__ = ("_content", "_path", "_source")

    def __init__(self, source: Source, path: str, content: object, known: Collection[str] | None) -> None:
        """Refuse what is no table and every key not among `known` (None: any), with the nearest known name."""
        self._source = source
        self._path = path
        if not isinstance(content, dict):
            raise source.refuse(path, f"is {shown(content)}; it must be a table")
        self._content = cast("Mapping[str, Any]", content)
        for key in self._content:
            if known is not None and key not in known:
                raise source.refuse(self.path(key), f"is unknown; {nearest(key, known)}")

    def path(self, key: str) -> str:
        """Return the dotted name of a key of this table."""
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        """Return whether the key is given."""
        return key in self._content

    def raw(self, key: str) -> object:
        """Return the value as it stands, None when absent."""
        return self._content.get(key)

    @property
    def content(self) -> Mapping[str, Any]:
        """The table as it stands."""
        return self._content

    def refuse(self, key: str, allowed: str) -> ScenarioError:
        """Return the error that names the key, its value and what is allowed."""
        problem = f"is {shown(self._content[key])}" if key in self._content else "is missing"
        return self._source.refuse(self.path(key), f"{problem}; it must be {allowed}")

    def wrong(self, key: str, problem: str) -> ScenarioError:
        """Return the error that names the key and says what does not fit."""
        return self._source.refuse(self.path(key), problem)

    def text(self, key: str, longest: int, default: str | None = None) -> str:
        """Return a text of 1 to `longest` printable characters."""
        value = self._content.get(key, default)
        if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
            raise self.refuse(key, f"a text of 1 to {longest} printable characters")
        return value

    def slug(self, key: str, default: str | None = None) -> str:
        """Return a short name: 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.', the first a letter or digit."""
        value = self._content.get(key, default)
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", value, re.ASCII):
            raise self.refuse(key, "1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.', the first a letter or a digit")
        return value

    def choice(self, key: str, options: Collection[str], default: str | None = None) -> str:
        """Return one of a few texts."""
        value = self._content.get(key, default)
        if isinstance(value, str) and value in options:
            return value
        known = ", ".join(map(repr, options))
        raise self.refuse(key, f"one of {known}{did_you_mean(value, options)}")

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return true or false; no other spelling."""
        value = self._content.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number in low..high."""
        value = self._content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, allowed: Range, default: Fraction | None = None) -> Fraction:
        """Return an exact number, given as a number or as text: 0.05, "0.05" or "1/20"."""
        value = exact_number(self._content.get(key, default))
        if value is None or value not in allowed:
            raise self.refuse(key, f'a number like 0.05 or "1/20", {allowed}')
        return value

    def optional(self, key: str, allowed: Range) -> Fraction | None:
        """Return an exact number, or None when the key is absent."""
        return self.number(key, allowed) if key in self._content else None

    def section(self, key: str, known: Collection[str] | None) -> "Section":
        """Return the sub-table of that name; an absent one is empty."""
        return Section(self._source, self.path(key), self._content.get(key, {}), known)

    def sections(self, key: str, known: Collection[str] | None, *, most: int) -> list["Section"]:
        """Return the elements of an array of tables, none when absent."""
        rows = self._content.get(key, [])
        if not isinstance(rows, list) or len(cast("list[object]", rows)) > most:
            raise self.refuse(key, f"at most {most} tables, [[{self.path(key)}]] each")
        listed = cast("list[object]", rows)
        return [Section(self._source, f"{self.path(key)}[{place}]", row, known) for place, row in enumerate(listed)]

    def naming(self, action: Callable[[], Any], key: str, *errors: type[Exception]) -> Any:
        """Return what `action` gives; one of `errors` becomes a refusal of this key."""
        try:
            return action()
        except errors as error:
            raise self.wrong(key, f"cannot be used: {error}") from error


def nearest(key: str, known: Collection[str]) -> str:
    """Return "did you mean 'x'?", or the list of what is known."""
    near = get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known) or 'none'}"
