"""Computes the claims of [INF]; claims.toml has the claims.

Every number of ours comes from the buckets, from inference or from the experiments; the module contains no result.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from fleetcount_analysis.inference import infer_ratio, principal_value_mean, ratio_moments

from fleetcount_evidence.buckets.assignment import assign, partition
from fleetcount_evidence.buckets.corruption import exclusion_certainty
from fleetcount_evidence.buckets.pairs import PairList
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, UnsatisfiableError
from fleetcount_evidence.buckets.validity import naive_conditions_hold, setting_is_valid
from fleetcount_evidence.papers.catalogue import Catalogue
from fleetcount_evidence.papers.inferential.census_tables import SensitiveTable
from fleetcount_evidence.papers.results import Results, Settings
from fleetcount_evidence.papers.verdicts import Numbers

ByTheta = dict[tuple[str, int], dict[str, float]]
TWO, MULTI, OPTIMAL, ANATOMY = "TwoSize", "MultiSize", "Optimal (integer program)", "Anatomy, l-diversity"
FULL, LOSS, NONE = "full pruning", "loss pruning", "no pruning"
MILLION: Final = 1_000_000


@dataclass(kw_only=True)
class Findings:
    """The experiments' results for the claims, by table and theta (or number of records, or scale-up)."""

    limit_s: float
    queries: int
    diversity: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    possible: dict[tuple[str, int], bool] = field(default_factory=dict[tuple[str, int], bool])
    settings: dict[tuple[str, int], dict[str, BucketSetting]] = field(
        default_factory=dict[tuple[str, int], dict[str, BucketSetting]]
    )
    errors: ByTheta = field(default_factory=dict[tuple[str, int], dict[str, float]])
    relative: ByTheta = field(default_factory=dict[tuple[str, int], dict[str, float]])
    by_records: ByTheta = field(default_factory=dict[tuple[str, int], dict[str, float]])
    by_values: ByTheta = field(default_factory=dict[tuple[str, int], dict[str, float]])
    domains: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])


def add_claims(tables: list[SensitiveTable], settings: Settings, results: Results, findings: Findings) -> None:
    """State every claim of the paper with our result, from the two tables of Adult."""
    catalogue = Catalogue.load("inferential")
    _inference(catalogue, settings)
    _buckets(catalogue, settings)
    _diversity(catalogue, tables[:2], findings)
    _utility(catalogue, tables[:2], findings)
    _times(catalogue, tables[:2], findings, quick=settings.quick)
    results.claims.extend(catalogue.finished())


def _inference(catalogue: Catalogue, settings: Settings) -> None:
    hundred, thousand = (principal_value_mean(x, x / 2, 10) / 0.5 for x in (100, 1_000))
    runs = settings.either(200_000, 2_000_000)
    generator = settings.generator(33)
    ratios = (500 + generator.laplace(0, 10, runs)) / (1_000 + generator.laplace(0, 10, runs))
    simulated = float(np.var(np.clip(ratios, *np.quantile(ratios, (0.0005, 0.9995)))))
    meters = [infer_ratio(x, x // 2, 0.1) for x in (100, 1_000, 10_000)]
    widths = [meter.high - meter.low for meter in meters]
    variance = ratio_moments(1_000, 500, 10)[1]
    catalogue.number("INF-T2-mean-100", hundred)
    catalogue.number("INF-T2-mean-1000", thousand)
    catalogue.number("INF-T2-variance", simulated * MILLION, paper=variance * MILLION, runs=runs)
    catalogue.measured("INF-T2-corollary", max(b / a for a, b in pairwise(widths)), ours=widths)


# Buckets.


def _buckets(catalogue: Catalogue, settings: Settings) -> None:
    generator, tables = settings.generator(34), settings.either(100, 2_000)
    agree = [_one_bucket_agrees(generator) for _ in range(tables)]
    tried = [found for _ in range(settings.either(200, 2_000)) if (found := _conditions_and_flow(generator))]
    pairs = PairList.of(28, 2, 4)
    listed = "" if pairs is None else ", ".join("({},{})".format(*pairs.pair(i)) for i in range(pairs.length))
    three = SensitiveValues(counts=(*[5] * 10, 30), thresholds=(*[Fraction(1, 6)] * 10, Fraction(1)))
    setting = BucketSetting.of((2, 10), (3, 10), (6, 5))
    naive, valid = naive_conditions_hold(three, setting), setting_is_valid(three, setting)
    catalogue.fact("INF-3.7-exists", all(agree), holds=all(agree), tables=tables)
    lists = [PairList.of(400_000, small, large) for small, large in combinations(range(4, 51), 2)]
    catalogue.number("INF-3.12-settings", sum(found.length for found in lists if found is not None))
    valid_ones = sum(flow for _, flow in tried)
    same = all(conditions == flow for conditions, flow in tried) and 0 < valid_ones < len(tried)
    catalogue.fact("INF-4.17-conditions", same, holds=same, settings=len(tried), valid=valid_ones)
    catalogue.fact("INF-5.23-list", listed, holds=listed == catalogue.entries["INF-5.23-list"]["paper"])
    catalogue.fact("INF-5.32-three", f"conditions {naive}, valid {valid}", holds=naive and not valid)
    catalogue.number("INF-6-corruption", exclusion_certainty(5, 2, 4), paper=1 / 3)


def _one_bucket_agrees(generator: np.random.Generator) -> bool:
    """Return whether Lemma 3.7 holds for one random table: thresholds are refused if and only if some f'_i < f_i."""
    counts = tuple(int(count) for count in generator.integers(1, 9, generator.integers(2, 6)))
    thresholds = tuple(Fraction(int(generator.integers(1, 12)), 12) for _ in counts)
    possible = all(t >= Fraction(count, sum(counts)) for t, count in zip(thresholds, counts, strict=True))
    try:
        values = SensitiveValues(counts=counts, thresholds=thresholds)
    except UnsatisfiableError:
        return not possible
    (bucket,) = assign(values, BucketSetting.of((sum(counts), 1)))
    return possible and bucket.values == counts


def _conditions_and_flow(generator: np.random.Generator) -> tuple[bool, bool] | None:
    """Return, for one random two-size setting, whether Theorem 4.17's conditions hold and whether a flow is complete.

    A maximum flow that places all records decides validity by itself. None if no setting of the drawn sizes exists.
    """
    counts = tuple(int(count) for count in generator.integers(1, 15, generator.integers(2, 5)))
    theta = Fraction(int(generator.integers(4, 16)), 4)
    thresholds = tuple(min(Fraction(1), theta * Fraction(count, sum(counts))) for count in counts)
    values = SensitiveValues(counts=counts, thresholds=thresholds)
    small = int(generator.integers(1, 5))
    pairs = PairList.of(sum(counts), small, small + int(generator.integers(1, 5)))
    if pairs is None:
        return None
    few, many = pairs.pair(int(generator.integers(0, pairs.length)))
    setting = BucketSetting.of((pairs.small, few), (pairs.large, many))
    try:
        partition(values, setting)
    except UnsatisfiableError:
        return naive_conditions_hold(values, setting), False
    return naive_conditions_hold(values, setting), True


# Findings.


def _diversity(catalogue: Catalogue, tables: list[SensitiveTable], findings: Findings) -> None:
    occupation = tables[0].counts
    shares = [100 * min(occupation) / sum(occupation), 100 * max(occupation) / sum(occupation)]
    labels = [table.label for table in tables]
    needed = [found for (label, _), found in findings.diversity.items() if label in labels]
    excepted = max(theta for _, theta in findings.diversity)
    others = [found for (label, theta), found in findings.diversity.items() if label in labels and theta != excepted]
    impossible = sum(not found for (label, _), found in findings.possible.items() if label in labels)
    catalogue.number("INF-7.1-frequencies", shares)
    catalogue.measured("INF-7.1-diversity", min(others), ours=needed)
    catalogue.measured("INF-7.1-violated", impossible / len(needed), ours=impossible)


def _utility(catalogue: Catalogue, tables: list[SensitiveTable], findings: Findings) -> None:
    labels = [table.label for table in tables]
    errors = [found for (label, _), found in findings.errors.items() if label in labels]
    excess = [_worst(errors, TWO, MULTI), _worst(errors, MULTI, OPTIMAL)]
    anatomy = min(found[ANATOMY] / max(found[name] for name in (TWO, MULTI)) for found in errors if ANATOMY in found)
    rare = min(min(table.counts) / sum(table.counts) for table in tables)
    thetas = ", ".join(str(theta) for label, theta in findings.errors if label == labels[0])
    relative = [
        max(max(found.values()) for (table, _), found in findings.relative.items() if table == label)
        for label in labels
    ]
    eight = findings.errors[labels[0], 8]
    catalogue.number("INF-7.2-anatomy", anatomy, thetas=thetas)
    stopped = sum(OPTIMAL not in found for found in errors)
    catalogue.number("INF-7.2-two-size", excess, rare=rare, thetas=thetas, stopped=stopped, runs=len(errors))
    catalogue.undecided("INF-7.2-census", [eight[name] for name in (TWO, MULTI, OPTIMAL) if name in eight])
    catalogue.number("INF-7.2-relative", relative, queries=findings.queries, thetas=thetas)


def _worst(errors: list[dict[str, float]], name: str, other: str) -> float:
    return max((found[name] / found[other] for found in errors if name in found and other in found), default=math.nan)


def _times(catalogue: Catalogue, tables: list[SensitiveTable], findings: Findings, *, quick: bool) -> None:
    """State the claims about run times; a quick run shows the times and leaves the claims undecided."""
    label, labels = tables[0].label, [table.label for table in tables]
    by_records = {n: found for (name, n), found in findings.by_records.items() if name == label}
    by_values = {n: found for (name, n), found in findings.by_values.items() if name == label}
    domains = {n: values for (name, n), values in findings.domains.items() if name == label}
    fewest, most = by_records[min(by_records)], by_records[max(by_records)]
    first, last = min(by_values), max(by_values)
    largest = max(factor for factor, found in by_values.items() if OPTIMAL in found)
    orders = [_order(found) for (name, _), found in findings.by_records.items() if name in labels]
    judged: dict[str, tuple[Numbers, list[float], dict[str, object]]] = {
        "pruning": (
            [max(order[side] for order in orders) for side in (0, 1)],
            [most[name] for name in (FULL, LOSS, NONE)],
            {"records": max(by_records), "runs": len(by_records)},
        ),
        "records": (most[FULL] / fewest[FULL], [fewest[FULL], most[FULL]], {}),
        "shorter": (
            by_values[last][NONE] / by_values[first][NONE],
            [by_values[factor][NONE] for factor in (first, last)],
            {"records": max(by_records)},
        ),
    }
    for name, method, factor in (("optimal", OPTIMAL, largest), ("little", FULL, last)):
        seconds = [by_values[place][method] for place in (first, factor)]
        growth = seconds[1] / seconds[0] / (domains[factor] / domains[first])
        judged[name] = (growth, seconds, {"factor": factor, "limit": findings.limit_s})
    for name, (measured, seconds, numbers) in judged.items():
        if quick:
            why = "A quick run is too small for run times; run without --quick."
            catalogue.undecided(f"INF-7.3-{name}", seconds, why=why)
        else:
            catalogue.measured(f"INF-7.3-{name}", measured, ours=seconds, **numbers)


def _order(seconds: dict[str, float]) -> tuple[float, float]:
    """Return two ratios of times: full over the smaller of loss and no pruning; the larger of full and loss over no."""
    full, loss, none = (seconds[name] for name in (FULL, LOSS, NONE))
    return full / min(loss, none), max(full, loss) / none
