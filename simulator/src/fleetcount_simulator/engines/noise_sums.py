"""The sum of all aggregators' noises for simulated releases, from a seeded NumPy generator.

For simulation only: a predictable generator gives no privacy. Real aggregators draw from the operating system.
"""

import math
from functools import lru_cache

import numpy as np
from fleetcount_analysis.channels import noise_sum
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import drawn_at_once
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Integers


def summed_noise(law: NoiseLaw, aggregators: int, cells: int, generator: np.random.Generator) -> Integers:
    """Return shape (cells,): int64: for every cell the sum of one noise per aggregator, drawn at once.

    A two-sided geometric variable, P[z] = (1-a)/(1+a) a^|z| with a = exp(-e1), is the difference of two geometric ones
    of ratio a, so the sum of k is the difference of two negative binomials with k successes:
    E[t^Z] = ((1-a)/(1-at))^k ((1-a)/(1-a/t))^k. One-sided noise (AGeo without a cut) is one negative binomial of ratio
    q = exp(-eps), above 0 for "up" and below for "down". A sum of discrete Gaussians is drawn by inversion of its
    distribution function (`gaussian_sums`), with the 53 bits of a double.

    Raises:
        ScenarioError: a law whose sums are not drawn here.
    """
    if isinstance(law, NoNoise):
        return np.zeros(cells, dtype=np.int64)
    if isinstance(law, GaussianNoise):
        return _gaussian_sums(law, aggregators, cells, generator)
    if not isinstance(law, TwoSidedNoise | OneSidedNoise):
        raise ScenarioError(f"noise is {law.name!r}; engines draw geometric noise, two-sided or one-sided, or Gaussian")
    success = -math.expm1(-float(law.epsilon))
    drawn = generator.negative_binomial(aggregators, success, cells)
    if isinstance(law, OneSidedNoise):
        return drawn if law.direction == "up" else -drawn
    return np.asarray(drawn - generator.negative_binomial(aggregators, success, cells), dtype=np.int64)


def levels_noise(design: Design, first: int, generator: np.random.Generator) -> Integers:
    """Return the noise of all aggregators, int64: on the `first` numbers, then on those of every coarser level.

    Raises:
        ScenarioError: as `summed_noise`.
    """
    runs = zip(design.laws, (first, *design.levels.sizes[1:]), strict=True)
    drawn = drawn_at_once(runs)
    return np.concatenate([summed_noise(law, design.aggregators, count, generator) for law, count in drawn])


def _gaussian_sums(law: GaussianNoise, aggregators: int, cells: int, generator: np.random.Generator) -> Integers:
    """Draw |Z| as the number of m > 0 with P[|Z| >= m] > U, and a fair sign.

    Upper tails keep their digits where they are small; one minus a distribution function would lose them.
    """
    falling = _folded_tails(law, aggregators)
    sizes = falling.size - np.searchsorted(falling[::-1], generator.random(cells), side="right")
    return np.asarray(np.where(generator.random(cells) < 0.5, sizes, -sizes), dtype=np.int64)


@lru_cache(maxsize=16)
def _folded_tails(law: GaussianNoise, aggregators: int) -> NDArray[np.float64]:
    summed = noise_sum(law, aggregators)
    return np.asarray(2 * summed.upper_tail(np.arange(1, summed.reach + 2)), dtype=np.float64)
