"""Adversaries of a study: what each of them does or guesses, and how well, beside what is promised.

`check` refuses parameters outside their ranges; `rows` measures the attackers of a case. One module per adversary, each
a pure function of its arguments; this module only chooses.

Every row has the same columns: `attacker` and `kind` name the adversary; `measure` is the quantity and `target` the
device or cell that it is about; `epoch` and `questions` are None where they do not matter; `trials` is the number of
trials; `measured` has the 95 % interval `low` to `high`; `theory` is the same quantity computed (None: no formula);
`bound` is the largest value that is promised (None: no promise); `within` is whether the measurement is compatible with
the bound: False by chance has probability 10^-6.
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
    """Return the rows of every attacker of the case; the k-th draws from child k of `seed` (spawn key + k) alone.

    Liars and cheats are measured in the outcome. A guessing attacker plays many games of its own against the same
    mechanism, noise and counts, which measure its guess rate more exactly than one run.

    Raises:
        ScenarioError: a parameter does not fit this case, for example a value beyond V.
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
