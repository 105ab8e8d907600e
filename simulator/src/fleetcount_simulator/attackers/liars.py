"""Devices that lie: valid reports that claim, for certain, to hold a value.

A report of a liar looks like one of a device whose truth and coins are what it claims. It chooses its value and nothing
else, since the aggregators check that a report moves one cell by one (docs/wire.md); so the shift of m liars is
bounded. They are the attacker's own devices beside the population, and have no value.
"""

from typing import Final

import numpy as np
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from numpy.typing import NDArray

from fleetcount_simulator.attackers.alarm import alarm_power, alarms, largest_unseen
from fleetcount_simulator.attackers.findings import finding, mean_of, share_of
from fleetcount_simulator.attackers.parameters import MOST_DEVICES, read_keys
from fleetcount_simulator.engines.answer_laws import AnswerLaw, answer_law
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, CaseOutcome, Integers, Row

STRATEGIES: Final = ("one-cell", "spread", "random")
"""All claim `value`; the values are shared evenly; each liar draws a value at random in every run."""


@settings
class Keys:
    """The parameters of liars; `value` is by default 1."""

    devices: int = setting(Table.integer, 1, MOST_DEVICES, default=1)
    strategy: str = setting(Table.choice, STRATEGIES, default="one-cell")
    value: int | None = setting(Table.integer, 1, MOST_DEVICES, default=None)

    def __post_init__(self) -> None:
        if self.strategy != "one-cell" and self.value is not None:
            raise UnfitKeyError("value", problem=f"is for strategy 'one-cell', not {self.strategy!r}")


def claimed_values(attacker: Attacker, values: int, generator: np.random.Generator) -> Integers:
    """Return shape (V+1,): how many of the liars claim each value, in one run.

    Raises:
        ScenarioError: the value to claim is beyond V.
    """
    given = read_keys(attacker, Keys)
    claims = np.zeros(values + 1, dtype=np.int64)
    match given.strategy:
        case "one-cell":
            claims[_target(attacker, values)] = given.devices
        case "spread":
            claims[1:] = given.devices // values
            claims[1 : 1 + given.devices % values] += 1
        case _:
            claims[1:] = generator.multinomial(given.devices, np.full(values, 1 / values))
    return claims


def weight(law: AnswerLaw, target: int = 1) -> float:
    """Return by how much one liar raises the estimate of the cell it claims: 1/p for sampling, 1 for direct answers.

    (1-Q)/(P-Q) for responses and bits, with P = P[v | v] and Q = P[v | another].
    """
    if law.shape == "sampling":
        return 1 / law.hit
    hit, miss = law.channel(target)
    return (1 - miss) / (hit - miss)


def rows(attacker: Attacker, case: Case, outcome: CaseOutcome, generator: np.random.Generator) -> list[Row]:
    """Return the shift of the cell claimed first against the bound m times `weight`, and how often the alarm is raised.

    The shift is that of the estimate against the counted devices' truths, in the outcome's released runs; `generator`
    is not used.
    """
    law = answer_law(case.design)
    number = read_keys(attacker, Keys).devices
    target = _target(attacker, law.values)
    shift = mean_of(_errors(case, law, outcome, target))
    made = [
        finding(
            attacker,
            "shift",
            f"value {target}",
            shift,
            theory=_expected(attacker, law, target),
            bound=number * weight(law, target),
        )
    ]
    return made + (_alarm_rows(attacker, case, outcome, number) if law.shape == "sampling" else [])


def _target(attacker: Attacker, values: int) -> int:
    """Return the value claimed, or the first one where several are."""
    value = read_keys(attacker, Keys).value or 1
    if value > values:
        raise ScenarioError(f"attacker {attacker.name!r}: value is {value}; allowed is 1 to V = {values}")
    return value


def _expected(attacker: Attacker, law: AnswerLaw, target: int) -> float:
    """Return the mean shift of the target's estimate: each claim of it by `weight`, each other claim by -Q/(P-Q)."""
    given = read_keys(attacker, Keys)
    number = given.devices
    match given.strategy:
        case "one-cell":
            claims = float(number)
        case "spread":
            claims = float(number // law.values + (target <= number % law.values))
        case _:
            claims = number / law.values
    hit, miss = law.channel(target)
    elsewhere = 0.0 if law.shape in {"sampling", "truth"} else -miss / (hit - miss)
    return claims * weight(law, target) + (number - claims) * elsewhere


def _errors(case: Case, law: AnswerLaw, outcome: CaseOutcome, target: int) -> NDArray[np.float64]:
    """Return estimate minus truth of the target's cell, shape (released runs,)."""
    opened = outcome.outputs[outcome.released].astype(np.float64)
    column = target if law.with_zero else target - 1
    if law.shape == "sampling":
        estimates = opened[:, column] / law.hit
    elif law.shape == "truth":
        estimates = opened[:, column] - case.aggregators * case.design.noise.mean
    else:
        participants = (
            opened.sum(axis=1) if law.with_zero else outcome.tallies["participation"][outcome.released].astype(float)
        )
        hit, miss = law.channel(target)
        estimates = (opened[:, column] - miss * participants) / (hit - miss)
    return np.asarray(estimates - outcome.counted[outcome.released, target], dtype=np.float64)


def _alarm_rows(attacker: Attacker, case: Case, outcome: CaseOutcome, number: int) -> list[Row]:
    opened = outcome.released
    rung = alarms(case, outcome.outputs[opened], outcome.participants[opened])
    liars = int(outcome.tallies["liars"].max(initial=number))
    runs = max(int(opened.sum()), 1)
    counted = outcome.counted[opened].sum(axis=0) // runs
    holders, others = int(counted[1:].sum()), max(int(counted[0]) - liars, 0)
    power = alarm_power(case, holders, others, liars)
    unseen = largest_unseen(case, holders + others)
    computed = mean_of(np.empty(0))
    rate = float(case.design.exposure)
    return [
        finding(attacker, "alarm", "all cells", share_of(int(rung.sum()), int(opened.sum())), theory=power),
        finding(attacker, "shift_at_alarm", "all cells", computed, theory=unseen / rate),
    ]
