"""Takagi et al., Asymmetric Differential Privacy [ADP]: the city map, the sweeps and the answers of a sparse vector.

It must not present the city as Tokyo: its histogram is made from the paper's totals, and its map is drawn.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.figures import Line, LinePanel, line_panels
from fleetcount_analysis.one_sided import competitor_probabilities, found_probabilities, one_sided_map
from fleetcount_mechanisms.asymmetric import (
    approximate_detection,
    noisy_sum_detection,
    optimal_detection,
    simulation_only_safe_detection,
)
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.sparse_vector import AsymmetricSparseVector, Mark
from numpy.typing import NDArray

from fleetcount_evidence.papers.asymmetric.claims import add_claims, expected_answers
from fleetcount_evidence.papers.asymmetric.yields import all_found, at_least
from fleetcount_evidence.papers.drawing import Marks, colours, mark_panels
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.results import Results, Settings

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FIGURE_THRESHOLD: Final = 2
"""In Figure 2 a location is safe if fewer than 3 users visit it."""
EPSILON: Final = Fraction(1)
DELTA: Final = Fraction(1, 10**4)
FALSE_ALARM: Final = Fraction(1, 10**3)
THRESHOLD: Final = 5
DEPTH: Final = 600
"""More answers than this before one abort have a probability below 1e-5 in every setting shown."""

ONE_SIDED = "asymmetric geometric (one noise)"
TWO_NOISES = "asymmetric geometric (2 aggregators)"
CONTINUOUS = "asymmetric Laplace (the paper's)"
APPROXIMATE = "best (ε, δ)-DP"
PURE = "best ε-DP"
COLOURS: Final = colours(ONE_SIDED, APPROXIMATE, TWO_NOISES, CONTINUOUS, PURE)


def run(extracts: Extracts, settings: Settings, results: Results) -> None:
    """Run the experiments of section VI on the made city and state the paper's claims."""
    for part in results.carried_out("asymmetric", (_map, _sweeps, _yields, add_claims)):
        part(extracts, settings, results)


def _cells(histogram: Mapping[int, int]) -> Integers:
    """Return the count of every location, busiest first."""
    ordered = sorted(histogram.items(), reverse=True)
    return np.repeat([count for count, _ in ordered], [places for _, places in ordered])


# Figures 2 and 3.


def _map(extracts: Extracts, settings: Settings, results: Results) -> None:
    """Draw the safe locations that one run of each mechanism finds, and write a table of the expected numbers."""
    counts, generator = _cells(extracts.city()), settings.generator(11)
    safe = counts <= FIGURE_THRESHOLD
    x, y = _layout(counts, generator)
    noise = OneSidedGeometric(EPSILON).sample_many(SeededRandom(settings.seed), counts.size)
    answers = one_sided_map((counts + np.array(noise)).tolist(), FIGURE_THRESHOLD)
    competitor = competitor_probabilities(counts, FIGURE_THRESHOLD, EPSILON, DELTA)
    found = {
        "Ground truth": safe,
        "Best ε-DP": np.zeros_like(safe),
        "Best (ε, 0.0001)-DP": generator.random(counts.size) < competitor,
        "Asymmetric": answers.proven,
    }
    panels = [
        Marks(
            title=_map_title(name, int(shown.sum()), int(safe.sum()), counts.size),
            kinds={
                "not known": (x[~shown & hidden], y[~shown & hidden]),
                "safe: fewer than 3 visitors": (x[shown], y[shown]),
                "3 visitors or more": (x[~safe & ~hidden], y[~safe & ~hidden]),
            },
        )
        for name, shown in found.items()
        for hidden in [np.full(safe.shape, name != "Ground truth")]
    ]
    if bool(np.any(answers.proven & ~safe)):
        raise RangeError("false safe answers", int(np.sum(answers.proven & ~safe)), "none: noise is never negative")
    figure = mark_panels(
        panels,
        columns=2,
        title=f"Which of {counts.size:,} locations may be called safe without a false alarm",
        note="A made city with the totals of the paper's Figure 2; positions are drawn, not Tokyo's. One run each.",
    )
    results.figure("asymmetric_map", figure)
    results.table(
        "asymmetric_city",
        ["threshold", "alpha", "safe_locations", "mechanism", "expected_answers", "false_answers"],
        _city_rows(extracts.city()),
    )


def _map_title(name: str, shown: int, safe: int, locations: int) -> str:
    """Return the title of a map: the number of safe locations, or how many of them were found, and the loss."""
    if name == "Ground truth":
        return f"{name}: {safe:,} of {locations:,} locations are safe"
    return f"{name}: {shown:,} of {safe:,} safe found, ε = {float(EPSILON):g}"


def _layout(counts: Integers, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Return made positions: busy locations near a few centres, the others around them."""
    centres = generator.normal(0, 1.1, (14, 2))
    nearest = generator.integers(0, len(centres), counts.size)
    spread = np.where(counts > FIGURE_THRESHOLD, 0.28, 0.75)[:, None]
    places = centres[nearest] + generator.normal(0, 1, (counts.size, 2)) * spread
    return places[:, 0], places[:, 1]


def _city_rows(city: Mapping[int, int]) -> list[tuple[int, Fraction, int, str, float, float]]:
    rows: list[tuple[int, Fraction, int, str, float, float]] = []
    for threshold in (2, 3, 5):
        safe = sum(places for count, places in city.items() if count <= threshold)
        unsafe = sum(city.values()) - safe
        for alpha in (Fraction(0), Fraction(1, 10**4), Fraction(1, 10**3), Fraction(1, 100)):
            for name, detection in _detections(alpha, DELTA, EPSILON).items():
                false = 0.0 if name in {ONE_SIDED, TWO_NOISES, CONTINUOUS} else float(alpha) * unsafe
                answers = expected_answers(city, threshold, detection)
                rows.append((threshold, alpha, safe, name, answers, false))
    return rows


Detection = Callable[[int], float]
"""The probability of finding a location safe, k = t + 1 - f steps from an unsafe count."""


def _detections(alpha: Fraction, delta: Fraction, epsilon: Fraction) -> dict[str, Detection]:
    return {
        ONE_SIDED: lambda steps: optimal_detection(epsilon, steps),
        TWO_NOISES: lambda steps: noisy_sum_detection(epsilon, steps - 1, 2),
        CONTINUOUS: lambda steps: simulation_only_safe_detection(float(epsilon), steps),
        APPROXIMATE: lambda steps: approximate_detection(epsilon, delta, steps, alpha),
        PURE: lambda steps: approximate_detection(epsilon, Fraction(0), steps, alpha),
    }


# Figure 4.


def _sweeps(extracts: Extracts, _settings: Settings, results: Results) -> None:
    """Draw E[beta | safe] for each of eps, t, alpha, delta varied about eps = 1, t = 5, alpha = .001, delta = .0001."""
    city = extracts.city()
    defaults = {"epsilon": EPSILON, "threshold": Fraction(THRESHOLD), "alpha": FALSE_ALARM, "delta": DELTA}
    values = {
        "epsilon": [Fraction(step, 10) for step in range(1, 31)],
        "threshold": [Fraction(t) for t in range(11)],
        "alpha": [_power(step) for step in range(-24, -3)],
        "delta": [_power(step) for step in range(-24, -3)],
    }
    symbols = {"epsilon": "ε", "threshold": "t, visitors", "alpha": "α, false answers allowed", "delta": "δ"}
    table: list[tuple[str, Fraction, str, float]] = []
    panels: list[LinePanel] = []
    for name, sweep in values.items():
        curves = [_mean_detections(city, {**defaults, name: value}) for value in sweep]
        xs = [float(value) for value in sweep]
        lines = [
            Line(
                x=xs, y=[curve[label] for curve in curves], label=label, dashed=label in {TWO_NOISES, CONTINUOUS, PURE}
            )
            for label in curves[0]
        ]
        table += [(name, v, label, curve[label]) for v, curve in zip(sweep, curves, strict=True) for label in curve]
        log = name in {"alpha", "delta"}
        panels.append(
            LinePanel(
                title=f"varying {symbols[name].split(',')[0]}",
                lines=lines,
                colours=COLOURS,
                x_label=symbols[name],
                y_label="E[β | safe]",
                log_x=log,
            )
        )
    results.table("asymmetric_sweeps", ["parameter", "value", "mechanism", "mean_detection"], table)
    title = "How likely a safe location is found: ε = 1, t = 5, α = 0.001, δ = 0.0001 unless varied"
    results.figure("asymmetric_sweeps", line_panels(panels, columns=2, title=title, height=3.3))


def _power(quarter: int) -> Fraction:
    """Return 10 to a quarter-integer power as a decimal fraction."""
    return Fraction(f"{10 ** (quarter / 4):.9e}")


def _mean_detections(city: Mapping[int, int], parameters: Mapping[str, Fraction]) -> dict[str, float]:
    threshold = int(parameters["threshold"])
    safe = sum(places for count, places in city.items() if count <= threshold)
    detections = _detections(parameters["alpha"], parameters["delta"], parameters["epsilon"])
    return {name: expected_answers(city, threshold, detection) / safe for name, detection in detections.items()}


# Figures 5 and 6.


def _yields(extracts: Extracts, settings: Settings, results: Results) -> None:
    """Draw the number of right answers of a sparse vector in a random order before it aborts, by t, eps and aborts."""
    counts, generator = _cells(extracts.city()), settings.generator(12)
    found = all_found(found_probabilities(counts, THRESHOLD, EPSILON), 64)
    laws = {aborts: at_least(found, aborts) for aborts in (1, 2, 4)}
    runs = _simulated_answers(counts, settings.either(60, 1_000), generator, settings.seed)
    shown = np.arange(61)
    lines = [
        Line(x=shown.tolist(), y=law[:61].tolist(), label=f"{aborts} abort{'s' * (aborts > 1)}, total ε = {aborts}")
        for aborts, law in laws.items()
    ]
    simulated = "1 abort, simulated runs"
    lines.append(Line(x=shown.tolist(), y=[float(np.mean(runs >= m)) for m in shown], label=simulated, dashed=True))
    cumulative = LinePanel(
        title="At least m right answers (t = 5, ε = 1)",
        lines=lines,
        colours=colours(*(line.label for line in lines)),
        legend_below=True,
        x_label="m, locations answered safe",
        y_label="probability",
    )
    table = [(THRESHOLD, EPSILON, aborts, m, float(law[m])) for aborts, law in laws.items() for m in range(61)]
    header = ["threshold", "epsilon", "aborts", "answers", "probability_at_least"]
    results.table("asymmetric_yield_law", header, table)
    panels = [cumulative, *_yield_panels(counts, settings, results)]
    title = "Right answers of the asymmetric sparse vector over the city in a random order"
    results.figure("asymmetric_yields", line_panels(panels, columns=3, title=title, width=4.6, height=4.1))


def _simulated_answers(counts: Integers, runs: int, generator: np.random.Generator, seed: int) -> Integers:
    """Return the number of SAFE answers in each run of the real integer mechanism over 200 locations, (runs,)."""
    source, maximum = SeededRandom(seed), int(counts.sum())
    vector = AsymmetricSparseVector(epsilon=EPSILON, maximum=maximum, thresholds=(THRESHOLD,) * 200)
    found = [vector.run(generator.choice(counts, 200, replace=False).tolist(), source) for _ in range(runs)]
    return np.array([sum(answer is Mark.SAFE for answer in answers) for answers in found])


def _yield_panels(counts: Integers, settings: Settings, results: Results) -> list[LinePanel]:
    label = "expected right answers"
    epsilons = [Fraction(step, 4) for step in range(1, 13, settings.either(4, 1))]
    thresholds = list(range(1, 11, settings.either(3, 1)))
    by_epsilon = [_mean_answers(counts, THRESHOLD, epsilon) for epsilon in epsilons]
    by_threshold = [_mean_answers(counts, threshold, EPSILON) for threshold in thresholds]
    rows: list[Sequence[str | float | Fraction]] = [
        *(("epsilon", epsilon, mean) for epsilon, mean in zip(epsilons, by_epsilon, strict=True)),
        *(("threshold", threshold, mean) for threshold, mean in zip(thresholds, by_threshold, strict=True)),
    ]
    results.table("asymmetric_yields", ["parameter", "value", "expected_answers"], rows)
    axes: tuple[tuple[str, list[float], list[float]], ...] = (
        ("ε (t = 5)", [float(epsilon) for epsilon in epsilons], by_epsilon),
        ("t, visitors (ε = 1)", [float(threshold) for threshold in thresholds], by_threshold),
    )
    return [
        LinePanel(
            title=f"Expected answers, varying {name[0]}",
            lines=[Line(x=x, y=y, label="")],
            colours={"": colours(label)[label]},
            x_label=name,
            y_label=label,
        )
        for name, x, y in axes
    ]


def _mean_answers(counts: Integers, threshold: int, epsilon: Fraction) -> float:
    """Return the expected number of answers before one abort: the sum of P[at least m] over m >= 1."""
    return math.fsum(all_found(found_probabilities(counts, threshold, epsilon), DEPTH)[1:].tolist())
