"""Education by age of 48,842 persons of a census, as a question for two signals at epsilon 1 shows it, and the truth.

Persons are simulated here and nothing is sent: each would answer both signals in one report, one release is drawn.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction
from itertools import product
from pathlib import Path

import fleetcount_data
import numpy as np
from fleetcount.read.crosstabs import CrossCounts, names_of
from fleetcount_analysis.answers import WindowCounts, question_table
from fleetcount_analysis.interval_words import rounded
from fleetcount_mechanisms import GaussianNoise, SeededRandom, Truth, draw_noise
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.planned_noise import Spread, noise_for
from fleetcount_protocol.window.domain import Cross
from fleetcount_simulator.populations import build
from numpy.typing import NDArray

EDUCATIONS = (
    "Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad", "Some-college",
    "Assoc-voc", "Assoc-acdm", "Bachelors", "Masters", "Prof-school", "Doctorate",
)  # fmt: skip
ASKED = [
    {"signal": "Person.Education", "column": "education", "kind": "categories", "names": list(EDUCATIONS)},
    {"signal": "Person.Age", "column": "age", "kind": "bins", "edges": [17, 30, 45, 60], "open_above": True},
]
LEVEL = Fraction(95, 100)


def education_by_age() -> tuple[CrossCounts, NDArray[np.int64]]:
    """Return one release of the table and the truth, of shape (educations, ages)."""
    file = str(fleetcount_data.path("adult/combinations.csv.gz"))
    people = build({"kind": "readings", "file": file, "count": "persons"}, {"of": ASKED}, 1, Path())
    cross, answer = people.question.domain, Truth(people.question.values)
    if not isinstance(cross, Cross):
        raise TypeError("the population asks for one signal")
    # A third of the budget is for the cells, and a third for the margin of each signal; the total costs nothing.
    spread = Spread.of_shares(Levels(cross.values, margins=cross.shape)).with_total_for(answer, GaussianNoise)
    design = spread.design(answer, noise_for(answer, Fraction(1), GaussianNoise, spread), 2)
    truth, source = people.histogram(0)[1:], SeededRandom(1)
    noises = [
        np.array([draw_noise(law, source, count) for _ in range(2)]).sum(axis=0) for law, count in design.opened_noise
    ]
    opened = np.array(design.levels.all_sums(truth.tolist())) + np.concatenate(noises)
    counts = WindowCounts(index=0, opens=0, unit=0, outputs=tuple(opened.tolist()))
    labels = [cross.label(value) for value in range(1, cross.values + 1)]
    table = question_table(design, LEVEL, labels, (), [counts], parts=names_of(cross))
    return CrossCounts.of("census", cross, table, [0]), truth.reshape(cross.shape)


if __name__ == "__main__":
    found, true = education_by_age()
    shape = " by ".join(map(str, true.shape))
    print(f"{true.sum():,} persons, education by age, {shape}; 95 % intervals, and the truth")
    heads = ("all ages", "true", "60 and older", "true", "% of these", "true")
    print(
        "education     "
        + "".join(f"{head:>{width}}" for head, width in zip(heads, (17, 15, 18, 13, 18, 13), strict=True))
    )
    for row, (name, margin) in enumerate(zip(EDUCATIONS, found.margin(0), strict=True)):
        cell, part = found.count({0: row + 1, 1: 4}), found.share({0: row + 1, 1: 4}, {0: row + 1})
        known, old = int(true[row].sum()), int(true[row, 3])
        spans = f"{margin.low:>7,} to {margin.high:>6,} {known:>14,}   {cell.low:>6,} to {cell.high:>5,} {old:>12,}"
        low, high = 100 * rounded(part.low, 3, ROUND_FLOOR), 100 * rounded(part.high, 3, ROUND_CEILING)
        print(f"{name:<14}{spans}   {low:>6.1f} to {high:>5.1f} {100 * old / known:>12.1f}")
    every = [found.count({0: row, 1: age}) for row, age in product(*(range(1, size + 1) for size in true.shape))]
    inside = sum(one.low <= known <= one.high for one, known in zip(every, true.flat, strict=True))
    print(f"{inside} of {true.size} cells are inside their intervals, each of 95 %; total: {found.count({})}")
