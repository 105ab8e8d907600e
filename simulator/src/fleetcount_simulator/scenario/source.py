"""The text of a scenario as the source of its tables: errors name file, line and key, also of a key that is swept."""

import re
from typing import ClassVar, Final

from fleetcount_transport.toml_lines import line_of_key
from fleetcount_transport.toml_table import Source

from fleetcount_simulator.errors import ScenarioError

_DOTTED: Final = re.compile(r"(population|question|faults|attacker)(\.[A-Za-z0-9_-]+)*(?=[:, ])")


class ScenarioSource(Source):
    """A scenario file; refuses with `ScenarioError`."""

    __slots__ = ()
    NUMBER: ClassVar = '0.05 or "1/20"'

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text, error=ScenarioError)

    def located(self, error: ScenarioError) -> ScenarioError:
        """Return an error whose message starts with a dotted key of this file, with file and line before it."""
        path = _DOTTED.match(str(error))
        return ScenarioError(f"{self.place_of(path[0])}{error}") if path else error

    def line_of(self, path: str) -> int | None:
        """Return the line of a key: where it is swept, or where it stands."""
        return line_of_key(self._text, f"sweep.{path}", exact=True) or line_of_key(self._text, path)
