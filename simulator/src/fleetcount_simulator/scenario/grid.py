"""From one scenario document with lists to the ordered points of its grid, each a document of single values.

A list where a single value is expected is an axis; `[sweep]` names further axes by dotted key. This module does not
know what a key means, only which keys are lists by nature.
"""

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.scenario.source import ScenarioSource

MAX_CASES: Final = 1000
SECTIONS: Final = (
    "population",
    "question",
    "mechanism",
    "aggregators",
    "faults",
    "attacker",
    "epochs",
    "schedule",
    "metrics",
)
"""Sections whose keys may be swept."""
LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "population": ("weights", "rush_hours", "free_days"),
    "mechanism": ("protects",),
    "question": ("values", "bins_kmh", "bounds", "origin", "of"),
    "faults": ("outage",),
    "schedule": ("outages",),
}
"""Keys whose value is a list by nature; everywhere else a list is an axis."""
_TABLES: Final = ("population", "question", "aggregators", "faults", "epochs", "schedule", "metrics")
_Path = tuple[str | int, ...]
_Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis: the dotted key that names it, the places it sets, and its values as the file gives them."""

    label: str
    targets: tuple[_Path, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridPoint:
    """One case: its number, the axes' values as text, and the document with one value a key and one mechanism."""

    index: int
    values: Mapping[str, str]
    document: _Document
    mechanism: int


def grid_of(document: _Document, source: ScenarioSource) -> list[GridPoint]:
    """Return the points: shared axes outermost, then the mechanisms in the file's order, then each one's own axes.

    Raises:
        ScenarioError: an axis that is empty, holds a table, a list or a value twice; a sweep of an unknown or given
            key; more than 1,000 points.
    """
    mechanisms = _tables_of(document, "mechanism", source)
    shared, own = _axes_of(document, len(mechanisms), source)
    count = math.prod(len(axis.values) for axis in shared) * sum(
        math.prod(len(axis.values) for axis in axes) for axes in own
    )
    if count > MAX_CASES:
        raise source.refuse("sweep", f"and lists make {count} cases; at most {MAX_CASES} are run, take fewer values")
    plain = {key: value for key, value in document.items() if key != "sweep"}
    return [
        GridPoint(index=index, values=values, document=changed, mechanism=position)
        for index, (values, changed, position) in enumerate(_points(plain, shared, own))
    ]


def _points(
    plain: _Document, shared: Sequence[Axis], own: Sequence[Sequence[Axis]]
) -> Iterator[tuple[dict[str, str], _Document, int]]:
    for outer in itertools.product(*(axis.values for axis in shared)):
        for position, axes in enumerate(own):
            for inner in itertools.product(*(axis.values for axis in axes)):
                pairs = list(zip((*shared, *axes), (*outer, *inner), strict=True))
                changed = copy.deepcopy(dict(plain))
                for axis, value in pairs:
                    _set(changed, axis, value)
                yield {axis.label: _text(value) for axis, value in pairs}, changed, position


def _set(document: dict[str, Any], axis: Axis, value: object) -> None:
    for target in axis.targets:
        place: Any = document
        for step in target[:-1]:
            place = place[step] if isinstance(step, int) else place.setdefault(step, {})
        place[target[-1]] = value


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


# Finding the axes.


def _axes_of(document: _Document, mechanisms: int, source: ScenarioSource) -> tuple[list[Axis], list[list[Axis]]]:
    """Return the axes all mechanisms share, and those of each mechanism."""
    shared: list[Axis] = []
    own: list[list[Axis]] = [[] for _ in range(mechanisms)]
    for name in _TABLES:
        shared += _lists_of(document.get(name), (name,), name, source)
    for place, table in enumerate(_tables_of(document, "mechanism", source)):
        own[place] += _lists_of(table, ("mechanism", place), "mechanism", source)
    for place, table in enumerate(_tables_of(document, "attacker", source)):
        label = f"attacker.{_name_of(table)}"
        shared += _lists_of(table, ("attacker", place), label, source)
    for key, values in _flat(document.get("sweep", {}), source):
        _add_swept(document, key, values, shared, own, source)
    labels = [axis.label for axis in shared]
    for label in labels:
        if labels.count(label) > 1:
            raise source.refuse(label, "is swept twice; give attackers names of their own")
    return shared, own


def _lists_of(table: object, path: _Path, label: str, source: ScenarioSource) -> Iterator[Axis]:
    if not isinstance(table, dict):
        return
    by_nature = LIST_KEYS.get(str(path[0]), ())
    for key, value in cast("dict[str, object]", table).items():
        if isinstance(value, list) and key not in by_nature:
            values = _checked(cast("list[object]", value), _dotted((*path, key)), source)
            yield Axis(label=f"{label}.{key}", targets=((*path, key),), values=values)


def _checked(values: list[object], path: str, source: ScenarioSource) -> tuple[object, ...]:
    if not values:
        raise source.refuse(path, "is an empty list; a sweep needs at least one value")
    for value in values:
        if not isinstance(value, bool | int | Decimal | str):
            raise source.refuse(path, f"has {shown(value)} in its list; a sweep takes numbers, texts, true and false")
    texts = [_text(value) for value in values]
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise source.refuse(path, f"has {shown(twice)} twice in its list")
    return tuple(values)


def _flat(table: object, source: ScenarioSource, prefix: str = "") -> Iterator[tuple[str, list[object]]]:
    """Yield (dotted key, list) of the sweep section, quoted or nested."""
    if not isinstance(table, dict):
        raise source.refuse("sweep", f"is {shown(table)}; allowed is a table of lists")
    for key, value in cast("dict[str, object]", table).items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(cast("object", value), source, f"{dotted}.")
        elif isinstance(value, list):
            yield dotted, cast("list[object]", value)
        else:
            raise source.refuse(f"sweep.{dotted}", f"is {shown(value)}; allowed is a list of values")


def _add_swept(
    document: _Document,
    key: str,
    values: list[object],
    shared: list[Axis],
    own: list[list[Axis]],
    source: ScenarioSource,
) -> None:
    """Add the axis of a dotted key of [sweep] to `shared`, or to `own` of the mechanisms it names."""
    path = f"sweep.{key}"
    section, _, rest = key.partition(".")
    if section not in SECTIONS or not rest:
        raise source.refuse(path, f"names no key of a section; {nearest(section, SECTIONS)}")
    chosen = _checked(values, path, source)
    targets = _targets(document, section, rest, path, source)
    for target in targets:
        table: Any = document
        for step in target[:-1]:
            table = table[step] if isinstance(step, int) else table.get(step, {})
        if isinstance(table, dict) and target[-1] in table:
            raise source.refuse(path, f"is given by {_dotted(target)} already; keep one of the two")
    if section != "mechanism":
        shared.append(Axis(label=key, targets=targets, values=chosen))
        return
    for target in targets:
        place = cast("int", target[1])
        own[place].append(Axis(label=f"mechanism.{target[-1]}", targets=(target,), values=chosen))


def _targets(document: _Document, section: str, rest: str, path: str, source: ScenarioSource) -> tuple[_Path, ...]:
    """Return the paths that a dotted key sets: of every mechanism or attacker, or of the one it names."""
    if section not in {"mechanism", "attacker"}:
        if "." in rest:
            raise source.refuse(path, f"has too many points; allowed is {section}.KEY")
        return ((section, rest),)
    name, _, key = rest.rpartition(".")
    tables = _tables_of(document, section, source)
    places = [place for place, table in enumerate(tables) if not name or _name_of(table) == name]
    if not places:
        raise source.refuse(path, f"names no {section}; {nearest(name, [_name_of(table) for table in tables])}")
    return tuple((section, place, key) for place in places)


def _tables_of(document: _Document, key: str, source: ScenarioSource) -> list[Mapping[str, Any]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in cast("list[object]", rows)):
        raise source.refuse(key, f"must be one or more tables, [[{key}]] each")
    return cast("list[Mapping[str, Any]]", rows)


def _name_of(table: Mapping[str, Any]) -> str:
    return str(table.get("name", table.get("kind", "")))


def _dotted(path: _Path) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
