"""Drill-downs drawn many times over known places: which of them are found, at a threshold, noise and levels.

The rule of survivors is the protocol's; coins and noises come from a seeded generator, which gives no privacy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.window.domain import PLACE_BITS
from numpy.typing import NDArray

from fleetcount_simulator.engines.noise_sums import summed_noise
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnWalks:
    """What the walks found, each walk one drill-down. Shapes are (places,) but for `others` and `asked`, (walks,).

    `places` are those with devices, prefixes of the last level, ascending, with their `devices`; `found` is the share
    of the walks that found each. `others` counts the empty places that a walk found, `asked` the candidates of all its
    steps.
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


def draw_walks(
    design: Design, walk: DrillDown, places: Mapping[int, int], walks: int, generator: np.random.Generator
) -> DrawnWalks:
    """Return what a number of walks find; `places` gives the devices at each place, a whole number below 2^32.

    Devices toss a new coin at every level and do not move. Places that share the bits of the last level count as one.

    Raises:
        ScenarioError: the design is neither direct nor sampling, a place is out of range, or there is no walk.
    """
    if design.outputs is not Outputs.CELLS:
        raise ScenarioError(f"the design is {design.name}, allowed: direct or sampling")
    if walks < 1 or not all(0 <= place < 1 << PLACE_BITS for place in places):
        raise ScenarioError(f"{walks} walks over places, allowed: at least 1, over whole numbers below 2**{PLACE_BITS}")
    levels = [_prefixes(places, bits) for bits in walk.levels]
    known, devices = levels[-1]
    found, others, asked = np.zeros(known.size, dtype=np.int64), [], []
    for _ in range(walks):
        cells, candidates = _walked(design, walk, levels, generator)
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


def _prefixes(places: Mapping[int, int], bits: int) -> tuple[Integers, Integers]:
    """Return the prefixes that have devices, ascending, and the number of devices of each."""
    prefixes = np.array(sorted(places), dtype=np.int64) >> PLACE_BITS - bits
    known, which = np.unique(prefixes, return_inverse=True)
    devices = np.zeros(known.size, dtype=np.int64)
    np.add.at(devices, which, [places[place] for place in sorted(places)])
    return known, devices


def _walked(
    design: Design, walk: DrillDown, levels: list[tuple[Integers, Integers]], generator: np.random.Generator
) -> tuple[Integers, int]:
    """Return the places that one walk finds, and the number of candidates it asked about."""
    cells, asked = np.arange(1 << walk.levels[0], dtype=np.int64), 0
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
        cells = ((survivors << deeper)[:, None] + np.arange(1 << deeper)).ravel()
    return cells, asked


def _counts(cells: Integers, known: Integers, devices: Integers) -> Integers:
    if known.size == 0:
        return np.zeros(cells.size, dtype=np.int64)
    places = np.minimum(np.searchsorted(known, cells), known.size - 1)
    return np.where(known[places] == cells, devices[places], 0)


def _estimates(design: Design, counts: Integers, generator: np.random.Generator) -> NDArray[np.float64]:
    rate = float(design.exposure)
    sampled = counts if rate == 1 else generator.binomial(counts, rate)
    return np.asarray((sampled + summed_noise(design.noise, design.aggregators, counts.size, generator)) / rate)
