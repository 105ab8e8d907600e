"""Fault codes that nobody listed, in a made fleet: what drill-downs at epsilon 1 find, and the truth beside it.

Vehicles are simulated here and nothing is sent: `fleetcount question create --sample fault-codes` asks real ones.
"""

from collections import Counter
from fractions import Fraction

import numpy as np
from fleetcount_analysis.answers.drill_down import find_chance, smallest_found
from fleetcount_mechanisms import Design, Truth, TwoSidedNoise
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_simulator.engines.walks import draw_walks, told_codes

VEHICLES, WALKS = 20_000, 60
DTC = Codes(form=CodeForm.DTC)
COMMON = ("P0420", "P0171", "P0301", "P0302", "P0442", "U0100", "C0035", "P0128", "B1342", "P2096", "P0401", "U0121")


def made_fleet(generator: np.random.Generator) -> list[list[str]]:
    """Return the codes of each vehicle: seven of ten have none, the others one or more, now and then a rare one."""
    shares = 1 / np.arange(1, len(COMMON) + 1) ** 1.6
    fleet: list[list[str]] = []
    for faulty in generator.random(VEHICLES) < 0.3:
        several = generator.choice(COMMON, size=1 + generator.poisson(0.4), p=shares / shares.sum()) if faulty else []
        rare = [DTC.label(int(generator.integers(1 << 16)), 16)] if faulty and generator.random() < 0.05 else []
        fleet.append([*map(str, several), *rare])
    return fleet


if __name__ == "__main__":
    generator = np.random.default_rng(1)
    fleet = made_fleet(generator)
    # Another value of one vehicle changes two cells in each of two steps, each by noise of 1/4: epsilon 1 for a walk.
    design = Design(answer=Truth(256), noise=TwoSidedNoise(Fraction(1, 4)), values=256, aggregators=2)
    walk = DrillDown(levels=(8, 16), threshold=44, most_survivors=15)
    had, told, found, false = Counter[int](), Counter[int](), Counter[int](), 0
    for _ in range(WALKS):
        once, had = told_codes(fleet, DTC, generator)
        drawn = draw_walks(design, walk, once, 1, generator, DTC)
        found.update(drawn.places[drawn.found == 1].tolist())
        false += int(drawn.others.sum())
        told += once
    print(f"{VEHICLES:,} vehicles, {len(had)} different codes; steps of {walk.levels[0]} and {walk.levels[1]} bits")
    print("code   vehicles that have it   vehicles that told this code   walks that found it")
    for code, vehicles in had.most_common(len(COMMON) + 2):
        row = f"{vehicles:>21,}   {told[code] / WALKS:>28,.1f}   {100 * found[code] / WALKS:>17.0f} %"
        print(f"{DTC.label(code, 16)}  {row}")
    least = smallest_found(design, walk.threshold, len(walk.levels))
    chance = find_chance(design, walk.threshold, len(walk.levels), least)
    print(f"by the exact law {100 * chance:.1f} % of the walks find a code that {least} vehicles tell")
    print(f"{false / WALKS:.2f} codes that no vehicle told were found in a walk, on average")
