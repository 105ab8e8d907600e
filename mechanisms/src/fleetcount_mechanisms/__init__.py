"""The randomizers, noise laws and privacy accounting of the four papers, exact and in the standard library only.

What is exported here is for users, with a stability word each in docs/api.md; code of this repository imports from the
modules. A module is loaded when one of its names is first used.
"""

from typing import TYPE_CHECKING

__all__ = [
    "AdversaryView",
    "AsymmetricGeometric",
    "AsymmetricVector",
    "Design",
    "DiscreteGaussian",
    "Flips",
    "GaussianNoise",
    "InfeasibleTargetError",
    "KaryResponse",
    "Levels",
    "Mangat",
    "MangatVector",
    "MechanismError",
    "NoNoise",
    "OneSidedGeometric",
    "OneSidedNoise",
    "OptimizedUnaryEncoding",
    "Plan",
    "RandomSource",
    "SamplingDie",
    "SeededRandom",
    "Spread",
    "SystemRandom",
    "Truth",
    "TwoCoin",
    "TwoSidedGeometric",
    "TwoSidedNoise",
    "Warner",
    "draw_noise",
    "optimal_epsilon",
    "plan_question",
    "toss",
]

if TYPE_CHECKING:
    from fleetcount_mechanisms.answers import Truth
    from fleetcount_mechanisms.asymmetric import AsymmetricGeometric
    from fleetcount_mechanisms.composition import optimal_epsilon
    from fleetcount_mechanisms.design import Design
    from fleetcount_mechanisms.errors import InfeasibleTargetError, MechanismError
    from fleetcount_mechanisms.gaussian import DiscreteGaussian
    from fleetcount_mechanisms.geometric import TwoSidedGeometric
    from fleetcount_mechanisms.levels import Levels
    from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
    from fleetcount_mechanisms.noise_draws import draw_noise
    from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
    from fleetcount_mechanisms.planned_noise import Spread
    from fleetcount_mechanisms.planning import Plan, plan_question
    from fleetcount_mechanisms.randomness import RandomSource, SeededRandom, SystemRandom
    from fleetcount_mechanisms.responses import (
        AsymmetricVector,
        Flips,
        KaryResponse,
        Mangat,
        MangatVector,
        OptimizedUnaryEncoding,
        TwoCoin,
        Warner,
    )
    from fleetcount_mechanisms.sampling import SamplingDie, toss
    from fleetcount_mechanisms.statement import AdversaryView
else:
    from fleetcount_mechanisms.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "answers": "Truth",
            "asymmetric": "AsymmetricGeometric",
            "composition": "optimal_epsilon",
            "design": "Design",
            "errors": "InfeasibleTargetError MechanismError",
            "gaussian": "DiscreteGaussian",
            "geometric": "TwoSidedGeometric",
            "levels": "Levels",
            "noise": "GaussianNoise NoNoise OneSidedNoise TwoSidedNoise",
            "noise_draws": "draw_noise",
            "one_sided_geometric": "OneSidedGeometric",
            "planned_noise": "Spread",
            "planning": "Plan plan_question",
            "randomness": "RandomSource SeededRandom SystemRandom",
            "responses": "AsymmetricVector Flips KaryResponse Mangat MangatVector OptimizedUnaryEncoding TwoCoin"
            " Warner",
            "sampling": "SamplingDie toss",
            "statement": "AdversaryView",
        },
    )
