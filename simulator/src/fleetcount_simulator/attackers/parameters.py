"""An attacker's own parameters, read key by key: unknown ones are refused by name, numbers have ranges.

It must not depend on a single attacker.
"""

from collections.abc import Sequence
from typing import Final

from fleetcount_mechanisms.errors import did_you_mean

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker

MOST_DEVICES: Final = 10**12


class Parameters:
    """The parameters of one attacker, of a kind whose parameters are `keys`.

    Raises:
        ScenarioError: an unknown key, or one given twice.
    """

    def __init__(self, attacker: Attacker, keys: Sequence[str]) -> None:
        self._name = attacker.name
        self._values = dict(attacker.parameters)
        if len(self._values) != len(attacker.parameters):
            raise ScenarioError(f"attacker {attacker.name!r}: a parameter is given twice")
        for key in self._values:
            if key not in keys:
                raise ScenarioError(
                    f"attacker {attacker.name!r}: {key!r} is not a key of kind {attacker.kind!r}; "
                    f"allowed are: {', '.join(keys)}{did_you_mean(key, keys)}"
                )

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """Return a whole number in low..high.

        Raises:
            ScenarioError: it is not one.
        """
        text = self._values.get(key, str(default))
        plain = text.isascii() and text.isdigit() and len(text) <= 18
        if not plain or not low <= int(text) <= high:
            raise self._refusal(key, text, f"a whole number from {low} to {high}")
        return int(text)

    def choice(self, key: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of `allowed`.

        Raises:
            ScenarioError: it is none of them.
        """
        text = self._values.get(key, default)
        if text not in allowed:
            raise self._refusal(key, text, ", ".join(map(repr, allowed)) + did_you_mean(text, allowed))
        return text

    def text(self, key: str, default: str) -> str:
        """Return the text as it was given."""
        return self._values.get(key, default)

    def given(self, key: str) -> bool:
        """Return whether the key is there."""
        return key in self._values

    def _refusal(self, key: str, text: str, allowed: str) -> ScenarioError:
        return ScenarioError(f"attacker {self._name!r}: {key} is {text!r}; allowed is {allowed}")
