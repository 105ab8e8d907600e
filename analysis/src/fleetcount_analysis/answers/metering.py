"""What a reader could infer from counts about a person, computed before publication ([INF] Theorem 2).

It must not decide: it returns a probability and whether that is within the operator's own limit. It is no part of the
privacy promise. Differential privacy bounds the effect of one device's answer; a reader still learns from the others
that most vehicles of a group are at one place.

The pair of answers: X counts the devices like the person's (a group), Y those of them with the sensitive value, both
with noise. The assumed model of the reader:

* the person is one of the x devices of the group, each as likely to be any of them;
* the share of the value is beforehand Beta with mean `prior` and the weight of `weight` devices, and given the share
  every device has the value independently; every size x of the group is equally likely;
* several pairs are about the same x and y, with independent noises. Pairs of several windows with changing counts are
  added up first, `terms` counts in each sum: the share is then the average one.

The posterior that the person has the value is E[y/x | answers]. The noise is that of direct counts; a reader infers
less from a sampled or randomized release.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import scipy
from fleetcount_mechanisms.noise import NoiseLaw
from numpy.typing import NDArray

from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.channels import LARGEST_COUNT
from fleetcount_analysis.errors import RangeError, ShapeError, TooLargeError
from fleetcount_analysis.inference import ratio_moments

Floats = NDArray[np.float64]

_LOG_TAIL: Final = 12 * math.log(10)
_MOST_PAIRS: Final = 1 << 24
_LARGEST_GROUP: Final = 10**6
_OUTWARD: Final = 1e-9
"""Added to the posterior and to the upper end, subtracted from the lower end: more than rounding and omitted tails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioAnswer:
    """Two opened numbers before publication: the size of a group, and the number in it with the sensitive value.

    `terms` is the number of published counts in each of the two sums.
    """

    group: int
    sensitive: int
    terms: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The inference of a reader: the posterior that the person has the value, rounded up, and a 95 % interval of y/x.

    `ratio_mean` and `ratio_sd` are those of Theorem 2 for one published ratio at these counts (None if a count is not
    above 0). `allowed` is whether `posterior` is at most the operator's `largest`.
    """

    prior: float
    posterior: float
    low: float
    high: float
    largest: float
    ratio_mean: float | None
    ratio_sd: float | None

    @property
    def allowed(self) -> bool:
        """Whether the answers stay within the operator's limit."""
        return self.posterior <= self.largest


def meter(
    prior: Fraction,
    answers: Sequence[RatioAnswer],
    noise: NoiseLaw,
    aggregators: int,
    *,
    largest: Fraction,
    weight: int = 2,
) -> Inference:
    """Return the inference from pairs of answers about one group; run before they are published.

    Raises:
        RangeError: `prior` or `largest` outside (0, 1), a weight or number of terms or aggregators below 1, an answer
            beyond 10^12 in size, one-sided noise, or answers that cannot be of the same two counts.
        ShapeError: no answer.
        TooLargeError: noise so wide that more than 2^24 pairs of counts are possible.
    """
    _check(prior, answers, aggregators, largest, weight)
    laws = [noise_total(noise, aggregators * one.terms) for one in answers]
    reaches = [law.reach_of(_LOG_TAIL) for law in laws]
    x = _possible([one.group for one in answers], reaches, 1)
    y = _possible([one.sensitive for one in answers], reaches, 0)
    if x.size * y.size > _MOST_PAIRS:
        raise TooLargeError(f"{x.size} by {y.size} possible pairs of counts; the meter goes to {_MOST_PAIRS}")
    belief = share_prior(x[:, None], y[None, :], float(prior), weight)
    for one, law in zip(answers, laws, strict=True):
        belief += law.log_mass(one.group - x)[:, None] + law.log_mass(one.sensitive - y)[None, :]
    top = float(belief.max())
    if not math.isfinite(top):
        raise RangeError("answers", "not of one pair of counts", "pairs about the same group and value")
    mass = np.exp(belief - top)
    mass /= mass.sum()
    ratio = np.minimum(y[None, :] / x[:, None], 1)
    low, high = _quantiles(ratio.ravel(), mass.ravel())
    mean, sd = _published_ratio(answers[0], laws[0].variance)
    return Inference(
        prior=float(prior),
        posterior=min(1.0, float(np.sum(mass * ratio)) + _OUTWARD),
        low=max(0.0, low - _OUTWARD),
        high=min(1.0, high + _OUTWARD),
        largest=float(largest),
        ratio_mean=mean,
        ratio_sd=sd,
    )


def smallest_telling_group(
    prior: Fraction, share: Fraction, noise: NoiseLaw, aggregators: int, *, largest: Fraction, weight: int = 2
) -> int | None:
    """Return the smallest group for which a value of this share gives a posterior above the operator's limit.

    For planning, without data. The answers are typical: the counts themselves, without noise. None if that holds for no
    group up to a million.

    Raises:
        RangeError: as `meter`, or a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise RangeError("share", share, "above 0 and at most 1")

    def refused(size: int) -> bool:
        typical = RatioAnswer(group=size, sensitive=math.ceil(share * size))
        return not meter(prior, [typical], noise, aggregators, largest=largest, weight=weight).allowed

    return first_group(refused)


def first_group(refused: Callable[[int], bool]) -> int | None:
    """Return the smallest size of a group that is refused, as all larger ones are; None if no size up to 10^6 is."""
    high = 1
    while not refused(high):
        if high >= _LARGEST_GROUP:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refused(middle) else (middle, high)
    return high


def _possible(seen: Sequence[int], reaches: Sequence[int], least: int) -> NDArray[np.int64]:
    """Return the counts of at least `least` within the reach of the noise of every answer, int64, at least one."""
    low = max(least, *(one - reach for one, reach in zip(seen, reaches, strict=True)))
    high = max(low, min(one + reach for one, reach in zip(seen, reaches, strict=True)))
    return np.arange(low, high + 1)


def share_prior(x: NDArray[np.int64], y: NDArray[np.int64], prior: float, weight: int) -> Floats:
    """Return log P[y | x] with a share that is Beta(weight prior, weight (1 - prior)), float64; -inf for y above x.

    `x` and `y` are counts, broadcast.
    """
    a, b = weight * prior, weight * (1 - prior)
    rest = np.maximum(x - y, 0)
    choose = scipy.special.gammaln(x + 1.0) - scipy.special.gammaln(y + 1.0) - scipy.special.gammaln(rest + 1.0)
    chance = choose + scipy.special.betaln(y + a, rest + b) - scipy.special.betaln(a, b)
    return np.asarray(np.where(y <= x, chance, -np.inf), dtype=np.float64)


def _quantiles(ratio: Floats, mass: Floats) -> tuple[float, float]:
    order = np.argsort(ratio, kind="stable")
    below = np.cumsum(mass[order])
    places = [min(int(np.searchsorted(below, share)), ratio.size - 1) for share in (0.025, 0.975)]
    return float(ratio[order[places[0]]]), float(ratio[order[places[1]]])


def _published_ratio(answer: RatioAnswer, variance: float) -> tuple[float | None, float | None]:
    """Return mean and sd of Theorem 2, the scale b of a Laplace noise of this variance being sqrt(variance/2)."""
    if answer.group <= 0 or answer.sensitive <= 0 or variance == 0:
        return None, None
    mean, spread = ratio_moments(answer.group, answer.sensitive, math.sqrt(variance / 2))
    return mean, math.sqrt(spread)


def _check(prior: Fraction, answers: Sequence[RatioAnswer], aggregators: int, largest: Fraction, weight: int) -> None:
    if not answers:
        raise ShapeError("0 answers; allowed is 1 or more")
    for name, value in (("prior", prior), ("largest posterior", largest)):
        if not 0 < value < 1:
            raise RangeError(name, value, "above 0 and below 1")
    for name, number in (("weight", weight), ("aggregators", aggregators), ("terms", min(a.terms for a in answers))):
        if number < 1:
            raise RangeError(name, number, "1 or more")
    size = max(abs(number) for one in answers for number in (one.group, one.sensitive))
    if size > LARGEST_COUNT:
        raise RangeError("answer", f"{size} in size", f"up to {LARGEST_COUNT}")
