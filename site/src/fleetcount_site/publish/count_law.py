"""The exact law of a design as plain numbers, with which a page adds up counts.

It computes no interval: `static/sums.js` does, and tests compare that with `fleetcount_analysis.answers`.
"""

from fractions import Fraction
from typing import Any

from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise


def law_of(design: Design, level: Fraction) -> dict[str, Any]:
    """Return the law of one published count, for the function sumInterval of a page.

    `responses` is whether devices randomize their answers; a page does not add up such counts.
    """
    hit, miss = design.channel
    noise = design.noise
    described: dict[str, Any] = {"kind": "none", "parameter": 0.0}
    if isinstance(noise, TwoSidedNoise):
        described = {"kind": "geometric", "parameter": float(noise.epsilon)}
    elif isinstance(noise, GaussianNoise):
        described = {"kind": "gaussian", "parameter": float(noise.variance)}
    elif isinstance(noise, OneSidedNoise):
        described = {"kind": "one-sided", "parameter": float(noise.epsilon), "up": noise.direction == "up"}
    known = isinstance(noise, TwoSidedNoise | GaussianNoise | OneSidedNoise | NoNoise)
    return {
        "aggregators": design.aggregators,
        "noise": described | {"mean": noise.mean},
        "rate": float(hit),
        "weight": float(hit - miss),
        "level": float(level),
        "responses": design.outputs is not Outputs.CELLS or not known,
    }
