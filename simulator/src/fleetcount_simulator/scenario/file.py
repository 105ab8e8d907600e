"""The strict reader of scenario files (TOML): from bytes to a `Scenario`, or a refusal that names file, line and key.

It makes no population and starts nothing. It refuses what it does not know and guesses nothing. docs/simulating.md
explains every key.
"""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, cast, get_args

from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, MOST_AGGREGATORS
from fleetcount_transport.settings import read_settings, read_table, setting, settings
from fleetcount_transport.toml_table import Table, parse_toml
from fleetcount_transport.toml_values import Range, shown

from fleetcount_simulator import attackers, faults
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, EngineName, Epochs, Faults
from fleetcount_simulator.scenario.grid import GridPoint, grid_of
from fleetcount_simulator.scenario.mechanisms import (
    AskedMechanism,
    mechanism_keys,
    mechanism_kinds,
    read_mechanism,
)
from fleetcount_simulator.scenario.plan import CasePlan, PopulationMaker, Scenario
from fleetcount_simulator.scenario.source import ScenarioSource
from fleetcount_simulator.scenario.standing import read_epochs

MAX_BYTES: Final = 2**20
MAX_RELEASES: Final = 2_000_000
"""Runs times epochs times cases of one study."""
MAX_RUNS: Final = 1_000_000
_TOP: Final = ("name", "title", "seed", "runs", "engine")
_TABLES: Final = ("population", "question", "aggregators", "faults", "epochs", "schedule", "metrics", "sweep")
_KNOWN: Final = (*_TOP, *_TABLES, "mechanism", "attacker")
_ENGINES: Final = get_args(EngineName)
_ATTACKERS: Final = get_args(Attacker.__annotations__["kind"])
_ASKS_AGAIN: Final = "repeating-analyst"
_TRACKS: Final = "tracker"
_LEVEL: Final = Range("[1/2, 999999/1000000]")


@settings
class StudyTable:
    """The keys before the first table of a scenario; `title` is by default the name."""

    name: str = setting(Table.slug)
    title: str | None = setting(Table.printable, 200, default=None)
    seed: int = setting(Table.integer, 0, 2**64 - 1, default=1)
    runs: int = setting(Table.integer, 1, MAX_RUNS, default=1)
    engine: str = setting(Table.choice, _ENGINES, default="exact-law")


@settings
class AggregatorsTable:
    """[aggregators]: how many there are, and the fewest devices whose count they release."""

    count: int = setting(Table.integer, FEWEST_AGGREGATORS, MOST_AGGREGATORS, default=2)
    min_batch_size: int = setting(Table.integer, 2, 10**12, default=10)


@settings
class MetricsTable:
    """[metrics]: the level of intervals, and whether every cell is kept beside the summary."""

    level: Fraction = setting(Table.number, _LEVEL, default=Fraction(95, 100))
    keep_cells: bool = setting(Table.boolean, default=True)


def read_scenario(path: Path, make_population: PopulationMaker, seed: int | None = None) -> Scenario:
    """Return the scenario of a file; relative paths in it count from its folder, `seed` replaces its own.

    Raises:
        ScenarioError: it cannot be read, is too large or not UTF-8 text, or `parse_scenario` refuses it.
    """
    if path.is_dir():
        raise ScenarioError(f"{shown(path.name)} is a directory, not a scenario file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ScenarioError(f"{shown(path.name)} cannot be read: {reason}") from error
    if not 1 <= len(content) <= MAX_BYTES:
        size = "is empty" if not content else f"has more than {MAX_BYTES} bytes"
        raise ScenarioError(f"{shown(path.name)} {size}; it must have 1 to {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{shown(path.name)} is not UTF-8 text (byte {error.start})") from error
    return parse_scenario(text, path.name, path.absolute().parent, make_population, seed)


def parse_scenario(
    text: str, name: str, folder: Path, make_population: PopulationMaker, seed: int | None = None
) -> Scenario:
    """Return the scenario of a text; `name` is the file's in messages, `folder` what relative paths count from.

    `seed`, when given, stands in place of the file's own.

    Raises:
        ScenarioError: not TOML, or anything unknown, missing or out of range; with file, line, key, value and what is
            allowed.
    """
    source = ScenarioSource(name, text)
    root = Table(source, "", _document(text, name), _KNOWN)
    study = read_table(root, StudyTable)
    _check_shapes(root)
    points = grid_of(root.content, source)
    if not points:
        raise root.wrong("mechanism", "is missing; give at least one [[mechanism]] table")
    plans = tuple(_plan(point, source) for point in points)
    _check_names([plan.mechanism.name for plan in plans], points, source)
    _check_work(plans, study.runs, source)
    return Scenario(
        file=name,
        name=study.name,
        title=study.name if study.title is None else study.title,
        seed=study.seed if seed is None else seed,
        runs=study.runs,
        engine=cast("EngineName", study.engine),
        plans=plans,
        axes=tuple(dict.fromkeys(label for plan in plans for label in plan.point)),
        text=text,
        source=source,
        folder=folder,
        make_population=make_population,
    )


def _document(text: str, name: str) -> dict[str, Any]:
    for unwanted, called in (("\0", "a NUL character"), ("\ufeff", "a byte-order mark")):
        if unwanted in text:
            raise ScenarioError(f"{name} holds {called} at position {text.index(unwanted)}")
    return parse_toml(text, name, ScenarioError, _decimal)


def _decimal(text: str) -> Decimal:
    """Return a TOML float as it is written; nan and inf stay what they are and are refused where they are read."""
    return Decimal(text.replace("_", ""))


def _check_shapes(root: Table) -> None:
    """Refuse sections of the wrong shape before the grid is made of them."""
    for key in _TABLES:
        if root.has(key):
            root.section(key, None)
    for key in ("population", "question"):
        if not root.has(key):
            raise root.wrong(key, f"is missing; give a [{key}] table")


def _check_names(names: list[str], points: list[GridPoint], source: ScenarioSource) -> None:
    """Refuse two mechanisms of one name."""
    owner: dict[str, int] = {}
    for name, point in zip(names, points, strict=True):
        if owner.setdefault(name, point.mechanism) != point.mechanism:
            other = f"the name of mechanism[{owner[name]}] too; give each its own"
            raise source.refuse(f"mechanism[{point.mechanism}].name", f"is {shown(name)}, {other}")


def _check_work(plans: tuple[CasePlan, ...], runs: int, source: ScenarioSource) -> None:
    releases = runs * sum(plan.epochs.count for plan in plans)
    if releases > MAX_RELEASES:
        problem = f"is {runs}: {len(plans)} cases with their epochs make {releases} releases; at most {MAX_RELEASES}"
        raise source.refuse("runs", problem)


def _plan(point: GridPoint, source: ScenarioSource) -> CasePlan:
    root = Table(source, "", point.document, None)
    aggregators = read_settings(root, "aggregators", AggregatorsTable)
    metrics = read_settings(root, "metrics", MetricsTable)
    asked = point.document["mechanism"][point.mechanism]
    epochs = read_epochs(root, tosses=asked.get("kind") == "sampling")
    return CasePlan(
        index=point.index,
        point=point.values,
        population=_own(root, "population"),
        question=_own(root, "question"),
        mechanism=_mechanism(point, source, epochs),
        aggregators=aggregators.count,
        min_batch_size=aggregators.min_batch_size,
        level=metrics.level,
        keep_cells=metrics.keep_cells,
        faults=_faults(root, aggregators.count, source),
        attackers=_attackers(root, is_question=epochs.question is not None),
        epochs=epochs,
    )


def _own(root: Table, key: str) -> Mapping[str, Any]:
    """Return a table that another module reads, after checking that `kind` (or `cells`) is a name."""
    table = root.section(key, None)
    name = "kind" if key == "population" else "cells"
    table.slug(name)
    return table.content


def _mechanism(point: GridPoint, source: ScenarioSource, epochs: Epochs) -> AskedMechanism:
    table = point.document["mechanism"][point.mechanism]
    known = ("name", "kind", *dict.fromkeys(key for kind in mechanism_kinds() for key in mechanism_keys(kind)))
    return read_mechanism(Table(source, f"mechanism[{point.mechanism}]", table, known), epochs.question)


def _faults(root: Table, aggregators: int, source: ScenarioSource) -> Faults:
    found = read_settings(root, "faults", Faults)
    for place, (aggregator, _, _) in enumerate(found.outage):
        if aggregator >= aggregators:
            row = root.section("faults", None).sections("outage", None, most=len(found.outage))[place]
            raise row.refuse("aggregator", f"a whole number from 0 to {aggregators - 1}")
    try:
        faults.check(found, aggregators)
    except ScenarioError as error:
        raise source.located(error) from error
    return found


def _attackers(root: Table, *, is_question: bool) -> tuple[Attacker, ...]:
    found: list[Attacker] = []
    for table in root.sections("attacker", None, most=16):
        kind = table.choice("kind", _ATTACKERS)
        if kind == (_ASKS_AGAIN if is_question else _TRACKS):
            asked = (
                "[epochs], whose questions are tossed for anew; a question has"
                if is_question
                else "[schedule]; [epochs] has"
            )
            raise table.wrong("kind", f"is {kind!r}, which needs {asked} {(_TRACKS if is_question else _ASKS_AGAIN)!r}")
        name = table.slug("name", kind)
        if name in {attacker.name for attacker in found}:
            raise table.wrong("name", f"is {shown(name)}, the name of another attacker; give each its own")
        own = tuple((key, _parameter(table, key)) for key in table.content if key not in {"kind", "name"})
        made = Attacker(name=name, kind=cast("Any", kind), parameters=own)
        table.naming(partial(attackers.check, made), "kind", ScenarioError)
        found.append(made)
    return tuple(found)


def _parameter(table: Table, key: str) -> str:
    """Return an attacker's own parameter as text: numbers as the file spells them, true and false."""
    value = table.raw(key)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    return table.printable(key, 200)
