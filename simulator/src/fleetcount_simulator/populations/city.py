"""Kind `city`: a synthetic city whose counts follow a law: Zipf, uniform, hot spots or a given list.

Up to 10^12 devices: only counts are stored. The counts are the expected ones, rounded by largest remainder; the seed
decides which cells are busy. It must not read data.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range

from fleetcount_simulator.cells import CellSpec, declare, read
from fleetcount_simulator.cells.model import MAX_CELLS, Floats, Frame
from fleetcount_simulator.cells.named import declared_names, question_of
from fleetcount_simulator.cells.settings import MAX_LIST, SHARE, Settings
from fleetcount_simulator.model import AnswerSpace, Population
from fleetcount_simulator.populations.fixed import MAX_DEVICES, FixedPopulation, shared_out

ABOUT: Final = "a synthetic city: any number of devices over cells by a law (zipf, uniform, normal, list)"
CELLS: Final = ("square", "h3", "edges", "categories", "none")
_TO_TEN: Final = Range("(0, 10]")
_WEIGHT: Final = Range("[0, 1000000000000]")
_RANKS: Final = 2
"""Spawn key of the draw of ranks and hot spots under a population's seed."""
_OWN: Final = {"exponent": "zipf", "hot_spots": "normal", "spread": "normal", "weights": "list"}


@settings
class Keys:
    """[population] of kind `city`; a key of another shape than `shape` is refused."""

    devices: int = setting(Table.integer, 2, MAX_DEVICES, about="how many devices, 2 to 10^12", example="1000000000")
    values: int | None = setting(
        Table.integer,
        1,
        MAX_CELLS,
        default=None,
        about='cells = "none" only: how many values, 1 to 100000',
        example="5835",
    )
    shape: str = setting(
        Table.choice,
        ("zipf", "uniform", "normal", "list"),
        default="zipf",
        about='"zipf" (default; the r-th busiest like 1/r^exponent), "uniform", "normal" (hot spots), "list" (weights)',
        example='"zipf"',
    )
    exponent: Fraction | None = setting(
        Table.number, _TO_TEN, default=None, about="zipf: the exponent, above 0 to 10; default 1", example="1.2"
    )
    hot_spots: int | None = setting(
        Table.integer,
        1,
        1000,
        default=None,
        about="normal: 1 to 1000 hot spots, the r-th like 1/r; default 5",
        example="3",
    )
    spread: Fraction | None = setting(
        Table.number,
        _TO_TEN,
        default=None,
        about="normal: width of a hot spot as a share of the city's; default 0.1",
        example="0.2",
    )
    weights: tuple[Fraction, ...] | None = setting(
        Settings.numbers,
        (1, MAX_LIST),
        _WEIGHT,
        default=None,
        about="list: a weight per value, in order",
        example="[5, 3, 1, 1]",
    )
    elsewhere: Fraction = setting(
        Table.number,
        SHARE,
        default=Fraction(0),
        about="share without a value, 0 to 1; default 0",
        example='"1/4"',
    )

    def __post_init__(self) -> None:
        for key, owner in _OWN.items():
            if getattr(self, key) is not None and owner != self.shape:
                raise UnfitKeyError(key, problem=f"is for shape = {owner!r}; the shape is {self.shape!r}")


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return a synthetic city.

    Raises:
        ScenarioError: a key that cannot be used; with the dotted key.
    """
    asked = read(question, folder, CELLS, default="none", title="In which cell are you?")
    made = _question(keys, asked)
    outside = round(keys.elsewhere * keys.devices)
    counts = shared_out(_weights(keys, made, seed), keys.devices - outside)
    return FixedPopulation(question=made, counts=np.concatenate([[np.int64(outside)], counts]))


def _question(keys: Keys, asked: CellSpec) -> AnswerSpace:
    if keys.values is not None and asked.kind != "none":
        raise UnfitKeyError("values", problem="is for cells = 'none'; these cells decide the number")
    if asked.kind == "none":
        if keys.values is None:
            raise UnfitKeyError("values", allowed=f"a whole number from 1 to {MAX_CELLS}")
        return question_of(asked.title, [str(value) for value in range(1, keys.values + 1)])
    if asked.kind == "categories":
        names = declared_names(asked.settings)
        if names is None:
            raise asked.settings.refuse("values", "a list of names: a synthetic city has no others")
        return question_of(asked.title, names)
    needed = "network" if asked.kind == "edges" else "bounds"
    if not asked.settings.has(needed):
        raise asked.settings.refuse(needed, "given: a synthetic city has no data that decide it")
    frame = Frame(unit="deg" if asked.kind == "h3" else "m", edges=True)
    return declare(asked, frame).close(np.empty(0, dtype=np.int64)).question


def _weights(keys: Keys, question: AnswerSpace, seed: int) -> list[Fraction] | list[int]:
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_RANKS,)))
    if keys.shape == "uniform":
        return [1] * question.values
    if keys.shape == "list":
        weights = keys.weights or ()
        if weights and len(weights) != question.values:
            allowed = f"allowed is a list of {question.values} numbers"
            raise UnfitKeyError("weights", problem=f"holds {len(weights)} entries; {allowed}")
        if not any(weights):
            raise UnfitKeyError("weights", allowed=f"a list of {question.values} weights, not all 0")
        return list(weights)
    if keys.shape == "zipf":
        exponent = float(keys.exponent or 1)
        ranks = np.arange(1, question.values + 1)
        if question.places is not None:
            ranks = generator.permutation(ranks)
        return _whole(ranks.astype(np.float64) ** -exponent)
    spread = float(keys.spread or Fraction(1, 10))
    return _whole(_hot_spots(_centres(question), keys.hot_spots or 5, spread, generator))


def _whole(weights: Floats) -> list[int]:
    """Return weights as integers of 50 bits, at least 1, so that shares are exact."""
    scaled: list[float] = (weights / weights.max()).tolist()
    return [max(1, int(weight * 2**50)) for weight in scaled]


def _centres(question: AnswerSpace) -> Floats:
    """Return shape (V, 2): where the values lie, in units of the city's longer side."""
    if question.places is None:
        centres = np.column_stack([np.arange(question.values, dtype=np.float64), np.zeros(question.values)])
    else:
        centres = np.array([np.mean(outline, axis=0) for outline in question.places.outlines])
        if question.places.unit == "deg":
            centres[:, 0] *= math.cos(math.radians(float(centres[:, 1].mean())))
    centres -= centres.min(axis=0)
    return centres / max(float(centres.max()), 1e-9)


def _hot_spots(centres: Floats, spots: int, spread: float, generator: np.random.Generator) -> Floats:
    middles = generator.random((spots, 2)) * centres.max(axis=0)
    weights = np.zeros(len(centres))
    for rank, middle in enumerate(middles, start=1):
        weights += np.exp(-((centres - middle) ** 2).sum(axis=1) / (2 * spread**2)) / rank
    return np.maximum(weights, 1e-300)
