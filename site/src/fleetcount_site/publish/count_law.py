"""The exact law of a design as plain numbers, with which a page adds up counts.

It computes no interval: `static/sums.js` does, and tests compare that with `fleetcount_analysis.answers`.
"""

from fractions import Fraction
from typing import Any

from fleetcount_analysis.answers.half_widths import blur_past
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise


def law_of(design: Design, level: Fraction, total: NoiseLaw | None = None) -> dict[str, Any]:
    """Return the law of one published count, for the function sumInterval of a page.

    `total` is the noise of a total of all cells that sums are joined with. `responses` is whether devices randomize
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
        "total": None if total is None else _joined(design, level, total),
    }


def _joined(design: Design, level: Fraction, total: NoiseLaw) -> dict[str, Any]:
    """Return what a sum is joined with: each of its cells takes `share` of what the total has more than all cells."""
    share = 1 / (design.values + total.draw_variance / design.noise.draw_variance)
    return {"noise": _described(total), "share": share, "cells": design.values, "past": blur_past(level)}


def _described(noise: NoiseLaw) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": "none", "parameter": 0.0}
    if isinstance(noise, TwoSidedNoise):
        described = {"kind": "geometric", "parameter": float(noise.epsilon)}
    elif isinstance(noise, GaussianNoise):
        described = {"kind": "gaussian", "parameter": float(noise.variance)}
    elif isinstance(noise, OneSidedNoise):
        described = {"kind": "one-sided", "parameter": float(noise.epsilon), "up": noise.direction == "up"}
    return described | {"mean": noise.mean, "variance": noise.draw_variance}
