"""The values between which an attacker guesses: the keys that all guessing attackers share.

It reads parameters and counts; it must not guess.
"""

from typing import Final

from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_simulator.attackers.parameters import MOST_DEVICES
from fleetcount_simulator.attackers.promises import allows_two_values
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case

_NONE: Final = 0
_MOST_GAMES: Final = 10**7


def _against(table: Table, key: str) -> int:
    """Return a value, or 0 for "none"."""
    return _NONE if table.raw(key) == "none" else table.integer(key, 1, MOST_DEVICES)


@settings
class GameKeys:
    """How many games are played, each with a device of its own."""

    games: int = setting(Table.integer, 1, _MOST_GAMES, default=20_000)


@settings
class TargetKeys(GameKeys):
    """The two values to guess between; `against` may be "none" (0), its default depends on the mechanism's promise."""

    value: int = setting(Table.integer, 1, MOST_DEVICES, default=1)
    against: int | None = setting(_against, default=None)

    def __post_init__(self) -> None:
        if self.against == self.value:
            raise UnfitKeyError("against", problem=f"is {self.value}, the value itself; allowed is another")


def candidates(attacker: Attacker, given: TargetKeys, case: Case) -> tuple[int, int]:
    """Return the two values to guess between; 0 is "none of them".

    By default the hardest change the mechanism promises to hide: value 1 against value 2, or against none where no
    more is promised.

    Raises:
        ScenarioError: a value beyond V, or a change that the mechanism does not promise to hide.
    """
    values = case.population.question.values
    two = allows_two_values(case.design)
    usual = _NONE if not two else (2 if given.value == 1 else 1)
    other = usual if given.against is None else given.against
    for key, value in (("value", given.value), ("against", other)):
        if value > values:
            allowed = f"allowed is a whole number from 1 to {values}"
            raise ScenarioError(f"attacker {attacker.name!r}: {key} is '{value}'; {allowed}")
    if other != _NONE and not two:
        raise ScenarioError(
            f"attacker {attacker.name!r}: against is {other}; kind {case.mechanism.kind!r} with V = {values} promises "
            f"nothing between two values; allowed is 'none'"
        )
    return given.value, other


def shown(pair: tuple[int, ...]) -> str:
    """Return the candidates in words."""
    return " or ".join(f"value {value}" if value else "none" for value in pair)
