"""Analysis beside its plain alternatives, in one run: intervals of a city, noise of a city, a remap of n = 1,000.

Every figure is the least of three runs; it prints and decides nothing.
"""

import time
from collections.abc import Callable
from fractions import Fraction
from math import tanh

import numpy as np
import opendp.prelude as dp
from fleetcount_analysis.intervals import sampling_intervals
from fleetcount_analysis.noise import geometric_noise
from fleetcount_analysis.remap import sampling_remap
from fleetcount_mechanisms import SystemRandom
from scipy import stats

CELLS = 5_835
RATE, EPSILON, PARTIES, LEVEL = Fraction(1, 4), Fraction(173, 100), 2, Fraction(95, 100)


def least_s(operation: Callable[[], object], runs: int = 3) -> float:
    """Return the least of some runs in seconds."""
    times: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        operation()
        times.append(time.perf_counter() - started)
    return min(times)


def loop_interval(output: int, noise: np.ndarray, reach: int) -> tuple[int, int]:
    """Return one cell's exact interval as one would write it first: both tails summed, both ends bisected, no table."""
    tail = float((1 - LEVEL) / 2)
    below = np.concatenate([[0.0], noise.cumsum()])

    def at_most(count: int, value: int) -> float:
        hits = np.arange(count + 1)
        place = np.clip(value - hits + reach + 1, 0, noise.size)
        return float(np.sum(stats.binom.pmf(hits, count, float(RATE)) * below[place]))

    def first(holds: Callable[[int], bool]) -> int:
        low, high = -1, 8 * abs(output) + 64
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    low = first(lambda count: 1 - at_most(count, output - 1) > tail)
    return low, first(lambda count: at_most(count, output) <= tail) - 1


def noise_pmf(parties: int, reach: int) -> np.ndarray:
    """Return P[sum of the noises = z] for z in -reach..reach."""
    one = tanh(float(EPSILON) / 2) * np.exp(-float(EPSILON) * np.abs(np.arange(-reach, reach + 1)))
    total = one
    for _ in range(parties - 1):
        total = np.convolve(total, one)[reach : 3 * reach + 1]
    return total


def main() -> None:
    """Print all three comparisons."""
    dp.enable_features("contrib")
    outputs = np.random.default_rng(1).poisson(6, CELLS).tolist()
    noise = noise_pmf(PARTIES, 40)
    ours = least_s(lambda: sampling_intervals(outputs, RATE, EPSILON, PARTIES, LEVEL))
    part = outputs[:60]
    loop = least_s(lambda: [loop_interval(output, noise, 40) for output in part], 1) * CELLS / len(part)
    if [loop_interval(output, noise, 40) for output in part] != sampling_intervals(part, RATE, EPSILON, PARTIES, LEVEL):
        raise SystemExit("the loop and the vectorised intervals differ")
    print(
        f"exact intervals, {CELLS} cells: ours {ours:.4f} s, per-cell loop {loop:.2f} s, {loop / ours:.0f} times faster"
    )

    source = SystemRandom()
    vector = dp.m.make_geometric(
        dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=1 / float(EPSILON)
    )
    single = dp.m.make_geometric(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=1 / float(EPSILON))
    zeros = [0] * CELLS
    mine = least_s(lambda: geometric_noise(EPSILON, CELLS, source), 9) / CELLS * 1e6
    theirs = least_s(lambda: vector(zeros)) / CELLS * 1e6
    call = least_s(lambda: [single(0) for _ in range(300)]) / 300 * 1e6
    print(
        f"exact noise a cell, {CELLS} cells: ours {mine:.3f} us, OpenDP vector {theirs:.3f} us ({theirs / mine:.0f} "
        f"times), OpenDP call a cell {call:.1f} us ({call / mine:.0f} times)"
    )

    prior = np.full(1001, 1 / 1001)
    remap = least_s(lambda: sampling_remap(prior, "absolute", RATE, EPSILON, PARTIES))
    print(f"remap of n = 1,000, absolute loss, true channel of {PARTIES} noises: {remap:.3f} s")


if __name__ == "__main__":
    main()
