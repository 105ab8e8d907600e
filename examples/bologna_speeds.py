"""Speeds of one morning in Bologna as questions of three kinds show them, epsilon 1 a release, beside the truth.

Vehicles are simulated here and nothing is sent: each answers directly, once a release, with what it read where it was
first seen, and releases of two aggregators are drawn. The data have no class of road and no speed limit, so means are
by part of town. A vehicle in all seven releases loses 7 together. A number after the program is the seed of the draw.
"""

import csv
import gzip
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import fleetcount_data
import numpy as np
from fleetcount.read.averages import MeasuredQuantile, OpenedNumbers
from fleetcount.read.crosstabs import CrossCounts, names_of
from fleetcount_analysis.answers import Average, WindowCounts, question_table
from fleetcount_mechanisms import Levels, SeededRandom, Spread, Truth, TwoSidedNoise, draw_noise
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.planned_noise import noise_for
from fleetcount_mechanisms.planning import spread_for_mean, spread_for_quantiles
from fleetcount_protocol.window.domain import Bins, Cross, Numbers, Part, SquareGrid, value_of

LEVEL = Fraction(95, 100)
KMH = Fraction(18, 5)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A vehicle where it was first seen: x and y in metres, its speed in km/h."""

    at: tuple[Fraction, Fraction]
    speed: Fraction


def first_seen(start: int, end: int) -> list[Seen]:
    """Return every vehicle that was on the road from `start` to before `end`, in seconds, as it was first seen."""
    found: dict[str, Seen] = {}
    with gzip.open(fleetcount_data.path("bologna/positions.csv.gz"), "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if start <= int(row["t"]) < end and row["vehicle"] not in found:
                at = (Fraction(row["x"]), Fraction(row["y"]))
                found[row["vehicle"]] = Seen(at=at, speed=KMH * Fraction(row["speed_mps"]))
    return list(found.values())


def direct(spread: Spread) -> Design:
    """Return direct answers with the weakest noise that keeps epsilon 1, as a question of one window has it."""
    answer = Truth(spread.levels.values)
    with_total = spread.with_total_for(answer, TwoSidedNoise)
    return with_total.design(answer, noise_for(answer, Fraction(1), TwoSidedNoise, with_total), 2)


def opened(design: Design, values: Iterable[int], source: SeededRandom) -> tuple[int, ...]:
    """Return what a release opens of the values of all vehicles: sums, and the noise of every aggregator."""
    counts = Counter(values)
    sums = design.levels.all_sums([counts[value] for value in range(1, design.values + 1)])
    drawn = [np.sum([draw_noise(law, source, count) for _ in range(2)], axis=0) for law, count in design.opened_noise]
    return tuple((np.array(sums) + np.concatenate(drawn)).tolist())


def number(vehicles: Sequence[Seen], design: Design, source: SeededRandom) -> OpenedNumbers:
    """Return a release of a speed from 0 to 130 km/h, which each vehicle rounds to a point at random."""
    speed = Numbers(low=Fraction(0), high=Fraction(130), values=design.values, unit="km/h")
    outputs = opened(design, (value_of(speed, one.speed, source) for one in vehicles), source)
    return OpenedNumbers(name="speed", domain=speed, design=design, rows=[outputs], level=LEVEL)


def table(vehicles: Sequence[Seen], squares: SquareGrid, bins: Bins, source: SeededRandom) -> CrossCounts:
    """Return a release of the square and the speed of every vehicle in one report, without margins."""
    parts = (Part(signal="Vehicle.CurrentLocation", domain=squares), Part(signal="Vehicle.Speed", domain=bins))
    cross = Cross(parts=parts)
    design = direct(Spread.of_shares(Levels(cross.values), law=TwoSidedNoise))
    told = (cross.together([squares.value_of(one.at), bins.value_of(one.speed)]) for one in vehicles)
    counts = WindowCounts(index=0, opens=0, unit=0, outputs=opened(design, told, source))
    labels = [cross.label(value) for value in range(1, cross.values + 1)]
    released = question_table(design, LEVEL, labels, (), [counts], parts=names_of(cross))
    return CrossCounts.of("speeds", cross, released, [0])


def town(size: int) -> SquareGrid:
    """Return squares of so many metres over the town, 2,200 m by 2,200 m."""
    side = 2200 // size
    return SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(size), columns=side, rows=side)


def line(name: str, vehicles: int, found: Average | MeasuredQuantile, true: Fraction | None, unit: str) -> list[bool]:
    """Print an interval and the truth, None if nobody has one; return whether it is inside, nothing without one."""
    scale = 100 if unit == "%" else 1
    low, high = scale * found.low, scale * found.high
    told = "none" if true is None else f"{float(true):.1f}"
    print(f"  {name:<17}{vehicles:>5,} vehicles{low:>8.1f} to {high:>5.1f} {unit:<5}{told:>8}")
    return [] if true is None else [low <= true <= high]


if __name__ == "__main__":
    source, morning = SeededRandom(int(sys.argv[1]) if len(sys.argv) > 1 else 1), first_seen(600, 4201)
    print(f"{len(morning):,} vehicles, each as it was first seen; 95 % intervals, and the truth")

    print("mean speed: a number asked for its mean; by district of 1.1 km (column,row) a table, so known up to a bin")
    found = number(morning, direct(spread_for_mean(33, TwoSidedNoise)), source).mean()
    inside = line("all", len(morning), found, sum(one.speed for one in morning) / Fraction(len(morning)), "km/h")
    districts, fine = town(1100), Bins(edges=tuple(map(Fraction, range(0, 71, 2))), open_above=False, unit="km/h")
    crossed = table(morning, districts, fine, source)
    for place in range(1, districts.values + 1):
        there = [one.speed for one in morning if districts.value_of(one.at) == place and fine.value_of(one.speed)]
        found = crossed.mean(1, {0: place})
        inside += line(districts.label(place), len(there), found, sum(there) / Fraction(len(there)), "km/h")

    print("median speed by quarter of an hour: a number asked for its quantiles, a release for each")
    for start in range(600, 4200, 900):
        speeds = first_seen(start, start + 900)
        median = number(speeds, direct(spread_for_quantiles(64)), source).quantile(Fraction(1, 2))
        true = sorted(one.speed for one in speeds)[ceil(len(speeds) / 2) - 1]
        inside += line(f"minutes {start // 60} to {start // 60 + 15}", len(speeds), median, true, "km/h")

    print("share at 50 km/h or more by square of 550 m (column,row): a table of squares and two bins")
    squares, halves = town(550), Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
    crossed = table(morning, squares, halves, source)
    for place in range(1, squares.values + 1):
        fast = [one.speed >= 50 for one in morning if squares.value_of(one.at) == place]
        found = crossed.share({0: place, 1: 2}, {0: place})
        inside += line(
            squares.label(place), len(fast), found, Fraction(100 * sum(fast), len(fast)) if fast else None, "%"
        )
    print(f"{sum(inside)} of {len(inside)} truths are inside their intervals, each of 95 %")
