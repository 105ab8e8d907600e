"""Fault codes that nobody listed, in a made fleet: what drill-downs at epsilon 1 find, and the truth beside it.

Vehicles are simulated here and nothing is sent: `fleetcount question create --sample fault-codes` asks real ones. A
vehicle with several codes tells one of them, so at least as many have a code as told it; how many more is not known.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from fleetcount_analysis.answers.drill_down import WalkStep, find_chance, found_places, smallest_found
from fleetcount_mechanisms import Design, Truth, TwoSidedNoise
from fleetcount_protocol.question.fields import DrillDown, candidates, surviving_cells
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import prefixes_among
from fleetcount_simulator.engines.noise_sums import summed_noise
from fleetcount_simulator.engines.walks import draw_walks, told_codes

VEHICLES, WALKS, LEVEL = 20_000, 60, Fraction(95, 100)
DTC = Codes(form=CodeForm.DTC)
COMMON = ("P0420", "P0171", "P0301", "P0302", "P0442", "U0100", "C0035", "P0128", "B1342", "P2096", "P0401", "U0121")
# Another value of one vehicle changes two cells in each of two steps, each by noise of 1/4: epsilon 1 for a walk.
DESIGN = Design(answer=Truth(256), noise=TwoSidedNoise(Fraction(1, 4)), values=256, aggregators=2)
WALK = DrillDown(levels=(8, 16), threshold=44, most_survivors=15)


@dataclass(frozen=True, kw_only=True)
class Code:
    """A code of the fleet: what a walk found of the vehicles that told it, and how many told and have it in truth.

    `low` is a lower bound of the vehicles that have it, too; there is no upper one. A code that was not found has no
    estimate and no upper end.
    """

    code: str
    estimate: float | None
    low: int
    high: int | None
    told: int
    have: int


def made_fleet(generator: np.random.Generator) -> list[list[str]]:
    """Return the codes of each vehicle: seven of ten have none, the others one or more, now and then a rare one."""
    shares = 1 / np.arange(1, len(COMMON) + 1) ** 1.6
    fleet: list[list[str]] = []
    for faulty in generator.random(VEHICLES) < 0.3:
        several = generator.choice(COMMON, size=1 + generator.poisson(0.4), p=shares / shares.sum()) if faulty else []
        rare = [DTC.label(int(generator.integers(1 << 16)), 16)] if faulty and generator.random() < 0.05 else []
        fleet.append([*map(str, several), *rare])
    return fleet


def last_step(told: Mapping[int, int], generator: np.random.Generator) -> WalkStep:
    """Return the last step of one walk over the codes that vehicles told, by the protocol's own rule of survivors."""
    domain = prefixes_among(range(1 << WALK.levels[0]), WALK.levels[0], DTC)
    for step in range(len(WALK.levels)):
        told_here = Counter[int]()
        for number, vehicles in told.items():
            told_here[domain.holder_of(number)] += vehicles
        sums = np.array([told_here[value] for value in range(1, domain.values + 1)])
        opened = sums + summed_noise(DESIGN.noise, DESIGN.aggregators, domain.values, generator)
        if step + 1 < len(WALK.levels):
            survivors = surviving_cells(domain, list(map(Fraction, opened.tolist())), WALK)
            domain = candidates(survivors, WALK, step + 1, DTC)
    return WalkStep(design=DESIGN, level=LEVEL, bits=domain.bits, cells=domain.cells, raw=tuple(opened.tolist()))


def one_walk(fleet: list[list[str]], generator: np.random.Generator) -> list[Code]:
    """Return what one walk found of the codes that most vehicles have, as many as are common, beside the truth."""
    told, have = told_codes(fleet, DTC, generator)
    places = {one.cell: one for one in found_places(last_step(told, generator), WALK.threshold)}
    rows: list[Code] = []
    for code, vehicles in have.most_common(len(COMMON)):
        place, truth = places.get(code), {"told": told[code], "have": vehicles}
        estimate, low, high = (None, 0, None) if place is None else (place.estimate, place.low, place.high)
        rows.append(Code(code=DTC.label(code, 16), estimate=estimate, low=low, high=high, **truth))
    return rows


def print_how_often(fleet: list[list[str]], generator: np.random.Generator) -> None:
    """Print how often codes are found: each walk draws anew which code a vehicle tells."""
    had, told, found, false = Counter[int](), Counter[int](), Counter[int](), 0
    for _ in range(WALKS):
        once, had = told_codes(fleet, DTC, generator)
        drawn = draw_walks(DESIGN, WALK, once, 1, generator, DTC)
        found.update(drawn.places[drawn.found == 1].tolist())
        false += int(drawn.others.sum())
        told += once
    print(f"{WALKS} walks:")
    print("code   vehicles that have it   vehicles that told this code   walks that found it")
    for code, vehicles in had.most_common(len(COMMON) + 2):
        row = f"{vehicles:>21,}   {told[code] / WALKS:>28,.1f}   {100 * found[code] / WALKS:>17.0f} %"
        print(f"{DTC.label(code, 16)}  {row}")
    least = smallest_found(DESIGN, WALK.threshold, len(WALK.levels))
    chance = find_chance(DESIGN, WALK.threshold, len(WALK.levels), least)
    print(f"by the exact law {100 * chance:.1f} % of the walks find a code that {least} vehicles tell")
    print(f"{false / WALKS:.2f} codes that no vehicle told were found in a walk, on average")


if __name__ == "__main__":
    generator = np.random.default_rng(1)
    fleet = made_fleet(generator)
    different = len({DTC.number_of(code) for codes in fleet for code in codes})
    print(f"{VEHICLES:,} vehicles, {different} different codes; steps of {WALK.levels[0]} and {WALK.levels[1]} bits")
    print("one walk; intervals of 95 % for all candidates at once, and the truth:")
    print("code   vehicles that told this code       true   at least so many have it     true")
    for one in one_walk(fleet, np.random.default_rng(2)):
        found = one.estimate is not None
        span = f"{one.estimate:>12,.0f}   {one.low:>5,} to {one.high:>5,}" if found else "   not found"
        print(f"{one.code}  {span:<28} {one.told:>10,}   {one.low:>24,} {one.have:>8,}")
    print_how_often(fleet, generator)
