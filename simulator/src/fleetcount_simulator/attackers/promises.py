"""What is promised about a guess at one device's truth: the bounds that the guess rates are held against.

From the exact losses of `fleetcount_mechanisms` alone; nothing is drawn.
"""

import math

from fleetcount_mechanisms.losses import exposure
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_simulator.engines.participation import release_loss
from fleetcount_simulator.model import Mechanism
from fleetcount_simulator.scenario.laws import law_of

__all__ = ["allows_two_values", "guess_bound"]


def allows_two_values(mechanism: Mechanism, values: int) -> bool:
    """Return whether the promise covers a change from one value to another, and not only from a value to none."""
    return values > 1 and mechanism.kind not in {"one-sided", "vector-mangat"}


def guess_bound(
    mechanism: Mechanism, values: int, aggregators: int, noises: int, questions: int = 1, candidates: int = 2
) -> float:
    """Return the largest promised rate of right guesses among equally likely candidates, after so many releases.

    `noises` of the aggregators' noises are unknown to the guesser. With one or more the release's own loss eps holds,
    Q releases adding up to Q eps: e^eps/(e^eps + C - 1) for C candidates. A one-sided loss (P[z | value] <=
    e^eps P[z | none], the other way without limit) allows 1 - e^-eps/2 between a value and none: say "value" always
    where it is possible, and be wrong as seldom as e^-eps allows. Without noise: the local loss of a response in the
    same way; for sampling the truth is seen with probability x = 1 - (1-p)^Q, and then x + (1 - x)/C; for plain
    truths 1.
    """
    law = law_of(mechanism, values)
    if noises and mechanism.noise_epsilon is not None:
        loss = release_loss(mechanism, values, aggregators)
        total = questions * float(loss or 0)
        return _one_sided(total) if mechanism.kind == "one-sided" else _two_sided(total, candidates)
    if isinstance(law, SamplingDie):
        seen = float(exposure(law.sampling_rate, questions))
        return seen + (1 - seen) / candidates
    if law is None:
        return 1.0
    total = questions * law.epsilon
    return _one_sided(total) if mechanism.kind in {"mangat", "vector-mangat"} else _two_sided(total, candidates)


def _two_sided(loss: float, candidates: int) -> float:
    return 1 / (1 + (candidates - 1) * math.exp(-loss))


def _one_sided(loss: float) -> float:
    return 1 - math.exp(-loss) / 2
