"""Adversaries of a study: what each of them does or guesses, and how well, beside what is promised.

`check` refuses parameters that mean nothing; `rows` measures an attacker of a case. One module an adversary, all of
them pure functions of their arguments; this module only chooses.

Every row has the same columns: `attacker` and `kind` say who; `measure` what was measured and `target` of whom or of
which cell; `epoch` and `questions` when it matters (else None); `trials` how often it was tried; `measured` with its
95 % interval `low` to `high`; `theory` the same quantity computed (None where there is no formula); `bound` what is
promised to hold at most (None: nothing is); `within` whether the measurement is compatible with the bound: False is
luck once in a million.
"""

from importlib import import_module
from typing import Any, Final

import numpy as np

from fleetcount_simulator.attackers.parameters import read_keys
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, CaseOutcome, Row

__all__ = ["KINDS", "check", "rows"]

KINDS: Final = {
    "liars": "liars",
    "cheats": "cheats",
    "known-others": "known_others",
    "colluding-aggregators": "colluding",
    "repeating-analyst": "repeating",
    "tracker": "tracker",
}
"""The module of each kind; its `Keys` are the parameters the kind takes."""


def check(attacker: Attacker) -> None:
    """Refuse an attacker of an unknown kind, with an unknown parameter, or with one outside its range.

    Raises:
        ScenarioError: names the attacker, the key, the value and what is allowed.
    """
    read_keys(attacker, _module(attacker).Keys)


def rows(case: Case, outcome: CaseOutcome, seed: np.random.SeedSequence) -> list[Row]:
    """Return what every attacker of the case achieved; the k-th draws from child k of `seed` (spawn key + k) alone.

    Liars and cheats are measured in the outcome. A guessing attacker plays many games of its own against the same
    mechanism, noise and counts, so that its guess rate is known more exactly than from one run.

    Raises:
        ScenarioError: an attacker makes no sense for this case, for example a value beyond V.
    """
    made: list[Row] = []
    for number, attacker in enumerate(case.attackers):
        child = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number))
        generator = np.random.Generator(np.random.PCG64(child))
        made += _module(attacker).rows(attacker, case, outcome, generator)
    return made


def _module(attacker: Attacker) -> Any:
    if attacker.kind not in KINDS:
        raise ScenarioError(f"attacker {attacker.name!r}: kind is {attacker.kind!r}; allowed are: {', '.join(KINDS)}")
    return import_module(f"{__name__}.{KINDS[attacker.kind]}")
