"""Ghosh, Roughgarden and Sundararajan, Universally Utility-Maximizing Privacy Mechanisms [GEO]: figures, users, noises.

It must not claim the paper's universality for a sum of several noises: it shows the additional loss of k of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from fleetcount_analysis.figures import Line, LinePanel, line_panels
from fleetcount_analysis.remap import (
    NamedLoss,
    geometric_channel,
    geometric_remap,
    sampling_remap,
    user_optimum,
)
from numpy.typing import NDArray

from fleetcount_evidence.papers.drawing import MatrixPanel, colours, matrix_panels
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.geometric.bounded_geometric import (
    bounded_geometric_matrix,
    extremes_example,
    figure_two,
    single_device_losses,
)
from fleetcount_evidence.papers.geometric.claims import UserResult, add_claims, constraint_matrix
from fleetcount_evidence.papers.results import Results, Settings

Floats = NDArray[np.float64]
HALF: Final = Fraction(1, 2)


def run(_extracts: Extracts, settings: Settings, results: Results) -> None:
    """Run the examples and the random users and state the paper's claims."""
    total = 6
    results.step("geometric", 0, total)
    _figures_two_and_three(results)
    results.step("geometric", 1, total)
    _example(results)
    results.step("geometric", 2, total)
    users = _users(settings, results)
    results.step("geometric", 3, total)
    _laplace(results)
    results.step("geometric", 4, total)
    _noises(settings, results)
    results.step("geometric", 5, total)
    add_claims(users, settings, results)
    results.step("geometric", total, total)


# Figures 2 and 3.


def _figures_two_and_three(results: Results) -> None:
    """Draw G_5(1/2), the optimal mechanism of one user (Figure 2) and its constraint matrix (Figure 3)."""
    bounded, optimal = bounded_geometric_matrix(HALF, 5), figure_two()
    constraints = constraint_matrix([[float(p) for p in row] for row in optimal], float(HALF))
    header = ["count", *(str(answer) for answer in range(6))]
    for name, matrix in (("geometric_g5", bounded), ("geometric_figure_2", optimal)):
        results.table(name, header, [(count, *(str(p) for p in row)) for count, row in enumerate(matrix)])
    results.table("geometric_figure_3", header, [(count, *row) for count, row in enumerate(constraints)])
    panels = [
        _probabilities("The geometric mechanism on 0..5, α = 1/2", bounded),
        _probabilities("A user's optimum (Figure 2): 1 is read as 2", optimal),
        MatrixPanel(
            title="Its constraints (Figure 3)",
            shades=np.array([[_SHADES[entry] for entry in row] for row in constraints]),
            texts=constraints,
            x_label="answer",
            y_label="counts i and i + 1",
            row_names=[f"{i}, {i + 1}" for i in range(5)],
        ),
    ]
    results.figure("geometric_matrices", matrix_panels(panels))


_SHADES: Final = {"Z": 0.0, "S": 0.75, "↓": 0.3, "↑": 0.15}


def _probabilities(title: str, matrix: Sequence[Sequence[Fraction]]) -> MatrixPanel:
    return MatrixPanel(
        title=title,
        shades=np.array([[float(p) for p in row] for row in matrix]),
        texts=[[str(p) for p in row] for row in matrix],
        x_label="answer",
        y_label="true count",
        row_names=[str(i) for i in range(len(matrix))],
    )


# Example 2.2.


def _example(results: Results) -> None:
    """Draw the 0/1 loss of a user who knows that the count is 0 or n, at face value and remapped."""
    ratios = [Fraction(i, 50) for i in range(1, 50)]
    examples = {n: [extremes_example(n, ratio) for ratio in ratios] for n in (3, 5, 11)}
    results.table(
        "geometric_example_2_2",
        ["n", "alpha", "face_value", "face_value_in_range", "remapped"],
        [
            (n, ratio, found.face_value_unbounded, found.face_value_bounded, found.remapped)
            for n, row in examples.items()
            for ratio, found in zip(ratios, row, strict=True)
        ],
    )
    x = [float(ratio) for ratio in ratios]
    first = examples[3]
    lines = [
        Line(x=x, y=[float(e.face_value_unbounded) for e in first], label="face value, all integers: 2α/(1+α)"),
        Line(x=x, y=[float(e.face_value_bounded) for e in first], label="face value, 0..n: α/(1+α)"),
        *(Line(x=x, y=[float(e.remapped) for e in row], label=f"remapped, n = {n}") for n, row in examples.items()),
    ]
    panel = LinePanel(
        title="Example 2.2: a user who knows the count is 0 or n",
        lines=lines,
        colours=colours(*(line.label for line in lines)),
        x_label="α",
        y_label="expected 0/1 loss",
    )
    results.figure("geometric_example_2_2", line_panels([panel], columns=1, width=6.6, height=4.2))


# Theorem 3.1.


@dataclass(frozen=True, slots=True, kw_only=True)
class _User:
    """A random user: the ratio e^-eps, a prior (n + 1,) and losses (n + 1, n + 1) that do not decrease in |i - j|."""

    ratio: float
    prior: Floats
    losses: Floats


def _random_user(generator: np.random.Generator) -> _User:
    n = int(generator.integers(2, 13))
    steps = np.cumsum(generator.exponential(1.0, (n + 1, n + 1)) * (generator.random((n + 1, n + 1)) < 0.8), axis=1)
    apart = np.abs(np.arange(n + 1)[:, None] - np.arange(n + 1)[None, :])
    losses = np.where(apart == 0, 0.0, np.take_along_axis(steps, np.maximum(apart - 1, 0), axis=1))
    prior = generator.dirichlet(np.full(n + 1, generator.choice([0.3, 1.0, 5.0])))
    return _User(ratio=float(generator.uniform(0.05, 0.95)), prior=prior, losses=losses)


def _users(settings: Settings, results: Results) -> list[UserResult]:
    """Compare the remapped geometric mechanism with the linear program of random users."""
    generator = settings.generator(21)
    found: list[UserResult] = []
    for _ in range(settings.either(40, 600)):
        user = _random_user(generator)
        optimum = user_optimum(user.prior, user.losses, user.ratio)
        channel = geometric_channel(user.prior.size - 1, user.ratio)
        found.append(
            UserResult(
                largest=user.prior.size - 1,
                ratio=user.ratio,
                optimum=optimum.expected_loss,
                remapped=geometric_remap(user.prior, user.losses, user.ratio).expected_loss,
                face_value=float(np.sum(user.prior[:, None] * channel * user.losses)),
            )
        )
    results.table(
        "geometric_users",
        ["n", "alpha", "lp_optimum", "remapped_geometric", "gap", "face_value"],
        [(u.largest, u.ratio, u.optimum, u.remapped, u.remapped - u.optimum, u.face_value) for u in found],
    )
    best = [user.optimum for user in found]
    end = max(best)
    lines = [
        Line(x=best, y=[user.face_value for user in found], label="geometric mechanism at face value"),
        Line(x=best, y=[user.remapped for user in found], label="geometric mechanism, remapped"),
        Line(x=[0, end], y=[0, end], label="equal"),
    ]
    panel = LinePanel(
        title=f"Theorem 3.1 on {len(found)} random users (largest gap {max(abs(u.gap) for u in found):.0e})",
        lines=lines,
        points=(lines[0].label, lines[1].label),
        colours=dict(zip((line.label for line in lines), ("#bbbbbb", *colours("a").values(), "#d55e00"), strict=True)),
        x_label="least expected loss of any α-private mechanism (linear program)",
        y_label="expected loss",
    )
    results.figure("geometric_users", line_panels([panel], columns=1, width=6.6, height=5.0))
    return found


# Section 6.1.


def _laplace(results: Results) -> None:
    """Draw the 0/1 loss of one device with a uniform prior: the geometric mechanism and rounded Laplace noise."""
    ratios = [Fraction(i, 100) for i in range(1, 100)]
    losses = [single_device_losses(ratio) for ratio in ratios]
    rows = [(a, g, laplace, laplace / float(g)) for a, (g, laplace) in zip(ratios, losses, strict=True)]
    results.table("geometric_section_6_1", ["alpha", "geometric", "laplace", "ratio"], rows)
    x = [float(ratio) for ratio in ratios]
    lines = [
        Line(x=x, y=[float(g) for g, _ in losses], label="geometric: α/(1+α)"),
        Line(x=x, y=[laplace for _, laplace in losses], label="Laplace: √α/2"),
    ]
    shared = colours(*(line.label for line in lines), "ratio")
    ratio = LinePanel(
        title="Laplace over geometric",
        lines=[Line(x=x, y=[row[3] for row in rows], label="")],
        colours={"": shared["ratio"]},
        x_label="α",
        y_label="ratio of expected losses",
    )
    both = LinePanel(
        title="Section 6.1: one device, 0/1 loss", lines=lines, colours=shared, x_label="α", y_label="expected loss"
    )
    results.figure("geometric_section_6_1", line_panels([both, ratio], columns=2, width=4.8, height=3.7))


# The additional loss of k noises.


def _noises(settings: Settings, results: Results) -> None:
    """Draw the loss of k remapped noises over that of one, the optimum of Theorem 3.1, for three loss functions."""
    largest_count = settings.either(20, 60)
    prior = np.full(largest_count + 1, 1 / (largest_count + 1))
    epsilons = [Fraction(i, 10) for i in range(2, 31, settings.either(7, 2))]
    names: tuple[NamedLoss, ...] = ("absolute", "squared", "zero-one")
    rows: list[tuple[str, Fraction, int, float, float]] = []
    panels: list[LinePanel] = []
    for name in names:
        curves: dict[int, list[float]] = {aggregators: [] for aggregators in range(1, 6)}
        for epsilon in epsilons:
            one = sampling_remap(prior, name, Fraction(1), epsilon, 1).expected_loss
            for aggregators, curve in curves.items():
                loss = sampling_remap(prior, name, Fraction(1), epsilon, aggregators).expected_loss
                curve.append(loss / one)
                rows.append((name, epsilon, aggregators, loss, loss / one))
        lines = [
            Line(x=[float(e) for e in epsilons], y=curve, label=f"k = {k}" if k > 1 else "one noise (the optimum)")
            for k, curve in curves.items()
        ]
        panels.append(
            LinePanel(
                title=f"{name} loss",
                lines=lines,
                colours=colours(*(line.label for line in lines)),
                x_label="ε of each noise",
                y_label="loss over that of one noise",
            )
        )
    results.table("geometric_noises", ["loss", "epsilon", "aggregators", "expected_loss", "over_one_noise"], rows)
    title = f"What k added noises cost a user who remaps with the true channel (uniform prior on 0..{largest_count})"
    results.figure("geometric_noises", line_panels(panels, columns=3, title=title, width=4.2, height=3.5))
