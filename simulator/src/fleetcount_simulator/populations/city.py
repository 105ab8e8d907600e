"""Kind `city`: a made city whose counts follow a law: Zipf, uniform, hot spots or a given list.

Any number of devices up to 10^12: only counts are held. The counts are the expected ones, rounded by largest remainder;
the seed decides which cell is how busy. It must not read data.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import numpy as np
from fleetcount_transport.toml_values import Range

from fleetcount_simulator.cells import CellSpec, declare, read
from fleetcount_simulator.cells.model import MAX_CELLS, Floats, Frame
from fleetcount_simulator.cells.named import declared_names, question_of
from fleetcount_simulator.cells.settings import Key, Settings
from fleetcount_simulator.model import AnswerSpace, Population
from fleetcount_simulator.populations.fixed import MAX_DEVICES, FixedPopulation, shared_out

ABOUT: Final = "a made city: any number of devices over cells by a law (zipf, uniform, normal, list)"
CELLS: Final = ("square", "h3", "edges", "categories", "none")
KEYS: Final = (
    Key(name="devices", about="how many devices, 2 to 10^12", example="1000000000"),
    Key(name="values", about='cells = "none" only: how many values there are, 1 to 100000', example="5835"),
    Key(
        name="shape",
        about='"zipf" (default; the r-th busiest like 1/r^exponent), "uniform", "normal" (hot spots), "list" (weights)',
        example='"zipf"',
    ),
    Key(name="exponent", about="zipf: the exponent, above 0 to 10; default 1", example="1.2"),
    Key(name="hot_spots", about="normal: how many hot spots, 1 to 1000, the r-th like 1/r; default 5", example="3"),
    Key(name="spread", about="normal: width of a hot spot as a share of the city's; default 0.1", example="0.2"),
    Key(name="weights", about="list: one weight a value, in their order", example="[5, 3, 1, 1]"),
    Key(name="elsewhere", about="share of the devices without a value, 0 to 1; default 0", example='"1/4"'),
)
_RANKS: Final = 2
"""Spawn key of the draw of ranks and hot spots under a population's seed."""
_OWN: Final = {"exponent": "zipf", "hot_spots": "normal", "spread": "normal", "weights": "list"}


def build(settings: Settings, question: Mapping[str, Any], seed: int) -> Population:
    """Return a made city.

    Raises:
        ScenarioError: a key that cannot be used; with the dotted key.
    """
    devices = settings.integer("devices", 2, MAX_DEVICES)
    asked = read(question, settings.folder, CELLS, default="none", title="In which cell are you?")
    made = _question(settings, asked)
    weights = _weights(settings, made, seed)
    elsewhere = settings.number("elsewhere", Range("[0, 1]"), Fraction(0))
    outside = round(elsewhere * devices)
    counts = shared_out(weights, devices - outside)
    return FixedPopulation(question=made, counts=np.concatenate([[np.int64(outside)], counts]))


def _question(settings: Settings, asked: CellSpec) -> AnswerSpace:
    if settings.has("values") and asked.kind != "none":
        raise settings.wrong("values", "is for cells = 'none'; these cells bring their own number")
    if asked.kind == "none":
        values = settings.integer("values", 1, MAX_CELLS)
        return question_of(asked.title, [str(value) for value in range(1, values + 1)])
    if asked.kind == "categories":
        names = declared_names(asked.settings)
        if names is None:
            raise asked.settings.refuse("values", "a list of names: a made city has no others")
        return question_of(asked.title, names)
    needed = "network" if asked.kind == "edges" else "bounds"
    if not asked.settings.has(needed):
        raise asked.settings.refuse(needed, "given: a made city has no data to take it from")
    frame = Frame(unit="deg" if asked.kind == "h3" else "m", edges=True)
    return declare(asked, frame).close(np.empty(0, dtype=np.int64)).question


def _weights(settings: Settings, question: AnswerSpace, seed: int) -> list[Fraction] | list[int]:
    shape = settings.choice("shape", ("zipf", "uniform", "normal", "list"), "zipf")
    for key, owner in _OWN.items():
        if settings.has(key) and owner != shape:
            raise settings.wrong(key, f"is for shape = {owner!r}; the shape is {shape!r}")
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_RANKS,)))
    if shape == "uniform":
        return [1] * question.values
    if shape == "list":
        weights = settings.numbers("weights", (question.values, question.values), Range("[0, 1000000000000]"))
        if weights is None or not any(weights):
            raise settings.refuse("weights", f"a list of {question.values} weights, not all 0")
        return list(weights)
    if shape == "zipf":
        exponent = float(settings.number("exponent", Range("(0, 10]"), Fraction(1)))
        ranks = np.arange(1, question.values + 1)
        if question.places is not None:
            ranks = generator.permutation(ranks)
        return _whole(ranks.astype(np.float64) ** -exponent)
    spots = settings.integer("hot_spots", 1, 1000, 5)
    spread = float(settings.number("spread", Range("(0, 10]"), Fraction(1, 10)))
    return _whole(_hot_spots(_centres(question), spots, spread, generator))


def _whole(weights: Floats) -> list[int]:
    """Return weights as integers of 50 bits, so that shares are exact; none becomes 0."""
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
