"""Joy and Gerla, Differential Privacy By Sampling [SP]: errors, leakage and growth, also of the hardened release.

It must not report an epsilon of the paper's release without its delta: no epsilon alone holds for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from fleetcount_analysis.figures import Line, LinePanel, line_panels
from fleetcount_mechanisms.exact_difference import message_epsilon_of_face
from fleetcount_mechanisms.losses import (
    Neighbours,
)
from fleetcount_mechanisms.planned_noise import noise_epsilon_for, release_sd, sampling_sd
from fleetcount_mechanisms.response_laws import k_ary_sd, mangat_sd, two_coin_sd, warner_sd
from fleetcount_mechanisms.responses import TwoCoin
from numpy.typing import NDArray

from fleetcount_evidence.papers.drawing import Bars, bar_panels, colours
from fleetcount_evidence.papers.extracts import Extracts, Group
from fleetcount_evidence.papers.results import Results, Settings
from fleetcount_evidence.papers.sampling.claims import PADDED, add_claims

Z95: Final = 1.959963984540054
AGGREGATORS: Final = 2
RELEASE_EPSILON: Final = Fraction(1)
Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to count: `sd` for n Yes among N, and `simulate`, the errors of a number of simulated counts, (runs,)."""

    label: str
    sd: Callable[[int, int], float]
    simulate: Callable[[np.random.Generator, int, int, int], Floats]

    def bound(self, count: int, population: int) -> float:
        """Return the 95 % bound of the absolute error, 1.96 sd."""
        return Z95 * self.sd(count, population)


def run(extracts: Extracts, settings: Settings, results: Results) -> None:
    """Run the experiments of section 5 and state the paper's claims."""
    for part in results.carried_out("sampling", (_gowalla, _breast_cancer, _leakage, _growth, add_claims)):
        part(extracts, settings, results)


# The ways to count.


def _sampling(rate: Fraction) -> Method:
    p = float(rate)

    def simulate(generator: np.random.Generator, count: int, _population: int, runs: int) -> Floats:
        # Unsampled devices give the same answer in both rounds: the difference of the rounds is Bin(n, p).
        return generator.binomial(count, p, runs) / p - count

    return Method(
        label=f"Sampling Privacy, exact sums, p = {p:g}",
        sd=lambda count, _population: sampling_sd(count, rate),
        simulate=simulate,
    )


def _two_coin(truth: Fraction, yes: Fraction) -> Method:
    q, r = float(truth), float(yes)
    if_yes, if_no = q + (1 - q) * r, (1 - q) * r

    def simulate(generator: np.random.Generator, count: int, population: int, runs: int) -> Floats:
        answered = generator.binomial(count, if_yes, runs) + generator.binomial(population - count, if_no, runs)
        return (answered - population * if_no) / q - count

    return Method(
        label=f"two-coin response ({q:g}, {r:g})",
        sd=lambda count, population: two_coin_sd(count, population, q, r),
        simulate=simulate,
    )


def _hardened(rate: Fraction) -> Method:
    noise = noise_epsilon_for(RELEASE_EPSILON, rate, Neighbours.ONE_CELL)
    p, ratio = float(rate), float(np.exp(-float(noise)))

    def simulate(generator: np.random.Generator, count: int, _population: int, runs: int) -> Floats:
        sums = generator.binomial(count, p, runs).astype(np.float64)
        for _ in range(AGGREGATORS):
            sums += generator.geometric(1 - ratio, runs) - generator.geometric(1 - ratio, runs)
        return sums / p - count

    return Method(
        label=f"hardened release, p = {p:g}, ε′ = {float(RELEASE_EPSILON):g}, k = {AGGREGATORS}",
        sd=lambda count, _population: release_sd(count, rate, noise, AGGREGATORS),
        simulate=simulate,
    )


SAMPLING_45, SAMPLING_25 = _sampling(Fraction(9, 20)), _sampling(Fraction(1, 4))
TWO_COIN_8, TWO_COIN_85 = _two_coin(Fraction(4, 5), Fraction(1, 5)), _two_coin(Fraction(17, 20), Fraction(3, 10))
HARDENED, UNSAMPLED = _hardened(Fraction(9, 20)), _hardened(Fraction(1))
METHODS: Final = (SAMPLING_45, SAMPLING_25, HARDENED, TWO_COIN_8, TWO_COIN_85)
COLOURS: Final = colours(*(method.label for method in METHODS))


def _percentile(method: Method, generator: np.random.Generator, count: int, population: int, runs: int) -> float:
    return float(np.quantile(np.abs(method.simulate(generator, count, population, runs)), 0.95))


# Figure 2.


def _gowalla(extracts: Extracts, settings: Settings, results: Results) -> None:
    """Draw the errors at locations of New York among 1,000,000 check-ins: four in the figure, all in the table."""
    locations = extracts.locations()
    generator, runs = settings.generator(1), settings.either(2_000, 100_000)
    shown = locations[:4]
    simulated = {
        method.label: [_percentile(method, generator, place.checkins, PADDED, runs) for place in shown]
        for method in METHODS
    }
    results.table(
        "sampling_gowalla",
        ["location", "name", "checkins", "population", "method", "sd", "bound_95", "simulated_95"],
        [
            (
                place.number,
                place.name,
                place.checkins,
                PADDED,
                method.label,
                method.sd(place.checkins, PADDED),
                method.bound(place.checkins, PADDED),
                simulated[method.label][rank] if rank < len(shown) else None,
            )
            for rank, place in enumerate(locations)
            for method in METHODS
        ],
    )
    panel = Bars(
        title="95 % bound of the absolute error among 1,000,000 check-ins",
        groups=[f"{_short(place.label)}\n({place.checkins:,} check-ins)" for place in shown],
        series={method.label: [method.bound(place.checkins, PADDED) for place in shown] for method in METHODS},
        marks=simulated,
        colours=COLOURS,
        y_label="check-ins",
    )
    results.figure("sampling_gowalla", bar_panels([panel], columns=1, width=9.2))


def _short(label: str) -> str:
    return label.removeprefix("LGA ").removeprefix("EWR ").replace("JFK John F. Kennedy International", "JFK Airport")


# Figures 4 to 7.


def _breast_cancer(extracts: Extracts, settings: Settings, results: Results) -> None:
    """Draw the errors by age and by tumour size: for 286 patients, and for 10,000 people of whom 286 are patients."""
    generator, runs = settings.generator(2), settings.either(2_000, 100_000)
    attributes = {"age": "age, years", "tumor_size": "tumour size, mm"}
    groups = {name: extracts.patients(name) for name in attributes}
    rows: list[tuple[str | int | float, ...]] = []
    panels: list[Bars] = []
    methods = (SAMPLING_45, HARDENED, TWO_COIN_8)
    for population in (sum(group.patients for group in groups["age"]), 10_000):
        for name, label in attributes.items():
            panels.append(_patients_panel(groups[name], methods, population, label))
            rows += [
                (
                    name,
                    group.number,
                    group.label,
                    group.patients,
                    population,
                    method.label,
                    method.sd(group.patients, population),
                    method.bound(group.patients, population),
                    _percentile(method, generator, group.patients, population, runs),
                )
                for group in groups[name]
                for method in methods
            ]
    header = ["attribute", "group", "range", "patients", "population", "method", "sd", "bound_95", "simulated_95"]
    results.table("sampling_breast_cancer", header, rows)
    results.figure(
        "sampling_breast_cancer",
        bar_panels(panels, columns=2, title="Breast cancer: error of a group's count", width=6.2),
    )


def _patients_panel(groups: Sequence[Group], methods: Sequence[Method], population: int, label: str) -> Bars:
    shown = [group for group in groups if group.patients]
    return Bars(
        title=f"{population:,} people asked",
        groups=[f"{group.label}\n({group.patients})" for group in shown],
        series={method.label: [method.bound(g.patients, population) for g in shown] for method in methods},
        colours=COLOURS,
        x_label=f"{label} (patients)",
        y_label="95 % bound of the error, people",
    )


# Figure 3.


def _leakage(_extracts: Extracts, _settings: Settings, results: Results) -> None:
    """Draw the epsilon of one message as a function of the second coin or of the die's face."""
    rates = (Fraction(9, 20), Fraction(1, 4))
    coins = [Fraction(i, 100) for i in range(2, 99)]
    responses = [TwoCoin(truth_probability=Fraction(4, 5), yes_probability=r) for r in coins]
    lines = [
        Line(x=[float(r) for r in coins], y=[c.epsilon_yes for c in responses], label="two-coin (.8, x): Eq 30"),
        Line(
            x=[float(r) for r in coins],
            y=[c.epsilon for c in responses],
            label="two-coin (.8, x): the larger of Yes and No",
            dashed=True,
        ),
    ]
    table: list[tuple[str, float, float]] = [
        ("two-coin q=0.8, Eq 30", float(r), c.epsilon_yes) for r, c in zip(coins, responses, strict=True)
    ] + [("two-coin q=0.8, exact", float(r), c.epsilon) for r, c in zip(coins, responses, strict=True)]
    for rate in rates:
        faces = [face for face in coins if face <= 1 - rate]
        losses = [message_epsilon_of_face(float(face), float(rate)) for face in faces]
        lines.append(Line(x=[float(f) for f in faces], y=losses, label=f"Sampling Privacy p = {float(rate):g}: Eq 29"))
        table += [
            (f"sampling p={float(rate):g}, Eq 29", float(face), loss) for face, loss in zip(faces, losses, strict=True)
        ]
    rings = (
        (0.2, TwoCoin(truth_probability=Fraction(4, 5), yes_probability=Fraction(1, 5)).epsilon, "(.8, .2)"),
        (0.275, message_epsilon_of_face(0.275, 0.45), "uniform dice, V = 1"),
        (0.375, message_epsilon_of_face(0.375, 0.25), ""),
    )
    results.table("sampling_leakage", ["mechanism", "x", "epsilon"], table)
    panel = LinePanel(
        title="Leakage of one message alone (both rounds together: no finite ε, δ = p)",
        lines=lines,
        colours=colours(*(line.label for line in lines)),
        x_label="x: second coin's Yes, or the die's probability of the face",
        y_label="ε",
        rings=rings,
    )
    results.figure("sampling_leakage", line_panels([panel], columns=1, width=8.0, height=4.8))


# Growth.


def _growth(_extracts: Extracts, _settings: Settings, results: Results) -> None:
    """Draw the error for 100 Yes as the population grows from a thousand to a thousand million."""
    count = 100
    populations = [round(10 ** (exponent / 4)) for exponent in range(12, 37)]
    methods: dict[str, Callable[[int, int], float]] = {
        **{method.label: method.sd for method in (SAMPLING_45, SAMPLING_25, HARDENED, UNSAMPLED, TWO_COIN_8)},
        "Mangat, ε = 1 (one-sided)": lambda yes, total: mangat_sd(1.0, total, yes),
        "Warner, ε = 1": lambda _yes, total: warner_sd(1.0, total),
        "10-ary response, ε = 1": lambda yes, total: k_ary_sd(1.0, 10, total, yes),
    }
    curves = {label: [sd(count, total) for total in populations] for label, sd in methods.items()}
    results.table(
        "sampling_growth",
        ["method", "yes", "population", "sd"],
        [
            (label, count, total, sd)
            for label, curve in curves.items()
            for total, sd in zip(populations, curve, strict=True)
        ],
    )
    panel = LinePanel(
        title="Error of a count of 100 as the devices that answer No grow",
        lines=[
            Line(x=populations, y=curve, label=label, dashed=label in {HARDENED.label, UNSAMPLED.label})
            for label, curve in curves.items()
        ],
        colours=colours(*(label for label in curves if label != UNSAMPLED.label)) | {UNSAMPLED.label: "#000000"},
        x_label="devices asked",
        y_label="standard deviation, devices",
        log_x=True,
        log_y=True,
    )
    results.figure("sampling_growth", line_panels([panel], columns=1, width=8.0, height=4.8))
