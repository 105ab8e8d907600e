"""Intervals, remaps and noise of thousands of cells beside a loop over cells and beside OpenDP, in one run.

Every figure is the least of alternating batches; it prints and decides nothing.
"""

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import opendp.prelude as dp
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.intervals import sampling_intervals
from fleetcount_analysis.noise import geometric_noise
from fleetcount_analysis.remap import LOSSES, sampling_remap
from fleetcount_mechanisms import SystemRandom, TwoSidedGeometric
from scipy import stats

CELLS = 5835
RATE, NOISE, AGGREGATORS, LEVEL = Fraction(1, 4), Fraction(1729, 1000), 2, Fraction(19, 20)
LOOPED = 40
ROUNDS = 5


def seconds(operation: Callable[[], object]) -> float:
    """Return the time of one call."""
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started


def least(operations: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the least time of each operation, in seconds, the rounds taken in turn."""
    times = dict.fromkeys(operations, float("inf"))
    for _ in range(rounds):
        for name, operation in operations.items():
            times[name] = min(times[name], seconds(operation))
    return times


def looped_interval(output: int) -> tuple[int, int]:
    """Return the same interval as one writes it for one cell: SciPy's binomial, the noise's window, bisection."""
    noise, p, tail = noise_sum(NOISE, AGGREGATORS), float(RATE), float((1 - LEVEL) / 2)
    z = np.arange(-noise.reach, noise.reach + 1)
    mass = np.exp(noise.log_mass(z))

    def at_least(n: int) -> float:
        return float(mass @ stats.binom.sf(output - z - 1, n, p))

    def at_most(n: int) -> float:
        return float(mass @ stats.binom.cdf(output - z, n, p))

    def first(rule: Callable[[int], bool]) -> int:
        low, high = -1, int(4 * max(output, 0) / p) + 1000
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rule(middle) else (middle, high)
        return high

    return first(lambda n: at_least(n) > tail), max(0, first(lambda n: at_most(n) <= tail) - 1)


def compare_intervals() -> None:
    """Print the time of exact intervals for the cells of a city, against a loop over cells."""
    generator = np.random.default_rng(1)
    cases = {
        "a city, most cells nearly empty": generator.geometric(0.02, CELLS) - 1,
        "all outputs different, to 100,000": generator.permutation(100_000)[:CELLS],
    }
    for name, outputs in cases.items():
        values: list[int] = outputs.tolist()

        def ours(values: list[int] = values) -> Any:
            return sampling_intervals(values, RATE, NOISE, AGGREGATORS, LEVEL)

        def loop(values: list[int] = values) -> Any:
            return [looped_interval(value) for value in values[:LOOPED]]

        if ours()[:LOOPED] != loop():
            raise SystemExit("the loop and the library disagree")
        times = least({"ours": ours, "loop": loop}, rounds=3)
        looped = times["loop"] / LOOPED * CELLS
        print(f"intervals  {name:<36}{times['ours'] * 1e3:9.1f} ms for {CELLS} cells", end="")
        print(f"{looped * 1e3:11.0f} ms by a loop over cells{looped / times['ours']:8.0f} times faster")
    [billion] = least({"": lambda: sampling_intervals([250_000_000], RATE, NOISE, AGGREGATORS, LEVEL)}).values()
    print(f"intervals  {'one cell of 10^9 devices':<36}{billion * 1e3:9.1f} ms")


def time_remaps() -> None:
    """Print the time of a remap with counts to 1,000."""
    prior = np.random.default_rng(2).dirichlet(np.ones(1001))
    matrix = np.abs(np.arange(1001.0)[:, None] - np.arange(1001.0)) ** 1.5
    for loss in (*LOSSES, matrix):
        name = loss if isinstance(loss, str) else "a matrix of 1,001 by 1,001"

        def operation(loss: Any = loss) -> Any:
            return sampling_remap(prior, loss, RATE, NOISE, AGGREGATORS)

        [took] = least({"": operation}).values()
        print(f"remap      counts to 1,000, {name:<26}{took * 1e3:9.1f} ms")


def compare_noise() -> None:
    """Print the time of a noise value in a release of 10,000 cells, ours and OpenDP's."""
    source, cells, epsilon = SystemRandom(), 10_000, Fraction(1)
    single = dp.m.make_geometric(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=1.0)
    vector = dp.m.make_geometric(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=1.0)
    law, zeros = TwoSidedGeometric(epsilon), [0] * cells
    times = least(
        {
            "OpenDP, one call a value": lambda: [single(0) for _ in range(300)],
            "OpenDP, vector of 10,000": lambda: vector(zeros),
            "mechanisms, sample_many(10,000)": lambda: law.sample_many(source, cells),
            "analysis, geometric_noise(10,000)": lambda: geometric_noise(epsilon, cells, source),
        },
        rounds=12,
    )
    each = {name: took / (300 if "one call" in name else cells) * 1e6 for name, took in times.items()}
    call, vectorised = each["OpenDP, one call a value"], each["OpenDP, vector of 10,000"]
    for name, microseconds in each.items():
        print(f"noise      {name:<36}{microseconds:9.3f} us a value", end="")
        print(f"{call / microseconds:8.1f} times its call{vectorised / microseconds:8.1f} times its vector")


if __name__ == "__main__":
    dp.enable_features("contrib")
    compare_intervals()
    time_remaps()
    compare_noise()
