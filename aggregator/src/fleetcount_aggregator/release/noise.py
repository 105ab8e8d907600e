"""The noise an aggregator adds to its share before anyone sees it: full strength, exact, from the system's randomness.

It draws and adds; `release.steps` decides when, and sees to it that a window's noise is drawn once.
"""

from collections.abc import Sequence

from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.vdaf.field import FIELD64


class SystemNoise:
    """The laws of `fleetcount_mechanisms.noise`, drawn exactly (docs/privacy.md)."""

    def __init__(self, source: RandomSource) -> None:
        self._source = source

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """See `NoiseSource.draw`."""
        return law.draw(self._source, count)


def noised_share(total: Sequence[int], noise: Sequence[int]) -> bytes:
    """Return the encoded vector an aggregator opens: its sum of shares plus its noise, number by number, modulo p.

    Run by every aggregator, once a release; `total` holds elements of Field64, `noise` one draw for each.

    Raises:
        ValueError: not one draw for each element.
    """
    return FIELD64.encode_vector([(share + one) % FIELD64.modulus for share, one in zip(total, noise, strict=True)])
