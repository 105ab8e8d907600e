"""Drill-downs drawn many times over known places or codes: which are found, at a threshold, noise and levels.

The rule of survivors is the protocol's; coins and noises come from a seeded generator, which gives no privacy.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import PLACE_BITS
from numpy.typing import NDArray

from fleetcount_simulator.engines.noise_sums import summed_noise
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnWalks:
    """What the walks found, each walk one drill-down. Shapes are (places,) but for `others` and `asked`, (walks,).

    `places` are those with devices, or the codes that they tell, prefixes of the last level, ascending, with their
    `devices`; `found` is the share of the walks that found each. `others` counts the empty places that a walk found,
    `asked` the candidates of all its steps.
    """

    places: Integers = field(repr=False)
    devices: Integers = field(repr=False)
    found: NDArray[np.float64] = field(repr=False)
    others: Integers = field(repr=False)
    asked: Integers = field(repr=False)

    def share_found(self, least: int) -> float:
        """Return the mean share of the places of `least` devices or more that a walk finds, 0 where there is none."""
        heavy = self.devices >= least
        return float(self.found[heavy].mean()) if heavy.any() else 0.0


def told_codes(
    vehicles: Iterable[Collection[str]], codes: Codes, generator: np.random.Generator
) -> tuple[Counter[int], Counter[int]]:
    """Return how many vehicles tell each code in one walk, and how many have it; codes are their numbers.

    A vehicle with several tells one, each with the same chance; what is no code of the form is none.
    """
    told, had = Counter[int](), Counter[int]()
    for texts in vehicles:
        numbers = sorted({number for text in texts if (number := codes.number_of(text)) is not None})
        had.update(numbers)
        if numbers:
            told[numbers[generator.integers(len(numbers))]] += 1
    return told, had


def draw_walks(
    design: Design,
    walk: DrillDown,
    places: Mapping[int, int],
    walks: int,
    generator: np.random.Generator,
    codes: Codes | None = None,
) -> DrawnWalks:
    """Return what a number of walks find; `places` gives the devices at each place, a whole number below 2^32.

    With `codes` it gives the devices that tell each code, by its number. Devices toss a new coin at every level and do
    not move. Places that share the bits of the last level count as one.

    Raises:
        ScenarioError: the design is neither direct nor sampling, a place is out of range, or there is no walk.
    """
    if design.outputs is not Outputs.CELLS:
        raise ScenarioError(f"the design is {design.name}, allowed: direct or sampling")
    width = PLACE_BITS if codes is None else codes.bits
    if walks < 1 or not all(0 <= place < 1 << width for place in places):
        raise ScenarioError(f"{walks} walks over places, allowed: at least 1, over whole numbers below 2**{width}")
    if walk.levels[-1] > width:
        raise ScenarioError(f"the last level has {walk.levels[-1]} bits, allowed: at most {width}")
    levels = [_prefixes(places, bits, width) for bits in walk.levels]
    known, devices = levels[-1]
    found, others, asked = np.zeros(known.size, dtype=np.int64), [], []
    for _ in range(walks):
        cells, candidates = _walked(design, walk, levels, codes, generator)
        hit = np.isin(known, cells)
        found += hit
        others.append(cells.size - int(hit.sum()))
        asked.append(candidates)
    return DrawnWalks(
        places=known,
        devices=devices,
        found=found / walks,
        others=np.array(others, dtype=np.int64),
        asked=np.array(asked, dtype=np.int64),
    )


def _prefixes(places: Mapping[int, int], bits: int, width: int) -> tuple[Integers, Integers]:
    """Return the prefixes that have devices, ascending, and the number of devices of each."""
    prefixes = np.array(sorted(places), dtype=np.int64) >> width - bits
    known, which = np.unique(prefixes, return_inverse=True)
    devices = np.zeros(known.size, dtype=np.int64)
    np.add.at(devices, which, [places[place] for place in sorted(places)])
    return known, devices


def _walked(
    design: Design,
    walk: DrillDown,
    levels: list[tuple[Integers, Integers]],
    codes: Codes | None,
    generator: np.random.Generator,
) -> tuple[Integers, int]:
    """Return the places that one walk finds, and the number of candidates it asked about."""
    cells, asked = _some_begin(np.arange(1 << walk.levels[0], dtype=np.int64), walk.levels[0], codes), 0
    for step, (known, devices) in enumerate(levels):
        asked += cells.size
        estimates = _estimates(design, _counts(cells, known, devices), generator)
        busy = np.flatnonzero(estimates >= walk.threshold)
        if step + 1 == len(levels):
            return cells[busy], asked
        # The busiest first, of equally busy ones the smaller cell: the sort is stable and `cells` ascend.
        kept = busy[np.argsort(-estimates[busy], kind="stable")[: walk.most_survivors]]
        deeper = walk.levels[step + 1] - walk.levels[step]
        survivors = np.sort(cells[kept])
        children = ((survivors << deeper)[:, None] + np.arange(1 << deeper)).ravel()
        cells = _some_begin(children, walk.levels[step + 1], codes)
    return cells, asked


def _some_begin(cells: Integers, bits: int, codes: Codes | None) -> Integers:
    """Return the cells with which a place or a code begins; every place and every trouble code does with any."""
    if codes is None or codes.form is not CodeForm.TEXT:
        return cells
    return cells[[codes.begins(cell, bits) for cell in cells.tolist()]]


def _counts(cells: Integers, known: Integers, devices: Integers) -> Integers:
    if known.size == 0:
        return np.zeros(cells.size, dtype=np.int64)
    places = np.minimum(np.searchsorted(known, cells), known.size - 1)
    return np.where(known[places] == cells, devices[places], 0)


def _estimates(design: Design, counts: Integers, generator: np.random.Generator) -> NDArray[np.float64]:
    rate = float(design.exposure)
    sampled = counts if rate == 1 else generator.binomial(counts, rate)
    return np.asarray((sampled + summed_noise(design.noise, design.aggregators, counts.size, generator)) / rate)
