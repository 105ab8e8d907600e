"""Speeds of one morning in Bologna as questions of three kinds show them, epsilon 1 a release, beside the truth.

Vehicles are simulated here and nothing is sent: each answers directly, once a release, with what it read where it was
first seen, and releases of two aggregators are drawn. The scenario names no class of a road, and one speed limit for
all but one, so a road's class is here how many lanes it has in the vehicle's direction. A vehicle in all eight releases
loses 8 together. A number after the program is the seed of the draw.
"""

import csv
import gzip
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction
from math import ceil

import fleetcount_data
import numpy as np
from fleetcount.read.averages import OpenedNumbers
from fleetcount.read.crosstabs import CrossCounts, names_of
from fleetcount_analysis.answers import Average, WindowCounts, question_table
from fleetcount_analysis.interval_words import rounded
from fleetcount_data.streets import bologna_streets
from fleetcount_mechanisms import Levels, SeededRandom, Spread, Truth, TwoSidedNoise, draw_noise
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.planned_noise import noise_for
from fleetcount_mechanisms.planning import spread_for_mean, spread_for_quantiles
from fleetcount_protocol.window.domain import Bins, Categories, Cross, Numbers, Part, SquareGrid, value_of

LEVEL = Fraction(95, 100)
KMH = Fraction(18, 5)
START, END, QUARTER = 600, 4201, 900
ROADS = Categories(names=("1 lane", "2 lanes", "3 lanes or more"))
SQUARES = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(550), columns=4, rows=4)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A vehicle where it was first seen: x and y in metres, its speed in km/h, its road, "" inside a junction."""

    at: tuple[Fraction, Fraction]
    speed: Fraction
    road: str


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a release tells of so many vehicles, its interval, and the truth; None where there is no vehicle."""

    of: str
    vehicles: int
    estimate: float | None
    low: float
    high: float
    truth: float | None

    @property
    def inside(self) -> bool | None:
        """Whether the truth is inside the interval; None without a truth."""
        return None if self.truth is None else self.low <= self.truth <= self.high


def first_seen(start: int, end: int) -> list[Seen]:
    """Return every vehicle that was on the road from `start` to before `end`, in seconds, as it was first seen."""
    roads = {street.name: ROADS.names[min(street.lanes, 3) - 1] for street in bologna_streets()}
    found: dict[str, Seen] = {}
    with gzip.open(fleetcount_data.path("bologna/positions.csv.gz"), "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if start <= int(row["t"]) < end and row["vehicle"] not in found:
                at, speed = (Fraction(row["x"]), Fraction(row["y"])), KMH * Fraction(row["speed_mps"])
                found[row["vehicle"]] = Seen(at=at, speed=speed, road=roads.get(row["street"], ""))
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


def table(parts: tuple[Part, Part], values: Iterable[tuple[int, int]], source: SeededRandom) -> CrossCounts:
    """Return a release of two signals that every vehicle tells in one report, without margins; 0 is no value."""
    cross = Cross(parts=parts)
    design = direct(Spread.of_shares(Levels(cross.values), law=TwoSidedNoise))
    counts = WindowCounts(index=0, opens=0, unit=0, outputs=opened(design, map(cross.together, values), source))
    labels = [cross.label(value) for value in range(1, cross.values + 1)]
    released = question_table(design, LEVEL, labels, (), [counts], parts=names_of(cross))
    return CrossCounts.of("speeds", cross, released, [0])


def told(of: str, vehicles: int, found: Average, truth: Fraction | None, scale: int = 1) -> Told:
    """Return a mean, or with a scale of 100 a share in percent, beside the truth."""
    known = None if found.estimate is None else scale * found.estimate
    true = None if truth is None else float(scale * truth)
    return Told(of=of, vehicles=vehicles, estimate=known, low=scale * found.low, high=scale * found.high, truth=true)


def mean_by_road(source: SeededRandom) -> list[Told]:
    """Return the mean speed in km/h: of all by a number asked for its mean, and by road by a table, up to a bin."""
    morning = first_seen(START, END)
    found = number(morning, direct(spread_for_mean(33, TwoSidedNoise)), source).mean()
    rows = [told("all", len(morning), found, sum(one.speed for one in morning) / Fraction(len(morning)))]
    bins = Bins(edges=tuple(map(Fraction, range(0, 71, 2))), open_above=False, unit="km/h")
    parts = (Part(signal="Road.Lanes", domain=ROADS), Part(signal="Vehicle.Speed", domain=bins))
    values = [(ROADS.value_of(one.road), bins.value_of(one.speed)) for one in morning]
    crossed = table(parts, values, source)
    for place, road in enumerate(ROADS.names, 1):
        there = [one.speed for one, (on, speed) in zip(morning, values, strict=True) if on == place and speed]
        rows.append(told(road, len(there), crossed.mean(1, {0: place}), sum(there) / Fraction(len(there))))
    return rows


def median_by_time(source: SeededRandom) -> list[Told]:
    """Return the median speed in km/h of the hour and of each of its quarters, a release for each."""
    rows: list[Told] = []
    for start, end in [(START, END), *((start, start + QUARTER) for start in range(START, END - 1, QUARTER))]:
        vehicles = first_seen(start, end)
        found = number(vehicles, direct(spread_for_quantiles(64)), source).quantile(Fraction(1, 2))
        true = sorted(one.speed for one in vehicles)[ceil(len(vehicles) / 2) - 1]
        about = float(Fraction(found.estimate.removesuffix(" km/h")))
        name, ends = f"minutes {start // 60} to {end // 60}", {"low": found.low, "high": found.high}
        rows.append(Told(of=name, vehicles=len(vehicles), estimate=about, truth=float(true), **ends))
    return rows


def fast_by_square(source: SeededRandom) -> list[Told]:
    """Return the share in percent that drives at 50 km/h or more, by square of 550 m (column,row)."""
    morning = first_seen(START, END)
    halves = Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
    parts = (Part(signal="Vehicle.CurrentLocation", domain=SQUARES), Part(signal="Vehicle.Speed", domain=halves))
    values = [(SQUARES.value_of(one.at), halves.value_of(one.speed)) for one in morning]
    crossed, counts, rows = table(parts, values, source), Counter(values), list[Told]()
    for place in range(1, SQUARES.values + 1):
        fast, there = counts[place, 2], counts[place, 1] + counts[place, 2]
        found = crossed.share({0: place, 1: 2}, {0: place})
        rows.append(told(SQUARES.label(place), there, found, Fraction(fast, there) if there else None, 100))
    return rows


if __name__ == "__main__":
    source, inside = SeededRandom(int(sys.argv[1]) if len(sys.argv) > 1 else 1), list[bool]()
    print(f"{len(first_seen(START, END)):,} vehicles, each as it was first seen; 95 % intervals, and the truth")
    for title, unit, rows in (
        ("mean speed by lanes of the road in this direction", "km/h", mean_by_road(source)),
        ("median speed of the hour and by quarter", "km/h", median_by_time(source)),
        ("share at 50 km/h or more by square of 550 m (column,row)", "%", fast_by_square(source)),
    ):
        print(title)
        for row in rows:
            true = "none" if row.truth is None else f"{row.truth:.1f}"
            low, high = rounded(row.low, 1, ROUND_FLOOR), rounded(row.high, 1, ROUND_CEILING)
            print(f"  {row.of:<17}{row.vehicles:>5,} vehicles{low:>8} to {high:>5} {unit:<5}{true:>8}")
        inside += [row.inside for row in rows if row.inside is not None]
    print(f"{sum(inside)} of {len(inside)} truths are inside their intervals, each of 95 %")
