"""Populations: devices and their truths, built from the tables `[population]` and `[question]` of a scenario.

Call `build`. Each kind is one module with its keys (`Keys`), a line about it (`ABOUT`), the kinds of cells it can be
asked for (`CELLS`) and `build(keys, question, folder, seed)`. A population is a function of its tables, its files and
its seed: the same in every process. It knows no mechanism, and no coin, share or noise ever comes from its seed.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fleetcount_transport.settings import Key, read_table, refused_by
from fleetcount_transport.settings import keys_of as keys_of_settings
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population

__all__ = ["KINDS", "KIND_KEY", "about", "build", "cells_of", "keys_of"]

KINDS: Final = ("counts", "city", "mobility", "bologna", "trace", "fcd", "sumo", "gowalla", "categories", "readings")
"""Every kind; the module of the same name is imported on first use."""
KIND_KEY: Final = Key(name="kind", about="which population: see the kinds", example='"mobility"')


def _module(kind: str) -> ModuleType:
    return import_module(f"{__name__}.{kind}")


def about(kind: str) -> str:
    """Return one line about a kind."""
    text: str = _module(kind).ABOUT
    return text


def keys_of(kind: str) -> tuple[Key, ...]:
    """Return the keys of a kind's `[population]` table."""
    return KIND_KEY, *keys_of_settings(_module(kind).Keys)


def cells_of(kind: str) -> tuple[str, ...]:
    """Return the kinds of cells that a kind of population can be asked for."""
    cells: tuple[str, ...] = _module(kind).CELLS
    return cells


def build(population: Mapping[str, Any], question: Mapping[str, Any], seed: int, folder: Path) -> Population:
    """Return the population of two tables; relative file names are taken from `folder`, `seed` is not negative.

    Numbers are those of the scenario reader: int, `Decimal`, or text like "1/20"; never float.

    Raises:
        ScenarioError: an unknown kind or key (with the nearest known), a value outside its range, a file that cannot be
            used; the message starts with the dotted key, or names the file and the line.
    """
    kind = population.get("kind")
    if kind is None:
        raise ScenarioError(f"population.kind is missing; it must be one of {', '.join(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ScenarioError(f"population.kind is {shown(kind)}; {nearest(str(kind), KINDS)}")
    if isinstance(seed, bool) or seed < 0:
        raise ScenarioError(f"seed is {shown(seed)}; it must not be negative")
    table, module = Settings("population", population, keys_of(kind), folder), _module(kind)
    with refused_by(table):
        made: Population = module.build(read_table(table, module.Keys), question, folder, seed)
    return made
