"""What an analyst reads out of simulated releases: estimates and intervals of every cell, many runs in one call.

Knows only what a release shows and the public task, never the truth. The mathematics is `fleetcount_analysis`; this
module chooses the reading that belongs to a kind of mechanism, as the aggregators' publication does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, cast

import numpy as np
from fleetcount_analysis import estimates, intervals
from fleetcount_mechanisms.responses import MangatVector, OptimizedUnaryEncoding, RandomizedResponse
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray

from fleetcount_simulator.model import Case, Integers, Outcome
from fleetcount_simulator.scenario.laws import BitLaw, law_of

__all__ = ["PARTICIPATION", "Reading", "read_releases"]

Floats = NDArray[np.float64]
Pairs = list[tuple[int, int]]

PARTICIPATION: Final = "participation"
"""The tally that holds the noised number of devices a release of bit vectors opens beside the bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """Estimates and interval ends of cells 1..V, shape (runs, V), in devices."""

    estimates: Floats
    low: Integers
    high: Integers


def read_releases(case: Case, outcome: Outcome) -> Reading:
    """Return what is read out of every run of an outcome; rows of runs without a release mean nothing.

    Raises:
        AnalysisError: an output beyond 10^12 in size.
    """
    law = law_of(case.mechanism, case.population.question.values)
    if isinstance(law, SamplingDie):
        return _sampling(case, outcome.outputs, law.sampling_rate)
    if isinstance(law, MangatVector | OptimizedUnaryEncoding):
        return _bits(case, outcome, law)
    if law is not None:
        return _response(case, outcome.outputs, law)
    if case.mechanism.kind == "one-sided":
        return _one_sided(case, outcome.outputs)
    return _sampling(case, outcome.outputs, Fraction(1))


def _sampling(case: Case, outputs: Integers, rate: Fraction) -> Reading:
    """Sampling, and at rate 1 direct mode."""
    noise, parties = case.mechanism.noise_epsilon, case.aggregators
    counts = estimates.sampling_cells(outputs, rate, noise, parties).counts
    ends = intervals.sampling_intervals(outputs.ravel().tolist(), rate, noise, parties, case.level)
    return _reading(counts, ends)


def _response(case: Case, outputs: Integers, law: RandomizedResponse) -> Reading:
    noise, parties = case.mechanism.noise_epsilon, case.aggregators
    counts = estimates.response_cells(outputs, law, noise, parties).counts
    if noise is None:
        hit, miss = estimates.response_channel(law)
        return _reading(counts, _without_noise(case, outputs[:, 1:], outputs.sum(axis=1), hit, miss))
    ends: Pairs = []
    for row in outputs.tolist():
        ends += intervals.response_intervals(cast("list[int]", row), law, noise, parties, case.level)
    return _reading(counts, ends)


def _bits(case: Case, outcome: Outcome, law: BitLaw) -> Reading:
    """Bit vectors: the number of devices is opened with its own noise, before the bits or as a tally."""
    values, outputs = case.population.question.values, outcome.outputs
    if outputs.shape[1] == values + 1:
        devices, bits = outputs[:, 0], outputs[:, 1:]
    else:
        devices, bits = outcome.tallies.get(PARTICIPATION, outcome.participants), outputs
    noise, parties = case.mechanism.noise_epsilon, case.aggregators
    hit, miss = law.bit_probability(1, 1), law.bit_probability(1, 0)
    counts = estimates.unary_cells(bits, devices[:, None], hit, miss, noise, parties).counts
    if noise is None:
        return _reading(counts, _without_noise(case, bits, devices, hit, miss))
    ends: Pairs = []
    for row, total in zip(bits.tolist(), devices.tolist(), strict=True):
        ends += intervals.unary_intervals(cast("list[int]", row), total, hit, miss, noise, parties, case.level)
    return _reading(counts, ends)


def _without_noise(case: Case, cells: Integers, devices: Integers, hit: Fraction, miss: Fraction) -> Pairs:
    """Return the intervals of cells whose counts carry no noise, one call for all runs of equally many devices."""

    def read(rows: Integers, total: int) -> Pairs:
        listed = cells[rows].ravel().tolist()
        return intervals.unary_intervals(listed, total, hit, miss, None, case.aggregators, case.level)

    return _by_devices(cells.shape, devices, read)


def _by_devices(shape: Sequence[int], devices: Integers, read: Callable[[Integers, int], Pairs]) -> Pairs:
    runs, values = shape
    ends: list[Pairs] = [[] for _ in range(runs)]
    for total in np.unique(devices).tolist():
        rows = np.flatnonzero(devices == total)
        pairs = read(rows, total)
        for place, row in enumerate(rows.tolist()):
            ends[row] = pairs[place * values : (place + 1) * values]
    return [pair for row in ends for pair in row]


def _one_sided(case: Case, outputs: Integers) -> Reading:
    """Noise >= 0 ("up") leaves the truth in [Y - m, Y]; noise <= 0 ("down") is its mirror image, [Y, Y + m]."""
    epsilon, direction = case.mechanism.noise_epsilon, case.mechanism.direction or "up"
    if epsilon is None:
        raise ValueError("a one-sided mechanism has noise")
    counts = estimates.one_sided_cells(outputs, epsilon, case.aggregators, direction).counts
    shift = 0
    if direction == "down":
        probe = 10**9
        low, high = intervals.one_sided_intervals([probe], epsilon, case.aggregators, case.level)[0]
        shift = high - low
    listed = (outputs + shift).ravel().tolist()
    return _reading(counts, intervals.one_sided_intervals(listed, epsilon, case.aggregators, case.level))


def _reading(counts: Floats, ends: Pairs) -> Reading:
    both = np.array(ends, dtype=np.int64).reshape(*counts.shape, 2)
    return Reading(estimates=counts, low=both[..., 0], high=both[..., 1])
