"""Intervals of responses hold the true count with their level, at every corner: by exact sums, without a draw.

For every total T that a release can show, the outputs Y whose published interval holds the true count form a run, found
by bisection over the published ends; their joint probability is summed. `python tests/statistical/
test_response_coverage.py` sweeps all designs and corners and prints the table (hours); `--quick` a part, in minutes.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from fleetcount_analysis.channels import NoiseSize, noise_sum
from fleetcount_analysis.intervals import response_ends, unary_ends
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_mechanisms.responses import KaryResponse, Mangat, TwoCoin, Warner
from numpy.typing import NDArray
from scipy import stats

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Ends = Callable[[Integers, Integers], tuple[Integers, Integers]]

HALF, PLAIN, STRICT = Fraction(1, 2), Fraction(19, 20), Fraction(999, 1000)
ALLOWED = 0.003
RARE = 1e-9
"""Noise rarer than this is left out of the sums, and counts as a miss."""


@dataclass(frozen=True, kw_only=True)
class Bits:
    """A response bit by bit: P[1 | 1] and P[1 | 0]."""

    hit: Fraction
    miss: Fraction


Design = KaryResponse | Mangat | TwoCoin | Warner | Bits

DESIGNS: dict[str, Design] = {
    "two-coin 1/20 1/100": TwoCoin(Fraction(1, 20), Fraction(1, 100)),
    "two-coin 4/5 1/5": TwoCoin(Fraction(4, 5), Fraction(1, 5)),
    "warner 3/4": Warner(Fraction(3, 4)),
    "warner 9999/10000": Warner(Fraction(9999, 10_000)),
    "mangat 9/10": Mangat(Fraction(9, 10)),
    "mangat 1/3": Mangat(Fraction(1, 3)),
    "k-ary 1/2, V = 4": KaryResponse(Fraction(1, 2), 4),
    "vector mangat 1/10": Bits(hit=Fraction(1), miss=Fraction(1, 10)),
    "unary 1/2 1/4": Bits(hit=Fraction(1, 2), miss=Fraction(1, 4)),
}


NOW = ("two-coin 1/20 1/100", "mangat 9/10", "k-ary 1/2, V = 4", "vector mangat 1/10")
"""One of each kind, and the rarest answers: of these `make test` tries the edges, `make nightly` of all."""


def later(*cases: object) -> list[Any]:
    """Return cases for `make nightly` alone."""
    return [pytest.param(case, marks=pytest.mark.nightly) for case in cases]


@dataclass(frozen=True, kw_only=True)
class Corner:
    """A design, the true count n among N devices, each noise (`noise_sum`), the aggregators k, the level."""

    design: str
    count: int
    devices: int
    epsilon: NoiseSize
    aggregators: int
    level: Fraction

    @property
    def values(self) -> int:
        return getattr(DESIGNS[self.design], "values", 1)

    @property
    def channel(self) -> tuple[Fraction, Fraction]:
        design = DESIGNS[self.design]
        if isinstance(design, Bits):
            return design.hit, design.miss
        return design.probability(1, 1), design.probability(1, 0)

    def ends(self, outputs: Integers, totals: Integers) -> tuple[Integers, Integers]:
        """Return the published ends of the first cell."""
        design = DESIGNS[self.design]
        if isinstance(design, Bits):
            return unary_ends(outputs, totals, *self.channel, self.epsilon, self.aggregators, self.level)
        counted = np.zeros((outputs.size, self.values + 1), dtype=np.int64)
        counted[:, 0], counted[:, 1] = totals - outputs, outputs
        low, high = response_ends(counted, design, self.epsilon, self.aggregators, self.level)
        return low[:, 0], high[:, 0]

    def narrowed(self, share: float) -> Ends:
        """Return the ends that a planted bug would publish: drawn in towards their middle by a share of the width."""

        def ends(outputs: Integers, totals: Integers) -> tuple[Integers, Integers]:
            low, high = self.ends(outputs, totals)
            less = share / 2 * (high - low)
            return np.ceil(low + less).astype(np.int64), np.floor(high - less).astype(np.int64)

        return ends


def noise_law(epsilon: NoiseSize, terms: int) -> tuple[Integers, Floats]:
    noise = noise_sum(epsilon, terms)
    reach = noise.reach_of(-np.log(RARE))
    z = np.arange(-reach, reach + 1)
    return z, np.exp(noise.log_mass(z))


def answers_law(corner: Corner) -> tuple[int, Floats]:
    """Return the smallest value and the cumulated law of Bin(n, P) + Bin(N-n, Q), cut where below 1e-14."""
    hit, miss = (float(chance) for chance in corner.channel)
    parts = []
    for devices, chance in ((corner.count, hit), (corner.devices - corner.count, miss)):
        law = stats.binom.pmf(np.arange(devices + 1), devices, chance)
        inside = np.flatnonzero(law > 1e-14)
        parts.append((int(inside[0]), law[inside[0] : inside[-1] + 1]))
    return parts[0][0] + parts[1][0], np.cumsum(np.convolve(parts[0][1], parts[1][1]))


def first_output(holds: Callable[[Integers], NDArray[np.bool_]], low: int, high: int, size: int) -> Integers:
    """Return, for every total, the smallest output above `low` that holds; `high` if none does."""
    below, above = np.full(size, low), np.full(size, high)
    while np.any(above - below > 1):
        middle = (below + above) // 2
        held = holds(middle)
        above, below = np.where(held, middle, above), np.where(held, below, middle)
    return above


def coverage(corner: Corner, ends: Ends | None = None) -> float:
    """Return the exact probability that the published interval of the first cell holds its true count."""
    ends = ends or corner.ends
    bits, n = isinstance(DESIGNS[corner.design], Bits), corner.count
    z, own = noise_law(corner.epsilon, corner.aggregators)
    w, rest = noise_law(corner.epsilon, corner.aggregators * corner.values)
    first, answered = answers_law(corner)
    reach = int(w[-1]) if bits else int(z[-1] + w[-1])
    totals = corner.devices + np.arange(-reach, reach + 1)
    low, high = first + int(z[0]) - 2, first + answered.size + int(z[-1]) + 2
    begin = first_output(lambda y: ends(y, totals)[1] >= n, low, high, totals.size)
    end = first_output(lambda y: ends(y, totals)[0] > n, low, high, totals.size)
    # T = N + W for bits, N + Z + W for a response whose noises are in the total as well.
    place = totals[:, None] - corner.devices - (0 if bits else z) - w[0]
    inside = (place >= 0) & (place < rest.size)
    joint = own * np.where(inside, rest[np.clip(place, 0, rest.size - 1)], 0)
    cumulated = np.concatenate([[0.0], answered])

    def at_most(y: Integers) -> Floats:
        return cumulated[np.clip(y[:, None] - z - first + 1, 0, answered.size)]

    return float(np.sum(joint * np.maximum(at_most(end - 1) - at_most(begin - 1), 0)))


def drawn_coverage(corner: Corner, draws: int = 100_000) -> float:
    """Return the share of seeded releases whose interval holds the true count, with nothing assumed about the ends."""
    generator, bits = np.random.default_rng(1), isinstance(DESIGNS[corner.design], Bits)
    hit, miss = (float(chance) for chance in corner.channel)
    z, own = noise_law(corner.epsilon, corner.aggregators)
    w, rest = noise_law(corner.epsilon, corner.aggregators * corner.values)
    noise, others = generator.choice(z, draws, p=own / own.sum()), generator.choice(w, draws, p=rest / rest.sum())
    answered = generator.binomial(corner.count, hit, draws) + generator.binomial(
        corner.devices - corner.count, miss, draws
    )
    totals = corner.devices + others + (0 if bits else noise)
    pairs, weights = np.unique(np.stack([answered + noise, totals]), axis=1, return_counts=True)
    low, high = corner.ends(pairs[0], pairs[1])
    return float(np.average((low <= corner.count) & (corner.count <= high), weights=weights))


def corners(
    devices: list[int], epsilons: list[Fraction | None], aggregators: list[int], levels: list[Fraction]
) -> Iterator[Corner]:
    for design, total, epsilon, k, level in product(DESIGNS, devices, epsilons, aggregators, levels):
        for count in (0, 1, total // 2, total - 1, total):
            yield Corner(design=design, count=count, devices=total, epsilon=epsilon, aggregators=k, level=level)


def named(design: str, count: int, devices: int, epsilon: int | None, aggregators: int = 2) -> Corner:
    noise = None if epsilon is None else Fraction(epsilon)
    return Corner(design=design, count=count, devices=devices, epsilon=noise, aggregators=aggregators, level=PLAIN)


@pytest.mark.parametrize(
    "corner",
    [
        named("two-coin 1/20 1/100", 0, 10, 8),
        named("mangat 9/10", 10_000, 10_000, 3),
        named("two-coin 4/5 1/5", 10, 10, 3, 5),
        named("two-coin 1/20 1/100", 10, 10, 3, 5),
        named("two-coin 1/20 1/100", 10, 10, 2, 2),
        named("vector mangat 1/10", 1000, 1000, 3, 3),
    ],
    ids=lambda corner: f"{corner.design}, n = {corner.count} of {corner.devices}",
)
def test_the_corners_where_a_normal_form_fails_are_covered(corner: Corner) -> None:
    exact = coverage(corner)

    assert exact >= corner.level - ALLOWED
    assert drawn_coverage(corner) == pytest.approx(exact, abs=ALLOWED)


@pytest.mark.parametrize("design", [*NOW, *later(*(name for name in DESIGNS if name not in NOW))])
@pytest.mark.parametrize("level", [PLAIN, *later(HALF, STRICT)], ids=str)
def test_every_design_covers_at_its_edges(design: str, level: Fraction) -> None:
    gaussian = GaussianNoise(Fraction(3, 2))
    for devices, epsilon, aggregators in (
        (10, Fraction(3), 2),
        (10, gaussian, 2),
        (10_000, Fraction(8), 2),
        (30, None, 2),
    ):
        for count in (0, devices // 2, devices):
            corner = Corner(
                design=design, count=count, devices=devices, epsilon=epsilon, aggregators=aggregators, level=level
            )
            assert coverage(corner) >= level - ALLOWED, corner


def test_a_fleet_of_yes_alone_is_covered_between_the_numbers_of_devices_that_are_tried() -> None:
    corner = Corner(design="warner 9999/10000", count=3, devices=3, epsilon=Fraction(1, 2), aggregators=2, level=PLAIN)

    assert coverage(corner) >= PLAIN


@pytest.mark.parametrize("level", [HALF, PLAIN], ids=str)
def test_an_interval_is_not_wider_than_it_must_be(level: Fraction) -> None:
    """Where whole numbers force nothing, coverage is the level, and intervals narrower by 2 % are seen."""
    corner = Corner(design="warner 3/4", count=50_000, devices=100_000, epsilon=Fraction(3), aggregators=2, level=level)

    assert level <= coverage(corner) <= level + ALLOWED * 2
    assert coverage(corner, corner.narrowed(0.02)) < level - ALLOWED


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_corners_of_wide_noise_are_covered() -> None:
    for corner in corners([10], [Fraction(1, 20)], [2], [PLAIN]):  # More of them in `sweep`: minutes each.
        assert coverage(corner) >= corner.level - ALLOWED, corner


def sweep(*, quick: bool) -> int:
    """Print the least and the mean coverage of every design, noise and level; return the number of corners that fail.

    `quick` leaves out three and four aggregators, the widest noise and two sizes of fleet.
    """
    epsilons: list[Fraction | None] = [None, Fraction(8), Fraction(3), Fraction(1), Fraction(1, 20)]
    chosen = corners(
        [10, 100, 10_000] if quick else [10, 30, 100, 1000, 10_000],
        epsilons[:-1] if quick else epsilons,
        [2, 5] if quick else [2, 3, 4, 5],
        [HALF, PLAIN, STRICT],
    )
    found: dict[tuple[str, str, str], list[float]] = {}
    for corner in chosen:
        epsilon = "none" if corner.epsilon is None else str(corner.epsilon)
        key = (corner.design, epsilon, f"{float(corner.level):g}")
        found.setdefault(key, []).append(coverage(corner))
    failed = 0
    print(f"{'design':20} {'e1':>5} {'level':>6} {'corners':>8} {'least':>8} {'mean':>8}")
    for (design, epsilon, level), values in found.items():
        failed += sum(value < float(level) - ALLOWED for value in values)
        print(f"{design:20} {epsilon:>5} {level:>6} {len(values):8} {min(values):8.5f} {np.mean(values):8.5f}")
    print(f"{failed} corners below their level - {ALLOWED}")
    return failed


if __name__ == "__main__":
    sys.exit(min(sweep(quick="--quick" in sys.argv[1:]), 1))
