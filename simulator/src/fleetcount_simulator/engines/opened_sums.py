"""From the honest devices' sums to what a release opens: attackers' claims, noise, the smallest batch, an outage.

The law engine and the per-device engine share it. It must not draw a device's answer: each engine does.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from fleetcount_protocol.question.fields import Coin

from fleetcount_simulator import attackers, faults
from fleetcount_simulator.attackers.cheats import refused_reports
from fleetcount_simulator.attackers.liars import claimed_values
from fleetcount_simulator.engines.answer_laws import AnswerLaw, answer_law
from fleetcount_simulator.engines.noise_sums import levels_noise, summed_noise
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, CaseOutcome, Integers

_SENDING: Final = ("liars", "cheats")
"""The attackers who send, and guess nothing about other devices."""
PARTICIPATION: Final = "participation"
"""The tally of bit vectors: the noised number of devices, which such a release opens beside the bits."""
_UNITS: Final = 1 << 30
"""Stands for the epoch in the spawn key of a unit's coins: no epoch has this number, so no draws repeat."""


class Sums:
    """The sums over the honest devices of some runs, which an engine fills; int64, the first axis is the run.

    `opened` (runs, outputs) is what would be opened without noise, `counted` (runs, V+1) the histogram of the devices
    in it, `tallies` (runs,) what became of the others. `devices` (runs,) is how many there are where devices hold sets,
    otherwise None.
    """

    __slots__ = ("counted", "devices", "opened", "tallies")

    def __init__(self, opened: Integers, counted: Integers, tallies: dict[str, Integers]) -> None:
        self.opened = opened
        self.counted = counted
        self.tallies = tallies
        self.devices: Integers | None = None

    def participants(self, row: int) -> int:
        """Return how many devices a run counts."""
        return int(self.counted[row].sum() if self.devices is None else self.devices[row])


def run_seed(seed: np.random.SeedSequence, run: int) -> np.random.SeedSequence:
    """Return the seed of one run, by its number."""
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, run))


def panel_unit(case: Case, epoch: int) -> int | None:
    """Return the unit of a sampling coin that holds for several epochs; None where each epoch tosses its own."""
    question = case.epochs.question
    if question is None or question.coin is Coin.WINDOW or case.mechanism.kind != "sampling":
        return None
    return question.unit(epoch)


def unit_seed(seed: np.random.SeedSequence, unit: int, run: int) -> np.random.SeedSequence:
    """Return the seed of one run's sampling coins in a unit, whichever of its epochs `seed` is for."""
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key[:-1], _UNITS, unit, run))


def checked_law(case: Case, epoch: int) -> AnswerLaw:
    """Return the law of a device's answer, after checking the case.

    Raises:
        ScenarioError: a mechanism, fault, attacker, number of aggregators or epoch outside its range; names it.
    """
    if case.aggregators < 2:
        raise ScenarioError(f"aggregators is {case.aggregators}; allowed is 2 or more")
    if not 0 <= epoch < case.population.epochs:
        raise ScenarioError(f"epoch is {epoch}; this population has epochs 0 to {case.population.epochs - 1}")
    faults.check(case.faults, case.aggregators)
    for attacker in case.attackers:
        attackers.check(attacker)
        if case.population.question.sets:
            raise ScenarioError(
                f"attacker {attacker.name!r} is one of questions with one value a vehicle; question.at_once allows none"
            )
        if case.population.question.readings and attacker.kind not in _SENDING:
            raise ScenarioError(
                f"attacker {attacker.name!r} of kind {attacker.kind!r} guesses a value, and devices hold numbers that"
                f" they round anew in every window; question.cells 'number' allows: {', '.join(_SENDING)}"
            )
    return answer_law(case.design)


def empty_sums(law: AnswerLaw, runs: int) -> Sums:
    """Return sums of zero for a number of runs."""
    return Sums(
        opened=np.zeros((runs, law.outputs), dtype=np.int64),
        counted=np.zeros((runs, law.values + 1), dtype=np.int64),
        tallies={name: np.zeros(runs, dtype=np.int64) for name in faults.TALLIES},
    )


def open_release(
    case: Case, epoch: int, law: AnswerLaw, sums: Sums, generators: Sequence[np.random.Generator]
) -> CaseOutcome:
    """Return what the aggregators open of an epoch's sums; the sums' arrays become the outcome's.

    Liars are further devices, which the attacker owns and which have no value: the agreed set counts them at value 0.
    """
    if law.shape == "bits":
        sums.tallies[PARTICIPATION] = np.zeros(len(generators), dtype=np.int64)
    question = case.epochs.question
    survives = faults.is_released(case.faults) and not (question is not None and question.is_missing(epoch))
    released = np.zeros(len(generators), dtype=np.bool_)
    sums.opened = _levelled(case, sums.opened)
    for row, generator in enumerate(generators):
        _add_attackers(case, law, sums, row, generator)
        released[row] = survives and sums.participants(row) >= case.min_batch_size
        _add_noise(case, law, sums, row, generator)
    sums.opened[~released] = 0
    return CaseOutcome(
        outputs=sums.opened, released=released, counted=sums.counted, tallies=sums.tallies, devices=sums.devices
    )


def _levelled(case: Case, sums: Integers) -> Integers:
    """Return the sums of every level, which aggregators compute from those of the cells."""
    if case.design.levels.count == 1:
        return sums
    return np.array([case.design.opened_sums(row) for row in sums.tolist()], dtype=np.int64)


def _add_attackers(case: Case, law: AnswerLaw, sums: Sums, row: int, generator: np.random.Generator) -> None:
    for attacker in case.attackers:
        if attacker.kind == "liars":
            claims = claimed_values(attacker, law.values, generator)
            sums.opened[row] += claims if law.with_zero else claims[1:]
            number = int(claims.sum())
            sums.counted[row, 0] += number
            sums.tallies["liars"][row] += number
        elif attacker.kind == "cheats":
            sums.tallies["invalid"][row] += refused_reports(attacker)


def _add_noise(case: Case, law: AnswerLaw, sums: Sums, row: int, generator: np.random.Generator) -> None:
    above = case.design.cell_count - case.design.values
    sums.opened[row] += levels_noise(case.design, sums.opened.shape[1] - above, generator)
    if law.shape == "bits":
        devices = int(sums.counted[row].sum())
        noise = summed_noise(case.design.noise, case.aggregators, 1, generator)
        sums.tallies[PARTICIPATION][row] = devices + int(noise[0])
