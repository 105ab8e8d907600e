"""Reading of a release with a user's own prior and loss: the answer of least expected loss for every possible output.

It must use the true channel only: all k noises, the sampling or the devices' own responses. The universality of [GEO]
Theorem 3.1 holds only for one geometric noise without sampling; for k >= 2 or p < 1 the remap is the best reading, but
not of the best mechanism.

With w_i(y) = prior_i P[y | i], the answer to y is the smallest j that minimises sum_i w_i(y) loss(i, j); an output of
no mass keeps its own value, clamped into 0..n (docs/papers.md, "GEO").
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import numpy as np
import scipy
from fleetcount_mechanisms.noise import OneSidedNoise
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.channels import NoiseSize, SamplingChannel, check_entries, noise_sum, whole_outputs
from fleetcount_analysis.errors import NoOptimumError, RangeError, ShapeError, TooLargeError
from fleetcount_analysis.one_sided_sums import OneSidedSum

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NamedLoss = Literal["absolute", "squared", "zero-one"]
Loss = NamedLoss | Floats

LOSSES: Final[tuple[NamedLoss, ...]] = ("absolute", "squared", "zero-one")

_TIE: Final = 1e-12
_TAIL: Final = 1e-18
_RARE: Final = 1e-12
_DEVIATIONS: Final = 9.0
"""A sum of devices' coins is outside so many standard deviations, and so many devices, with probability below 1e-17."""
_LARGEST_PROGRAM: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Remap:
    """The answer to every output smallest_output, smallest_output + 1, ... and the expected loss of using them."""

    smallest_output: int
    answers: Integers
    expected_loss: float

    def read(self, outputs: ArrayLike) -> Integers:
        """Return the answers to outputs, int64 of the same shape; an output beyond the table (probability below 1e-17)
        gets the answer of the table's end.
        """
        place = np.clip(whole_outputs(outputs) - self.smallest_output, 0, self.answers.size - 1)
        return np.asarray(self.answers[place], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptimum:
    """The least expected loss of any alpha-private mechanism for one user, and a mechanism that attains it."""

    expected_loss: float
    mechanism: Floats


def sampling_remap(prior: ArrayLike, loss: Loss, sampling_rate: Fraction, noise: NoiseSize, aggregators: int) -> Remap:
    """Return the Bayes-optimal reading of one cell of a release with sampling rate p and k noises (p = 1: direct mode).

    Run by an analyst on a published record. `prior` gives P[count = i], i = 0..n; `loss` is a name or the matrix
    loss[i, j] of answering j when the count is i.

    Raises:
        RangeError: a prior or loss outside its range, or a parameter outside its range.
        ShapeError: the loss matrix is not (n+1) by (n+1).
        TooLargeError: the channel would have more than 2^26 entries.
    """
    weights = checked_prior(prior)
    channel = SamplingChannel(sampling_rate=sampling_rate, noise=noise_sum(noise, aggregators))
    smallest, matrix = channel.matrix(weights.size - 1)
    return optimal_remap(weights, matrix, loss, smallest)


def one_sided_remap(prior: ArrayLike, loss: Loss, noise: OneSidedNoise, aggregators: int) -> Remap:
    """Return the Bayes-optimal reading of one count with k one-sided geometric noises, which add up in one direction.

    The sum of the noises is negative binomial with k successes and ratio exp(-epsilon). Source: [ADP] Theorem VIII.3,
    where the error of such noise is least after the reader's remap.

    Raises:
        RangeError, ShapeError, TooLargeError: as `sampling_remap`.
    """
    weights = checked_prior(prior)
    count, law = weights.size - 1, OneSidedSum(epsilon=noise.epsilon, terms=aggregators)
    reach = law.reach_beyond(_TAIL) + 1
    check_entries(count, count + reach + 1)
    n, z = np.arange(count + 1), np.arange(count + reach + 1)
    matrix = np.exp(law.log_mass(z[None, :] - n[:, None]))
    if noise.direction == "up":
        return optimal_remap(weights, matrix, loss)
    # Noise downwards is the mirror image: count - (output - n) for the count n - i.
    return optimal_remap(weights, np.ascontiguousarray(matrix[::-1, ::-1]), loss, -reach)


def response_remap(
    prior: ArrayLike, loss: Loss, channel: tuple[Fraction, Fraction], devices: int, noise: NoiseSize, aggregators: int
) -> Remap:
    """Return the Bayes-optimal reading of the noised count of one answer that `devices` devices randomize.

    `channel` is (P, Q), the chances of the answer for a device whose truth it is and for another one: with i devices of
    that truth the output is Bin(i, P) + Bin(devices - i, Q) and k noises. `devices` is taken as known; the noise of the
    published number of devices is not in the law. The table has the outputs of probability 1e-12 and more.

    Raises:
        RangeError, ShapeError, TooLargeError: as `sampling_remap`; also for a prior beyond the number of devices.
    """
    weights = checked_prior(prior)
    count, (hit, miss) = weights.size - 1, (float(one) for one in channel)
    if count > devices:
        raise RangeError("largest count of the prior", count, f"up to the {devices} devices of the release")
    summed = noise_sum(noise, aggregators)
    i = np.arange(count + 1)
    means = i * hit + (devices - i) * miss
    variances = i * hit * (1 - hit) + (devices - i) * miss * (1 - miss)
    reach = summed.reach + math.ceil(_DEVIATIONS * math.sqrt(float(variances.max())) + _DEVIATIONS)
    smallest = math.floor(float(means.min())) - reach
    size = math.ceil(float(means.max())) + reach - smallest + 1
    check_entries(count, size)
    angles = 2 * np.pi * np.arange(size // 2 + 1) / size
    turn = np.exp(-1j * angles) - 1
    coins = (1 + hit * turn)[None, :] ** i[:, None] * (1 + miss * turn)[None, :] ** (devices - i)[:, None]
    waves = coins * np.exp(summed.log_characteristic(angles) + 1j * angles * smallest)[None, :]
    matrix = np.maximum(np.fft.irfft(waves, size, axis=1), 0.0)
    # The transform is exact to 1e-16: what is rarer than this is read as the nearest output that is not.
    likely = np.flatnonzero(weights @ matrix > _RARE)
    return optimal_remap(weights, matrix[:, likely[0] : likely[-1] + 1], loss, smallest + int(likely[0]))


def geometric_remap(prior: ArrayLike, loss: Loss, ratio: float | Fraction) -> Remap:
    """Return the remap of the range-restricted geometric mechanism G_n of ratio alpha ([GEO] section 2.3).

    Raises:
        RangeError, ShapeError: as `sampling_remap`, or the ratio is outside (0, 1).
    """
    weights = checked_prior(prior)
    return optimal_remap(weights, geometric_channel(weights.size - 1, ratio), loss)


def geometric_channel(largest_count: int, ratio: float | Fraction) -> Floats:
    """Return G_n, n = largest_count: P(0|i) = a^i/(1+a), P(n|i) = a^(n-i)/(1+a), P(j|i) = (1-a)/(1+a) a^|i-j|.

    Raises:
        RangeError: the ratio a is outside (0, 1), or n is below 1.
    """
    a = _checked_ratio(ratio)
    if largest_count < 1:
        raise RangeError("largest count", largest_count, "1 or more")
    i = np.arange(largest_count + 1)
    matrix = (1 - a) / (1 + a) * a ** np.abs(i[:, None] - i[None, :])
    matrix[:, 0], matrix[:, -1] = a**i / (1 + a), a ** (largest_count - i) / (1 + a)
    return np.asarray(matrix, dtype=np.float64)


def optimal_remap(prior: ArrayLike, channel: Floats, loss: Loss, smallest_output: int = 0) -> Remap:
    """Return the remap of any channel, rows the counts 0..n, columns the outputs from `smallest_output` on.

    Raises:
        RangeError, ShapeError: as `sampling_remap`, or the channel has not n+1 rows.
    """
    weights = checked_prior(prior)
    if channel.ndim != 2 or channel.shape[0] != weights.size:
        raise ShapeError(f"the channel has shape {channel.shape}; allowed is {weights.size} rows, one a count")
    losses = loss_matrix(loss, weights.size - 1)
    joint = weights[:, None] * channel
    mass = joint.sum(axis=0)
    seen = mass > 0
    posterior = joint / np.where(seen, mass, 1.0)
    own = np.clip(smallest_output + np.arange(channel.shape[1]), 0, weights.size - 1)
    answers = np.where(seen, _best_answers(posterior, loss, losses), own)
    expected = float(np.sum(joint * losses[:, answers]))
    return Remap(smallest_output=smallest_output, answers=answers.astype(np.int64), expected_loss=expected)


def user_optimum(prior: ArrayLike, loss: Loss, ratio: float | Fraction) -> UserOptimum:
    """Return the optimum of the user's own linear program over all alpha-private mechanisms ([GEO] section 2.4).

    min sum_i prior_i sum_j x_ij loss(i,j) subject to x_ij >= a x_{i+1,j}, x_{i+1,j} >= a x_ij, rows of sum 1, x >= 0;
    (n+1)^2 unknowns, sparse, solved by HiGHS.

    Raises:
        RangeError, ShapeError: as `geometric_remap`.
        TooLargeError: n is above 100.
        NoOptimumError: the solver stopped without an optimum.
    """
    weights, a = checked_prior(prior), _checked_ratio(ratio)
    size = weights.size
    if size - 1 > _LARGEST_PROGRAM:
        raise TooLargeError(f"the linear program has n = {size - 1}; allowed is 1 to {_LARGEST_PROGRAM}")
    cost = weights[:, None] * loss_matrix(loss, size - 1)
    here, below = scipy.sparse.eye_array(size - 1, size), scipy.sparse.eye_array(size - 1, size, k=1)
    columns = scipy.sparse.eye_array(size)
    private = scipy.sparse.vstack(
        [scipy.sparse.kron(a * below - here, columns), scipy.sparse.kron(a * here - below, columns)]
    )
    rows = scipy.sparse.kron(columns, np.ones((1, size)))
    solved = scipy.optimize.linprog(
        cost.ravel(),
        A_ub=private.tocsr(),
        b_ub=np.zeros(2 * (size - 1) * size),
        A_eq=rows.tocsr(),
        b_eq=np.ones(size),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not solved.success or solved.x is None:
        raise NoOptimumError(f"the linear program of n = {size - 1} stopped: {solved.message}")
    return UserOptimum(expected_loss=float(solved.fun), mechanism=np.asarray(solved.x).reshape(size, size))


def checked_prior(prior: ArrayLike) -> Floats:
    """Return a prior over the counts 0..n as float64 of sum 1.

    Raises:
        ShapeError: it is not one-dimensional with at least two entries.
        RangeError: an entry is negative or not finite, or the sum is further from 1 than 1e-9.
    """
    weights = _numbers("prior", prior, "a number for each count")
    if weights.ndim != 1 or weights.size < 2:
        raise ShapeError(f"the prior has shape {weights.shape}; allowed is one number for each count 0..n, n >= 1")
    for count, weight in enumerate(weights):
        if not (np.isfinite(weight) and weight >= 0):
            raise RangeError(f"prior of count {count}", weight, "0 or more and finite")
    total = float(weights.sum())
    if abs(total - 1) > 1e-9:
        raise RangeError("sum of the prior", total, "1 within 1e-9")
    return weights / total


def loss_matrix(loss: Loss, largest_count: int) -> Floats:
    """Return loss[i, j] for the counts i and answers j in 0..n, (n+1, n+1) float64, from a name or a matrix.

    Raises:
        RangeError: an unknown name, or an entry that is negative or not finite.
        ShapeError: the matrix is not (n+1) by (n+1).
    """
    i = np.arange(largest_count + 1, dtype=np.float64)
    apart = np.abs(i[:, None] - i[None, :])
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise RangeError("loss", loss, f"one of {', '.join(LOSSES)}, or a matrix")
        return {"absolute": apart, "squared": apart**2, "zero-one": (apart > 0).astype(np.float64)}[loss]
    loss = _numbers("loss", loss, f"one of {', '.join(LOSSES)}, or a matrix of numbers")
    if loss.shape != apart.shape:
        raise ShapeError(f"the loss has shape {loss.shape}; allowed is {apart.shape} for the counts 0..{largest_count}")
    bad = np.argwhere(~(np.isfinite(loss) & (loss >= 0)))
    if bad.size:
        row, column = (int(place) for place in bad[0])
        raise RangeError(f"loss of answering {column} at count {row}", loss[row, column], "0 or more and finite")
    return loss


def _best_answers(posterior: Floats, loss: Loss, losses: Floats) -> Integers:
    """Return the smallest best answer of every column: median, rounded mean, mode, or by the whole matrix of costs."""
    if isinstance(loss, str) and loss == "absolute":
        return np.asarray(np.argmax(np.cumsum(posterior, axis=0) >= 0.5 - _TIE, axis=0), dtype=np.int64)
    if isinstance(loss, str) and loss == "squared":
        mean = np.arange(posterior.shape[0]) @ posterior
        return np.asarray(np.maximum(np.ceil(mean - 0.5 - _TIE * (1 + mean)), 0), dtype=np.int64)
    if isinstance(loss, str):
        return np.asarray(np.argmax(posterior >= posterior.max(axis=0) * (1 - _TIE), axis=0), dtype=np.int64)
    costs = losses.T @ posterior
    return np.asarray(np.argmax(costs <= costs.min(axis=0) * (1 + _TIE), axis=0), dtype=np.int64)


def _numbers(name: str, given: ArrayLike, allowed: str) -> Floats:
    try:
        return np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError):
        raise RangeError(name, str(given)[:40], allowed) from None


def _checked_ratio(ratio: float | Fraction) -> float:
    if not 0 < ratio < 1:
        raise RangeError("ratio alpha", ratio, "above 0 and below 1")
    return float(ratio)
