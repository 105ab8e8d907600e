"""Our coins and noise beside OpenDP's, in one run: a toss of both rounds, a k-ary response, geometric noise, its time.

Every figure is the least of alternating batches; it decides nothing.
"""

import time
from collections.abc import Callable
from fractions import Fraction

from fleetcount_mechanisms.geometric import TwoSidedGeometric
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie, toss
from peers import opendp
from rows import Row, quick, report, smoke
from scipy import stats

dp, MISSING = opendp()
ROUNDS = 1 if smoke() else 3 if quick() else 12
CATEGORIES = 1000
PEER = "OpenDP randomized response, 1,000 categories"


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


def beside(path: str, ours: float, peer: str, theirs: float | None) -> None:
    """Report microseconds beside the peer's, and how many times faster ours is."""
    note = f"least of {ROUNDS} batches{MISSING and f'; {MISSING}'}"
    ratio = None if theirs is None else theirs / ours
    report(Row(path=path, ours=ours, unit="us", peer=peer, peer_value=theirs, ratio=ratio, note=note))


def compare_answers() -> None:
    """Report the time of an answer: ours for many V, OpenDP's randomized response with 1,000 categories."""
    source = SystemRandom()
    response = KaryResponse(Fraction(1, 2), CATEGORIES - 1)
    operations: dict[str, tuple[Callable[[], object], int]] = {
        "an answer, k-ary response, 1,000 categories": (lambda: response.randomize(7, source), 5000),
    }
    if dp:
        peer = dp.m.make_randomized_response(list(range(CATEGORIES)), prob=0.5)
        operations[PEER] = (lambda: peer(7), 200)
    for values in (1, CATEGORIES, 10**7):
        die = SamplingDie.uniform(Fraction(1, 4), values)
        name = f"an answer, toss of both rounds, V = {values:,}"
        operations[name] = (lambda die=die: toss(die, 1, source), 5000)  # type: ignore[misc] # bound in the loop
    least = least_us(operations)
    theirs = least.pop(PEER, None)
    for name, microseconds in least.items():
        beside(name, microseconds, PEER, theirs)


def compare_noise() -> None:
    """Report the time of a noise value: ours for 1 and for 10,000 cells, OpenDP's one by one and as a vector."""
    source, cells = SystemRandom(), 10_000
    noise, zeros = TwoSidedGeometric(Fraction(1)), [0] * cells
    operations: dict[str, tuple[Callable[[], object], int]] = {
        "sample": (lambda: noise.sample(source), 1000),
        "sample_many": (lambda: noise.sample_many(source, cells), 1),
    }
    if dp:
        single = dp.m.make_geometric(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=1.0)
        vector = dp.m.make_geometric(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=1.0)
        operations |= {"call": (lambda: single(0), 300), "vector": (lambda: vector(zeros), 1)}
    least = least_us(operations)
    beside("a noise value, one call", least["sample"], "OpenDP, one call", least.get("call"))
    path = f"a noise value, {cells:,} cells at once"
    vectors = least["vector"] / cells if dp else None
    beside(path, least["sample_many"] / cells, f"OpenDP, a vector of {cells:,}", vectors)


def correlate_time_with_value() -> None:
    """Report the rank correlation between a draw's time and its size: 0 tells nothing, 1 tells all."""
    source, draws = SystemRandom(), 500 if smoke() else 5_000 if quick() else 20_000
    for epsilon in (Fraction(1, 10), Fraction(1)):
        noise = TwoSidedGeometric(epsilon)
        sizes, times = [], []
        for _ in range(draws):
            started = time.perf_counter_ns()
            value = noise.sample(source)
            times.append(time.perf_counter_ns() - started)
            sizes.append(abs(value))
        found = stats.spearmanr(sizes, times)
        report(
            Row(
                path=f"rank correlation of a noise value's time with its size, epsilon {float(epsilon):g}",
                ours=float(found.statistic),
                unit="",
                note=f"{draws:,} draws; 0 tells nothing, 1 tells all",
            )
        )


def main() -> None:
    """Report all three comparisons."""
    compare_answers()
    compare_noise()
    correlate_time_with_value()


if __name__ == "__main__":
    main()
