"""Planning of noise: how the noise of every level follows from the cells', and the weakest that keeps a target epsilon.

Run by whoever plans a question; a device, which is told the noise, goes without it. It must not choose noise that loses
more than the target: parameters are rounded towards stronger noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import exp, expm1, floor, log, log1p, sqrt
from typing import Final

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, channel_of, kind_of, most_of, require_levels
from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, Design
from fleetcount_mechanisms.errors import InfeasibleTargetError, MechanismError, require_at_least, require_positive
from fleetcount_mechanisms.gaussian import LARGEST_VARIANCE, SMALLEST_VARIANCE
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.losses import (
    NOISE_GRID,
    Neighbours,
    neighbours_of,
    released_loss,
    stated_loss,
)
from fleetcount_mechanisms.noise import LARGEST_PLANNED_EPSILON, GaussianNoise, NoiseLaw, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import fraction_down, near_exp, near_log, near_sqrt, rounded_up
from fleetcount_mechanisms.renyi import checked_rate

_FREQUENT: Final = Fraction(1, 5)
"""The rate from which on a total of sampled answers has 4 times the variance of a cell, and not 8 times."""
_RESPONSE_GRID: Final = 1000
_VARIANCE_GRID: Final = 100
_PLACES: Final = 5
PlannedNoise = TwoSidedNoise | OneSidedNoise | GaussianNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How the noise of every level follows from that of the cells, as a question asks for it before it is solved for.

    `ratios` has for each coarser level its noise against that of the cells: variances are multiplied by it, epsilons
    divided; without them every level has the noise of the cells.

    Raises:
        MechanismError: not one ratio above 0 for each coarser level.
    """

    levels: Levels
    ratios: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        """Check the number of ratios."""
        wanted = self.levels.count - 1
        if not self.ratios:
            object.__setattr__(self, "ratios", (Fraction(1),) * wanted)
        if len(self.ratios) != wanted or any(one <= 0 for one in self.ratios):
            raise MechanismError(f"there are {len(self.ratios)} ratios of noise, allowed: {wanted}, all above 0")

    @classmethod
    def of_shares(
        cls, levels: Levels, shares: Sequence[Fraction] = (), law: type[NoiseLaw] = GaussianNoise
    ) -> "Spread":
        """Return the noise of levels that have these shares of the budget, the cells first; without shares equal ones.

        The budget is what a value that becomes another loses. `law` is that of the noise: a number that moves by d
        costs d**2 times as much under Gaussian noise, d times under geometric.

        Raises:
            MechanismError: not one share above 0 for each level, or levels with a total, which `with_total_for` adds.
        """
        if levels.total:
            raise MechanismError("there is a total, allowed: levels without one; a total has what the others leave")
        given = tuple(shares) or (Fraction(1, levels.count),) * levels.count
        if len(given) != levels.count or any(one <= 0 for one in given):
            raise MechanismError(f"there are {len(given)} shares of the budget, allowed: {levels.count}, all above 0")
        prices = _prices(levels.replaced, law)
        ratios = zip(given[1:], prices[1:], strict=True)
        return cls(levels=levels, ratios=tuple(given[0] / share * price / prices[0] for share, price in ratios))

    def with_total_for(self, answer: AnswerLaw, law: type[NoiseLaw], unit: int = 1) -> "Spread":
        """Return the same and a total, where one of an answer with noise of this law costs little; else the same.

        A direct value that comes changes one number of each level and the total; one that becomes another changes two
        numbers of each level and not the total. So a total whose loss is the difference of the two costs nothing:
        without a weighted sum 1/tau = sum of 1/s_l, tau being its ratio and s_l those of the levels. A weighted sum
        changes by up to 2(V - 1) where a value becomes another and by V - 1 where one comes, so that more is left; of a
        set of m values that comes min(2m, V) - m is left.

        `unit` windows share a toss of the sampling coin. Under a coin a window the total beside the cells alone has 4
        times their Gaussian variance, 8 times below a rate of 1/5: in a month at (10, 1e-9) the error of a cell is then
        larger by .2 % at a rate of 1/4, by .7 % at 1/10. It needs more values than that: the sum of few cells has less
        noise. Under longer coins a total has its price.
        """
        form = kind_of(answer).form
        if self.levels.total or answer.values == 1 or law is OneSidedNoise:
            return self
        if most_of(answer) == answer.values:
            return self  # A set of all values moves as much as it can, so that nothing is left.
        if form is AnswerForm.TRUTH:
            ratio = self.free_total(law)
        elif form is AnswerForm.TWO_ROUNDS and law is GaussianNoise and unit == self.levels.count == 1:
            hit, miss = channel_of(answer)
            ratio = Fraction(4 if hit - miss >= _FREQUENT else 8)
            if answer.values <= ratio:
                return self
        else:
            return self
        return Spread(levels=replace(self.levels, total=True), ratios=(*self.ratios, ratio))

    def free_total(self, law: type[NoiseLaw]) -> Fraction:
        """Return the ratio from which on a total of direct answers costs nothing.

        Raises:
            MechanismError: a set that is told comes with as many cells as one that becomes another moves.
        """
        left = self._cost(self.levels.replaced, law) - self._cost(self.levels.come, law)
        if left <= 0:
            raise MechanismError(
                f"a total is asked beside sets of {self.levels.most} of {self.levels.values} values, allowed: beside"
                " sets of fewer values than there are, since all of them leave nothing for a total"
            )
        return 1 / left

    def cells_share(self, law: type[NoiseLaw]) -> Fraction:
        """Return the part of the budget of a value that becomes another that the cells have, without a total's part.

        Of sets of m values it is 2/min(2m, V) with one level, since so many cells change at once.
        """
        return 2 / self._cost(self.levels.replaced, law)

    def _cost(self, amounts: Sequence[tuple[int, int]], law: type[NoiseLaw]) -> Fraction:
        """Return what all levels but the total lose, in what one cell loses that moves by 1."""
        levels = self.levels.count - self.levels.total
        prices = zip(_prices(amounts, law), (Fraction(1), *self.ratios), strict=True)
        return sum((price / ratio for price, ratio in list(prices)[:levels]), Fraction(0))

    @property
    def widest(self) -> Fraction:
        """The largest variance of a level's noise in those of the cells'; at least 1."""
        return max((Fraction(1), *self.ratios))

    def coarser(self, noise: NoiseLaw) -> tuple[NoiseLaw, ...]:
        """Return the noise of every level above the cells, whose own is `noise`."""
        return tuple(scaled(noise, ratio) for ratio in self.ratios)

    def design(self, answer: AnswerLaw, noise: NoiseLaw, aggregators: int = FEWEST_AGGREGATORS) -> Design:
        """Return the design of these levels, `noise` being that of the cells."""
        return Design(
            answer=answer,
            noise=noise,
            values=answer.values,
            aggregators=aggregators,
            levels=self.levels,
            coarser=self.coarser(noise),
        )


def _prices(amounts: Sequence[tuple[int, int]], law: type[NoiseLaw]) -> list[int]:
    """Return what each level's numbers that move cost beside one of the same noise that moves by 1."""
    return [often * (by**2 if law is GaussianNoise else by) for often, by in amounts]


def scaled(noise: NoiseLaw, ratio: Fraction) -> NoiseLaw:
    """Return the law with `ratio` times the variance, or an epsilon divided by it, but no weaker one than is allowed.

    Raises:
        MechanismError: a law without a parameter.
    """
    if ratio == 1:
        return noise
    if isinstance(noise, GaussianNoise):
        return GaussianNoise(max(noise.variance * ratio, SMALLEST_VARIANCE))
    if isinstance(noise, TwoSidedNoise):
        return TwoSidedNoise(min(noise.epsilon / ratio, Fraction(LARGEST_PLANNED_EPSILON)))
    if isinstance(noise, OneSidedNoise):
        return OneSidedNoise(min(noise.epsilon / ratio, Fraction(LARGEST_PLANNED_EPSILON)), noise.direction)
    raise MechanismError(f"noise is {noise.name!r}, allowed: a law whose levels may differ")


def response_release_epsilon(answer: AnswerLaw, noise_epsilon: Fraction) -> Decimal:
    """Return the exact loss of the noised counts of all outputs of a response, rounded up to 5 places.

    Raises:
        MechanismError: a noise epsilon not in (0, 100].
    """
    return rounded_up(released_loss(answer, noise_epsilon), _PLACES)


def checked_floats(sampling_rate: Fraction | float, epsilon: Fraction | float) -> tuple[float, float]:
    """Return a sampling rate and a loss; raises MechanismError for p not in (0, 1] or a loss not in (0, 100]."""
    rate, loss = float(sampling_rate), float(epsilon)
    if not 0 < rate <= 1:
        raise MechanismError(f"sampling rate is {rate}, allowed: 0 < sampling rate <= 1")
    if not 0 < loss <= 100:
        raise MechanismError(f"epsilon is {loss}, allowed: 0 < epsilon <= 100")
    return rate, loss


def release_epsilon_one_cell(sampling_rate: Fraction | float, noise_epsilon: Fraction | float) -> float:
    """Return eps' = ln(1 + p (e**e1 - 1)), the loss of the noised release for one-cell neighbours; for display.

    Raises:
        MechanismError: p not in (0, 1], or e1 not in (0, 100].
    """
    rate, noise = checked_floats(sampling_rate, noise_epsilon)
    return log1p(rate * expm1(noise))


def release_epsilon_two_cell(sampling_rate: Fraction | float, noise_epsilon: Fraction | float) -> float:
    """Return eps' = ln[(1 + p (e**e1 - 1))/(1 - p (1 - e**-e1))], the loss for two-cell neighbours; for display.

    Raises:
        MechanismError: p not in (0, 1], or e1 not in (0, 100].
    """
    rate, noise = checked_floats(sampling_rate, noise_epsilon)
    if rate == 1:
        return 2 * noise
    return log1p(rate * expm1(noise)) - log1p(rate * expm1(-noise))


def noise_epsilon_one_cell(target_epsilon: Fraction | float, sampling_rate: Fraction | float) -> float:
    """Return e1 = ln(1 + (e**eps' - 1)/p), the inverse of release_epsilon_one_cell; for display, not rounded down.

    Raises:
        MechanismError: p not in (0, 1], or eps' not in (0, 100].
    """
    rate, target = checked_floats(sampling_rate, target_epsilon)
    return log1p(expm1(target) / rate)


def noise_epsilon_two_cell(target_epsilon: Fraction | float, sampling_rate: Fraction | float) -> float:
    """Return the e1 whose two-cell loss is eps'; for display, not rounded down.

    With E = e**eps', e**e1 is the positive root of p x**2 - (1-p)(E-1) x - p E = 0.

    Raises:
        MechanismError: p not in (0, 1], or eps' not in (0, 100].
    """
    rate, target = checked_floats(sampling_rate, target_epsilon)
    middle = (1 - rate) * expm1(target)
    return log((middle + sqrt(middle * middle + 4 * rate * rate * exp(target))) / (2 * rate))


def noise_epsilon_for(target_epsilon: Fraction, sampling_rate: Fraction, neighbours: Neighbours) -> Fraction:
    """Return the largest e1 that is a multiple of 10**-6 and keeps the release's loss at or below the target.

    Raises:
        MechanismError: a target not in (0, 100] or so small that e1 would be 0, or p not in (0, 1].
    """
    target, rate = require_positive("target epsilon", target_epsilon), checked_rate(sampling_rate)
    if target > 100:
        raise MechanismError(f"target epsilon is {target}, allowed: 0 < target epsilon <= 100")
    if rate == 1:
        whole = target if neighbours is Neighbours.ONE_CELL else target / 2
        noise = Fraction(whole.numerator * NOISE_GRID // whole.denominator, NOISE_GRID)
    else:
        noise = fraction_down(_noise_for(target, rate, neighbours), NOISE_GRID)
    if noise <= 0:
        raise MechanismError(f"target epsilon is {target}, allowed: large enough for a noise epsilon of 1/{NOISE_GRID}")
    return noise


def _noise_for(target: Fraction, rate: Fraction, neighbours: Neighbours) -> Fraction:
    power = near_exp(target)
    if neighbours is Neighbours.ONE_CELL:
        return near_log(1 + (power - 1) / rate)
    middle = (1 - rate) * (power - 1)
    return near_log((middle + near_sqrt(middle * middle + 4 * rate * rate * power)) / (2 * rate))


def sampling_sd(count: int, sampling_rate: Fraction | float) -> float:
    """Return sqrt(n (1-p)/p), the sd of the estimate of a cell of n devices before noise, whatever all others answer.

    Raises:
        MechanismError: n below 0, or p not in (0, 1].
    """
    rate, _ = checked_floats(sampling_rate, 1)
    return sqrt(require_at_least("count", count, 0) * (1 - rate) / rate)


def release_sd(count: int, sampling_rate: Fraction | float, noise_epsilon: Fraction | float, aggregators: int) -> float:
    """Return sqrt(n (1-p)/p + 2k a/((1-a)**2 p**2)), a = e**-e1: the sd of a released cell of n devices with k noises.

    Raises:
        MechanismError: n below 0, p not in (0, 1], e1 not in (0, 100], or k below 1.
    """
    rate, noise = checked_floats(sampling_rate, noise_epsilon)
    require_at_least("aggregators", aggregators, 1)
    noise_variance = aggregators * -2 * exp(-noise) / (expm1(-noise) * -expm1(-noise))
    return sqrt(sampling_sd(count, rate) ** 2 + noise_variance / rate**2)


def noise_for(
    answer: AnswerLaw, epsilon: Fraction, law: type[PlannedNoise] = TwoSidedNoise, spread: Spread | None = None
) -> PlannedNoise:
    """Return the weakest noise of the cells with which the published counts of all levels lose at most epsilon.

    One-sided noise is charged as it is, once a level. A response is searched on multiples of 1/1000, the others solved
    on 10**-6; no geometric noise has an epsilon above 10. Gaussian noise, whose epsilon is at `losses.STATED_DELTA`, is
    searched on variances in 1/100. `spread` says how the noise of the coarser levels follows.

    Raises:
        MechanismError: a target of 0 or below, too small for the grid, or above 100 for geometric noise on sampled or
            direct answers; several levels of answers that devices randomize, or a total with less geometric noise than
            is free.
        InfeasibleTargetError: no noise on this response reaches the target.
    """
    parts = Spread(levels=Levels(answer.values)) if spread is None else spread
    require_levels(answer, parts.levels.count)
    if law is GaussianNoise:
        return _gaussian_for(answer, require_positive("epsilon", epsilon), parts)
    if parts.levels.total and law is OneSidedNoise:
        raise MechanismError("a total is asked of one-sided counts, allowed: of counts with two-sided noise")
    if parts.levels.total and parts.ratios[-1] < (free := parts.free_total(law)):
        raise MechanismError(
            f"a total has {parts.ratios[-1]} times the geometric noise of a cell, allowed: {free} times or more, which"
            " costs nothing"
        )
    return geometric_for(answer, epsilon, law is OneSidedNoise, parts.cells_share(law))


def geometric_for(
    answer: AnswerLaw,
    epsilon: Fraction,
    one_sided: bool,
    share: Fraction = Fraction(1),
) -> TwoSidedNoise | OneSidedNoise:
    """Return the weakest geometric noise of cells that have `share` of the levels' budget.

    Raises:
        MechanismError, InfeasibleTargetError: as `noise_for`.
    """
    target = require_positive("epsilon", epsilon)
    if one_sided:
        return OneSidedNoise(min(target * share, Fraction(LARGEST_PLANNED_EPSILON)))
    if kind_of(answer).form not in (AnswerForm.TWO_ROUNDS, AnswerForm.TRUTH):
        return TwoSidedNoise(_response_noise(answer, target))
    needed = noise_epsilon_for(target, channel_of(answer)[0], neighbours_of(answer.values))
    # A value that comes moves a number of every zoom; the numbers that move lose together (F1).
    each = Fraction(floor(needed * share * NOISE_GRID), NOISE_GRID)
    if each <= 0:
        raise MechanismError(f"the cells have a share of {share}, allowed: a noise epsilon of 1/{NOISE_GRID} for them")
    return TwoSidedNoise(min(each, Fraction(LARGEST_PLANNED_EPSILON)))


def _gaussian_for(answer: AnswerLaw, target: Fraction, parts: Spread) -> GaussianNoise:
    """Return the least variance on the grid whose loss is within the target, by bisection: the loss falls."""

    def within(steps: int) -> bool:
        epsilon, _ = stated_loss(parts.design(answer, GaussianNoise(Fraction(steps, _VARIANCE_GRID))))
        return rounded_up(epsilon, _PLACES) <= target

    low, high = (int(one * _VARIANCE_GRID) for one in (SMALLEST_VARIANCE, LARGEST_VARIANCE / parts.widest))
    if not within(high):
        raise InfeasibleTargetError(
            f"epsilon is {target}, allowed: one that noise of variance {high / _VARIANCE_GRID:g} reaches"
        )
    low -= 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) else (middle, high)
    return GaussianNoise(Fraction(high, _VARIANCE_GRID))


def _response_noise(answer: AnswerLaw, target: Fraction) -> Fraction:
    """Return the largest multiple of 1/1000 whose released loss is within the target, by bisection: the loss grows."""
    low, high = 0, LARGEST_PLANNED_EPSILON * _RESPONSE_GRID + 1
    while high - low > 1:
        middle = (low + high) // 2
        within = response_release_epsilon(answer, Fraction(middle, _RESPONSE_GRID)) <= target
        low, high = (middle, high) if within else (low, middle)
    if low == 0:
        least = response_release_epsilon(answer, Fraction(1, _RESPONSE_GRID))
        raise InfeasibleTargetError(
            f"epsilon is {target}, allowed: at least {least}, which the strongest noise on this response reaches"
        )
    return Fraction(low, _RESPONSE_GRID)
