"""How strong each aggregator's noise must be, so that the published result loses at most the epsilon asked for.

Plans; draws nothing.
"""

from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.losses import neighbours_of, noise_epsilon_for, response_release_epsilon
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_EPSILON
from fleetcount_protocol.task.task import ReleaseKind, Response

__all__ = ["planned_noise"]

_GRID: Final = 1000


def planned_noise(
    mechanism: SamplingDie | Response | None, values: int, kind: ReleaseKind, epsilon: Fraction
) -> Fraction:
    """Return e1 of every aggregator's noise for a target loss of the published result, rounded down.

    Raises:
        UsageError: no noise of this kind reaches the target.
    """
    if isinstance(mechanism, SamplingDie):
        # A task takes at most MAX_EPSILON: for a very large target the noise stays stronger than it asks for.
        return min(Fraction(MAX_EPSILON), noise_epsilon_for(epsilon, mechanism.sampling_rate, neighbours_of(values)))
    if mechanism is not None:
        return _response_noise(mechanism, epsilon)
    # Without sampling, one device moves two of the outputs 0..V by one each; one-sided noise is charged as it is.
    return epsilon if kind is ReleaseKind.ONE_SIDED else epsilon / 2


def _response_noise(response: Response, epsilon: Fraction) -> Fraction:
    """Return the largest multiple of 1/1000 whose released loss is within the target, by bisection: the loss grows."""
    low, high = 0, 10 * _GRID
    while high - low > 1:
        middle = (low + high) // 2
        within = Fraction(response_release_epsilon(response, Fraction(middle, _GRID))) <= epsilon
        low, high = (middle, high) if within else (low, middle)
    if low == 0:
        raise UsageError(f"epsilon is {epsilon}; no noise reaches it with this response")
    return Fraction(low, _GRID)
