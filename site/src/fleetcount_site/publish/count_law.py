"""The exact law of a design as plain numbers, with which a page adds up counts.

It computes no interval: `static/sums.js` does, and tests compare that with `fleetcount_analysis.answers`.
"""

from fractions import Fraction
from typing import Any

from fleetcount_analysis.answers.half_widths import blur_past
from fleetcount_analysis.answers.levels import joins_total
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise


def law_of(design: Design, level: Fraction) -> dict[str, Any]:
    """Return the law of one published count, for the function sumInterval of a page.

    `joined` is what sums are joined with: the margins of a table and a total, or None where nothing was opened beside
    the cells; of sets, whose cells add up to more than the total, None too. `responses` is whether devices randomize
    their answers; a page does not add up such counts.
    """
    hit, miss = design.channel
    known = isinstance(design.noise, TwoSidedNoise | GaussianNoise | OneSidedNoise | NoNoise)
    return {
        "aggregators": design.aggregators,
        "noise": _described(design.noise),
        "rate": float(hit),
        "weight": float(hit - miss),
        "level": float(level),
        "responses": design.outputs is not Outputs.CELLS or not known,
        "joined": _joined(design, level) if joins_total(design) else None,
    }


def _joined(design: Design, level: Fraction) -> dict[str, Any]:
    """Return the noise of each margin and of the total, None without one, and how many numbers they have."""
    levels = design.levels
    return {
        "cells": design.values,
        "shape": list(levels.margins),
        "margins": [_described(law) for law in design.laws[1 : 1 + len(levels.margins)]],
        "total": _described(design.laws[-1]) if levels.total else None,
        "past": blur_past(level),
    }


def _described(noise: NoiseLaw) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": "none", "parameter": 0.0}
    if isinstance(noise, TwoSidedNoise):
        described = {"kind": "geometric", "parameter": float(noise.epsilon)}
    elif isinstance(noise, GaussianNoise):
        described = {"kind": "gaussian", "parameter": float(noise.variance)}
    elif isinstance(noise, OneSidedNoise):
        described = {"kind": "one-sided", "parameter": float(noise.epsilon), "up": noise.direction == "up"}
    return described | {"mean": noise.mean, "variance": noise.draw_variance}
