"""The delta of the exact difference of both rounds, which no aggregator noises.

Source: [SP] section 4.3; for papers and golden numbers, no release is judged by it.
"""

from math import exp, fsum, isfinite, lgamma, log, log1p

from fleetcount_mechanisms.errors import MechanismError


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
