"""Kind `gowalla`: check-ins at the busiest places of New York City, as counts; a device stands for a check-in.

Without a file it uses the repository's counts, which have no coordinates, so the cells are the places themselves. With
a file of locations (location, checkins, users, lat, lon, name) it has squares or H3 cells too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import shown

from fleetcount_simulator.cells import CellSpec, declare, read
from fleetcount_simulator.cells.model import OUTSIDE, Floats, Frame, Positions
from fleetcount_simulator.cells.named import checked_name, question_of
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Integers, Population
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.fixed import MAX_DEVICES, fixed
from fleetcount_simulator.populations.shipped import shipped
from fleetcount_simulator.populations.tables import check_fix, read_table

ABOUT: Final = "check-ins at the busiest places of New York City (counts come with the repository)"
CELLS: Final = ("none", "square", "h3")


@settings
class Keys:
    """[population] of kind `gowalla`."""

    file: Path | None = setting(
        Settings.file,
        default=None,
        about="a table with location, checkins, users, lat, lon and name, which may be empty",
        example='"locations.csv.gz"',
    )
    places: int = setting(
        Table.integer,
        1,
        100_000,
        default=5835,
        about="how many of the busiest, 1 to 100000; default 5835",
        example="1000",
    )
    unit: str = setting(
        Table.choice,
        ("checkins", "users"),
        default="checkins",
        about='what a device stands for: "checkins" (default) or "users"; users need a file',
        example='"checkins"',
    )
    devices: int | None = setting(
        Table.integer,
        2,
        MAX_DEVICES,
        default=None,
        about="scale all counts to this sum, 2 to 10^12; default: as they are",
        example="1000000",
    )


_COUNTS: Final = {
    "location": Column(name="location"),
    "checkins": Column(name="checkins", form="count", low=1),
    "users": Column(name="users", form="count", low=1),
    "name": Column(name="name"),
}
_COORDINATES: Final = {
    "lat": Column(name="lat", form="number", low=-90, high=90),
    "lon": Column(name="lon", form="number", low=-180, high=180),
}
_HISTOGRAM: Final = {
    "checkins": Column(name="checkins", form="count", low=1),
    "locations": Column(name="locations", form="count", low=1),
}
MAX_PLACES: Final = 1_000_000


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return check-ins of Gowalla.

    Raises:
        ScenarioError: a key or a row that cannot be used; with the dotted key, or the file and line.
    """
    asked = read(question, folder, CELLS, default="none", title="At which place did you check in?")
    if keys.file is not None:
        return _from_file(keys.file, asked, keys.places, keys.unit, keys.devices)
    if asked.kind != "none":
        raise UnfitKeyError(
            "file", allowed="given for cells on a map: the counts of the repository have no coordinates"
        )
    if keys.unit == "users":
        raise UnfitKeyError("unit", problem="is 'users', which needs population.file: the repository counts check-ins")
    listed = _shipped_places()[: keys.places]
    made = question_of(asked.title, [name for name, _ in listed])
    return fixed(made, 0, [checkins for _, checkins in listed], keys.devices, "population")


def _from_file(path: Path, asked: CellSpec, places: int, unit: str, devices: int | None) -> Population:
    table = _locations(path, _COUNTS | _COORDINATES)
    counts: Integers = table[unit].astype(np.int64)
    busiest = np.argsort(-counts, kind="stable")[:places]
    counts = counts[busiest]
    if asked.kind == "none":
        names: list[str] = [table["label"][place] for place in busiest.tolist()]
        return fixed(question_of(asked.title, names), 0, counts.tolist(), devices, "population.file")
    return _on_a_map(asked, table["lon"][busiest], table["lat"][busiest], counts, devices)


def _on_a_map(
    asked: CellSpec, longitude: Floats, latitude: Floats, counts: Integers, devices: int | None
) -> Population:
    cells = declare(asked, Frame(unit="deg"))
    keys = cells.keys(Positions(x=longitude, y=latitude))
    seen = np.unique(keys)
    values = cells.close(seen[seen != OUTSIDE])
    totals = np.zeros(values.question.values + 1, dtype=np.int64)
    np.add.at(totals, values.of(keys), counts)
    if not totals[1:].any():
        raise ScenarioError(f"question.bounds: not one of {len(counts)} places lies in any cell")
    elsewhere, *inside = totals.tolist()
    return fixed(values.question, elsewhere, inside, devices, "population.file")


def _locations(path: Path, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return the table's columns whole, with a distinct label for every place."""
    parts: dict[str, list[Any]] = {role: [] for role in (*columns, "label")}
    seen: set[str] = set()
    for batch in read_table(path, columns):
        if "lon" in columns:
            check_fix(batch.numbers["lon"], batch.numbers["lat"], batch.place.of)
        for role, column in columns.items():
            parts[role].extend(batch.texts[role] if column.form == "text" else batch.numbers[role].tolist())
        for row, (number, name) in enumerate(zip(batch.texts["location"], batch.texts["name"], strict=True)):
            place = batch.place.of(row)
            label = f"location {checked_name(number, place)}"
            if label in seen:
                raise ScenarioError(f"{place}: location {shown(number)} occurs twice")
            seen.add(label)
            parts["label"].append(checked_name(f"{name.strip()} ({number})", place) if name.strip() else label)
        if len(seen) > MAX_PLACES:
            raise ScenarioError(f"{path.name}: more than {MAX_PLACES} places")
    if not seen:
        raise ScenarioError(f"{path.name}: no rows")
    texts = {"location", "name", "label"}
    return {role: part if role in texts else np.array(part) for role, part in parts.items()}


def _shipped_places() -> list[tuple[str, int]]:
    """Return all 21,509 places of the repository's counts, busiest first: a label and the check-ins of each.

    The table of locations names some of the places; of the others only the number of check-ins is known.
    """
    named = _locations(shipped("gowalla", "gowalla_nyc/locations.csv"), _COUNTS)
    known = list(zip(named["label"], named["checkins"].astype(int).tolist(), strict=True))
    rest: dict[int, int] = {}
    for batch in read_table(shipped("gowalla", "gowalla_nyc/histogram.csv"), _HISTOGRAM):
        pairs = zip(batch.numbers["checkins"].tolist(), batch.numbers["locations"].tolist(), strict=True)
        rest.update({int(checkins): int(locations) for checkins, locations in pairs})
    for _, checkins in known:
        rest[checkins] -= 1
    others = [checkins for checkins, locations in rest.items() for _ in range(locations)]
    everyone = known + [("", checkins) for checkins in others]
    everyone.sort(key=lambda place: -place[1])
    return [(name or f"place {rank}", checkins) for rank, (name, checkins) in enumerate(everyone, start=1)]
