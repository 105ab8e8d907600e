"""The data package: every set with its source, streets where the vehicles are, one line where a file is missing."""

import csv
import gzip
import hashlib

import fleetcount_data
import numpy as np
import pytest
from fleetcount_data.streets import BOLOGNA_EPSG, BOLOGNA_OFFSET, bologna_streets

# Of the shipped file: changed only together with SOURCE.md, which says what it was made from.
STREETS_SHA256 = "81cf9ad776029244960b57940ebeeee19b72eb6653bb32adfc9f12c8df758f2e"


def test_every_data_set_says_where_it_comes_from_and_under_which_licence() -> None:
    folders = [one for one in fleetcount_data.folder().iterdir() if one.is_dir() and one.name != "__pycache__"]

    assert {one.name for one in folders} == {"adult", "bologna", "breast_cancer", "city", "gowalla_nyc"}
    for one in folders:
        assert "- Origin:" in (one / "SOURCE.md").read_text()
    bologna = (fleetcount_data.folder() / "bologna" / "SOURCE.md").read_text()
    assert all(name in bologna for name in ("Eclipse Public License 2.0", "`positions.csv.gz`", "`streets.csv`"))


def test_a_missing_file_is_named_in_one_line() -> None:
    with pytest.raises(FileNotFoundError, match=r"^bologna/none\.csv is not part of this installation.*$"):
        fleetcount_data.path("bologna/none.csv")


def test_the_streets_are_those_of_the_source() -> None:
    streets = bologna_streets()
    points = np.array([point for street in streets for point in street.line])

    assert hashlib.sha256(fleetcount_data.path("bologna/streets.csv").read_bytes()).hexdigest() == STREETS_SHA256
    assert len(streets) == len({street.name for street in streets}) == 267
    assert all(len(street.line) >= 2 and street.lanes >= 1 for street in streets)
    assert [*points.min(axis=0), *points.max(axis=0)] == [0, 0, 2164, 1916]
    source = (fleetcount_data.folder() / "bologna" / "SOURCE.md").read_text()
    assert f"EPSG {BOLOGNA_EPSG}) plus ({', '.join(BOLOGNA_OFFSET)})" in source


def test_vehicles_are_on_the_streets() -> None:
    with gzip.open(fleetcount_data.path("bologna/positions.csv.gz"), "rt", newline="") as file:
        places = np.array([(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)])[::20]
    pieces = [pair for street in bologna_streets() for pair in zip(street.line, street.line[1:], strict=False)]
    starts, ends = (np.array(points, dtype=float) for points in zip(*pieces, strict=True))

    along = ends - starts
    reached = ((places[:, None] - starts) * along).sum(axis=2) / np.maximum((along**2).sum(axis=1), 1e-9)
    nearest = starts + np.clip(reached, 0, 1)[..., None] * along
    distance = np.hypot(*np.moveaxis(places[:, None] - nearest, 2, 0)).min(axis=1)

    assert np.median(distance) < 3
    assert distance.max() < 15


def test_a_vehicle_is_on_the_street_that_its_row_names() -> None:
    streets = {street.name: np.array(street.line, dtype=float) for street in bologna_streets()}
    with gzip.open(fleetcount_data.path("bologna/positions.csv.gz"), "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    named = [row for row in rows if row["street"]]

    assert len(rows) == 13_191
    assert len(rows) - len(named) == 756  # Inside a junction.
    far = 0
    for row in named[::20]:
        line = streets[row["street"]]
        along, here = np.diff(line, axis=0), np.array([float(row["x"]), float(row["y"])]) - line[:-1]
        part = np.clip((here * along).sum(axis=1) / np.maximum((along**2).sum(axis=1), 1e-9), 0, 1)
        far += np.hypot(*(here - part[:, None] * along).T).min() > 15
    assert far == 0
