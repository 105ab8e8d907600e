"""An aggregator's noise is its window's law, a draw of its own for every opened number, and all that is added."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.noise_draws import draw_noise
from fleetcount_mechanisms.randomness import SeededRandom

from tests.aggregator.release.test_modes import release
from tests.support.aggregators import Network, answer_all

LAWS: list[NoiseLaw] = [
    TwoSidedNoise(Fraction(1, 3)),
    OneSidedNoise(Fraction(1, 3)),
    OneSidedNoise(Fraction(1, 3), "down"),
    GaussianNoise(Fraction(20)),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name} {getattr(law, 'direction', '')}")
def test_the_system_draws_the_law_itself_once_a_number(law: NoiseLaw) -> None:
    drawn = SystemNoise(SeededRandom(5)).draw(law, 50)

    assert drawn == draw_noise(law, SeededRandom(5), 50)
    assert len(set(drawn)) > 5, "one draw is not copied to all numbers"


class KnownNoise:
    """Noise that nobody draws: 1, 2, 4, ... times what no sum of others makes, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[NoiseLaw, int]] = []
        self._sizes: Iterator[int] = iter(1 << power for power in range(6))

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """Return another number for every cell of every call."""
        self.asked.append((law, count))
        return [next(self._sizes) for _ in range(count)]


@pytest.mark.parametrize("aggregators", [2, 3])
async def test_a_release_is_the_counts_and_one_draw_of_its_windows_law_for_each_number_and_aggregator(
    aggregators: int,
) -> None:
    network = Network(aggregators)
    network.noise = noise = KnownNoise()
    await network.start_all()
    window = await network.ask(values=2)
    await answer_all(network, window, [(0, 1), (2, 2)])

    record = await release(network, window)

    assert noise.asked == [(window.design.noise, 2)] * aggregators
    # Aggregator after aggregator drew 1, 2 and 4, 8 and, with three, 16, 32.
    sums = [sum(1 << power for power in range(start, 2 * aggregators, 2)) for start in (0, 1)]
    assert [cell.raw for cell in record.cells] == [1 + sums[0], sums[1]]
