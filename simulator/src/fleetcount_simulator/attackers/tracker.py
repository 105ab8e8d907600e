"""The tracker of a question: reads every window, knows all other devices, and is all aggregators but one.

He weighs a few ways that a device may have gone, each as likely, by their likelihoods over all windows. What is left to
him of a cell is what the device itself added plus the noises of the honest aggregators; a coin's unit is one mixture,
(1-p) M(none) + p M(way), so answers he knows of a unit tell him its coin. No other rule is right more often.

Two things are held against the promise (epsilon, delta) of what may differ. The guess rate among C ways is at most
(e^epsilon + (C-1) delta)/(e^epsilon + C - 1). And H = E[(1 - e^(epsilon - L))_+] <= delta, L the log-likelihood ratio
of the true way to the other one: in every game a coin of that chance is tossed, so that the heads are binomial with
chance H and have an exact bound; this sees a broken promise at large epsilon, where guesses are right anyhow. It must
not draw what a release draws: it plays its own games.
"""

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, cast

import numpy as np
import scipy
from fleetcount_mechanisms.accounting.question_losses import part_loss, question_losses, units_loss
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET
from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.design import MOST_AGGREGATORS
from fleetcount_mechanisms.losses import moves_rho
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import exact_number
from numpy.typing import NDArray

from fleetcount_simulator.attackers.findings import finding, share_of
from fleetcount_simulator.attackers.guessing import CellLaw, noise_cell_law
from fleetcount_simulator.attackers.parameters import MOST_DEVICES, read_keys
from fleetcount_simulator.attackers.targets import GameKeys, shown
from fleetcount_simulator.engines.noise_sums import summed_noise
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, CaseOutcome, Integers, Row
from fleetcount_simulator.standing import StandingQuestion

Floats = NDArray[np.float64]

HIDES: Final = ("answer", "day", "question", "home")
_MOST_PLACES: Final = 50
_DRAWN_AT_ONCE: Final = 1 << 21
_STEPS: Final = 8
"""Guesses are counted after about this many numbers of windows, each twice the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What he holds possible: `values` (ways, windows), 0 is none; `units` the first window of every unit of the coin.

    Windows of units in which all ways agree are left out. Of the `lengths` windows of each unit, `hidden` differ.
    """

    values: Integers
    units: Integers
    lengths: Integers
    hidden: Integers
    hides: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """`right[s]` of `tried` guesses were right after step s of `_ends`; `beyond` games went beyond the promise.

    `honest` aggregators' noises were unknown.
    """

    honest: int
    right: tuple[int, ...]
    beyond: int
    tried: int


def _claimed(table: Table, key: str, high: int) -> Fraction:
    """Return a claim of the attacker's own, above 0."""
    value = exact_number(table.raw(key))
    if value is None or not 0 < value <= high:
        raise table.refuse(key, f"a number above 0, at most {high}")
    return value


@settings
class Keys(GameKeys):
    """The parameters of a tracker: see `rows`; `colluders` are by default all aggregators but one."""

    hides: str = setting(Table.choice, HIDES, default="question")
    device: int | None = setting(Table.integer, 0, MOST_DEVICES, default=None)
    places: int = setting(Table.integer, 2, _MOST_PLACES, default=2)
    colluders: int | None = setting(Table.integer, 1, MOST_AGGREGATORS - 1, default=None)
    epsilon: Fraction | None = setting(_claimed, LARGEST_BUDGET, default=None)
    delta: Fraction | None = setting(_claimed, 1, default=None)

    def __post_init__(self) -> None:
        if self.hides == "home" and self.device is None:
            raise UnfitKeyError("hides", problem="is 'home' without device; allowed is one to follow")


def rows(attacker: Attacker, case: Case, outcome: CaseOutcome, generator: np.random.Generator) -> list[Row]:
    """Return his guess rate after more and more windows, and how often the likelihoods go beyond the promise.

    `hides` says what may differ: one answer, one day, the whole question, or where a device's home is (the windows it
    is at its most usual place). Without `device` the two ways are the worst pair: one place always, or another one in
    what may differ. `epsilon` and `delta` are a claim to hold him against in place of the promise.

    Raises:
        ScenarioError: no questions, a mechanism other than sampling and direct with two-sided noise, or a device, a
            place or a number of colluders that the case has not.
    """
    given, question = read_keys(attacker, Keys), case.epochs.question
    if question is None:
        raise ScenarioError(f"attacker {attacker.name!r}: kind is 'tracker'; allowed with a [schedule] table")
    _check_design(attacker, case)
    colluders = given.colluders or case.aggregators - 1
    if colluders > case.aggregators - 1:
        allowed = f"allowed is a whole number from 1 to {case.aggregators - 1}"
        raise ScenarioError(f"attacker {attacker.name!r}: colluders is '{colluders}'; {allowed}")
    ways = _ways(attacker, given, case, question)
    if not len(ways.units):
        return []
    delta = given.delta or question.delta
    epsilon = float(given.epsilon or _promised(case, question, ways, delta))
    played = _play(case, ways, case.aggregators - colluders, epsilon, given.games, generator)
    made: list[Row] = []
    for end, right in zip(_ends(ways), played.right, strict=True):
        hidden = int(ways.hidden[: end + 1].sum())
        loss = min(epsilon, _loss(case, ways, end + 1, delta))
        others = (len(ways.values) - 1) * math.exp(-loss)
        bound = min(1.0, (1 + float(delta) * others) / (1 + others))
        theory = _best_rate(case, hidden, played.honest) if len(ways.values) == 2 else None
        measured = share_of(right, played.tried)
        made.append(
            finding(attacker, "guess_rate", ways.target, measured, theory=theory, bound=bound, questions=hidden)
        )
    if len(ways.values) == 2:
        beyond, hidden = share_of(played.beyond, played.tried), int(ways.hidden.sum())
        made.append(finding(attacker, "beyond_promise", ways.target, beyond, bound=float(delta), questions=hidden))
    return made


def _check_design(attacker: Attacker, case: Case) -> None:
    design = case.design
    if design.form in (AnswerForm.TWO_ROUNDS, AnswerForm.TRUTH) and isinstance(
        design.noise, TwoSidedNoise | GaussianNoise
    ):
        return
    raise ScenarioError(
        f"attacker {attacker.name!r}: the question is by {design.name} with noise {design.noise.name!r}; allowed is "
        "'sampling' or 'direct' with two-sided noise"
    )


def _promised(case: Case, question: StandingQuestion, ways: Ways, delta: Fraction) -> Fraction:
    """Return the epsilon that the statement of the question promises for what is hidden."""
    losses = question_losses(case.design, question.shape, delta)
    parts = {"answer": losses.one_answer, "day": losses.one_day}
    return parts.get(ways.hides, losses.whole_question)


def _loss(case: Case, ways: Ways, units: int, delta: Fraction) -> float:
    """Return epsilon at delta of what differs in the first units."""
    lengths, hidden = ways.lengths[:units].tolist(), ways.hidden[:units].tolist()
    if units == 1:
        return float(part_loss(case.design, lengths[0], hidden[0], delta))
    return float(units_loss(case.design, Counter(lengths), delta))


def _best_rate(case: Case, windows: int, honest: int) -> float | None:
    """Return the best rate between two ways of a direct answer that differ in so many windows, one noise unknown.

    Geometric: n = cells * windows ratios of e^+e1 or e^-e1 each, exact; None for levels of other noise or numbers that
    move further. Gaussian: Phi(sqrt(sum of d**2/s)/2), the limit for many windows or wide noise.
    """
    design = case.design
    if design.form is not AnswerForm.TRUTH or honest != 1:
        return None
    if isinstance(design.noise, GaussianNoise):
        return float(scipy.stats.norm.cdf(math.sqrt(2 * windows * float(moves_rho(design.moves))) / 2))
    moved = design.moves[0]
    if set(moved) != {(design.noise, 1)}:
        return None
    copies = len(moved) * windows
    up = 1 / (1 + math.exp(-float(cast("Fraction", design.noise.epsilon))))
    above, even = (
        float(scipy.stats.binom.sf(copies // 2, copies, up)),
        float(scipy.stats.binom.pmf(copies / 2, copies, up)),
    )
    return above + even / 2


# Which ways he holds possible.


def _ways(attacker: Attacker, given: Keys, case: Case, question: StandingQuestion) -> Ways:
    hides, places, most = given.hides, given.places, case.population.question.values
    way = np.ones(question.windows, dtype=np.int64) if given.device is None else _way(attacker, case, given.device)
    hidden = _hidden(question, way, hides)
    if places > most + 1:
        raise ScenarioError(f"attacker {attacker.name!r}: places is {places}; allowed is at most {most + 1}")
    usual = Counter(way[hidden].tolist()).most_common(1)[0][0]
    # The device's own way, and others: one further place each, where it may have been in all that is hidden.
    others = [value for value in (*range(1, most + 1), 0) if value != usual][: places - 1]
    values = np.tile(way, (places, 1))
    for row, other in enumerate(others, start=1):
        values[row, hidden] = other
    who = "" if given.device is None else f"device {given.device}, "
    target = f"{who}{hides}: {shown((usual, *others)) if places <= 3 else f'{places} places'}"
    return _shortened(question, values, hides, target)


def _way(attacker: Attacker, case: Case, device: int) -> Integers:
    population = case.population
    if device >= population.devices:
        raise ScenarioError(f"attacker {attacker.name!r}: device is {device}; allowed is 0 to {population.devices - 1}")
    return np.array([population.truths(t, device, device + 1)[0] for t in range(case.epochs.count)], dtype=np.int64)


def _hidden(question: StandingQuestion, way: Integers, hides: str) -> NDArray[np.bool_]:
    """Return which windows may differ: of one answer the first released, of a day the first one with most windows."""
    windows = np.arange(question.windows)
    first = next((int(t) for t in windows if not question.is_missing(int(t))), 0)
    if hides == "answer":
        return np.asarray(windows == first)
    if hides == "day":
        days = np.array([question.schedule.opens(t) // 86_400 for t in range(question.windows)])
        return np.asarray(days == Counter(days.tolist()).most_common(1)[0][0])
    if hides == "home":
        visits = Counter(way[way > 0].tolist())
        return np.asarray(way == visits.most_common(1)[0][0] if visits else windows >= 0)
    return np.asarray(windows >= 0)


def _shortened(question: StandingQuestion, values: Integers, hides: str, target: str) -> Ways:
    unit = np.array([question.unit(t) for t in range(question.windows)])
    differs = (values != values[0]).any(axis=0)
    missing = np.array([question.is_missing(t) for t in range(question.windows)])
    kept = np.isin(unit, unit[differs & ~missing]) & ~missing
    _, firsts = np.unique(unit[kept], return_index=True)
    lengths = np.diff(np.append(firsts, int(kept.sum())))
    hidden = np.add.reduceat(differs[kept], firsts, dtype=np.int64) if len(firsts) else lengths
    return Ways(values=values[:, kept], units=firsts, lengths=lengths, hidden=hidden, hides=hides, target=target)


# The games.


def _play(case: Case, ways: Ways, honest: int, epsilon: float, tried: int, generator: np.random.Generator) -> Played:
    ends = _ends(ways)
    right = np.zeros(len(ends), dtype=np.int64)
    beyond = 0
    step = max(1, _DRAWN_AT_ONCE // max(1, ways.values.size))
    for start in range(0, tried, step):
        held = generator.integers(0, len(ways.values), min(step, tried - start))
        by_unit = np.cumsum(log_likelihoods(case, ways, honest, held, generator), axis=2)[:, :, ends]
        ties = by_unit >= by_unit.max(axis=1, keepdims=True) - 1e-9
        guesses = np.where(ties, generator.random(ties.shape), -1.0).argmax(axis=1)
        right += (guesses == held[:, None]).sum(axis=0)
        last = by_unit[:, :, -1]
        if len(ways.values) == 2:
            rows = np.arange(len(held))
            apart = last[rows, held] - last[rows, 1 - held]
            chance = -np.expm1(np.minimum(epsilon - apart, 0.0))
            beyond += int((generator.random(len(held)) < chance).sum())
    return Played(honest=honest, right=tuple(int(one) for one in right), beyond=beyond, tried=tried)


def _ends(ways: Ways) -> list[int]:
    """Return after which units guesses are counted: powers of two, and the last."""
    count = len(ways.units)
    found = {count >> shift for shift in range(_STEPS)} - {0}
    return sorted(end - 1 for end in found) if count else []


def log_likelihoods(case: Case, ways: Ways, honest: int, held: Integers, generator: np.random.Generator) -> Floats:
    """Return shape (games, ways, units): ln P[what is left of a unit | way] against a device that adds nothing."""
    design, values = case.design, ways.values
    shape = (len(held), *values.shape)
    # Ways that share a cell in a window share its noise: each takes the noise of the first way that is there.
    owner = (values[None, :, :] == values[:, None, :]).argmax(axis=1)
    noise = summed_noise(design.noise, honest, math.prod(shape), generator).reshape(shape)
    noise = np.take_along_axis(noise, np.broadcast_to(owner, shape), axis=1)
    rate = float(case.mechanism.sampling_rate or 1) if case.mechanism.kind == "sampling" else 1.0
    sampled = np.repeat(generator.random((len(held), len(ways.units))) < rate, ways.lengths, axis=1)
    own = (values[held][:, None, :] == values[None, :, :]) & sampled[:, None, :]
    law: CellLaw = noise_cell_law(design.noise, honest)
    ratios = np.log(law.ratios(noise + own)) * (values > 0)
    units = np.add.reduceat(ratios, ways.units, axis=2)
    if rate == 1:
        return np.asarray(units, dtype=np.float64)
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + units), dtype=np.float64)
