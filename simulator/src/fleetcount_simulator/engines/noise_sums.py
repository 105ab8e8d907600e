"""The sum of all aggregators' noises for simulated releases, from a seeded NumPy generator.

For simulation only: a predictable generator gives no privacy. Real aggregators draw from the operating system.
"""

import math

import numpy as np
from fleetcount_mechanisms.noise import NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Integers

__all__ = ["summed_noise"]


def summed_noise(law: NoiseLaw, aggregators: int, cells: int, generator: np.random.Generator) -> Integers:
    """Return shape (cells,): for every cell the sum of one noise an aggregator, drawn at once.

    A two-sided geometric variable, P[z] = (1-a)/(1+a) a^|z| with a = exp(-e1), is the difference of two geometric ones
    of ratio a, so the sum of k is the difference of two negative binomials with k successes:
    E[t^Z] = ((1-a)/(1-at))^k ((1-a)/(1-a/t))^k. One-sided noise (AGeo without a cut) is one negative binomial of ratio
    q = exp(-eps), above 0 for "up" and below for "down". No noise is zero.

    Raises:
        ScenarioError: a law whose sums are not drawn here.
    """
    if isinstance(law, NoNoise):
        return np.zeros(cells, dtype=np.int64)
    if not isinstance(law, TwoSidedNoise | OneSidedNoise):
        raise ScenarioError(f"noise is {law.name!r}; engines draw geometric noise, two-sided or one-sided")
    success = -math.expm1(-float(law.epsilon))
    drawn = generator.negative_binomial(aggregators, success, cells)
    if isinstance(law, OneSidedNoise):
        return drawn if law.direction == "up" else -drawn
    return np.asarray(drawn - generator.negative_binomial(aggregators, success, cells), dtype=np.int64)
