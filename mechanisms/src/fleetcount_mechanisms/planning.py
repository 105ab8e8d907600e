"""Planning a count before it is asked: the die, the noise and the expected error for a target loss.

It must not choose parameters that lose more than the target: rates and noise parameters are rounded down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise
from math import ceil, erf, exp, expm1, sqrt
from typing import Final

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.errors import (
    MechanismError,
    require_at_least,
    require_open_unit,
    require_positive,
)
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread, noise_for, scaled
from fleetcount_mechanisms.randomness import rounded_up
from fleetcount_mechanisms.responses import RandomizedResponse
from fleetcount_mechanisms.statement import epsilon_of, views_of

MESSAGE_EPSILON_TO_WARN: Final = 2
RELEASE_EPSILON_TO_WARN: Final = 2
_HALF: Final = Fraction(1, 2)
_LEVEL: Final = Fraction(95, 100)
_MEAN_SHARES: Final = (Fraction(1, 32), Fraction(31, 32))
"""The parts of the cells and of the weighted sum: where noise is 36 vehicles on a cell with the whole budget, a mean of
1,000 numbers in [0, 1] errs by .0258, by .0261 with 1/16 for the cells, and by .0254 had they nothing."""
_FALLING: Final = Fraction(7, 10)
"""The share of a zoom in that of the one before: of 64 points the median then errs by 2.3 times a cell's noise had that
all of the budget, by 4 times from the cells alone."""
_GRAINS: Final = 1000
"""Shares are whole thousandths, so that the variances that follow have short terms."""
MEAN_OF: Final = (200, 1_000, 100_000)
"""The numbers of devices for which the error of a mean is told."""
_LARGEST_SIDE: Final = 128
_MOST_POINTS: Final = 4_095
SHOWN: Final = ("mean", "quantiles")
"""What a direct number is asked for: the sum by which its mean is read, or zooms for its quantiles."""
AIMS: Final = ("cell", "block", "total")
"""What shares of zooms may be chosen for: a cell, a square of the coarsest zoom, all cells together."""
_PARTS: Final = (1, 1, 100, 100, 100, 50, 25, 25, 20)
"""By the number of zooms: shares are so many equal parts, so that there are at most 212,000 ways to choose them."""
_ONE_MESSAGE: Final = ("one_round_two_message", "one_answer_alone")


def default_sampling_rate(values: int) -> Fraction:
    """Return the default p: 0.45 for one value, 0.25 for 2 to 9, 0.10 for more.

    Raises:
        MechanismError: V below 1.
    """
    if require_at_least("values", values, 1) == 1:
        return Fraction(9, 20)
    return Fraction(1, 4) if values < 10 else Fraction(1, 10)


def local_sampling_rate(epsilon: float, values: int) -> float:
    """Return p = (e**eps - 1)/(e**eps + V), the uniform die whose one message loses eps; for display, not rounded down.

    Raises:
        MechanismError: eps not in (0, 100], or V below 1.
    """
    require_at_least("values", values, 1)
    if not 0 < epsilon <= 100:
        raise MechanismError(f"epsilon is {epsilon}, allowed: 0 < epsilon <= 100")
    return expm1(epsilon) / (expm1(epsilon) + 1 + values)


def _checked_target(epsilon: object) -> Fraction:
    target = require_positive("epsilon", epsilon)
    if target > 100:
        raise MechanismError(f"epsilon is {target}, allowed: 0 < epsilon <= 100")
    return target


def coins_variance(channel: tuple[float, float], share: float, count: int, devices: int) -> float:
    """Return the variance of Y - M Q for a cell of `count` devices if each of `devices` is asked with chance `share`.

    Y is what counts in the cell of the M that are asked: n [q P(1-P) + q(1-q)(P-Q)^2] + (N-n) q Q(1-Q), q the share.
    """
    hit, miss = channel
    asked = count * (hit * (1 - hit) + (1 - share) * (hit - miss) ** 2)
    return share * (asked + (devices - count) * miss * (1 - miss))


def predicted_sd(design: Design, count: int, devices: int, one_in: int = 1) -> float:
    """Return the standard deviation to expect for a cell of `count` among `devices` devices, devices being the unit.

    Where a device is asked in one window of `one_in`, W, the estimate is W times that of those who were asked: to the
    coins of the q = 1/W that are asked comes n q(1-q)(P-Q)^2, and all of it is divided by q^2.
    With (P, Q) the answer's channel and k VarZ the aggregators' noise on one opened number, the variance is
    [n P(1-P) + (N-n) Q(1-Q) + k VarZ w]/(P-Q)^2. w is 1; where the estimate takes Q times all outputs off, (1-Q)^2 +
    V Q^2; where it takes Q times the participation bit's count off, 1 + Q^2.
    """
    hit, miss = (float(one) for one in design.channel)
    share = 1 / one_in
    coins = coins_variance((hit, miss), share, count, devices)
    weight = {
        Outputs.CELLS: 1.0,
        Outputs.ALL: (1 - miss) ** 2 + design.values * miss**2,
        Outputs.PARTICIPATION: 1 + miss**2,
    }[design.outputs]
    return sqrt(coins + design.aggregators * design.noise.draw_variance * weight) / (share * (hit - miss))


def spread_for_mean(values: int, law: type[NoiseLaw], shares: Sequence[Fraction] = ()) -> Spread:
    """Return what a direct number of V points opens for its mean: cells and weighted sum, of these shares if given.

    Raises:
        MechanismError: a single value, or other than two shares.
    """
    return Spread.of_shares(Levels(values, (values, 1), weighted=True), tuple(shares) or _MEAN_SHARES, law)


def spread_for_quantiles(values: int, sides: Sequence[int] = (), shares: Sequence[Fraction] = ()) -> Spread:
    """Return what a direct number of V points opens for its quantiles: zooms of these sides, of these shares if given.

    Without sides they are halves as far as V allows, without shares each has .7 of that of the one before.

    Raises:
        MechanismError: without sides a V that cannot be halved, sides that do not fit V, or not one share for each.
    """
    if not sides and (values % 2 or values == 2):
        near = [one for one in (values - 1, values + 1) if one % 2 == 0 and 4 <= one <= _MOST_POINTS] or [4]
        raise MechanismError(
            f"quantiles are asked of {values} points, whose halves are no zooms, allowed: {' or '.join(map(str, near))}"
        )
    zooms = list(sides) or [1]
    while not sides and zooms[-1] < _LARGEST_SIDE and values % (2 * zooms[-1]) == 0 and values > 2 * zooms[-1]:
        zooms.append(2 * zooms[-1])
    weights = [_FALLING**zoom for zoom in range(len(zooms))]
    falling = [Fraction(round(_GRAINS * one / sum(weights)), _GRAINS) for one in weights[1:]]
    given = tuple(shares) or (1 - sum(falling, Fraction(0)), *falling)
    return Spread.of_shares(Levels(values, (values, 1), tuple(zooms)), given)


def spread_for_show(
    show: str, values: int, law: type[NoiseLaw], sides: Sequence[int] = (), shares: Sequence[Fraction] = ()
) -> Spread:
    """Return what a direct number of V points opens for one of `SHOWN`, a total left out; `sides` are of quantiles.

    Raises:
        MechanismError: as `spread_for_mean` and `spread_for_quantiles`.
    """
    return spread_for_mean(values, law, shares) if show == "mean" else spread_for_quantiles(values, sides, shares)


def not_shown(
    show: str, form: AnswerForm, law: type[NoiseLaw], *, number: bool, zoomed: bool, total: bool
) -> str | None:
    """Return why a question does not show a `number` as one of `SHOWN`, in a word that whoever asks explains.

    `zoomed` are zooms beside it, `total` whether all devices are counted too: "number", "mode" of answers that are not
    direct, "one-sided", "zooms" or "total"; None where nothing speaks against it.
    """
    against = {
        "number": not number,
        "mode": form is not AnswerForm.TRUTH,
        "one-sided": law not in (GaussianNoise, TwoSidedNoise),
        "zooms": show == "mean" and zoomed,
        "total": show == "mean" and not total,
    }
    return next((why for why, holds in against.items() if holds), None)


def shares_for_aim(
    levels: Levels, aims: Mapping[str, Fraction], whole: NoiseLaw, *, total: bool
) -> tuple[Fraction, ...]:
    """Return the shares of the budget of zooms, the cells first, that make the numbers aimed at err the least.

    `aims` has a weight for some of `AIMS`: the sum of these weights times the variances is the least, in counts of all
    zooms that add up. `whole` is the noise of a level that had all of the budget, which a `total` beside the zooms has
    for nothing. All shares in hundredths are compared, of five zooms and more in fewer parts (`_PARTS`), so that
    they are the best of these, whatever the law. The variances are those of least squares over levels of equal
    blocks (`fleetcount_analysis.answers.hierarchy`, in closed form): with b_l cells in a block of zoom l, b_L = V and
    lambda_l the sum over j <= l of b_j/s_j, that of a block of zoom l is

        b_l^2 sum over j >= l of (1/b_j - 1/b_(j+1))/lambda_j

    to which the grand mean adds b_l^2/(V lambda), lambda = lambda_(L-1) + V/tau with a total of variance tau.

    Raises:
        MechanismError: no aim, another one, a weight that is not above 0, fewer than two zooms or more than eight.
    """
    if not aims or any(aim not in AIMS or weight <= 0 for aim, weight in aims.items()):
        said = ", ".join(f"{aim} = {weight}" for aim, weight in aims.items()) or "nothing"
        raise MechanismError(f"the aim is {said}, allowed: weights above 0 of {', '.join(AIMS)}")
    zooms = len(levels.sides)
    if not 2 <= zooms < len(_PARTS):
        raise MechanismError(f"there are {zooms} zooms, allowed with an aim: 2 to {len(_PARTS) - 1}")
    parts = _PARTS[zooms]
    blocks = [levels.values // size for size in levels.sizes[:zooms]] + [levels.values]
    finer = [1 / low - 1 / high for low, high in pairwise(blocks)]
    known = [0.0] + [1 / scaled(whole, Fraction(parts, part)).draw_variance for part in range(1, parts + 1)]
    cell, block, everything = (float(aims.get(aim, 0)) for aim in AIMS)
    weights = [cell] * zooms
    weights[-1] += block * blocks[-2] ** 2
    mean = (cell + block * blocks[-2] ** 2) / levels.values + everything * levels.values

    def missed(ends: tuple[int, ...]) -> float:
        """Return the weighted sum of the variances where the zooms' shares end at these parts."""
        seen = error = 0.0
        for low, high, cells, weight, part in zip((0, *ends), (*ends, parts), blocks, weights, finer, strict=False):
            seen += cells * known[high - low]
            error += weight * part / seen
        return error + mean / (seen + levels.values * known[parts] * total)

    best = min(combinations(range(1, parts), zooms - 1), key=missed)
    return tuple(Fraction(high - low, parts) for low, high in pairwise((0, *best, parts)))


def mean_sd(design: Design, devices: int) -> float:
    """Return the standard deviation to expect for the mean of so many numbers of a direct count, in their range.

    The numbers' mean is the middle of the range, and they lie anywhere between their V points. With S_c and S_w the
    noises of a cell and of the weighted sum the sum of the numbers errs by their least-squares combination, of
    variances S_c V(V+1)/(12(V-1)) and S_w/(4(V-1)^2), and by the devices' rounding, n/(6(V-1)^2).

    Raises:
        MechanismError: devices below 1, a single value, or answers that are not direct.
    """
    require_at_least("devices", devices, 1)
    steps = require_at_least("values", design.values, 2) - 1
    if design.form is not AnswerForm.TRUTH:
        raise MechanismError(f"a mean is planned of {design.name} answers, allowed: of direct ones")
    known = 12 * steps / (design.noise.draw_variance * design.values * (design.values + 1))
    if (place := design.levels.weighted_place) is not None:
        known += 4 * steps**2 / design.laws[place].draw_variance
    return sqrt(design.aggregators / known + devices / (6 * steps**2)) / devices


def crossover_share(sampling_rate: Fraction, response: RandomizedResponse) -> Fraction | None:
    """Return the share n/N below which Sampling Privacy before noise has the smaller error; None if it always has.

    Both variances are linear in n/N: n (1-p)/p against n a + (N - n) b, with a = A(1-A)/(A-B)**2, b = B(1-B)/(A-B)**2,
    A = P[v | truth v] and B = P[v | another truth] of the response.

    Raises:
        MechanismError: p not in (0, 1).
    """
    rate = require_open_unit("sampling rate", sampling_rate)
    given_yes, given_no = response.probability(1, 1), response.probability(1, 0)
    apart = (given_yes - given_no) ** 2
    slope = (1 - rate) / rate - given_yes * (1 - given_yes) / apart
    flat = given_no * (1 - given_no) / apart
    return None if slope <= 0 else flat / (slope + flat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A planned count: its design, its error, its loss against every adversary.

    level is the confidence level of the intervals, e.g. 95/100; warnings are sentences for the analyst. With `one_in` a
    device is asked in one window of so many, and errors are those of the estimate of all devices.

    Raises:
        MechanismError: fewer than 1 device, or a level not in (0, 1).
    """

    devices: int
    design: Design
    level: Fraction
    warnings: tuple[str, ...] = ()
    one_in: int = 1

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_at_least("devices", self.devices, 1)
        require_open_unit("level", self.level)

    def sd(self, count: int) -> float:
        """Return the standard deviation to expect for a cell of `count` devices."""
        return predicted_sd(self.design, count, self.devices, self.one_in)

    def interval(self, count: int) -> tuple[float, float]:
        """Return the closed-form interval when the estimate falls on `count`: its two ends, the lower one at least 0.

        All n with `|x - n| <= z sd(n)`, x the estimate: the roots of `(x - n)**2 = c1 n + c0`.
        """
        quantile = _normal_quantile(self.level)
        flat = (quantile * self.sd(0)) ** 2
        slope = ((quantile * self.sd(self.devices)) ** 2 - flat) / self.devices
        middle, spread = count + slope / 2, sqrt(max(slope * count + slope * slope / 4 + flat, 0.0))
        return max(0.0, middle - spread), middle + spread

    def width(self, count: int) -> float:
        """Return the width of that interval, in devices."""
        low, high = self.interval(count)
        return high - low

    @property
    def smallest_count_seen(self) -> int | None:
        """The smallest n with n >= z (sd(0) + sd(n)), distinguishable from 0; None when it exceeds the devices.

        Each is taken for the other in at most 1 - level: geometric noise strays farther than a normal law of its
        variance, and n is as large as its own tails ask for beside normal coins.
        """
        both, one_way = _normal_quantile(self.level), _normal_quantile(2 * self.level - 1)
        coins, noise = self._coins, self._geometric_reach

        def told(count: int) -> bool:
            ends = (0, count)
            tails = sum(sqrt(one_way**2 * coins(one) + noise**2) for one in ends) if noise else 0.0
            return count >= max(both * sum(map(self.sd, ends)), tails)

        if not told(self.devices):
            return None
        low, high = 0, self.devices
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if told(middle) else (middle, high)
        return high

    def _coins(self, count: int) -> float:
        """Return the variance of a cell that devices' coins alone cause."""
        (hit, miss), share = map(float, self.design.channel), 1 / self.one_in
        return coins_variance((hit, miss), share, count, self.devices) / (share * (hit - miss)) ** 2

    @property
    def _geometric_reach(self) -> float:
        """Half of what a count needs to be told from 0 if nothing but geometric noise is between them, else 0."""
        design = self.design
        if not isinstance(design.noise, TwoSidedNoise | OneSidedNoise):
            return 0.0
        unit = sqrt(max(0.0, self.sd(0) ** 2 - self._coins(0)) / (design.aggregators * design.noise.draw_variance))
        return _half_apart(design.noise, design.aggregators, float(1 - self.level)) * unit


def plan_question(
    devices: int,
    answer: AnswerLaw,
    epsilon: Fraction,
    aggregators: int = 2,
    *,
    noise: type[PlannedNoise] = TwoSidedNoise,
    level: Fraction = _LEVEL,
    spread: Spread | None = None,
) -> Plan:
    """Return the plan of a count whose release loses at most epsilon, with the weakest noise of that law.

    `spread` says which levels are opened, which all together lose as much; the plan's errors are those of a cell read
    alone.

    Raises:
        MechanismError: a parameter outside its range, or no noise reaches epsilon.
    """
    parts = Spread(levels=Levels(answer.values)) if spread is None else spread
    design = parts.design(answer, noise_for(answer, _checked_target(epsilon), noise, parts), aggregators)
    plan = Plan(devices=devices, design=design, level=level)
    return replace(plan, warnings=_warnings(plan))


def _warnings(plan: Plan) -> tuple[str, ...]:
    design, found = plan.design, list[str]()
    alone = next((view.epsilon for view in views_of(design) if view.adversary in _ONE_MESSAGE), None)
    if alone is not None and alone > MESSAGE_EPSILON_TO_WARN:
        what = "one round-two message" if design.rounds == 2 else "one answer"
        found.append(
            f"{what} alone loses {rounded_up(Fraction(alone), 2)}, more than {MESSAGE_EPSILON_TO_WARN}: "
            "a smaller sampling rate or fewer values would lose less"
        )
    lost = epsilon_of(design)
    if lost is not None and lost > RELEASE_EPSILON_TO_WARN:
        found.append(f"the release loses {lost}, more than {RELEASE_EPSILON_TO_WARN}: a weak promise")
    if design.exposure >= _HALF and design.rounds == 2:
        found.append(f"the sampling rate is {design.exposure}: all aggregators together see most truths")
    if plan.smallest_count_seen is None:
        found.append(f"no count among {plan.devices} devices could be told from 0 at this epsilon")
    return tuple(found)


def _half_apart(noise: TwoSidedNoise | OneSidedNoise, aggregators: int, tail: float) -> float:
    """Return half the distance of two counts under the noises of aggregators that are told apart but for a tail.

    Of two aggregators the least t with P[Z >= t] <= tail, q = exp(-epsilon): q^t (1 + (1-q) t) one-sided, where the
    lower side is sure; two-sided q^t ((1-q) t + q + (1+q^2)/(1+q))/(1+q)^2, where a threshold in the middle is crossed
    from both sides. In units of its standard deviation their noise has the longest tails; that of more is a whole
    number too.
    """
    rate = exp(-noise.epsilon)
    first, whole = (1.0, 1.0)
    if isinstance(noise, TwoSidedNoise):
        first, whole = rate + (1 + rate**2) / (1 + rate), (1 + rate) ** 2
    low, high = 0, 1
    while rate**high * ((1 - rate) * high + first) > tail * whole:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        beyond = rate**middle * ((1 - rate) * middle + first) > tail * whole
        low, high = (middle, high) if beyond else (low, middle)
    reach = ceil(high * sqrt(aggregators / 2))
    return reach - 0.5 if isinstance(noise, TwoSidedNoise) else reach / 2


def _normal_quantile(level: Fraction) -> float:
    """Return z with P[|N(0, 1)| <= z] = level, by bisection (statistics.NormalDist would load the random module)."""
    low, high = 0.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if erf(middle / sqrt(2)) < level else (low, middle)
    return high
