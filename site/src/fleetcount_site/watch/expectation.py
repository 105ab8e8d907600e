"""The expectation of a release by the exact law: the range of estimates and the width of intervals.

For a demo alone, which knows the truths. It is no measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN
from fractions import Fraction
from typing import Final

import numpy as np
from fleetcount_analysis.interval_words import rounded
from fleetcount_analysis.reading import read
from fleetcount_mechanisms.design import Design
from fleetcount_simulator.engines.exact_law import drawn_outputs

_RUNS: Final = 1_000
_MOST_DRAWN: Final = 200_000
"""Cells of all drawn releases together; for questions with many cells fewer releases are drawn."""
_FEWEST: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """For every cell 1..V: a share `level` of the estimates of `runs` drawn releases lies between `low` and `high`.

    `widths` are the mean widths of the intervals of those releases.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    widths: tuple[float, ...]
    level: Fraction
    runs: int


def expectation_of(design: Design, truths: Sequence[int], devices: int, level: Fraction, seed: int) -> Expectation:
    """Draw releases of a design from the exact law, every device counted, and return where their estimates lie.

    `truths` are the counts of the cells 1..V; the devices beside them answer "none of them".

    Raises:
        ValueError: more devices in cells than there are.
    """
    inside = sum(truths)
    if not 0 <= inside <= devices:
        raise ValueError(f"truths count {inside} devices, allowed: 0 to {devices}")
    histogram = np.array([devices - inside, *truths], dtype=np.int64)
    runs = max(_FEWEST, min(_RUNS, _MOST_DRAWN // design.output_count))
    outputs = drawn_outputs(design, histogram, runs, np.random.default_rng(seed))
    reading = read(design, outputs, level)
    tail = float(1 - level) / 2
    low, high = np.quantile(reading.estimates, (tail, 1 - tail), axis=0)
    widths = (reading.high - reading.low).mean(axis=0)
    shown = {
        name: tuple(float(rounded(number, 1, rounding)) for number in np.round(row, 9).tolist())
        for name, row, rounding in (
            ("low", low, ROUND_FLOOR),
            ("high", high, ROUND_CEILING),
            ("widths", widths, ROUND_HALF_EVEN),
        )
    }
    return Expectation(**shown, level=level, runs=runs)
