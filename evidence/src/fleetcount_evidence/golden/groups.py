"""The groups of golden numbers and the public function that answers each of them.

It must not compute a number itself: every entry is a call of the mechanisms or the analysis with a row's arguments.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, cast

from fleetcount_analysis import inference, intervals
from fleetcount_analysis.remap import geometric_remap, user_optimum
from fleetcount_mechanisms.asymmetric import (
    AsymmetricGeometric,
    Direction,
    approximate_detection,
    approximate_detection_paper,
    expected_safe_answers,
    expected_safe_answers_approximate,
    noisy_sum_detection,
    optimal_detection,
)
from fleetcount_mechanisms.composition import optimal_epsilon_per_query, optimal_epsilon_repeated
from fleetcount_mechanisms.loss_formulas import (
    central_delta,
    linked_delta,
    message_epsilon_binary,
    message_epsilon_of_face,
    noise_epsilon_one_cell,
    noise_epsilon_two_cell,
    release_epsilon_one_cell,
    release_epsilon_two_cell,
    release_sd,
    sampling_sd,
)
from fleetcount_mechanisms.planning import local_sampling_rate
from fleetcount_mechanisms.response_laws import k_ary_sd, mangat_sd, two_coin_sd, unary_sd, warner_sd
from fleetcount_mechanisms.responses import TwoCoin
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.sparse_vector import Mark, SanitizedSparseVector

from fleetcount_evidence.buckets import (
    BucketSetting,
    PairList,
    SensitiveValues,
    linear_thresholds,
    multi_size_bucketing,
    naive_conditions_hold,
    optimal_bucketing,
    setting_is_valid,
    two_size_bucketing,
)
from fleetcount_evidence.golden.question import QUESTION_GROUPS
from fleetcount_evidence.golden.rows import GoldenRow, MalformedGoldenError, ratio_of, shown
from fleetcount_evidence.papers.geometric.bounded_geometric import (
    bounded_geometric_matrix,
    extremes_example,
    figure_two,
    single_device_losses,
)

Recompute = Callable[[GoldenRow], Mapping[str, object]]
"""Return the computed answers of a row by field name."""
Matrix = tuple[tuple[Fraction, ...], ...]
_LEVEL: Final = Fraction(19, 20)
_REMAP: Final = re.compile(r"geo\.remap_uniform_abs_n(?P<n>[0-9]{1,3})_a(?P<a>0?\.[0-9]{1,12})")
_YES: Final = 100
"""The number of Yes in the group `rr`, whose rows name only the population."""


# Sampling Privacy and randomized responses.


def _message_losses(row: GoldenRow) -> Mapping[str, object]:
    no, yes = message_epsilon_binary(row.real("pi0"), row.real("pis"))
    return {"eq21": no, "eq25": yes, "binary": max(no, yes)}


def _linked(row: GoldenRow) -> Mapping[str, object]:
    die = SamplingDie.uniform(row.exact("pis"), 1, allow_large_rate=True)
    return {"delta": linked_delta(die)}


def _two_coin(row: GoldenRow) -> Mapping[str, object]:
    coins = TwoCoin(truth_probability=row.exact("q"), yes_probability=row.exact("r"))
    populations = row.raw("sd")
    if not isinstance(populations, Mapping):
        raise row.malformed("sd", populations, "an object of standard deviations by population")
    names = list(cast("Mapping[str, object]", populations))  # A JSON object.
    if not all(re.fullmatch(r"[0-9]{1,12}", name) for name in names):
        raise row.malformed("sd", names, "an object whose names are populations")
    sd = {name: two_coin_sd(_YES, int(name), row.real("q"), row.real("r")) for name in names}
    return {"eps_yes": coins.epsilon_yes, "eps_no": coins.epsilon_no, "sd": sd}


def _noise_epsilons(row: GoldenRow) -> Mapping[str, object]:
    target, rate = row.real("eps"), row.real("pis")
    return {"one": noise_epsilon_one_cell(target, rate), "two": noise_epsilon_two_cell(target, rate)}


def _release_epsilons(row: GoldenRow) -> Mapping[str, object]:
    rate, noise = row.real("pis"), row.real("e1")
    return {"one": release_epsilon_one_cell(rate, noise), "two": release_epsilon_two_cell(rate, noise)}


def _release_sd(row: GoldenRow) -> Mapping[str, object]:
    noise = noise_epsilon_two_cell(row.real("eps"), row.real("pis"))
    return {"sd": release_sd(row.integer("n"), row.real("pis"), noise, row.integer("k"))}


def _interval(row: GoldenRow) -> Mapping[str, object]:
    ends = intervals.sampling_intervals([row.integer("y")], row.exact("pis"), row.exact("e1"), row.integer("k"), _LEVEL)
    return {"lo": ends[0][0], "hi": ends[0][1]}


# One-sided answers.


def _asymmetric_row(row: GoldenRow) -> Mapping[str, object]:
    directions = {"up": Direction.DECREASING, "down": Direction.INCREASING}
    name = row.raw("direction")
    if not isinstance(name, str) or name not in directions:
        raise row.malformed("direction", name, "'up' (noise at or above the count) or 'down'")
    mechanism = AsymmetricGeometric(
        epsilon=row.exact("eps"),
        maximum=row.integer("n"),
        direction=directions[name],  # A key above.
    )
    return {"row": mechanism.row(row.integer("f"))}


def _approximate(row: GoldenRow) -> Mapping[str, object]:
    arguments = row.exact("eps"), row.exact("delta"), row.integer("k"), row.exact("alpha")
    return {"paper": approximate_detection_paper(*arguments), "tight": approximate_detection(*arguments)}


def _city(row: GoldenRow) -> Mapping[str, object]:
    few, busy = row.integers("h012"), row.integers("busy")
    histogram = Counter(dict(enumerate(few))) + Counter(busy)
    threshold, epsilon = len(few) - 1, Fraction(1)
    answers = expected_safe_answers(histogram, threshold, epsilon)
    approximate = expected_safe_answers_approximate(histogram, threshold, epsilon, Fraction(1, 10**4))
    return {"e_beta_t3": answers / sum(few), "answers": answers, "answers_eps_delta": approximate}


def _sparse_law(row: GoldenRow) -> Mapping[str, object]:
    """The law of SALap at eps 1 on counts (1, 3, 0) out of 5, thresholds 2; '_' is safe, 'x' unanswered."""
    law = SanitizedSparseVector(epsilon=Fraction(1), maximum=5, thresholds=(2, 2, 2)).law((1, 3, 0))
    return {name: law.get(_outcome(name), Fraction(0)) for name in row.fields}


def _outcome(name: str) -> tuple[int | Mark, ...]:
    marks = {"_": Mark.SAFE, "x": Mark.UNANSWERED}
    try:
        parts: object = ast.literal_eval(name) if len(name) <= 80 else None
    except (ValueError, SyntaxError):
        parts = None
    if not isinstance(parts, tuple):
        raise MalformedGoldenError(f"salap.law: {shown(name)} is not an outcome like ('_', 3, 'x')")
    items = cast("tuple[object, ...]", parts)  # A tuple of literals.
    if not all(item in marks or isinstance(item, int) for item in items):
        raise MalformedGoldenError(f"salap.law: {shown(name)} is not an outcome like ('_', 3, 'x')")
    return tuple(item if isinstance(item, int) else marks[cast("str", item)] for item in items)  # A key of marks.


# The geometric mechanism.


def _matrix_of_first_entry(content: object) -> Matrix:
    """G_n for the ratio that the first entry 1/(1+a) states; all other entries check it."""
    if not isinstance(content, list) or not content or not isinstance(content[0], list) or not content[0]:
        raise MalformedGoldenError(f"geo.Gn is {shown(content)}; it must be a matrix of fractions")
    rows = cast("list[list[object]]", content)  # Checked for its first row; the comparison refuses other shapes.
    first = ratio_of(rows[0][0], "geo.Gn[0][0]")
    # An entry that no ratio in (0, 1) gives is simply wrong: any ratio's matrix will say so.
    ratio = 1 / first - 1 if Fraction(1, 2) < first < 1 else Fraction(1, 2)
    return bounded_geometric_matrix(ratio, len(rows) - 1)


def _extremes(row: GoldenRow) -> Mapping[str, object]:
    example = extremes_example(row.integer("n"), row.ratio("a"))
    return {
        "face_unbounded": example.face_value_unbounded,
        "face_Gn": example.face_value_bounded,
        "remapped": example.remapped,
    }


def _single_device(row: GoldenRow) -> Mapping[str, object]:
    geometric, laplace = single_device_losses(row.exact("a"))
    return {"geometric": geometric, "laplace": laplace}


# Buckets and inference.


def _pair_list(row: GoldenRow) -> Mapping[str, object]:
    pairs = PairList.of(row.integer("T"), row.integer("S1"), row.integer("S2"))
    if pairs is None:
        return {"first": None}
    return {"first": [pairs.first_small, pairs.first_large, pairs.step_small, pairs.step_large, pairs.length - 1]}


def _optima(row: GoldenRow) -> Mapping[str, object]:
    counts = row.integers("o")
    values = SensitiveValues(counts=counts, thresholds=linear_thresholds(counts, row.exact("theta")))
    two, multi = two_size_bucketing(values), multi_size_bucketing(values)
    best = optimal_bucketing(values)
    given = BucketSetting.of(*row.pairs("optimal"))
    is_optimal = given.loss == best.loss and given.records == values.records and setting_is_valid(values, given)
    return {
        "fp": values.thresholds,
        "M": values.smallest_size,
        "two": [two.loss, two.small, two.small_buckets, two.large, two.large_buckets],
        "multi_loss": multi.loss,
        "multi": _in_order_of(row.pairs("multi"), [(size.size, size.buckets) for size in multi.sizes]),
        "optimal_loss": best.loss,
        # Several settings can have the least loss: the file's is compared with itself if it is one of them.
        "optimal": row.raw("optimal") if is_optimal else [[size.size, size.buckets] for size in best.sizes],
    }


def _in_order_of(pattern: tuple[tuple[int, int], ...], found: list[tuple[int, int]]) -> list[list[int]]:
    """Return the sizes in the pattern's order, for a setting is a set of sizes."""
    order = {pair: position for position, pair in enumerate(pattern)}
    return [list(pair) for pair in sorted(found, key=lambda pair: (order.get(pair, len(order)), pair))]


def _three_sizes(row: GoldenRow) -> Mapping[str, object]:
    """[INF, Example 5.32]: thresholds 1/6 for every value but the last, which is not restricted."""
    counts = row.integers("o")
    thresholds = (*[Fraction(1, 6)] * (len(counts) - 1), Fraction(1))
    values = SensitiveValues(counts=counts, thresholds=thresholds)
    return {"naive_conditions_hold": naive_conditions_hold(values, BucketSetting.of(*row.pairs("B")))}


def _ratio(row: GoldenRow) -> Mapping[str, object]:
    arguments = row.real("x"), row.real("y"), row.real("b")
    mean, variance = inference.ratio_moments(*arguments)
    return {"mean": mean, "var": variance, "pv_mean": inference.principal_value_mean(*arguments)}


# The table.

_ROW_GROUPS: Final[Mapping[str, Recompute]] = {
    "sampling.eps": _message_losses,
    "sampling.eps29": lambda r: {"eps": message_epsilon_of_face(r.real("piv"), r.real("pis"))},
    "sampling.linked_delta": _linked,
    "sampling.central_delta": lambda r: {
        "delta": central_delta(r.real("pis"), r.integer("n1"), r.real("eps")),
    },
    "sampling.sd": lambda r: {"sd": sampling_sd(r.integer("n"), r.real("pis"))},
    "rr": _two_coin,
    "warner.sd": lambda r: {"sd": warner_sd(r.real("eps"), r.integer("N"))},
    "mangat.sd": lambda r: {"sd": mangat_sd(r.real("eps"), r.integer("N"), r.integer("n"))},
    "krr.sd": lambda r: {"sd": k_ary_sd(r.real("eps"), r.integer("k"), r.integer("N"), r.integer("n"))},
    "oue.sd": lambda r: {"sd": unary_sd(r.real("eps"), r.integer("N"), r.integer("n"))},
    "hardened.eps": _release_epsilons,
    "hardened.e1": _noise_epsilons,
    "hardened.sd": _release_sd,
    "hardened.ci95": _interval,
    "kov": lambda r: {
        "total": optimal_epsilon_repeated(r.exact("eps"), r.integer("Q"), r.exact("delta")),
    },
    "kov.inverse": lambda r: {
        "eps": optimal_epsilon_per_query(r.exact("total"), r.integer("Q"), r.exact("delta")),
    },
    "local.pis": lambda r: {"pis": local_sampling_rate(r.real("eps"), r.integer("V"))},
    "ageo.row": _asymmetric_row,
    "adp.beta": lambda r: {"beta": optimal_detection(r.exact("eps"), r.integer("k"), r.exact("alpha"))},
    "dp.beta": _approximate,
    "adp.beta_k_noise": lambda r: {
        "beta": noisy_sum_detection(r.exact("eps"), r.integer("m"), r.integer("k")),
    },
    "adp.city": _city,
    "salap.law": _sparse_law,
    "geo.ex22": _extremes,
    "geo.s61": _single_device,
    "bucket.pair_list": _pair_list,
    "bucket.opt": _optima,
    "bucket.ex532": _three_sizes,
    "inference": _ratio,
}


def row_group(name: str) -> Recompute | None:
    """Return what recomputes a row of a group, or None if the group is no list of rows or not known."""
    remap = _REMAP.fullmatch(name)
    if remap:
        largest, ratio = int(remap["n"]), Fraction(remap["a"])
        return lambda _row: _uniform_remap(largest, ratio)
    return _ROW_GROUPS.get(name) or QUESTION_GROUPS.get(name)


def matrix_group(name: str) -> Callable[[object], Matrix] | None:
    """Return what recomputes a group that is one matrix, or None if it is not one or not known."""
    return _MATRIX_GROUPS.get(name)


def _uniform_remap(largest: int, ratio: Fraction) -> Mapping[str, object]:
    uniform = [1 / (largest + 1)] * (largest + 1)
    optimum = user_optimum(uniform, "absolute", ratio)
    return {"remap": geometric_remap(uniform, "absolute", ratio).answers.tolist(), "lp": optimum.expected_loss}


_MATRIX_GROUPS: Final[Mapping[str, Callable[[object], Matrix]]] = {
    "geo.Gn": _matrix_of_first_entry,
    "geo.fig2": lambda content: figure_two(),
}
