"""Wang et al., Inferential or Differential: Privacy Laws Dictate [INF]: Figures 2 to 7 on Adult and on a given census.

It must not pass Adult off as the paper's CENSUS, which is not public; every table and claim names its data.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from fleetcount_analysis.errors import NoOptimumError, RangeError
from fleetcount_analysis.figures import Line, LinePanel, line_panels

from fleetcount_evidence.buckets.anatomy import anatomy_loss, anatomy_possible, equivalent_diversity
from fleetcount_evidence.buckets.multi_size import multi_size_bucketing
from fleetcount_evidence.buckets.optimum import optimal_bucketing
from fleetcount_evidence.buckets.queries import random_queries
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, UnsatisfiableError
from fleetcount_evidence.buckets.two_size import Pruning, two_size_bucketing
from fleetcount_evidence.papers.drawing import Bars, bar_panels, colours
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.inferential.census_tables import (
    SensitiveTable,
    scaled_counts,
    sensitive_tables,
    split_counts,
    with_thresholds,
)
from fleetcount_evidence.papers.inferential.claims import (
    ANATOMY,
    FULL,
    LOSS,
    MULTI,
    NONE,
    OPTIMAL,
    TWO,
    Findings,
    add_claims,
)
from fleetcount_evidence.papers.results import Results, Settings

THETAS: Final = (2, 4, 8, 16, 32)
DEFAULT_THETA: Final = 8
LARGEST: Final = 50
LIMIT_S: Final = 60.0
"""Time limit of the integer program of Figure 4, which usually takes seconds."""
RECORDS: Final = 500_000
PRUNINGS: Final = {Pruning.FULL: FULL, Pruning.LOSS: LOSS, Pruning.NONE: NONE}
COLOURS: Final = colours(TWO, MULTI, OPTIMAL, ANATOMY)
TIMES: Final = colours(*PRUNINGS.values(), OPTIMAL)


def run(extracts: Extracts, settings: Settings, results: Results) -> None:
    """Run the experiments of section 7 and state the paper's claims."""
    tables = sensitive_tables(extracts)
    findings = Findings(limit_s=settings.either(1, 10), queries=settings.either(60, 5_000))
    parts: tuple[Callable[[list[SensitiveTable], Settings, Results, Findings], None], ...] = (
        _frequencies,
        _diversity,
        _errors,
        _relative_errors,
        _times_by_records,
        _times_by_values,
        add_claims,
    )
    for part in results.carried_out("inferential", parts):
        part(tables, settings, results, findings)


# Figures 2 and 3.


def _frequencies(tables: list[SensitiveTable], _settings: Settings, results: Results, _findings: Findings) -> None:
    rows: list[tuple[str, int, str, int, float]] = []
    panels: list[Bars] = []
    for table in tables:
        order = sorted(range(len(table.counts)), key=lambda i: -table.counts[i])
        shares = [100 * table.counts[i] / sum(table.counts) for i in order]
        rows += [
            (table.label, rank, table.values[i], table.counts[i], share)
            for rank, (i, share) in enumerate(zip(order, shares, strict=True), 1)
        ]
        panels.append(
            Bars(
                title=f"{table.label}: {sum(table.counts):,} records",
                groups=[str(rank) for rank in range(1, len(order) + 1)],
                series={"share": shares},
                colours=colours("share"),
                x_label="value, by rank",
                y_label="share of the records, %",
            )
        )
    results.table("inferential_frequencies", ["table", "rank", "value", "records", "per_cent"], rows)
    figure = bar_panels(panels, columns=2, title="How often each sensitive value occurs (Figure 2)", legend=False)
    results.figure("inferential_frequencies", figure)


def _diversity(tables: list[SensitiveTable], _settings: Settings, results: Results, findings: Findings) -> None:
    rows: list[tuple[str, int, int, str]] = []
    for table in tables:
        for theta in THETAS:
            needed = equivalent_diversity(with_thresholds(table.counts, theta).thresholds)
            possible = anatomy_possible(table.counts, needed)
            findings.diversity[table.label, theta] = needed
            findings.possible[table.label, theta] = possible
            rows.append((table.label, theta, needed, "possible" if possible else "impossible"))
    lines = [
        Line(x=THETAS, y=[findings.diversity[table.label, theta] for theta in THETAS], label=table.label)
        for table in tables
    ]
    results.table("inferential_diversity", ["table", "theta", "l", "l_diverse_bucketization"], rows)
    panel = LinePanel(
        title="The l-diversity that F′-privacy would take (Figure 3)",
        lines=lines,
        colours=colours(*(table.label for table in tables)),
        x_label="privacy coefficient θ",
        y_label="l of l-diversity",
        log_x=True,
        x_ticks=THETAS,
    )
    results.figure("inferential_diversity", line_panels([panel], columns=1, width=6.2, height=3.9))


# Figures 4 and 5.


def _settings_of(values: SensitiveValues) -> dict[str, BucketSetting]:
    """Return the setting of each of three methods; without a method that found no setting or ran out of time."""
    found: dict[str, BucketSetting] = {}
    methods: dict[str, Callable[[], BucketSetting]] = {
        TWO: lambda: two_size_bucketing(values, largest=LARGEST).setting,
        MULTI: lambda: multi_size_bucketing(values, largest=LARGEST),
        OPTIMAL: lambda: optimal_bucketing(values, largest=LARGEST, time_limit_s=LIMIT_S),
    }
    for name, method in methods.items():
        try:
            found[name] = method()
        except (UnsatisfiableError, NoOptimumError):
            continue
    return found


def _anatomy_error(counts: tuple[int, ...], diversity: int) -> float | None:
    try:
        return anatomy_loss(sum(counts), diversity) / (sum(counts) - 1)
    except RangeError:
        return None


def _errors(tables: list[SensitiveTable], _settings: Settings, results: Results, findings: Findings) -> None:
    """Draw Figure 4: the mean squared error of the methods."""
    rows: list[tuple[str, int, str, float | None, str]] = []
    for table in tables:
        for theta in THETAS:
            values = with_thresholds(table.counts, theta)
            found = _settings_of(values)
            findings.settings[table.label, theta] = found
            errors = {name: float(setting.mean_squared_error) for name, setting in found.items()}
            anatomy = _anatomy_error(table.counts, findings.diversity[table.label, theta])
            findings.errors[table.label, theta] = errors | ({} if anatomy is None else {ANATOMY: anatomy})
            shown = {name: " ".join(f"{s.size}x{s.buckets}" for s in setting.sizes) for name, setting in found.items()}
            rows += [
                (table.label, theta, name, findings.errors[table.label, theta].get(name), shown.get(name, ""))
                for name in (TWO, MULTI, OPTIMAL, ANATOMY)
            ]
    results.table("inferential_mse", ["table", "theta", "method", "mse", "sizes_x_buckets"], rows)
    panels = [
        _by_theta(table.label, {t: findings.errors[table.label, t] for t in THETAS}, "mean squared error", log_y=True)
        for table in tables
    ]
    title = "Information loss of the buckets (Figure 4)"
    results.figure("inferential_mse", line_panels(panels, columns=2, title=title, width=5.4, height=3.6))


def _by_theta(title: str, errors: dict[int, dict[str, float]], y_label: str, *, log_y: bool) -> LinePanel:
    names = [name for name in COLOURS if any(name in found for found in errors.values())]
    lines = [
        Line(
            x=[theta for theta in errors if name in errors[theta]],
            y=[errors[theta][name] for theta in errors if name in errors[theta]],
            label=name,
            dashed=name == ANATOMY,
        )
        for name in names
    ]
    return LinePanel(
        title=title,
        lines=lines,
        colours=COLOURS,
        x_label="privacy coefficient θ",
        y_label=y_label,
        log_x=True,
        log_y=log_y,
        x_ticks=THETAS,
    )


def _relative_errors(tables: list[SensitiveTable], settings: Settings, results: Results, findings: Findings) -> None:
    """Draw Figure 5: the average relative error of random count queries."""
    generator, done = settings.generator(31), 0
    rows: list[tuple[str, int, str, int, float]] = []
    for table in tables:
        queries = random_queries(table.coded(table.sensitive), findings.queries, generator)
        for theta in THETAS:
            results.step("inferential: queries", done, len(tables) * len(THETAS))
            done += 1
            values = with_thresholds(table.counts, theta)
            placements = {
                name: table.placed(setting, values, generator)
                for name, setting in findings.settings[table.label, theta].items()
            }
            errors = {name: 100 * error for name, error in table.relative_errors(placements, queries).items()}
            findings.relative[table.label, theta] = errors
            rows += [(table.label, theta, name, len(queries), error) for name, error in errors.items()]
    results.step("inferential: queries", done, done)
    results.table("inferential_queries", ["table", "theta", "method", "queries", "relative_error_per_cent"], rows)
    panels = [
        _by_theta(
            table.label,
            {t: findings.relative[table.label, t] for t in THETAS},
            "average relative error, %",
            log_y=False,
        )
        for table in tables
    ]
    title = f"Error of {findings.queries:,} random count queries, selectivity 1 % (Figure 5)"
    results.figure("inferential_queries", line_panels(panels, columns=2, title=title, width=5.4, height=3.6))


# Figures 6 and 7.


def _seconds(run: Callable[[], object], repetitions: int = 1) -> float:
    """Return the mean processor time of a run in seconds; other programs on the machine hardly change it."""
    start = time.process_time()
    for _ in range(repetitions):
        run()
    return (time.process_time() - start) / repetitions


def _measure(values: SensitiveValues) -> dict[str, float]:
    """Return the seconds of each kind of pruning; the fast one is averaged over ten runs."""
    seconds: dict[str, float] = {}
    for pruning, name in PRUNINGS.items():
        search = partial(two_size_bucketing, values, largest=LARGEST, pruning=pruning)
        seconds[name] = _seconds(search, 10 if pruning is Pruning.FULL else 1)
    return seconds


def _times_by_records(tables: list[SensitiveTable], settings: Settings, results: Results, findings: Findings) -> None:
    """Draw Figure 6: run times by the number of records, at the shares of each table."""
    largest = settings.either(RECORDS // 25, RECORDS)
    steps = tuple(range(largest // 5, largest + 1, largest // settings.either(2, 5)))
    for table in tables:
        for records in steps:
            values = with_thresholds(scaled_counts(table.counts, records), DEFAULT_THETA)
            findings.by_records[table.label, records] = {
                **_measure(values),
                OPTIMAL: _seconds(partial(_stopped, values, findings.limit_s)),
            }
    rows = [(label, n, name, s) for (label, n), found in findings.by_records.items() for name, s in found.items()]
    results.table("inferential_times_by_records", ["shares_of", "records", "method", "seconds"], rows)
    panels = [
        _time_panel(table.label, {n: findings.by_records[table.label, n] for n in steps}, "records") for table in tables
    ]
    title = f"Run time by the number of records, θ = {DEFAULT_THETA} (Figure 6)"
    results.figure("inferential_times_by_records", line_panels(panels, columns=2, title=title, height=3.6))


def _stopped(values: SensitiveValues, limit_s: float) -> bool:
    """Run the integer program; return whether the time limit stopped it."""
    try:
        optimal_bucketing(values, largest=LARGEST, time_limit_s=limit_s)
    except NoOptimumError:
        return True
    return False


def _times_by_values(tables: list[SensitiveTable], settings: Settings, results: Results, findings: Findings) -> None:
    """Draw Figure 7: run times when every value is split into 2 to 64 values."""
    factors = (2, 4) if settings.quick else (2, 4, 8, 16, 32, 64)
    records = RECORDS // 25 if settings.quick else RECORDS
    generator = settings.generator(32)
    for number, table in enumerate(tables):
        stopped = False  # After the time limit has stopped the integer program once, larger ones are not tried.
        for position, factor in enumerate(factors):
            results.step("inferential: values", number * len(factors) + position, len(tables) * len(factors))
            values = with_thresholds(
                split_counts(scaled_counts(table.counts, records), factor, generator), DEFAULT_THETA
            )
            seconds = _measure(values)
            if not stopped:
                start = time.process_time()
                stopped = _stopped(values, findings.limit_s)
                seconds[OPTIMAL] = time.process_time() - start
            findings.by_values[table.label, factor] = seconds
            findings.domains[table.label, factor] = len(values.counts)
    results.step("inferential: values", len(tables) * len(factors), len(tables) * len(factors))
    rows = [
        (label, records, factor, findings.domains[label, factor], name, seconds)
        for (label, factor), found in findings.by_values.items()
        for name, seconds in found.items()
    ]
    results.table(
        "inferential_times_by_values", ["shares_of", "records", "factor", "values", "method", "seconds"], rows
    )
    panels = [
        _time_panel(table.label, {f: findings.by_values[table.label, f] for f in factors}, "scale-up of the values")
        for table in tables
    ]
    title = f"Run time by the number of values, {records:,} records, θ = {DEFAULT_THETA} (Figure 7)"
    results.figure("inferential_times_by_values", line_panels(panels, columns=2, title=title, height=3.6))


def _time_panel(title: str, times: dict[int, dict[str, float]], x_label: str) -> LinePanel:
    names = list(dict.fromkeys(name for found in times.values() for name in found))
    by_name = {name: {x: found[name] for x, found in times.items() if name in found} for name in names}
    return LinePanel(
        title=f"shares of {title}",
        lines=[Line(x=list(found), y=list(found.values()), label=name) for name, found in by_name.items()],
        colours=TIMES,
        x_label=x_label,
        y_label="processor time, seconds",
        log_x=not x_label.startswith("records"),
        log_y=True,
        x_ticks=list(times),
    )
