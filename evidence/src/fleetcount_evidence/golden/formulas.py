"""Functions for golden rows that need several public functions, or arguments that are not fields of the row.

Each calls the mechanisms, the analysis or the papers' experiments; `groups.toml` names the function of each group. It
must not contain an expected number.
"""

import ast
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, cast

from fleetcount_analysis import intervals
from fleetcount_analysis.remap import geometric_remap, user_optimum
from fleetcount_mechanisms.accounting.charges import chance_of_all, chance_of_any, expected_answers, quantile
from fleetcount_mechanisms.accounting.periods import PeriodTotals
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET, LossBudget, LossVector
from fleetcount_mechanisms.asymmetric import (
    AsymmetricGeometric,
    Direction,
    expected_safe_answers,
    expected_safe_answers_approximate,
)
from fleetcount_mechanisms.composition import basic_epsilon, optimal_delta_repeated
from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.exact_difference import message_epsilon_binary
from fleetcount_mechanisms.losses import (
    linked_delta,
)
from fleetcount_mechanisms.planned_noise import noise_epsilon_two_cell, release_sd
from fleetcount_mechanisms.planning import coins_variance
from fleetcount_mechanisms.randomness import near_log
from fleetcount_mechanisms.renyi import (
    entry_price,
    gaussian_divergence,
    order_epsilon,
    panel_geometric_divergence,
    panel_pure_epsilon,
    pure_divergence,
)
from fleetcount_mechanisms.repeated import optimal_loss_repeated
from fleetcount_mechanisms.response_laws import two_coin_sd
from fleetcount_mechanisms.responses import TwoCoin
from fleetcount_mechanisms.sampled_gaussian import panel_added, panel_gaussian_divergence
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.sparse_vector import Mark, SanitizedSparseVector

from fleetcount_evidence.buckets.multi_size import multi_size_bucketing
from fleetcount_evidence.buckets.optimum import optimal_bucketing
from fleetcount_evidence.buckets.pairs import PairList
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, linear_thresholds
from fleetcount_evidence.buckets.two_size import two_size_bucketing
from fleetcount_evidence.buckets.validity import naive_conditions_hold, setting_is_valid
from fleetcount_evidence.golden.question_accuracy import change_variance, discrete_gaussian_variance, window_variance
from fleetcount_evidence.golden.rows import Fields, MalformedGoldenError, number_of, shown
from fleetcount_evidence.papers.geometric.bounded_geometric import Matrix, bounded_geometric_matrix

Pairs = Sequence[tuple[int, int]]
_YES: Final = 100
"""The number of Yes in the group `rr`, whose rows name only the population."""
_MOST_BITS: Final = 400_000
"""Most bits of a power of p: a little more than those of the smallest number that is read, 1e-100000."""
_MARKS: Final = {"_": Mark.SAFE, "x": Mark.UNANSWERED}
_DIRECTIONS: Final = {"up": Direction.DECREASING, "down": Direction.INCREASING}

# Sampling Privacy and randomized responses.


def larger_message_epsilon(pi0: float, rate: float) -> float:
    """Return the epsilon of one message of a binary die: the larger of those of its two outputs."""
    return max(message_epsilon_binary(pi0, rate))


def linked_delta_of_rate(rate: Fraction) -> Fraction | float:
    """Return the delta of both messages together under a uniform binary die."""
    return linked_delta(SamplingDie.uniform(rate, 1, allow_large_rate=True))


def two_coin_epsilons(truth: Fraction, yes: Fraction) -> tuple[float, float]:
    """Return the epsilons of the two coins: of the answer Yes and of the answer No."""
    coins = TwoCoin(truth_probability=truth, yes_probability=yes)
    return coins.epsilon_yes, coins.epsilon_no


def two_coin_deviations(populations: object, truth: float, yes: float) -> Mapping[str, float]:
    """Return the standard deviation of a two-coin count of 100 for each population that an object names.

    Raises:
        MalformedGoldenError: `populations` is not an object whose names are populations.
    """
    names = list(Fields.of(populations, "rr.sd").fields)
    if not all(re.fullmatch(r"[0-9]{1,12}", name) for name in names):
        raise MalformedGoldenError(f"rr.sd is {shown(names)}; it must be an object whose names are populations")
    return {name: two_coin_sd(_YES, int(name), truth, yes) for name in names}


def release_sd_of_loss(count: int, rate: Fraction | float, epsilon: Fraction | float, noises: int) -> float:
    """Return the standard deviation of a release whose noise gives `epsilon` to neighbours that differ in two cells."""
    return release_sd(count, rate, noise_epsilon_two_cell(epsilon, rate), noises)


def interval_95(observed: int, rate: Fraction, noise_epsilon: Fraction, noises: int) -> tuple[int, int]:
    """Return the ends of the 95 % interval of one sampled sum."""
    return intervals.sampling_intervals([observed], rate, noise_epsilon, noises, Fraction(19, 20))[0]


# One-sided answers.


def asymmetric_row_of(count: int, maximum: int, epsilon: Fraction, direction: object) -> Sequence[Fraction]:
    """Return the law of a noisy count; the direction is 'up' (noise at or above the count) or 'down'.

    Raises:
        MalformedGoldenError: `direction` is neither.
    """
    if not isinstance(direction, str) or direction not in _DIRECTIONS:
        raise MalformedGoldenError(f"ageo.row: field 'direction' is {shown(direction)}; it must be 'up' or 'down'")
    return AsymmetricGeometric(epsilon=epsilon, maximum=maximum, direction=_DIRECTIONS[direction]).row(count)


def city_answers(few: Sequence[int], busy: Sequence[int]) -> tuple[float, float, float]:
    """Return the expected share of safe locations found, their expected number, and that under (1, 0.0001)-DP.

    `few` are the numbers of locations with 0, 1, ... visitors, all safe; `busy` are the counts of the others.
    """
    histogram = Counter(dict(enumerate(few))) + Counter(busy)
    threshold, epsilon = len(few) - 1, Fraction(1)
    answers = expected_safe_answers(histogram, threshold, epsilon)
    approximate = expected_safe_answers_approximate(histogram, threshold, epsilon, Fraction(1, 10**4))
    return answers / sum(few), answers, approximate


def sparse_law(names: Sequence[str]) -> Mapping[str, Fraction]:
    """Return the law of SALap at eps 1 on counts (1, 3, 0) out of 5, thresholds 2, by outcomes like "('_', 3, 'x')".

    '_' is safe, 'x' unanswered.

    Raises:
        MalformedGoldenError: a name is not an outcome.
    """
    law = SanitizedSparseVector(epsilon=Fraction(1), maximum=5, thresholds=(2, 2, 2)).law((1, 3, 0))
    return {name: law.get(_outcome(name), Fraction(0)) for name in names}


def _outcome(name: str) -> tuple[int | Mark, ...]:
    try:
        parts: object = ast.literal_eval(name) if len(name) <= 80 else None
    except (ValueError, SyntaxError):
        parts = None
    items = cast("tuple[object, ...]", parts) if isinstance(parts, tuple) else (None,)  # The next line refuses None.
    if not all(item in _MARKS or isinstance(item, int) for item in items):
        raise MalformedGoldenError(f"salap.law: {shown(name)} is not an outcome like ('_', 3, 'x')")
    return tuple(item if isinstance(item, int) else _MARKS[cast("str", item)] for item in items)  # A key of marks.


# The geometric mechanism.


def bounded_geometric_like(content: object) -> Matrix:
    """Return G_n for the ratio that the first entry 1/(1+a) of a matrix states; all other entries check it.

    Raises:
        MalformedGoldenError: `content` is not a matrix of fractions.
    """
    if not isinstance(content, list) or not content or not isinstance(content[0], list) or not content[0]:
        raise MalformedGoldenError(f"geo.Gn is {shown(content)}; it must be a matrix of fractions")
    rows = cast("list[list[object]]", content)  # Checked for its first row; the comparison refuses other shapes.
    first = number_of(rows[0][0], "geo.Gn[0][0]")
    # An entry that no ratio in (0, 1) gives differs from the matrix of any ratio, so any ratio will do.
    ratio = 1 / first - 1 if Fraction(1, 2) < first < 1 else Fraction(1, 2)
    return bounded_geometric_matrix(ratio, len(rows) - 1)


def uniform_remap(largest: Fraction, ratio: Fraction) -> tuple[Sequence[int], float]:
    """Return the best remap for a uniform prior on 0..n and absolute loss, and the linear program's least loss."""
    uniform = [1 / (int(largest) + 1)] * (int(largest) + 1)
    optimum = user_optimum(uniform, "absolute", ratio)
    return geometric_remap(uniform, "absolute", ratio).answers.tolist(), optimum.expected_loss


# Buckets.


def first_pair(records: int, small: int, large: int) -> list[int] | None:
    """Return the first pair of a list, its steps and the index of its last pair; None for an empty list."""
    pairs = PairList.of(records, small, large)
    if pairs is None:
        return None
    return [pairs.first_small, pairs.first_large, pairs.step_small, pairs.step_large, pairs.length - 1]


def bucket_optima(counts: Sequence[int], theta: Fraction, multi_pairs: Pairs, optimal_pairs: Pairs) -> list[object]:
    """Return thresholds, smallest size, the settings of three methods and their losses.

    A setting is a set of sizes: the sizes of a setting are returned in the row's order, so that only the set is
    compared. Several settings can have the least loss: when the row's is one of them, it is returned.
    """
    values = SensitiveValues(counts=tuple(counts), thresholds=linear_thresholds(counts, theta))
    two, multi, best = two_size_bucketing(values), multi_size_bucketing(values), optimal_bucketing(values)
    given = BucketSetting.of(*optimal_pairs)
    is_optimal = given.loss == best.loss and given.records == values.records and setting_is_valid(values, given)
    optimal = optimal_pairs if is_optimal else [(size.size, size.buckets) for size in best.sizes]
    order = {pair: position for position, pair in enumerate(multi_pairs)}
    found = [(size.size, size.buckets) for size in multi.sizes]
    ordered = sorted(found, key=lambda pair: (order.get(pair, len(order)), pair))
    two_sizes = [two.loss, two.small, two.small_buckets, two.large, two.large_buckets]
    return [values.thresholds, values.smallest_size, two_sizes, ordered, multi.loss, optimal, best.loss]


def three_sizes_hold(counts: Sequence[int], buckets: Pairs) -> bool:
    """Return whether the printed conditions hold in [INF, Example 5.32]: thresholds 1/6, the last value free."""
    thresholds = (*[Fraction(1, 6)] * (len(counts) - 1), Fraction(1))
    values = SensitiveValues(counts=tuple(counts), thresholds=thresholds)
    return naive_conditions_hold(values, BucketSetting.of(*buckets))


# Questions.


def twice_added(rate: Fraction, windows: int, variance: Fraction, order: int) -> Fraction:
    """Return twice the "add" part of a unit under N_Z(0, s), which bounds both parts (docs/spec.md, Theorem 3)."""
    return 2 * panel_added(rate, windows, variance, order)


def month_sd(rate: Fraction, windows: int, units: int, parts: object, order: int) -> float:
    """Return the sd of an empty cell's estimate under the weakest noise that keeps (10, 1e-9) at one order, k = 2.

    `parts` of a unit: "exact", "v1" (what adds alone), "cap" (at most -ln(1-p) of what removes), "thm3" (twice added).

    Raises:
        MalformedGoldenError: other parts.
        MechanismError: p not in (0, 1], windows below 1, or an order that is not an integer in 2..4096.
    """
    limit = 10 - entry_price(order, Fraction(1, 10**9))

    def loss(variance: Fraction) -> Fraction:
        added = panel_added(rate, windows, variance, order)
        if parts == "exact":
            return panel_gaussian_divergence(rate, windows, variance, order)
        if parts == "cap":
            return added + min(added, -near_log(1 - rate))
        if parts not in ("v1", "thm3"):
            raise MalformedGoldenError(f"parts is {shown(parts)}; it must be 'exact', 'v1', 'cap' or 'thm3'")
        return added if parts == "v1" else 2 * added

    low, high = Fraction(1), Fraction(10**6)
    while high / low > 1 + Fraction(1, 10**8):
        middle = Fraction(round((low + high) / 2 * 10**9), 10**9)
        low, high = (low, middle) if units * loss(middle) <= limit else (middle, high)
    return math.sqrt(2 * high) / float(rate)


def rotation_truth(epsilon: Fraction, values: int) -> float:
    """Return the chance that a k-ary answer is the truth."""
    return _response_channel("k-ary", epsilon, values)[0]


def rotation_sd(
    response: object, epsilon: Fraction, values: int, windows: int, devices: int, count: int, answers: int
) -> float:
    """Return the sd of a cell's estimate if each device answers in so many of `windows` windows, at eps/answers each.

    Raises:
        MalformedGoldenError: another response than "k-ary" and "unary".
    """
    hit, miss = _response_channel(response, epsilon / answers, values)
    share = answers / windows
    return math.sqrt(coins_variance((hit, miss), share, count, devices)) / (share * (hit - miss))


def _response_channel(response: object, epsilon: Fraction, values: int) -> tuple[float, float]:
    power = math.exp(epsilon)
    if response == "unary":
        return 0.5, 1 / (power + 1)
    if response != "k-ary":
        raise MalformedGoldenError(f"response is {shown(response)}; it must be 'k-ary' or 'unary'")
    return power / (power + values), 1 / (power + values)


def units_in_period(period_s: int, every_s: int, charge_s: int) -> int:
    """Return how many charges of so many seconds, one every `every_s`, a ledger finds in the fullest period.

    Raises:
        MechanismError: a period below 1.
    """
    totals = PeriodTotals(period_s, 1)
    for number in range(2 + 2 * (period_s + charge_s) // every_s):
        totals.add(number * every_s, number * every_s + charge_s - 1, [1])
    return totals.largest(0, 2 * (period_s + charge_s))[0]


def geometric_basic(noise_epsilon: Fraction, windows: int) -> Fraction:
    """Return the epsilon of `windows` windows of two noised cells by basic composition."""
    return basic_epsilon([noise_epsilon]) * 2 * windows


def geometric_optimal(noise_epsilon: Fraction, windows: int, delta: Fraction) -> Fraction:
    """Return the epsilon of `windows` windows of two noised cells by optimal composition, at this delta."""
    return optimal_loss_repeated(noise_epsilon, 2 * windows, delta)


def geometric_optimal_delta(noise_epsilon: Fraction, windows: int, epsilon: Fraction) -> Fraction:
    """Return the delta of `windows` windows of two noised cells by optimal composition, at this epsilon."""
    return optimal_delta_repeated(noise_epsilon, 2 * windows, epsilon)


def zcdp_order_epsilon(rho: Fraction, order: Fraction, delta: Fraction) -> Fraction:
    """Return the epsilon of rho-zCDP at this delta, converted at one order."""
    return order_epsilon(order * rho, order, delta)


def exposure_any(rate: Fraction, units: int) -> Fraction:
    """Return the probability that any of the units is sampled."""
    return chance_of_any(_writable(rate, units), units)


def exposure_all(rate: Fraction, units: int) -> Fraction:
    """Return the probability that all of the units are sampled."""
    return chance_of_all(_writable(rate, units), units)


def _writable(rate: Fraction, units: int) -> Fraction:
    """Return p.

    Raises:
        MechanismError: p**U would have more than 400,000 bits.
    """
    bits = rate.denominator.bit_length()
    if units * bits > _MOST_BITS:
        raise MechanismError(f"units is {units}, allowed: 1..{_MOST_BITS // bits} for this p")
    return rate


def exposure_quantile(rate: Fraction, units: int, unit_windows: int) -> int:
    """Return the number of answers that a device gives more than once in a million."""
    return quantile(rate, _equal_units(units, unit_windows))


def exposure_expected(rate: Fraction, units: int, unit_windows: int) -> Fraction:
    """Return the number of answers expected of a device."""
    return expected_answers(rate, _equal_units(units, unit_windows))


def _equal_units(units: int, unit_windows: int) -> tuple[int, ...]:
    if require_at_least("units", units, 1) > 100_000:
        raise MechanismError(f"units is {units}, allowed: 1..100,000")
    return (unit_windows,) * units


def window_variance_of(rate: Fraction, variance: Fraction, noises: int, count: int, *_others: object) -> Fraction:
    """Return the variance of one window's estimate; `_others`, the row's fields of other windows, are not used."""
    return window_variance(rate, _noise_variance(variance), noises, count)


def change_variance_of(
    sign: int, rate: Fraction, variance: Fraction, noises: int, now: int, before: int, both: int
) -> Fraction:
    """Return the variance of a difference (sign -2) or sum (2) under one coin, or of either under two (0)."""
    return change_variance(rate, _noise_variance(variance), noises, (now, before), sign * both)


def _noise_variance(variance: Fraction) -> Fraction:
    """Return the variance of the noise of a row whose input `variance` is the law's parameter s.

    A golden file writes sigma^2 for the parameter and Var for the law's own variance, "exact variance of N_Z(0,s)" in
    its group `gaussian_variance`, where `variance` = 1/4 has Var = .215. Its rows `variance_*` have s = 9 and 660, at
    which both are the same to 70 digits; at s = 1 they differ by 2e-7, below that by a seventh and more.
    """
    # Above 100 both agree to 800 digits; without noise the variance is 0.
    return discrete_gaussian_variance(variance) if 0 != variance <= 100 else variance


# The ledger.


def ledger_total(charges: Sequence[object], orders: Sequence[object], delta: Fraction) -> Fraction:
    """Return the epsilon that a ledger of Renyi losses at these orders computes for the charges together."""
    numbers = Fields(where="ledger_total, orders", fields={str(place): order for place, order in enumerate(orders)})
    sorted_orders = tuple(sorted(numbers.whole(str(place)) for place in range(len(orders))))
    budget = LossBudget(epsilon=Fraction(LARGEST_BUDGET), delta=delta, orders=sorted_orders)
    vectors = (_charge(Fields.of(charge, "ledger_total, charge"), sorted_orders) for charge in charges)
    return Fraction(budget.spent(sum(vectors, LossVector.nothing(sorted_orders))))


def _charge(one: Fields, orders: tuple[int, ...]) -> LossVector:
    """Return the Renyi loss of one charge of a row at each order."""
    kind, pure = one.raw("kind"), None
    if kind == "gaussian":
        moved = one.whole("cells"), one.whole("windows"), one.number("variance")
        at = [gaussian_divergence(*moved, order) for order in orders]
    elif kind == "geometric":
        copies, noise = one.whole("cells") * one.whole("windows"), one.number("e1")
        at, pure = [copies * pure_divergence(noise, order) for order in orders], copies * noise
    elif kind == "panel_gaussian":
        units, law = one.whole("units"), (one.number("p"), one.whole("unit_windows"), one.number("variance"))
        at = [units * twice_added(*law, order) for order in orders]
    elif kind == "panel_geometric":
        units, unit = one.whole("units"), (one.number("p"), one.whole("unit_windows"), one.number("e1"))
        at = [units * panel_geometric_divergence(*unit, order) for order in orders]
        pure = units * panel_pure_epsilon(unit[0], unit[1], unit[1], unit[2], 2)
    elif kind in ("pure", "mangat_vector"):
        epsilon, places = one.number("epsilon"), one.whole("places") if kind == "mangat_vector" else 1
        at, pure = [places * pure_divergence(epsilon, order) for order in orders], places * epsilon
    elif kind == "one_sided":
        pure = one.number("epsilon")
        at = [pure] * len(orders)
    else:
        raise MalformedGoldenError(f"{one.where}: kind is {shown(kind)}; it must be a kind of charge")
    one.finish()
    return LossVector.of(orders, at, pure)
