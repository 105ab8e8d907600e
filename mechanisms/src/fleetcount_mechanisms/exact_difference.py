"""What one message of two rounds loses, and the delta of their exact difference, which no aggregator noises.

Source: [SP] sections 4.3 and 4.4; for papers and golden numbers, no release is judged by it.
"""

from math import exp, fsum, isfinite, lgamma, log, log1p

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.losses import exact_message_epsilon
from fleetcount_mechanisms.randomness import float_up
from fleetcount_mechanisms.sampling import SamplingDie


def message_epsilon_of_face(face_probability: float, sampling_rate: float) -> float:
    """Return ln(1 + p/pi_v), the loss of one round-two message that says v ([SP] Equation 29).

    Raises:
        MechanismError: a probability outside (0, 1), or a sum above 1.
    """
    if min(face_probability, sampling_rate) <= 0 or face_probability + sampling_rate > 1 + 1e-12:
        raise MechanismError(
            f"face probability {face_probability} with sampling rate {sampling_rate}, allowed: both > 0, sum <= 1"
        )
    return log1p(sampling_rate / face_probability)


def message_epsilon_binary(no_probability: float, sampling_rate: float) -> tuple[float, float]:
    """Return the losses of a round-two No and a round-two Yes ([SP] Equations 21 and 25); the message costs the larger.

    Raises:
        MechanismError: probabilities that leave nothing for Yes.
    """
    return (
        message_epsilon_of_face(no_probability, sampling_rate),
        message_epsilon_of_face(1 - no_probability - sampling_rate, sampling_rate),
    )


def message_epsilon(die: SamplingDie) -> float:
    """Return the exact loss of one round-two message alone, max over v of ln(1 + p/pi_v), rounded up to a float.

    A round-one message alone loses nothing: its law is the same for every truth.
    """
    return float_up(exact_message_epsilon(die))


def central_delta(sampling_rate: float, count: int, epsilon: float) -> float:
    """Return the least delta of the exact difference of the rounds, when a cell of `count` devices loses one of them.

    The difference is Binomial(count, p); the result is the larger hockey-stick divergence between it and
    Binomial(count - 1, p), to a relative error of about 1e-12 for counts to 10**4. No other device adds anything.

    Raises:
        MechanismError: p not in (0, 1), count not in 1..10**7, or a negative or infinite epsilon.
    """
    if not 0 < sampling_rate < 1:
        raise MechanismError(f"sampling rate is {sampling_rate}, allowed: 0 < sampling rate < 1")
    if not 1 <= count <= 10**7:
        raise MechanismError(f"count is {count}, allowed: 1..{10**7}")
    if not (epsilon >= 0 and isfinite(epsilon)):
        raise MechanismError(f"epsilon is {epsilon}, allowed: 0 or more, finite")
    return max(_delta_losing(sampling_rate, count, epsilon), _delta_gaining(sampling_rate, count, epsilon))


def _binomial(count: int, successes: int, rate: float) -> float:
    ways = lgamma(count + 1) - lgamma(successes + 1) - lgamma(count - successes + 1)
    return exp(ways + successes * log(rate) + (count - successes) * log1p(-rate))


def _delta_losing(rate: float, count: int, epsilon: float) -> float:
    # The ratio of Binomial(n, p) to Binomial(n-1, p) at j is n (1-p)/(n-j), which grows with j: the first factor that
    # is not positive ends the sum. At j = n the second law is 0, so all of p**n counts.
    terms = [rate**count]
    for successes in range(count - 1, -1, -1):
        factor = count * (1 - rate) / (count - successes) - exp(epsilon)
        if factor <= 0:
            break
        terms.append(_binomial(count - 1, successes, rate) * factor)
    return fsum(terms)


def _delta_gaining(rate: float, count: int, epsilon: float) -> float:
    terms: list[float] = []
    for successes in range(count):
        factor = 1 - exp(epsilon) * count * (1 - rate) / (count - successes)
        if factor <= 0:
            break
        terms.append(_binomial(count - 1, successes, rate) * factor)
    return fsum(terms)
