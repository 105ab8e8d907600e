"""Exact draws from the laws of `noise`, by aggregators and whoever imitates them; a device draws none."""

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.gaussian import DiscreteGaussian
from fleetcount_mechanisms.geometric import TwoSidedGeometric
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.randomness import RandomSource


def draw_noise(law: NoiseLaw, source: RandomSource, count: int) -> list[int]:
    """Return `count` independent exact draws; run by every aggregator, each at full strength.

    Raises:
        MechanismError: a law that is not drawn here.
    """
    match law:
        case NoNoise():
            return [0] * count
        case TwoSidedNoise():
            return TwoSidedGeometric(law.epsilon).sample_many(source, count)
        case OneSidedNoise():
            drawn = OneSidedGeometric(law.epsilon).sample_many(source, count)
            return drawn if law.direction == "up" else [-one for one in drawn]
        case GaussianNoise():
            return DiscreteGaussian(law.variance).sample_many(source, count)
        case _:
            raise MechanismError(f"noise is {law.name!r}, allowed: a law that aggregators draw")
