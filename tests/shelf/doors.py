"""The doors through which a file of somebody else comes in, each as one function: the file, and what is asked of it.

A door gives a few plain numbers by which one sees that the file was read right. What it does not take it refuses with
an error of exit code 2, as the command that reads such a file does.
"""

import asyncio
import unicodedata
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount.command.base import ExitCode, describe
from fleetcount.command.options import read_text
from fleetcount.read.remap import read_prior
from fleetcount.read.table import cells_in_file
from fleetcount_analysis.answers.places import GridPlaces
from fleetcount_client.line_source import LineSource, LineValue
from fleetcount_client.signals import FileSource, SignalUnavailable, read_source
from fleetcount_evidence.microdata.table import ColumnRoles, MicrodataError, read_table
from fleetcount_protocol.errors import UsageError
from fleetcount_simulator.cells.road_network import read_network
from fleetcount_simulator.populations import build
from fleetcount_simulator.scenario.file import read_scenario
from fleetcount_simulator.study.registries import STANDARD
from fleetcount_simulator.truths import parse_truths
from fleetcount_transport.toml_table import read_toml

Asked = Mapping[str, Any]
Told = dict[str, Any]
SQUARES: Final = {"cells": "square", "size_m": 1000}


def _population(kind: str, question: Asked) -> Callable[[Path, Asked], Told]:
    def read(path: Path, asked: Asked) -> Told:
        keys = {"kind": kind, "file": path.name} | asked.get("population", {})
        made = build(keys, asked.get("question", question), 1, path.parent)
        first = made.histogram(0)
        largest = int(first[1:].argmax())
        return {
            "devices": made.devices,
            "values": made.question.values,
            "seen": [int(made.histogram(epoch)[1:].sum()) for epoch in range(min(3, made.epochs or 1))],
            "largest": [made.question.labels[largest], int(first[1 + largest])],
        }

    return read


def _network(path: Path, _: Asked) -> Told:
    roads = read_network(path)
    return {"edges": len(roads.names), "first": roads.names[0], "corners": sum(map(len, roads.lines))}


def _truths(path: Path, _: Asked) -> Told:
    truths = parse_truths(read_text(path), path.name)
    return {"vehicles": len(truths.values), "names": len(truths.categories), "none": truths.values.count("")}


def _microdata(path: Path, asked: Asked) -> Told:
    names = asked.get("columns", {"quasi_identifiers": ["age", "sex"], "sensitive": "income", "drop": []})
    roles = ColumnRoles(
        quasi_identifiers=tuple(names["quasi_identifiers"]), sensitive=names["sensitive"], drop=tuple(names["drop"])
    )
    try:
        table = read_table(read_text(path), roles)
    except MicrodataError as error:  # As the command names the file.
        raise UsageError(f"{path}: {error}") from error
    return {"records": len(table.sensitive), "first": list(table.attributes[0]), "names": len(set(table.sensitive))}


def _prior(path: Path, _: Asked) -> Told:
    prior = read_prior(path)
    return {"largest": len(prior) - 1, "likely": sum(1 for one in prior if one), "last": round(prior[-1], 9)}


def _area(path: Path, asked: Asked) -> Told:
    x0, y0, size, columns, rows = asked.get("grid", ["-180", "-90", "1", 360, 180])
    places = GridPlaces(
        x0=Fraction(x0), y0=Fraction(y0), size=Fraction(size), columns=columns, rows=rows,
        to_degrees=lambda east, north: (east, north),
    )  # fmt: skip
    return {"cells": len(cells_in_file(places, path))}


def _file(path: Path, _: Asked) -> Told:
    return _said(FileSource(path))


def _lines(path: Path, asked: Asked) -> Told:
    return _said(LineSource(path, LineValue(keys=tuple(asked.get("keys", ("latitude",))))))


def _said(source: Any) -> Told:
    reading = asyncio.run(read_source(source))
    if reading.value is None:
        raise SignalUnavailable(reading.fault or reading.why_none)
    parts = reading.value if isinstance(reading.value, tuple) else (reading.value,)
    return {"value": [str(part) for part in parts]}


def _toml(path: Path, _: Asked) -> Told:
    return {"keys": sorted(read_toml(path).content)}


def _scenario(path: Path, _: Asked) -> Told:
    scenario = read_scenario(path, STANDARD.population)
    return {"name": scenario.name, "runs": scenario.runs, "cases": len(scenario.plans)}


DOORS: Final[Mapping[str, Callable[[Path, Asked], Told]]] = {
    "trace": _population("trace", SQUARES),
    "fcd": _population("fcd", SQUARES),
    "counts": _population("counts", {"cells": "categories"}),
    "network": _network,
    "truths": _truths,
    "microdata": _microdata,
    "prior": _prior,
    "area": _area,
    "file": _file,
    "lines": _lines,
    "toml": _toml,
    "scenario": _scenario,
}
UNPACKING: Final = frozenset({"trace", "fcd", "counts", "network"})
"""Doors that read what is compressed by gzip."""
OF_DEVICES: Final = frozenset({"file", "lines"})
"""Doors of a device: what they do not take is no value, with a reason, and ends nothing."""


def through(door: str, path: Path, asked: Asked) -> tuple[Told | None, str]:
    """Return what a door gives of a file; or None, and the one line of its refusal.

    Raises:
        AssertionError: it ends with another code than that of bad input, or with more than a line.
    """
    try:
        return DOORS[door](path, asked), ""
    except SignalUnavailable as none:
        return None, str(none)
    except Exception as error:
        code, line = describe(error)
        assert code == ExitCode.USAGE, f"{door} of {path}: exit {code}: {line}"
        assert "\n" not in line, line
        return None, line


def plain(told: Any) -> Any:
    """Return what TOML says as `through` says it: decimals as numbers, names in the form NFC."""
    match told:
        case dict():
            return {name: plain(one) for name, one in told.items()}
        case list():
            return [plain(one) for one in told]
        case Decimal():
            return float(told)
        case str():
            return unicodedata.normalize("NFC", told)
        case _:
            return told
