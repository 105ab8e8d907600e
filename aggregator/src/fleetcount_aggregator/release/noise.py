"""The noise an aggregator adds to its share before anyone sees it: full strength, exact, of the system's randomness.

Draws only; when it is drawn, and that it is drawn once, is release's.
"""

from fleetcount_mechanisms.asymmetric import OneSidedGeometric
from fleetcount_mechanisms.geometric import TwoSidedGeometric
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.task.task import Release, ReleaseKind

__all__ = ["SystemNoise"]


class SystemNoise:
    """The laws of docs/privacy.md: two-sided geometric, one-sided geometric (AGeo), or none for an exact release."""

    def __init__(self, source: RandomSource) -> None:
        self._source = source

    def draw(self, release: Release, count: int) -> list[int]:
        """See `NoiseSource.draw`."""
        if release.kind is ReleaseKind.EXACT or release.noise_epsilon is None:
            return [0] * count
        if release.kind is ReleaseKind.ONE_SIDED:
            return OneSidedGeometric(release.noise_epsilon).sample_many(self._source, count)
        return TwoSidedGeometric(release.noise_epsilon).sample_many(self._source, count)
