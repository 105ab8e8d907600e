"""Intervals of sampled, direct and one-sided counts hold the true count with their level, at every corner: exact sums.

The law of the opened number of one cell is the law of its sampled devices convolved with that of k noises; the
published interval is read at each of its values. `python tests/statistical/test_release_coverage.py` prints more.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from fleetcount_analysis.reading import read
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

ALLOWED = 0.003
LEVELS = (Fraction(1, 2), Fraction(19, 20), Fraction(999, 1000))
RARE = 1e-12
ONE = Fraction(1)
COUNT = 1000

QUESTIONS: dict[str, tuple[AnswerLaw, NoiseLaw]] = {
    "sampled 9/20, noise 1": (SamplingDie.uniform(Fraction(9, 20), 1), TwoSidedNoise(ONE)),
    "sampled 1/10, noise 1/20": (SamplingDie.uniform(Fraction(1, 10), 1), TwoSidedNoise(Fraction(1, 20))),
    "sampled 1/4, noise 8": (SamplingDie.uniform(Fraction(1, 4), 1), TwoSidedNoise(Fraction(8))),
    "sampled 1/4, exact": (SamplingDie.uniform(Fraction(1, 4), 1), NoNoise()),
    "direct, noise 1/20": (Truth(1), TwoSidedNoise(Fraction(1, 20))),
    "direct, noise 1": (Truth(1), TwoSidedNoise(ONE)),
    "direct, noise 8": (Truth(1), TwoSidedNoise(Fraction(8))),
    "one-sided up 1": (Truth(1), OneSidedNoise(ONE)),
    "one-sided down 1/3": (Truth(1), OneSidedNoise(Fraction(1, 3), "down")),
}


def one_noise(law: NoiseLaw) -> tuple[int, Floats]:
    """Return the smallest value and the law of one noise, cut where rarer than 1e-12."""
    if isinstance(law, NoNoise) or law.epsilon is None:
        return 0, np.ones(1)
    a = float(np.exp(-float(law.epsilon)))
    reach = int(np.ceil(np.log(RARE) / np.log(a)))
    z = np.arange(reach + 1)
    if isinstance(law, OneSidedNoise):
        side = (1 - a) * a**z
        return (0, side) if law.direction == "up" else (-reach, side[::-1])
    return -reach, (1 - a) / (1 + a) * a ** np.abs(np.arange(-reach, reach + 1))


def coverage(design: Design, count: int, level: Fraction) -> float:
    """Return the exact probability that the interval of a cell with `count` devices holds that count."""
    rate = float(design.channel[0])
    sampled = stats.binom.pmf(np.arange(count + 1), count, rate)
    inside = np.flatnonzero(sampled > RARE)
    first, law = int(inside[0]), sampled[inside[0] : inside[-1] + 1]
    for _ in range(design.aggregators):
        start, noise = one_noise(design.noise)
        first, law = first + start, np.convolve(law, noise)
    kept = np.flatnonzero(law > RARE)
    reading = read(design, (first + kept)[:, None], level)
    holds = (reading.low[:, 0] <= count) & (count <= reading.high[:, 0])
    return float(law[kept][holds].sum())


def worst(name: str, level: Fraction, parties: tuple[int, ...], counts: tuple[int, ...]) -> float:
    answer, noise = QUESTIONS[name]
    designs = (Design(answer=answer, noise=noise, values=1, aggregators=k) for k in parties)
    return min(coverage(design, count, level) for design, count in product(designs, counts))


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(
    "level", [LEVELS[1], *(pytest.param(one, marks=pytest.mark.nightly) for one in LEVELS[::2])], ids=str
)
def test_every_count_is_covered_at_its_edges(name: str, level: Fraction) -> None:
    assert worst(name, level, (2, 3, 5), (0, 1, 10, 10_000)) >= float(level) - ALLOWED


def test_an_interval_for_two_noises_misses_when_there_are_three() -> None:
    answer, noise = QUESTIONS["direct, noise 1/20"]
    two, three = (Design(answer=answer, noise=noise, values=1, aggregators=k) for k in (2, 3))
    start, law = one_noise(noise)
    reading = read(two, (COUNT + 3 * start + np.arange(3 * len(law) - 2))[:, None], LEVELS[1])
    sums = np.convolve(np.convolve(law, law), law)
    holds = (reading.low[:, 0] <= COUNT) & (reading.high[:, 0] >= COUNT)

    assert float(sums[holds].sum()) < 0.95 - 10 * ALLOWED
    assert coverage(three, COUNT, LEVELS[1]) >= 0.95


if __name__ == "__main__":
    for one, level in product(QUESTIONS, LEVELS):
        found = worst(one, level, (2, 3, 4, 5), (0, 1, 2, 5, 10, 30, 100, 1000, 10_000))
        print(f"{one:26} {float(level):6g} {found:.5f}")
