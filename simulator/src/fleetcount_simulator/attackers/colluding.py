"""Aggregators that collude: k - 1 of them subtract their own noise, all k together see every answer.

Plays the guessing game of `guessing` against the noise that is left. The colluders know all other devices as well.
That secret sharing hides the target's report from fewer than k of them is assumed, not simulated.
"""

import numpy as np
from fleetcount_mechanisms.design import MOST_AGGREGATORS
from fleetcount_mechanisms.losses import exposure
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_simulator.attackers.findings import finding, share_of
from fleetcount_simulator.attackers.guessing import GuessingGame, guess_row
from fleetcount_simulator.attackers.parameters import read_keys
from fleetcount_simulator.attackers.targets import TargetKeys, candidates
from fleetcount_simulator.engines.answer_laws import answer_law
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, CaseOutcome, Row


@settings
class Keys(TargetKeys):
    """The parameters of aggregators that collude, by default all but one."""

    colluders: int | None = setting(Table.integer, 1, MOST_AGGREGATORS, default=None)


def rows(attacker: Attacker, case: Case, outcome: CaseOutcome, generator: np.random.Generator) -> list[Row]:
    """Return their guess rate; and if all collude, how many devices they see over all tosses of their coins.

    Raises:
        ScenarioError: as `targets.candidates`, or more colluders than aggregators.
    """
    given = read_keys(attacker, Keys)
    law = answer_law(case.design)
    colluders = given.colluders or case.aggregators - 1
    if colluders > case.aggregators:
        raise ScenarioError(
            f"attacker {attacker.name!r}: colluders is {colluders}; allowed is 1 to k = {case.aggregators}"
        )
    left = case.aggregators - colluders
    pair = candidates(attacker, given, case)
    game = GuessingGame(law=law, noise=case.design.noise, noises=left, candidates=pair)
    made = [guess_row(attacker, case, game, "guess_rate", 1, given.games, generator)]
    if left == 0 and law.shape == "sampling":
        made.append(exposure_row(attacker, case, case.epochs.tosses, given.games, generator))
    return made


def exposure_row(attacker: Attacker, case: Case, answers: int, devices: int, generator: np.random.Generator) -> Row:
    """Return the share of devices whose truth all aggregators together saw in at least one of `answers` answers.

    Sampled devices alone send the pair (0, v) with v >= 1; it tells v. In theory 1 - (1-p)^T for a device that
    always has a value, which is also what is promised (`fleetcount_mechanisms.losses.exposure`).
    """
    rate = case.design.exposure
    seen = int((generator.binomial(answers, float(rate), devices) > 0).sum())
    promised = float(exposure(rate, answers))
    return finding(
        attacker,
        "exposure",
        "to all aggregators together",
        share_of(seen, devices),
        theory=promised,
        bound=promised,
        questions=answers,
    )
