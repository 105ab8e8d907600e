"""The best guess at one device's truth from a release: the likelihood of what an attacker sees under each truth.

The game. The device holds one of a few candidate values, each as likely. The attacker knows everything about all
other devices (or, for sampling, their truths without their coins) and subtracts it. What remains, the residual, is what
the device itself added plus the noise that the attacker does not know. It names the likeliest candidate; no other rule
is right more often, so the guess rate measures how much the release reveals. `promises` has the bounds on it.

Draws come from the generator of the caller. It must not use a formula of a privacy loss: it tests those.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from fleetcount_analysis.channels import noise_size, noise_sum
from fleetcount_analysis.one_sided_sums import OneSidedSum
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from numpy.typing import NDArray

from fleetcount_simulator.attackers.findings import finding, share_of
from fleetcount_simulator.attackers.promises import guess_bound
from fleetcount_simulator.attackers.targets import shown
from fleetcount_simulator.engines.answer_laws import AnswerLaw
from fleetcount_simulator.engines.noise_sums import summed_noise
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, Integers, Row

Floats = NDArray[np.float64]

_CERTAIN = 1e200
"""Stands for an infinite ratio, so that sums and products of ratios stay numbers."""

_RULED_OUT = 1e6
"""A log-likelihood this far below zero stands for an impossible candidate."""

_TAIL = 1e-15
_GRID_POINTS = 1 << 22
_DRAWN_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellLaw:
    """The law of the residual of one cell: `log_mass[i]` is ln P[start + i]; it is -inf at all other values."""

    start: int
    log_mass: Floats

    def logs(self, values: Integers) -> Floats:
        """Return ln P of every value."""
        index = values - self.start
        inside = (index >= 0) & (index < self.log_mass.size)
        found = self.log_mass[np.clip(index, 0, self.log_mass.size - 1)]
        return np.asarray(np.where(inside, found, -np.inf), dtype=np.float64)

    def ratios(self, values: Integers) -> Floats:
        """Return P[value - 1]/P[value]: how much likelier a residual is if the device added one than if it did not."""
        with np.errstate(invalid="ignore"):
            apart = self.logs(values - 1) - self.logs(values)
        return np.asarray(np.exp(np.minimum(apart, math.log(_CERTAIN))), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessingGame:
    """What the attacker does not know: which of `candidates` (values 0..V) is true, and the noise of `noises`
    aggregators.

    `hidden` is, for each candidate, the number of other devices in its cell whose coins the attacker does not know
    (sampling only); empty where it knows all.
    """

    law: AnswerLaw
    noise: NoiseLaw
    noises: int
    candidates: tuple[int, ...]
    hidden: tuple[int, ...] = ()

    @property
    def cells(self) -> tuple[int, ...]:
        """The values whose cells depend on the truth: all outputs of a response, otherwise the candidates' own."""
        if self.law.with_zero:
            return tuple(range(self.law.values + 1))
        return tuple(value for value in self.candidates if value > 0)

    def cell_law(self, value: int) -> CellLaw:
        """Return the law of the residual in the cell of a value."""
        return _cell_law(self.noise, self.noises, self._others(value), self.law.hit)

    def log_likelihoods(self, held: Integers, generator: np.random.Generator) -> Floats:
        """Draw one residual per game, in which the device has value candidates[held].

        Return shape (games, candidates): ln P[residual | candidate], up to a constant of the game.
        """
        truths = np.array(self.candidates)[held]
        residual = _contributions(self.law, self.cells, truths, generator)
        if self.noises:
            noise = summed_noise(self.noise, self.noises, residual.size, generator)
            residual += noise.reshape(residual.shape)
        if self.hidden:
            others = [self._others(value) for value in self.cells]
            residual += generator.binomial(others, self.law.hit, residual.shape)
            columns = [self.cell_law(value).ratios(residual[:, index]) for index, value in enumerate(self.cells)]
            ratios = np.stack(columns, axis=1)
        else:
            ratios = _cell_law(self.noise, self.noises, 0, self.law.hit).ratios(residual)
        with np.errstate(divide="ignore"):
            logs = np.stack([self._log_likelihood(ratios, value) for value in self.candidates], axis=1)
        # Certainties add up to certainties, and a candidate once ruled out stays so.
        return np.asarray(np.clip(logs, -_RULED_OUT, _RULED_OUT), dtype=np.float64)

    def _others(self, value: int) -> int:
        return dict(zip(self.candidates, self.hidden, strict=True))[value] if self.hidden else 0

    def _log_likelihood(self, ratios: Floats, value: int) -> Floats:
        """Return the log-likelihood of a candidate, against that of a device which adds nothing anywhere."""
        law, cells = self.law, self.cells
        if law.shape == "bits":
            chances = np.array([law.channel(cell)[cell != value] for cell in cells])
            return np.asarray(np.log(chances * ratios + 1 - chances).sum(axis=1), dtype=np.float64)
        if law.with_zero:
            weights = _output_law(law, value)
            return np.asarray(np.log(ratios @ weights), dtype=np.float64)
        if value == 0:
            return np.zeros(ratios.shape[0])
        own = ratios[:, cells.index(value)]
        return np.asarray(np.log(law.hit * own + (1 - law.hit)), dtype=np.float64)


def play(game: GuessingGame, questions: int, games: int, generator: np.random.Generator) -> int:
    """Return how many of `games` guesses are right, each after `questions` releases of fresh coins and noise."""
    right = 0
    for size in _portions(game, games):
        held = generator.integers(0, len(game.candidates), size)
        total = np.zeros((size, len(game.candidates)))
        for _ in range(questions):
            total += game.log_likelihoods(held, generator)
        right += _right(total, held, generator)
    return right


def posteriors(game: GuessingGame, held: int, games: int, generator: np.random.Generator) -> tuple[Floats, int]:
    """Return, for a device that holds candidates[held], the posterior of that candidate after one release in every
    game, and in how many games the guess is right."""
    own: list[Floats] = []
    right = 0
    for size in _portions(game, games):
        truths = np.full(size, held)
        logs = game.log_likelihoods(truths, generator)
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        own.append(np.asarray(shares[:, held] / shares.sum(axis=1), dtype=np.float64))
        right += _right(logs, truths, generator)
    return np.concatenate(own), right


def _portions(game: GuessingGame, games: int) -> list[int]:
    """Return the games in portions whose residuals fit into memory."""
    step = max(1, _DRAWN_AT_ONCE // max(1, len(game.cells)))
    return [min(step, games - start) for start in range(0, games, step)]


def _right(logs: Floats, held: Integers, generator: np.random.Generator) -> int:
    """Return how many guesses of the likeliest candidate are right; a tie is broken by a draw."""
    likeliest = logs >= logs.max(axis=1, keepdims=True) - 1e-9
    guess = np.where(likeliest, generator.random(logs.shape), -1.0).argmax(axis=1)
    return int((guess == held).sum())


def best_guess_rate(game: GuessingGame) -> float | None:
    """Return the rate of the best guess between two candidates after one release, by summing over all residuals.

    It is 1/2 + TV/2, with TV the total variation distance of the residual's two laws; the cells of the two candidates
    are sufficient. None for more candidates, or where the sum has more than four million terms.
    """
    if len(game.candidates) != 2:
        return None
    values = [value for value in game.candidates if value > 0 or game.law.with_zero]
    laws = [_padded(game.cell_law(value)) for value in values]
    if math.prod(law.size for law in laws) > _GRID_POINTS:
        return None
    apart = np.zeros([law.size for law in laws])
    for sign, truth in zip((1, -1), game.candidates, strict=True):
        for moved, chance in _moves(game.law, values, truth):
            shifted = [np.roll(law, step) for law, step in zip(laws, moved, strict=True)]
            apart += sign * chance * (shifted[0] if len(shifted) == 1 else np.outer(shifted[0], shifted[1]))
    return 0.5 + float(np.abs(apart).sum()) / 4


def guess_row(
    attacker: Attacker,
    case: Case,
    game: GuessingGame,
    measure: str,
    questions: int,
    tried: int,
    generator: np.random.Generator,
    target: str = "",
) -> Row:
    """Return how often a game of so many questions is won, beside the best possible and the promise for its candidates.

    `target` names what is guessed; without it the candidates do.
    """
    measured = share_of(play(game, questions, tried, generator), tried)
    bound = guess_bound(case.design, game.noises, questions, len(game.candidates))
    theory = {0: 0.5, 1: best_guess_rate(game)}.get(questions)
    target = target or shown(game.candidates)
    return finding(attacker, measure, target, measured, theory=theory, bound=bound, questions=questions)


def _padded(law: CellLaw) -> Floats:
    """Return the probabilities with a zero behind them, so that a shift by one loses nothing."""
    return np.append(np.exp(law.log_mass), 0.0)


def _moves(law: AnswerLaw, values: Sequence[int], truth: int) -> list[tuple[tuple[int, ...], float]]:
    """Return (units added to each cell of `values`, probability) of every answer of a device of this truth."""
    nothing = (0,) * len(values)
    if law.shape == "bits":
        moves: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for value in values:
            hit = law.channel(value)[value != truth]
            moves = [((*moved, bit), p * (hit if bit else 1 - hit)) for moved, p in moves for bit in (0, 1)]
        return moves
    units: list[tuple[int, ...]] = [tuple(int(one == other) for other in values) for one in values]
    if law.with_zero:
        chances = [float(_output_law(law, truth)[value]) for value in values]
    else:
        chances = [law.hit if value == truth else 0.0 for value in values]
    return [*zip(units, chances, strict=True), (nothing, 1 - sum(chances))]


def _output_law(law: AnswerLaw, truth: int) -> Floats:
    """Return P[output | truth] for the outputs 0..V of a response."""
    if law.shape == "binary":
        yes = law.hit if truth == 1 else law.miss
        return np.array([1 - yes, yes])
    weights = np.full(law.values + 1, law.miss)
    weights[truth] = law.hit
    return weights


def _contributions(law: AnswerLaw, cells: Sequence[int], truths: Integers, generator: np.random.Generator) -> Integers:
    """Return shape (games, cells): what the device adds to each cell, given its truth in every game."""
    own = truths[:, None] == np.array(cells)[None, :]
    if law.shape == "truth":
        return np.asarray(own, dtype=np.int64)
    if law.shape == "sampling":
        return np.asarray(own & (generator.random(truths.size) < law.hit)[:, None], dtype=np.int64)
    if law.shape == "bits":
        hits, misses = np.array([law.channel(value) for value in cells]).T
        return np.asarray(generator.random(own.shape) < np.where(own, hits, misses), dtype=np.int64)
    if law.shape == "k-ary":
        # With chance P - Q the truth, otherwise any of the V+1 outputs, the truth included.
        kept = generator.random(truths.size) < law.hit - law.miss
        outputs = np.where(kept, truths, generator.integers(0, law.values + 1, truths.size))
        return np.asarray(outputs[:, None] == np.array(cells)[None, :], dtype=np.int64)
    yes = generator.random(truths.size) < np.where(truths == 1, law.hit, law.miss)
    return np.asarray(yes[:, None] == np.array(cells)[None, :], dtype=np.int64)


def noise_cell_law(noise: NoiseLaw, noises: int) -> CellLaw:
    """Return the law of the sum of `noises` noises in one cell."""
    return _cell_law(noise, noises, 0, 0.0)


@lru_cache(maxsize=128)
def _cell_law(noise: NoiseLaw, noises: int, others: int, rate: float) -> CellLaw:
    """Return the law of the sum of `noises` noises and of Bin(others, rate)."""
    start, log_mass = _noise_law(noise, noises)
    if others == 0:
        return CellLaw(start=start, log_mass=log_mass)
    low, high = (int(end) for end in scipy.stats.binom.ppf([_TAIL, 1 - _TAIL], others, rate))
    sampled = scipy.stats.binom.pmf(np.arange(low, high + 1), others, rate)
    with np.errstate(divide="ignore"):
        mass = np.log(np.convolve(sampled, np.exp(log_mass)))
    return CellLaw(start=start + low, log_mass=np.asarray(mass, dtype=np.float64))


@lru_cache(maxsize=64)
def _noise_law(noise: NoiseLaw, noises: int) -> tuple[int, Floats]:
    """Return the law of the sum of `noises` noises: its smallest value, and ln P of that value and those after it."""
    if noises == 0 or isinstance(noise, NoNoise):
        return 0, np.zeros(1)
    if not isinstance(noise, TwoSidedNoise | GaussianNoise | OneSidedNoise):
        raise ScenarioError(f"noise is {noise.name!r}; guesses are computed for geometric and Gaussian noise")
    if not isinstance(noise, OneSidedNoise):
        law = noise_sum(noise_size(noise), noises)
        reach = law.reach
        return -reach, law.log_mass(np.arange(-reach, reach + 1))
    one_sided = OneSidedSum(epsilon=noise.epsilon, terms=noises)
    reach = one_sided.reach_beyond(1e-18) + 1
    mass = one_sided.log_mass(np.arange(reach + 1))
    return (0, mass) if noise.direction == "up" else (-reach, mass[::-1])
