"""Intervals and remaps of thousands of cells, intervals beside a loop over cells, in one run.

Every figure is the least of alternating batches; it decides nothing.
"""

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.intervals import sampling_intervals, unary_ends
from fleetcount_analysis.remap import LOSSES, sampling_remap
from rows import Row, quick, report, smoke
from scipy import stats

CELLS = 5835
COUNTS = 200 if smoke() else 500 if quick() else 1_000
RATE, NOISE, AGGREGATORS, LEVEL = Fraction(1, 4), Fraction(1729, 1000), 2, Fraction(19, 20)
LOOPED = 4 if smoke() else 40
ROUNDS = 1 if smoke() else 2 if quick() else 5


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
    """Report the time of exact intervals for the cells of a city, against a loop over cells."""
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
        times = least({"ours": ours, "loop": loop}, rounds=min(ROUNDS, 3))
        looped = times["loop"] / LOOPED * CELLS
        report(
            Row(
                path=f"intervals of {CELLS:,} cells, {name}",
                ours=1e3 * times["ours"],
                unit="ms",
                peer=f"a loop over {LOOPED} cells, scaled",
                peer_value=1e3 * looped,
                ratio=looped / times["ours"],
            )
        )
    [billion] = least({"": lambda: sampling_intervals([250_000_000], RATE, NOISE, AGGREGATORS, LEVEL)}).values()
    report(Row(path="interval of one cell of 10^9 devices", ours=1e3 * billion, unit="ms"))


def time_responses() -> None:
    """Report the time of exact intervals of bits, one release of the cells of a city under little and much noise."""
    devices, flip = 100_000, Fraction(1, 3)
    generator = np.random.default_rng(3)
    bits = generator.binomial(devices - generator.geometric(0.02, CELLS), float(flip))
    for noise in (NOISE, Fraction(1, 20)):
        name = f"intervals of {CELLS:,} cells of bits, e1 = {float(noise):g}"

        def operation(noise: Fraction = noise) -> Any:
            return unary_ends(bits, np.array([devices]), Fraction(1), flip, noise, AGGREGATORS, LEVEL)

        [took] = least({"": operation}, rounds=min(ROUNDS, 3)).values()
        report(Row(path=name, ours=1e3 * took, unit="ms"))


def time_remaps() -> None:
    """Report the time of a remap with a thousand counts."""
    prior = np.random.default_rng(2).dirichlet(np.ones(COUNTS + 1))
    matrix = np.abs(np.arange(COUNTS + 1.0)[:, None] - np.arange(COUNTS + 1.0)) ** 1.5
    for loss in (*LOSSES, matrix):
        name = f"the loss {loss}" if isinstance(loss, str) else "a matrix of losses"

        def operation(loss: Any = loss) -> Any:
            return sampling_remap(prior, loss, RATE, NOISE, AGGREGATORS)

        [took] = least({"": operation}).values()
        report(Row(path=f"remap, counts to {COUNTS:,}, {name}", ours=1e3 * took, unit="ms"))


if __name__ == "__main__":
    compare_intervals()
    time_responses()
    time_remaps()
