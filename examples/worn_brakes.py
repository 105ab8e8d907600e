"""Worn brakes of a made fleet: how many vehicles have one at any of four wheels, at epsilon 1, beside the truth.

Vehicles are simulated here and nothing is sent: `fleetcount question create --sample brakes` asks real ones, and
brakes.sh runs it. Each joins the truth values of its wheels as a device does, tosses its own coin, and one release of
two aggregators is drawn.
"""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from fleetcount_analysis.reading import read
from fleetcount_client.shapes import any_of
from fleetcount_client.signals import Reading
from fleetcount_mechanisms import Design, SamplingDie, SeededRandom, draw_noise, toss
from fleetcount_mechanisms.planned_noise import noise_for
from fleetcount_protocol.window.domain import Categories

VEHICLES, LEVEL = 20_000, Fraction(95, 100)
WORN, NOT_KNOWN = 0.04, 0.01
ASKED = Categories(names=("true", "false"))


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the release tells of one answer, its interval of 95 %, and the truth."""

    of: str
    estimate: float
    low: int
    high: int
    truth: int


def made_fleet(generator: np.random.Generator) -> list[list[bool | None]]:
    """Return of each vehicle whether the brake of each of its four wheels is worn, None where it does not know."""
    drawn = generator.random((VEHICLES, 4))
    return [[None if one < NOT_KNOWN else one < NOT_KNOWN + WORN for one in wheels] for wheels in drawn.tolist()]


def told(fleet: list[list[bool | None]], source: SeededRandom) -> list[Told]:
    """Return one release of how many vehicles have a worn brake at any wheel, and how many at none."""
    answer = SamplingDie.uniform(Fraction(9, 20), ASKED.values)
    design = Design(answer=answer, noise=noise_for(answer, Fraction(1)), values=ASKED.values, aggregators=2)
    joined = [any_of([Reading(value=worn) for worn in wheels]).value for wheels in fleet]
    truths = [0 if one is None else ASKED.value_of(str(one).lower()) for one in joined]
    answers = [toss(answer, truth, source) for truth in truths]
    first, second = (Counter(getattr(one, name) for one in answers) for name in ("round_one", "round_two"))
    sums = np.array([second[value] - first[value] for value in range(1, ASKED.values + 1)])
    noise = [np.sum([draw_noise(law, source, count) for _ in range(2)], axis=0) for law, count in design.opened_noise]
    found, known = read(design, sums + np.concatenate(noise), LEVEL), Counter(truths)
    rows = zip(("any wheel", "no wheel"), found.estimates, found.low, found.high, strict=True)
    return [
        Told(of=of, estimate=float(about), low=int(low), high=int(high), truth=known[value])
        for value, (of, about, low, high) in enumerate(rows, 1)
    ]


if __name__ == "__main__":
    rows = told(made_fleet(np.random.default_rng(1)), SeededRandom(1))
    print(f"{VEHICLES:,} vehicles; worn brakes at any of four wheels, one 95 % interval each, and the truth")
    print("worn at      95 % interval      about    truth")
    for one in rows:
        print(f"{one.of:<10}{one.low:>7,} to {one.high:>6,} {one.estimate:>10,.0f} {one.truth:>8,}")
    print(f"{VEHICLES - sum(one.truth for one in rows):,} vehicles do not know, and answer neither")
