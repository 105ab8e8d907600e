"""The analyst that repeats questions and asks overlapping ones: averaging, differencing, and following one device.

Plays the guessing game of `guessing` over several releases. For an attacker that knows all other devices, a question
about a region that overlaps the target's cell is one more question about that cell, and so is the difference of two
such questions: it sees `repeats` times `overlaps` releases. A device's own ledger limits this: the second guess rate is
against devices that refuse once their budget is spent.
"""

import math
from collections import Counter
from typing import Final

import numpy as np
from fleetcount_mechanisms.planning import predicted_sd
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table
from numpy.typing import NDArray

from fleetcount_simulator.attackers.colluding import exposure_row
from fleetcount_simulator.attackers.findings import Measured, finding, mean_of, share_of
from fleetcount_simulator.attackers.guessing import GuessingGame, guess_row, posteriors
from fleetcount_simulator.attackers.parameters import MOST_DEVICES, read_keys
from fleetcount_simulator.attackers.promises import allows_two_values
from fleetcount_simulator.attackers.targets import TargetKeys, candidates, shown
from fleetcount_simulator.engines.answer_laws import AnswerLaw, answer_law
from fleetcount_simulator.engines.noise_sums import summed_noise
from fleetcount_simulator.engines.participation import answers_allowed
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, CaseOutcome, Row

_MOST_QUESTIONS: Final = 10**4
_AVERAGES: Final = 2000


@settings
class Keys(TargetKeys):
    """The parameters: `repeats` is by default the number of epochs; without `device` no device is followed."""

    repeats: int | None = setting(Table.integer, 1, _MOST_QUESTIONS, default=None)
    overlaps: int = setting(Table.integer, 1, _MOST_QUESTIONS, default=1)
    device: int | None = setting(Table.integer, 0, MOST_DEVICES, default=None)


def rows(attacker: Attacker, case: Case, outcome: CaseOutcome, generator: np.random.Generator) -> list[Row]:
    """Return its guess rate without and with the devices' ledgers, the error of its average, and, when `device` is
    given, what it learns of that device at every epoch.

    `repeats` is by default the number of epochs.

    Raises:
        ScenarioError: as `targets.candidates`, more than 10^4 questions in all, or a device beyond the population.
    """
    given = read_keys(attacker, Keys)
    law = answer_law(case.design)
    asked = (given.repeats or min(case.epochs.count, _MOST_QUESTIONS)) * given.overlaps
    if asked > _MOST_QUESTIONS:
        raise ScenarioError(f"attacker {attacker.name!r}: {asked} questions in all; allowed is 1 to {_MOST_QUESTIONS}")
    pair = candidates(attacker, given, case)
    game = GuessingGame(law=law, noise=case.design.noise, noises=case.aggregators, candidates=pair)
    made = [guess_row(attacker, case, game, "guess_rate", asked, given.games, generator)]
    allowed = answers_allowed(case)
    if allowed is not None:
        answered = min(asked, allowed)
        made.append(guess_row(attacker, case, game, "guess_rate_ledger", answered, given.games, generator))
    if law.shape in {"sampling", "truth"}:
        made.append(_average_row(attacker, case, law, outcome, pair[0], asked, generator))
    if given.device is not None:
        made += _tracked(attacker, case, law, given.device, given.games, generator)
    return made


def _average_row(
    attacker: Attacker,
    case: Case,
    law: AnswerLaw,
    outcome: CaseOutcome,
    value: int,
    questions: int,
    generator: np.random.Generator,
) -> Row:
    """Return the standard deviation of the average estimate of a cell, in devices; in theory sd/sqrt(Q)."""
    count = int(outcome.counted[0, value])
    averages = np.zeros(_AVERAGES)
    for _ in range(questions):
        averages += generator.binomial(count, law.hit, _AVERAGES)
        averages += summed_noise(case.design.noise, case.aggregators, _AVERAGES, generator)
    measured = _deviation(averages / questions / law.hit)
    theory = predicted_sd(case.design, count, case.population.devices) / math.sqrt(questions)
    return finding(
        attacker, "error_of_average", f"value {value}, {count} devices", measured, theory=theory, questions=questions
    )


def _deviation(values: NDArray[np.float64]) -> Measured:
    """Return the standard deviation with the normal interval of its estimate, kurtosis included."""
    centred = values - values.mean()
    variance = float((centred**2).mean())
    squares = mean_of(centred**2)
    low, high, least = (math.sqrt(max(end, 0.0)) for end in (squares.low, squares.high, squares.least))
    return Measured(trials=values.size, value=math.sqrt(variance), low=low, high=high, least=least)


def _tracked(
    attacker: Attacker, case: Case, law: AnswerLaw, device: int, tried: int, generator: np.random.Generator
) -> list[Row]:
    """Return, for every epoch the device answers, the attacker's mean posterior of the true place and its guess rate.

    The attacker knows the places of the device (all its values over the epochs) and begins every epoch anew, with equal
    chances for each of them.
    """
    population = case.population
    if device >= population.devices:
        raise ScenarioError(f"attacker {attacker.name!r}: device is {device}; allowed is 0 to {population.devices - 1}")
    epochs = min(case.epochs.count, population.epochs)
    allowed = answers_allowed(case)
    answered = epochs if allowed is None else min(epochs, allowed)
    way = [int(population.truths(epoch, device, device + 1)[0]) for epoch in range(epochs)]
    places = _places(case, way)
    game = GuessingGame(law=law, noise=case.design.noise, noises=case.aggregators, candidates=places)
    target = f"device {device}: {shown(places)}"
    made: list[Row] = []
    for epoch in range(answered):
        # A place that is not among the candidates adds nothing to their cells, as "none" does.
        held = places.index(way[epoch]) if way[epoch] in places else places.index(0)
        posterior, right = posteriors(game, held, tried, generator)
        made.append(finding(attacker, "posterior", target, mean_of(posterior), epoch=epoch, questions=1))
        made.append(finding(attacker, "guess_rate_tracked", target, share_of(right, tried), epoch=epoch, questions=1))
    any_place = f"any of {len(places)} places"
    made.append(guess_row(attacker, case, game, "guess_rate_of_place", 1, tried, generator, any_place))
    if law.shape == "sampling":
        made.append(exposure_row(attacker, case, answered, tried, generator))
    return made


def _places(case: Case, way: list[int]) -> tuple[int, ...]:
    """Return the device's values in order; 0 and its most frequent one where it has one only, or where the mechanism
    promises nothing between two values."""
    visits = Counter(value for value in way if value > 0)
    usual = visits.most_common(1)[0][0] if visits else 1
    if len(set(way)) == 1 or not allows_two_values(case.design):
        return 0, usual
    return tuple(sorted(set(way)))
