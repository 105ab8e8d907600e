"""Unbiased estimates of the true counts from the numbers of a release, with their standard errors.

It must not clamp or round: an unbiased estimate may be negative or a fraction, and clamping is for display only.

Exact estimates (`Fraction`) for the release record are in `reading`. The array functions here take outputs of shape
(..., cells) and return float64 of the same shape, so one call reads any number of releases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.channels import NoiseSize, noise_sum
from fleetcount_analysis.errors import RangeError, ShapeError

Floats = NDArray[np.float64]
Direction = Literal["up", "down"]


class ResponseLaw(Protocol):
    """A randomized response with outputs 0..V, as `fleetcount_mechanisms.responses` defines them."""

    @property
    def values(self) -> int:
        """V, the number of values without 0."""
        ...

    def probability(self, output: int, truth: int) -> Fraction:
        """Return P[output | truth]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEstimates:
    """The estimated counts of cells and their standard errors, both in devices, float64, of one shape.

    Raises:
        ShapeError: the two shapes differ.
    """

    counts: Floats
    standard_errors: Floats

    def __post_init__(self) -> None:
        if self.counts.shape != self.standard_errors.shape:
            raise ShapeError(f"counts have shape {self.counts.shape}, standard errors {self.standard_errors.shape}")


def response_participants(outputs: Sequence[int], response: ResponseLaw) -> int:
    """Return Nhat, the sum of the (noised) outputs 0..V: unbiased, and exact without noise.

    Raises:
        ShapeError: there are not V+1 outputs.
    """
    if len(outputs) != response.values + 1:
        raise ShapeError(f"a response release has {len(outputs)} outputs; allowed is V+1 = {response.values + 1}")
    return sum(outputs)


def response_channel(response: ResponseLaw) -> tuple[Fraction, Fraction]:
    """Return (P, Q), the probabilities of answering v when the truth is v and when it is anything else.

    Raises:
        RangeError: P <= Q, or P[v | other truth] differs between values, so that the pair does not describe the law.
    """
    hit, miss = response.probability(1, 1), response.probability(1, 0)
    if response.values > 1 and {response.probability(1, 2), response.probability(2, 1)} != {miss}:
        raise RangeError("response law", "uneven between the other values", "one P[v | other truth] for all values")
    if not miss < hit:
        raise RangeError("P[v | v]", hit, f"above P[v | other truth] = {miss}")
    return hit, miss


def sampling_cells(difference: ArrayLike, sampling_rate: Fraction, noise: NoiseSize, aggregators: int) -> CellEstimates:
    """Return Y/p and sqrt(n (1-p)/p + k VarZ/p^2) with the estimate, clamped at 0, for n.

    Source: docs/privacy.md, "The release that is sound".

    Raises:
        RangeError: a parameter is outside its range.
    """
    _check_rate(sampling_rate)
    counts = np.asarray(difference, dtype=np.float64) / float(sampling_rate)
    errors = sampling_standard_errors(np.maximum(counts, 0), sampling_rate, noise, aggregators)
    return CellEstimates(counts=counts, standard_errors=errors)


def sampling_standard_errors(counts: ArrayLike, sampling_rate: Fraction, noise: NoiseSize, aggregators: int) -> Floats:
    """Return sqrt(n (1-p)/p + k VarZ/p^2) for true counts n, float64 of the same shape; independent of the population.

    Raises:
        RangeError: a parameter is outside its range, or a count is negative.
    """
    _check_rate(sampling_rate)
    p, truth = float(sampling_rate), np.asarray(counts, dtype=np.float64)
    if truth.size and not float(truth.min()) >= 0:
        raise RangeError("count", truth.min(), "0 or more")
    variance = truth * (1 - p) / p + noise_sum(noise, aggregators).variance / p**2
    return np.asarray(np.sqrt(variance), dtype=np.float64)


def response_cells(outputs: ArrayLike, response: ResponseLaw, noise: NoiseSize, aggregators: int) -> CellEstimates:
    """Return the estimates of cells 1..V (last axis) from the noised counts of outputs 0..V of any `ResponseLaw`.

    The standard error is the root of [n P(1-P) + (N-n) Q(1-Q) + K VarZ ((1-Q)^2 + V Q^2)]/(P-Q)^2, see
    `intervals.response_intervals`, with n and N taken as their estimates, n clamped into [0, N].

    Raises:
        ShapeError: the last axis is not V+1 long.
        RangeError: a parameter is outside its range.
    """
    counted = np.asarray(outputs, dtype=np.float64)
    if counted.shape[-1] != response.values + 1:
        raise ShapeError(f"the last axis has {counted.shape[-1]} outputs; allowed is V+1 = {response.values + 1}")
    hit, miss = (float(probability) for probability in response_channel(response))
    participants = counted.sum(axis=-1, keepdims=True)
    counts = (counted[..., 1:] - miss * participants) / (hit - miss)
    errors = response_standard_errors(counts, participants, response, noise, aggregators)
    return CellEstimates(counts=counts, standard_errors=errors)


def response_standard_errors(
    counts: ArrayLike, participants: ArrayLike, response: ResponseLaw, noise: NoiseSize, aggregators: int
) -> Floats:
    """Return the standard error of `response_cells` for true counts n among N, broadcast, float64.

    Counts are clamped into [0, N], so that estimates are allowed too.

    Raises:
        RangeError: a parameter is outside its range.
    """
    hit, miss = (float(probability) for probability in response_channel(response))
    flat = noise_sum(noise, aggregators).variance * ((1 - miss) ** 2 + response.values * miss**2)
    truth, total = np.asarray(counts, dtype=np.float64), np.asarray(participants, dtype=np.float64)
    return _response_errors(truth, total, hit, miss, flat)


def unary_cells(
    bits: ArrayLike,
    participants: ArrayLike,
    hit: Fraction,
    miss: Fraction,
    noise: NoiseSize = None,
    aggregators: int = 1,
) -> CellEstimates:
    """Return the estimates of cells whose bits are randomized one by one (OUE with P = 1/2, vector Mangat with P = 1).

    `bits` counts the set bits, `participants` the devices (or an unbiased estimate with the same noise, broadcast). The
    estimate is (Y - Q N)/(P - Q); its noise variance is K VarZ (1 + Q^2)/(P-Q)^2. Source:
    docs/privacy.md, "Response and direct windows".

    Raises:
        RangeError: not 0 <= Q < P <= 1.
    """
    if not 0 <= miss < hit <= 1:
        raise RangeError("channel (Q, P)", f"({miss}, {hit})", "0 <= Q < P <= 1")
    p, q = float(hit), float(miss)
    total = np.asarray(participants, dtype=np.float64)
    counts = np.asarray((np.asarray(bits, dtype=np.float64) - q * total) / (p - q), dtype=np.float64)
    flat = noise_sum(noise, aggregators).variance * (1 + q**2)
    return CellEstimates(counts=counts, standard_errors=_response_errors(counts, total, p, q, flat))


def one_sided_cells(outputs: ArrayLike, epsilon: Fraction, aggregators: int, direction: Direction) -> CellEstimates:
    """Return outputs of asymmetric geometric noise less (or plus) its mean k q/(1-q), and the error sqrt(k q)/(1-q).

    "up" is noise >= 0 (decreasing counts), "down" noise <= 0. q = exp(-epsilon). Unbiased before the truncation at n or
    at 0, which moves a count by less than k q/(1-q), and only near the truncation. Source: [ADP] AGeo.

    Raises:
        RangeError: epsilon is not positive, or fewer than 1 aggregator.
    """
    if epsilon <= 0 or aggregators < 1:
        raise RangeError(
            "(epsilon, aggregators)", f"({epsilon}, {aggregators})", "epsilon above 0, aggregators 1 or more"
        )
    keep = -np.expm1(-float(epsilon))
    mean = aggregators * (1 - keep) / keep
    counts = np.asarray(outputs, dtype=np.float64) + (-mean if direction == "up" else mean)
    error = np.sqrt(aggregators * (1 - keep)) / keep
    return CellEstimates(counts=counts, standard_errors=np.full(counts.shape, error))


def _response_errors(counts: Floats, participants: Floats, hit: float, miss: float, noise: float) -> Floats:
    total = np.maximum(participants, 0)
    inside = np.clip(counts, 0, total)
    variance = inside * hit * (1 - hit) + (total - inside) * miss * (1 - miss) + noise
    return np.asarray(np.sqrt(variance) / (hit - miss), dtype=np.float64)


def _check_rate(sampling_rate: Fraction) -> None:
    if not 0 < sampling_rate <= 1:
        raise RangeError("sampling rate", sampling_rate, "above 0 and at most 1")
