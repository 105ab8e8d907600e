"""The noise an aggregator adds to its share before anyone sees it: full strength, exact, of the system's randomness.

Draws only; when it is drawn, and that it is drawn once, is release's.
"""

from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import RandomSource

__all__ = ["SystemNoise"]


class SystemNoise:
    """The laws of `fleetcount_mechanisms.noise`, drawn exactly (docs/privacy.md)."""

    def __init__(self, source: RandomSource) -> None:
        self._source = source

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """See `NoiseSource.draw`."""
        return law.draw(self._source, count)
