"""Whose truth is guessed at, and between which values: the keys that all guessing attackers share.

It reads parameters and counts; it must not guess.
"""

from typing import Final

from fleetcount_simulator.attackers.parameters import MOST_DEVICES, Parameters
from fleetcount_simulator.attackers.promises import allows_two_values
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case

TARGET_KEYS: Final = ("value", "against", "games")
NONE: Final = "none"
_DEFAULT_GAMES: Final = 20_000
_MOST_GAMES: Final = 10**7


def check_target(attacker: Attacker, given: Parameters) -> None:
    """Check the shared keys as far as this is possible without a case.

    Raises:
        ScenarioError: a value below 1, `against` the same value, or a number of games outside 1..10^7.
    """
    games(given)
    value = given.integer("value", 1, 1, MOST_DEVICES)
    if given.text("against", NONE) != NONE and given.integer("against", 0, 1, MOST_DEVICES) == value:
        raise ScenarioError(f"attacker {attacker.name!r}: against is {value}, the value itself; allowed is another")


def games(given: Parameters) -> int:
    """Return how many devices are guessed at."""
    return given.integer("games", _DEFAULT_GAMES, 1, _MOST_GAMES)


def candidates(attacker: Attacker, given: Parameters, case: Case) -> tuple[int, int]:
    """Return the two values between which is guessed; 0 is "none of them".

    By default the hardest change the mechanism promises to hide: value 1 against value 2, or against none where no
    more is promised.

    Raises:
        ScenarioError: a value beyond V, or a change that the mechanism does not promise to hide.
    """
    values = case.population.question.values
    two = allows_two_values(case.design)
    value = given.integer("value", 1, 1, values)
    default = NONE if not two else ("2" if value == 1 else "1")
    if given.text("against", default) == NONE:
        return value, 0
    other = given.integer("against", int(default) if default != NONE else 0, 1, values)
    if not two:
        raise ScenarioError(
            f"attacker {attacker.name!r}: against is {other}; kind {case.mechanism.kind!r} with V = {values} promises "
            f"nothing between two values; allowed is 'none'"
        )
    if other == value:
        raise ScenarioError(f"attacker {attacker.name!r}: against is {other}, the value itself; allowed is another")
    return value, other


def shown(pair: tuple[int, ...]) -> str:
    """Return the candidates in words."""
    return " or ".join(f"value {value}" if value else "none" for value in pair)
