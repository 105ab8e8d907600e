"""Our coins and noise beside OpenDP's, in one run: a toss of both rounds, a k-ary response, geometric noise, its time.

Every figure is the least of alternating batches, in microseconds; it prints and decides nothing.
"""

import time
from collections.abc import Callable
from fractions import Fraction

import opendp.prelude as dp
from fleetcount_mechanisms import KaryResponse, SamplingDie, SystemRandom, TwoSidedGeometric, toss
from scipy import stats

ROUNDS = 12
CATEGORIES = 1000
PEER = "OpenDP randomized response, 1,000"


def batch_us(operation: Callable[[], object], calls: int) -> float:
    """Return the microseconds a call of one batch."""
    started = time.perf_counter()
    for _ in range(calls):
        operation()
    return (time.perf_counter() - started) / calls * 1e6


def least_us(operations: dict[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """Return the least of alternating batches of each operation, so that a busy moment strikes all alike."""
    least = dict.fromkeys(operations, float("inf"))
    for _ in range(ROUNDS):
        for name, (operation, calls) in operations.items():
            least[name] = min(least[name], batch_us(operation, calls))
    return least


def compare_answers() -> None:
    """Print the time of an answer: ours for many V, OpenDP's randomized response with 1,000 categories."""
    source = SystemRandom()
    peer = dp.m.make_randomized_response(list(range(CATEGORIES)), prob=0.5)
    small = dp.m.make_randomized_response([0, 1], prob=0.6)
    response = KaryResponse(Fraction(1, 2), CATEGORIES - 1)
    operations: dict[str, tuple[Callable[[], object], int]] = {
        PEER: (lambda: peer(7), 200),
        "the same, 2 categories": (lambda: small(1), 200),
        "KaryResponse.randomize": (lambda: response.randomize(7, source), 5000),
    }
    for values in (1, 10, 100, CATEGORIES, 10**5, 10**7):
        die = SamplingDie.uniform(Fraction(1, 4), values)
        operations[f"toss of both rounds, V = {values}"] = (lambda die=die: toss(die, 1, source), 5000)  # type: ignore[misc] # bound in the loop
    least = least_us(operations)
    theirs = least[PEER]
    for name, microseconds in least.items():
        print(f"answer  {name:<36}{microseconds:9.3f} us{theirs / microseconds:8.1f} times faster than OpenDP")


def compare_noise() -> None:
    """Print the time of a noise value: ours for 1 and for 10,000 cells, OpenDP's one by one and as a vector."""
    source, cells = SystemRandom(), 10_000
    single = dp.m.make_geometric(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=1.0)
    vector = dp.m.make_geometric(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=1.0)
    noise, zeros = TwoSidedGeometric(Fraction(1)), [0] * cells
    least = least_us(
        {
            "OpenDP, one call a value": (lambda: single(0), 300),
            "OpenDP, vector of 10,000": (lambda: vector(zeros), 1),
            "ours, sample": (lambda: noise.sample(source), 1000),
            "ours, sample_many(10,000)": (lambda: noise.sample_many(source, cells), 1),
        }
    )
    for name in ("OpenDP, vector of 10,000", "ours, sample_many(10,000)"):
        least[name] /= cells
    theirs, vectorised = least["OpenDP, one call a value"], least["OpenDP, vector of 10,000"]
    for name, microseconds in least.items():
        print(
            f"noise   {name:<36}{microseconds:9.3f} us{theirs / microseconds:8.1f} times its call"
            f"{vectorised / microseconds:8.1f} times its vector"
        )


def correlate_time_with_value(draws: int = 20_000) -> None:
    """Print the rank correlation between a draw's time and its size: 0 tells nothing, 1 tells all."""
    source = SystemRandom()
    for epsilon in (Fraction(1, 10), Fraction(1)):
        noise = TwoSidedGeometric(epsilon)
        sizes, times = [], []
        for _ in range(draws):
            started = time.perf_counter_ns()
            value = noise.sample(source)
            times.append(time.perf_counter_ns() - started)
            sizes.append(abs(value))
        found = stats.spearmanr(sizes, times)
        print(
            f"time    rank correlation with |noise|, epsilon {float(epsilon):g}, {draws} draws: {found.statistic:+.3f}"
        )


def main() -> None:
    """Print all three comparisons."""
    dp.enable_features("contrib")
    compare_answers()
    compare_noise()
    correlate_time_with_value()


if __name__ == "__main__":
    main()
