"""The randomizers, noise laws and privacy accounting of the four papers, exact and in the standard library only.

It must not load more than is asked for: every public name is imported on first use, so a device
pays for its own mechanism alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "LARGEST_EPSILON",
    "SMALLEST_EPSILON",
    "CoinShape",
    "DigitThresholds",
    "ExponentialCoin",
    "InfeasibleTargetError",
    "KaryResponse",
    "Mangat",
    "MangatVector",
    "MechanismError",
    "OptimizedUnaryEncoding",
    "RandomSource",
    "RandomizedResponse",
    "SamplingDie",
    "SeededRandom",
    "SystemRandom",
    "TwoCoin",
    "TwoRoundAnswer",
    "TwoSidedGeometric",
    "UniformBelow",
    "Warner",
    "WeightedChoice",
    "bernoulli",
    "digit_thresholds",
    "estimate",
    "estimate_baseline",
    "exp_minus_bounds",
    "k_ary_sd",
    "mangat_sd",
    "toss",
    "two_coin_sd",
    "unary_sd",
    "uniform_below",
    "uniform_many_below",
    "warner_sd",
    "weighted_index",
]

if TYPE_CHECKING:
    from fleetcount_mechanisms.errors import (
        InfeasibleTargetError,
        MechanismError,
    )
    from fleetcount_mechanisms.exponential import (
        CoinShape,
        ExponentialCoin,
        exp_minus_bounds,
    )
    from fleetcount_mechanisms.geometric import (
        LARGEST_EPSILON,
        SMALLEST_EPSILON,
        DigitThresholds,
        TwoSidedGeometric,
        digit_thresholds,
    )
    from fleetcount_mechanisms.randomness import (
        RandomSource,
        SeededRandom,
        SystemRandom,
        UniformBelow,
        WeightedChoice,
        bernoulli,
        uniform_below,
        uniform_many_below,
        weighted_index,
    )
    from fleetcount_mechanisms.responses import (
        KaryResponse,
        Mangat,
        MangatVector,
        OptimizedUnaryEncoding,
        RandomizedResponse,
        TwoCoin,
        Warner,
        k_ary_sd,
        mangat_sd,
        two_coin_sd,
        unary_sd,
        warner_sd,
    )
    from fleetcount_mechanisms.sampling import (
        SamplingDie,
        TwoRoundAnswer,
        estimate,
        estimate_baseline,
        toss,
    )

_MODULES = {
    "errors": (
        "InfeasibleTargetError",
        "MechanismError",
    ),
    "exponential": (
        "CoinShape",
        "ExponentialCoin",
        "exp_minus_bounds",
    ),
    "geometric": (
        "LARGEST_EPSILON",
        "SMALLEST_EPSILON",
        "DigitThresholds",
        "TwoSidedGeometric",
        "digit_thresholds",
    ),
    "randomness": (
        "RandomSource",
        "SeededRandom",
        "SystemRandom",
        "UniformBelow",
        "WeightedChoice",
        "bernoulli",
        "uniform_below",
        "uniform_many_below",
        "weighted_index",
    ),
    "responses": (
        "KaryResponse",
        "Mangat",
        "MangatVector",
        "OptimizedUnaryEncoding",
        "RandomizedResponse",
        "TwoCoin",
        "Warner",
        "k_ary_sd",
        "mangat_sd",
        "two_coin_sd",
        "unary_sd",
        "warner_sd",
    ),
    "sampling": (
        "SamplingDie",
        "TwoRoundAnswer",
        "estimate",
        "estimate_baseline",
        "toss",
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # Type checkers see the imports above, so that a misspelt name is an error to them.

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))
