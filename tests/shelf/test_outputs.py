"""A table that goes out is read back right by the tools of the field, whatever its labels are."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
import shapely
from fleetcount_analysis.answers.export import append_parquet, write_csv, write_geojson
from fleetcount_analysis.answers.places import GridPlaces
from fleetcount_analysis.answers.table import QuestionTable, WindowCounts, question_table
from fleetcount_simulator.study.directory import StudyDirectory
from fleetcount_simulator.study.results import TableWriter

from scripts.bootstrap import UV_ENVIRONMENT
from tests.analysis.answers.samples import LEVEL, direct
from tests.shelf import readers
from tests.shelf.readers import Row

# What spreadsheets and libraries take for missing values, numbers, formulas, comments, delimiters and dates.
LABELS = ("NA", "None", "1,10", "=1+1", "#5", 'a; "b"', "2026-01-26", "électrique", "007")
NEEDS = "needs {} (`make nightly` installs it)"
DUCKDBS = ("1.1.3", "1.4.5", "2.0.1")


def table(first: int = 0, last: int = 2) -> QuestionTable:
    """Return hourly windows of counts drawn from one seed."""
    outputs = np.random.default_rng(1).integers(-3, 60, (3, len(LABELS))).tolist()
    windows = [
        WindowCounts(index=index, opens=1_796_083_200 + 3600 * index, unit=index, outputs=tuple(outputs[index]))
        for index in range(first, last + 1)
    ]
    return question_table(direct(len(LABELS)), LEVEL, LABELS, ["public: epsilon 1"], windows, {})


def written(folder: Path) -> dict[str, Path]:
    """Write the table at once as CSV, and window after window as Parquet."""
    made = {form: folder / f"counts.{form}" for form in ("csv", "parquet")}
    write_csv(table(), made["csv"], 'Who; "what", how?')
    for window in range(3):
        append_parquet(table(window, window), made["parquet"], 'Who; "what", how?')
    return made


def true_rows(form: str = "parquet") -> list[Row]:
    """Return what a form must be read back as; in CSV a name that a spreadsheet would compute is told to be text."""
    whole = table()
    labels = [f"'{one}" if form == "csv" and one.startswith("=") else one for one in LABELS]
    columns = [
        np.repeat(whole.windows, len(LABELS)).tolist(), np.repeat(whole.opens, len(LABELS)).tolist(),
        labels * len(whole.windows),
        *(numbers.ravel().tolist() for numbers in (whole.raw, whole.estimates, whole.low, whole.high)),
    ]  # fmt: skip
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("form", "read"),
    [("csv", readers.of_csv), ("csv", readers.of_pandas), ("csv", readers.of_duckdb), ("parquet", readers.of_duckdb)],
)
def test_a_table_is_read_back_by_what_is_installed(
    form: str, read: Callable[[Path], list[Row]], tmp_path: Path
) -> None:
    assert read(written(tmp_path)[form]) == true_rows(form)


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("library", "read"),
    [("polars", readers.of_polars), ("pyarrow", readers.of_pyarrow), ("pyarrow", readers.of_pandas)],
)
def test_a_table_is_read_back_by_other_libraries(
    library: str, form: str, read: Callable[[Path], list[Row]], tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=NEEDS.format(library))

    assert read(written(tmp_path)[form]) == true_rows(form)


@pytest.mark.nightly
@pytest.mark.parametrize("version", DUCKDBS)
def test_a_table_is_read_back_by_every_duckdb(version: str, tmp_path: Path) -> None:
    folder = tmp_path / "installed"
    if why := not_installed(f"duckdb=={version}", folder):
        pytest.skip(f"DuckDB {version} cannot be installed, what it reads back was NOT tested: {why}")
    read = readers.of_other_duckdb(folder)

    for path in written(tmp_path).values():
        assert read(path) == true_rows(path.suffix[1:]), path.name


def not_installed(package: str, folder: Path) -> str:
    """Install a package into a folder, with the installer that made this environment and as it did; return why not."""
    uv = shutil.which("uv") or str(Path(sys.prefix) / "installer" / "bin" / "uv")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), package]
    try:
        done = subprocess.run(
            command, env={**os.environ, **UV_ENVIRONMENT}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"{uv}: {error.strerror}"
    return "" if done.returncode == 0 else " ".join(done.stderr.split())[-300:]


def test_a_map_is_read_back_with_its_numbers_where_they_are(tmp_path: Path) -> None:
    write_map(tmp_path / "map.geojson")

    made = json.loads((tmp_path / "map.geojson").read_text())
    squares = [shapely.from_geojson(json.dumps(one["geometry"])) for one in made["features"]]

    assert [one["properties"]["label"] for one in made["features"]] == list(LABELS)
    assert [one["properties"]["raw"] for one in made["features"]] == table().raw[2].tolist()
    assert all(square.is_valid and square.exterior.is_ccw for square in squares)
    assert shapely.union_all(squares).bounds == pytest.approx((11.3, 44.4, 11.6, 44.7))


@pytest.mark.nightly
def test_a_map_lies_on_earth_for_gdal(tmp_path: Path) -> None:
    geopandas: Any = pytest.importorskip("geopandas", reason=NEEDS.format("geopandas"))
    write_map(tmp_path / "map.geojson")

    frame = geopandas.read_file(tmp_path / "map.geojson")

    assert frame["label"].tolist() == list(LABELS)
    assert frame["raw"].tolist() == table().raw[2].tolist()
    assert frame.crs == "EPSG:4326"


def write_map(path: Path) -> None:
    places = GridPlaces(
        x0=Fraction("11.3"), y0=Fraction("44.4"), size=Fraction("0.1"), columns=3, rows=3,
        to_degrees=lambda east, north: (east, north),
    )  # fmt: skip
    write_geojson(table(), places, 2, path)


def test_a_table_of_a_study_is_the_same_in_parquet_and_csv_where_no_label_is_a_formula(tmp_path: Path) -> None:
    numbers = np.array([0.1, 1e-12, 2.5, np.nan, 1e17, -0.5, 3, 7, 1 / 3])
    columns: dict[str, Any] = {"label": np.array(LABELS, dtype=object), "estimate": numbers}

    TableWriter(StudyDirectory(tmp_path), csv=True).write("cells", columns)

    with (tmp_path / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    frame = pd.read_csv(
        tmp_path / "cells.csv", dtype={"label": str}, keep_default_na=False, na_values={"estimate": [""]}
    )
    arrow = duckdb.sql(f"SELECT label, estimate FROM read_parquet('{tmp_path / 'cells.parquet'}')").fetchall()
    labels = [f"'{one}" if one.startswith("=") else one for one in LABELS]
    assert [row["label"] for row in rows] == frame["label"].tolist() == labels
    assert [row[0] for row in arrow] == list(LABELS)
    np.testing.assert_array_equal(frame["estimate"].to_numpy(float), numbers)
    np.testing.assert_array_equal(np.array([row[1] for row in arrow], dtype=float), numbers)
