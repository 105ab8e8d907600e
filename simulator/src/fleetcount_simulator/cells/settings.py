"""The tables `[population]` and `[question]` of a scenario, and how their keys are read.

Every refusal starts with the dotted key. It checks that a named file exists, and opens none.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, cast

from fleetcount_transport.settings import Key
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, exact_number, shown

from fleetcount_simulator.scenario.source import ScenarioSource

ANY_LENGTH: Final = Range("(0, 1000000000)")
"""Lengths in metres and durations in seconds."""
COORDINATE: Final = Range("[-1000000000, 1000000000]")
"""Coordinates in metres, in the plane of a map."""
SHARE: Final = Range("[0, 1]")
MAX_LIST: Final = 100_000
"""Entries of a list of texts, at most."""


class Settings(Table):
    """A table whose keys are known; relative file names are taken from `folder`."""

    __slots__ = ("folder",)

    def __init__(self, path: str, content: Mapping[str, Any], keys: Sequence[Key], folder: Path) -> None:
        """Refuse every key that is not among `keys`, with the nearest that is.

        Raises:
            ScenarioError: as every method here: a key that is unknown or missing, or whose value is not as it must be.
        """
        super().__init__(ScenarioSource("", ""), path, dict(content), [key.name for key in keys])
        self.folder = folder

    def file(self, key: str) -> Path:
        """Return the path of an existing regular file, whose name has 1000 characters at most."""
        path = self.folder / self.printable(key, 1000)
        try:
            found = path.is_file()
        except OSError:  # Such as a name that is too long for the file system.
            found = False
        if not found:
            raise self.refuse(key, "the name of a file that exists")
        return path

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, 1 to `MAX_LIST` of them."""
        entries = self._entries(key, 1, MAX_LIST, "texts")
        if not all(isinstance(entry, str) for entry in entries):
            raise self.refuse(key, "a list of texts")
        return tuple(cast("list[str]", entries))

    def numbers(self, key: str, length: tuple[int, int], allowed: Range) -> tuple[Fraction, ...]:
        """Return a list of exact numbers, each in `allowed`; `length` is the fewest and the most of them."""
        entries = self._entries(key, *length, "numbers")
        numbers = tuple(exact_number(entry) for entry in entries)
        for entry, number in zip(entries, numbers, strict=True):
            if number is None or number not in allowed:
                raise self.wrong(key, f"holds {shown(entry)}; each must be a number, {allowed}")
        return cast("tuple[Fraction, ...]", numbers)

    def corner(self, key: str) -> tuple[Fraction, Fraction]:
        """Return [longitude, latitude] in degrees; the latitude is -85 to 85, where a map in squares ends."""
        pair = self.numbers(key, (2, 2), Range("[-180, 180]"))
        if not -85 <= pair[1] <= 85:
            raise self.refuse(key, "[longitude, latitude] with the latitude from -85 to 85")
        return pair[0], pair[1]

    def bounds(self, key: str) -> tuple[Fraction, Fraction, Fraction, Fraction]:
        """Return [x0, y0, x1, y1], the lower left and the upper right corner, in metres."""
        x0, y0, x1, y1 = self.numbers(key, (4, 4), COORDINATE)
        if x0 >= x1 or y0 >= y1:
            raise self.refuse(key, "[x0, y0, x1, y1] with x0 below x1 and y0 below y1")
        return x0, y0, x1, y1

    def _entries(self, key: str, least: int, most: int, what: str) -> list[object]:
        value = self.raw(key)
        length = f"{least}" if least == most else f"{least} to {most}"
        if not isinstance(value, list | tuple):
            raise self.refuse(key, f"a list of {length} {what}")
        entries = list(cast("Sequence[object]", value))
        if not least <= len(entries) <= most:
            raise self.wrong(key, f"holds {len(entries)} entries; allowed is a list of {length} {what}")
        return entries
