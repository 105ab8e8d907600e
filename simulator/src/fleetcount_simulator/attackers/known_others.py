"""The attacker that knows all devices but one, because it owns or observed them, and reads the release.

Plays the guessing game of `guessing` with all aggregators' noises unknown to it.
"""

from typing import Final

import numpy as np
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_simulator.attackers.guessing import GuessingGame, guess_row
from fleetcount_simulator.attackers.parameters import read_keys
from fleetcount_simulator.attackers.targets import TargetKeys, candidates
from fleetcount_simulator.engines.answer_laws import AnswerLaw, answer_law
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, CaseOutcome, Row

KNOWS: Final = ("answers", "truths")
"""What it knows of the others: what each of them sent, or only their truths (their coins then hide the target too)."""


@settings
class Keys(TargetKeys):
    """The parameters of an attacker that knows all others."""

    knows: str = setting(Table.choice, KNOWS, default="answers")


def rows(attacker: Attacker, case: Case, outcome: CaseOutcome, generator: np.random.Generator) -> list[Row]:
    """Return its guess rate beside the best possible one and the promised bound.

    With `knows = "truths"` the others are those counted in the outcome's first run.

    Raises:
        ScenarioError: as `targets.candidates`, or `knows` other than "answers" for a kind without sampling.
    """
    given = read_keys(attacker, Keys)
    law = answer_law(case.design)
    pair = candidates(attacker, given, case)
    hidden = _hidden(attacker, given, law, outcome, pair)
    game = GuessingGame(law=law, noise=case.design.noise, noises=case.aggregators, candidates=pair, hidden=hidden)
    return [guess_row(attacker, case, game, "guess_rate", 1, given.games, generator)]


def _hidden(
    attacker: Attacker, given: Keys, law: AnswerLaw, outcome: CaseOutcome, pair: tuple[int, int]
) -> tuple[int, ...]:
    if given.knows == "answers":
        return ()
    if law.shape != "sampling":
        raise ScenarioError(f"attacker {attacker.name!r}: knows is 'truths'; allowed without sampling is 'answers'")
    counted = outcome.counted[0]
    return tuple(max(int(counted[value]) - int(value == pair[0]), 0) for value in pair)
