"""Tables of a question made of known truths, for the tests of answers."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from fleetcount_analysis.answers.table import QuestionTable, WindowCounts, question_table
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.sampling import SamplingDie

LEVEL = Fraction(19, 20)
NOISE = TwoSidedNoise(Fraction(1, 2))


def direct(values: int = 4, noise: NoiseLaw = NOISE) -> Design:
    return Design(answer=Truth(values), noise=noise, values=values, aggregators=2)


def sampling(values: int = 4, rate: Fraction = Fraction(1, 4)) -> Design:
    answer: AnswerLaw = SamplingDie(sampling_rate=rate, values=values)
    return Design(answer=answer, noise=NOISE, values=values, aggregators=2)


def table_of(
    design: Design, outputs: Sequence[Sequence[int]], unit: int = 1, missing: int | None = None
) -> QuestionTable:
    """Return a table of hourly windows, `unit` of them a unit of the coin; one index may be left out as paused."""
    indices = [index for index in range(len(outputs) + (missing is not None)) if index != missing]
    released = [
        WindowCounts(index=index, opens=1_796_083_200 + 3600 * index, unit=index // unit, outputs=tuple(row))
        for index, row in zip(indices, outputs, strict=True)
    ]
    labels = [f"cell {value}" for value in range(1, design.values + 1)]
    reasons = {} if missing is None else {missing: "paused"}
    return question_table(design, LEVEL, labels, ["public: epsilon 1"], released, reasons)


def random_table(design: Design, windows: int = 6, seed: int = 1, unit: int = 1) -> QuestionTable:
    outputs = np.random.default_rng(seed).integers(0, 60, (windows, design.output_count))
    return table_of(design, outputs.tolist(), unit)
