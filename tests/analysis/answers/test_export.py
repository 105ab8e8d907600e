"""Files of a table: what is read back is what was released, a Parquet file grows, and nothing half-written stays."""

import csv
import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from urllib.parse import unquote

import duckdb
import numpy as np
import pandas as pd
import pytest
from fleetcount_analysis import parquet_files
from fleetcount_analysis.answers.export import (
    COLUMNS,
    append_parquet,
    columns_of,
    write_csv,
    write_geojson,
    write_parquet,
)
from fleetcount_analysis.answers.places import GridPlaces
from fleetcount_analysis.answers.table import QuestionTable, WindowCounts, question_table
from fleetcount_analysis.errors import ExportError, RangeError, ShapeError
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.responses import KaryResponse

from tests.analysis.answers.samples import LEVEL, NOISE, direct, random_table, sampling, table_of

GRID = GridPlaces(x0=Fraction(0), y0=Fraction(0), size=Fraction(500), columns=2, rows=2)
PLACED = replace(GRID, to_degrees=lambda x, y: (x, y))


def rows_of(path: Path) -> list[tuple]:
    """The rows, `opens` as seconds since 1970."""
    return duckdb.sql(
        f"SELECT * REPLACE (epoch_us(opens) // 1000000 AS opens) FROM {parquet_files.rows_of(path)}"
    ).fetchall()


def metadata(path: Path) -> dict:
    found = duckdb.sql(f"SELECT decode(value) FROM parquet_kv_metadata('{path}')").fetchall()
    return json.loads(found[0][0])


def test_parquet_holds_the_columns_and_says_what_they_are(tmp_path: Path) -> None:
    table, path = table_of(sampling(), [[40, 3, 0, 17], [44, 5, -2, 30]], missing=1), tmp_path / "a.parquet"

    write_parquet(table, path, "evening's map")

    described = duckdb.sql(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
    assert [(row[0], row[1]) for row in described] == [
        ("window_index", "BIGINT"), ("opens", "TIMESTAMP WITH TIME ZONE"), ("unit", "BIGINT"), ("cell", "INTEGER"),
        ("label", "VARCHAR"),
        ("raw", "BIGINT"), ("estimate", "DOUBLE"), ("low", "BIGINT"), ("high", "BIGINT"), ("low_all", "BIGINT"),
        ("high_all", "BIGINT"), ("readable", "BIGINT"),
    ]  # fmt: skip
    row = rows_of(path)[6]
    assert row[:7] == (2, datetime(2026, 12, 1, 2, 0, tzinfo=UTC).timestamp(), 2, 3, "cell 3", -2, -8.0)
    assert row[9] <= row[7] <= row[8] <= row[10]
    assert row[11] == 0
    found = metadata(path)
    assert (found["title"], found["level"], found["statement"]) == ("evening's map", "19/20", ["public: epsilon 1"])
    assert found["missing"] == {"1": "paused"}
    assert (found["mechanism"], found["aggregators"], found["answer"]["sampling_rate"]) == ("sampling", 2, "1/4")
    assert found["noise"] == {"law": "two-sided geometric", "epsilon": "1/2"}


def test_a_parquet_file_grows_by_later_windows_and_keeps_its_rows(tmp_path: Path) -> None:
    whole, path = random_table(direct(), 6), tmp_path / "it's.parquet"
    released = [
        dict(zip(("index", "opens", "unit"), three, strict=True))
        for three in zip(whole.windows.tolist(), whole.opens.tolist(), whole.units.tolist(), strict=True)
    ]

    def windows(*indices: int) -> QuestionTable:
        counts = [WindowCounts(**released[i], outputs=tuple(whole.outputs[i].tolist())) for i in indices]
        return question_table(whole.design, LEVEL, whole.labels, whole.statement, counts)

    append_parquet(windows(0, 1), path)
    append_parquet(windows(2), path)
    append_parquet(windows(4, 5), path)

    columns = columns_of(windows(0, 1, 2, 4, 5))
    found = rows_of(path)
    assert len(found) == 20
    columns["opens"] = columns["opens"].astype(np.int64)
    for place, name in enumerate(COLUMNS):
        assert [row[place] for row in found] == columns[name].tolist()
    before = path.read_bytes()
    with pytest.raises(ExportError, match="reaches to window 5; the table starts at 3, not after it"):
        append_parquet(windows(3), path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["it's.parquet"]


def test_what_does_not_continue_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(table_of(direct(), [[1, 2, 3, 4]]), path)

    with pytest.raises(ExportError, match=r'a\.parquet has mechanism "direct"; the table has "sampling"'):
        append_parquet(random_table(sampling()), path)
    with pytest.raises(ExportError, match="has title"):
        append_parquet(random_table(direct()), path, "another")
    path.write_bytes(b"no Parquet")
    with pytest.raises(ExportError, match="cannot be read as the table of a question"):
        append_parquet(random_table(direct()), path)
    duckdb.sql(f"COPY (SELECT 1 AS window_index) TO '{path}' (FORMAT parquet)")
    with pytest.raises(ExportError, match="is not the table of a question"):
        append_parquet(random_table(direct()), path)


def test_csv_has_one_line_of_metadata_and_the_same_rows(tmp_path: Path) -> None:
    table, path = random_table(direct()), tmp_path / "a.csv"

    write_csv(table, path, "Verkehr in Köln")

    lines = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(unquote(lines[0].removeprefix("# ")))["title"] == "Verkehr in Köln"
    rows = list(csv.DictReader(lines[1:]))
    assert len(rows) == 24
    assert tuple(rows[0]) == COLUMNS
    assert rows[4]["opens"] == "2026-12-01T01:00:00Z"
    assert [int(row["raw"]) for row in rows] == table.raw.ravel().tolist()
    assert [int(row["high"]) for row in rows] == table.high.ravel().tolist()


@pytest.mark.parametrize("folder", ["count=7", "window_index=9", "opens=2020-01-01", "runs[1]", "a*b?"])
def test_the_name_of_a_folder_is_no_data_and_no_pattern(tmp_path: Path, folder: str) -> None:
    table, path = random_table(direct(), 2), tmp_path / folder / "q[1]*.parquet"
    path.parent.mkdir()

    append_parquet(table, path)
    append_parquet(replace(table, windows=table.windows + 10, opens=table.opens + 36_000), path)

    assert [row[0] for row in rows_of(path)] == [window for window in (0, 1, 10, 11) for _ in range(4)]
    assert len(rows_of(path)[0]) == len(COLUMNS)
    assert [one.name for one in path.parent.iterdir()] == ["q[1]*.parquet"]


def test_what_readers_guess_from_a_csv_file_is_right(tmp_path: Path) -> None:
    table, path = random_table(direct(), 3), tmp_path / "a.csv"
    labels, statement = ("0,0", "1,0", 'a "b"; c', "#5"), ('it\'s "public"; epsilon 1, delta 0',)

    write_csv(replace(table, labels=labels, statement=statement), path, 'a "title"; with, all')

    raw = table.raw.ravel().tolist()
    frame = pd.read_csv(path, skiprows=1)
    assert (frame["raw"].tolist(), frame["label"].tolist()) == (raw, list(labels) * 3)
    for options in ("", ", skip = 1", ", skip = 1, header = true"):
        rows = duckdb.sql(f"SELECT raw, label, epoch_us(opens) // 1000000 FROM read_csv('{path}'{options})").fetchall()
        assert [row[0] for row in rows] == raw
        assert [row[1] for row in rows] == list(labels) * 3
        assert [row[2] for row in rows] == np.repeat(table.opens, 4).tolist()


def test_a_label_is_no_formula_to_a_spreadsheet_and_the_same_text_in_parquet(tmp_path: Path) -> None:
    table = replace(table_of(direct(), [[0, 1, 2, 3]]), labels=('=HYPERLINK("http://a.example")', "@a", "-1", "1,10"))
    write_csv(table, tmp_path / "a.csv")
    write_parquet(table, tmp_path / "a.parquet")

    rows = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()[1:]))
    assert [row["label"] for row in rows] == ['\'=HYPERLINK("http://a.example")', "'@a", "-1", "1,10"]
    assert [row[4] for row in rows_of(tmp_path / "a.parquet")] == list(table.labels)


def test_times_of_csv_and_parquet_are_the_same_moments_wherever_they_are_read(tmp_path: Path) -> None:
    table = random_table(direct(), 3)
    write_csv(table, tmp_path / "a.csv")
    write_parquet(table, tmp_path / "a.parquet")

    with duckdb.connect() as database:
        for zone in ("UTC", "Europe/Rome", "America/New_York"):
            database.execute(f"SET TimeZone = '{zone}'")
            both = f"'{tmp_path}/a.csv' AS one JOIN '{tmp_path}/a.parquet' AS two USING (opens, cell)"
            assert database.execute(f"SELECT count(*) FROM {both} WHERE one.raw = two.raw").fetchone() == (12,)


def test_a_square_grid_has_columns_for_its_squares(tmp_path: Path) -> None:
    grid = replace(random_table(direct(), 2), width=2, labels=("0,0", "1,0", "0,1", "1,1"))

    write_csv(grid, tmp_path / "a.csv")
    append_parquet(grid, tmp_path / "a.parquet")

    frame = pd.read_csv(tmp_path / "a.csv", skiprows=1)
    assert list(frame.columns[4:7]) == ["label", "x", "y"]
    assert [f"{x},{y}" for x, y in zip(frame["x"], frame["y"], strict=True)] == frame["label"].tolist()
    assert [row[4:7] for row in rows_of(tmp_path / "a.parquet")[:3]] == [("0,0", 0, 0), ("1,0", 1, 0), ("0,1", 0, 1)]
    with pytest.raises(ExportError, match="is not the table of a question"):
        append_parquet(replace(random_table(direct(), 2), windows=grid.windows + 9), tmp_path / "a.parquet")


def test_geojson_is_one_window_with_its_places(tmp_path: Path) -> None:
    table, path = random_table(direct()), tmp_path / "a.geojson"

    write_geojson(table, PLACED, 2, path)

    found = json.loads(path.read_text())
    assert "crs" not in found
    assert found["fleetcount"]["coordinates"].startswith("longitude and latitude")
    assert found["fleetcount"]["statement"] == ["public: epsilon 1"]
    assert [one["properties"]["raw"] for one in found["features"]] == table.raw[2].tolist()
    assert found["features"][3]["geometry"]["coordinates"][0][0] == [500, 500]
    with pytest.raises(ExportError, match=r"b\.geojson: GeoJSON is in degrees, and these places are x and y"):
        write_geojson(table, GRID, 2, tmp_path / "b.geojson")
    assert not (tmp_path / "b.geojson").exists()


def test_readable_numbers_fit_the_participants_where_they_are_known(tmp_path: Path) -> None:
    table = table_of(direct(), [[40, -30, 5, 17]])

    assert columns_of(table)["readable"].tolist() == [40, 0, 5, 17]
    assert columns_of(table, [50])["readable"].sum() == 50
    kary = Design(answer=KaryResponse(Fraction(1, 2), 4), noise=NOISE, values=4, aggregators=2)
    assert columns_of(table_of(kary, [[10, 50, 5, 5, 5]]))["readable"].sum() <= 75
    with pytest.raises(ShapeError, match="2 numbers of participants; allowed is one a window, 1"):
        write_csv(table, tmp_path / "a.csv", participants=[50, 60])
    assert list(tmp_path.iterdir()) == []


def test_the_simultaneous_columns_hold_for_a_window_whatever_follows() -> None:
    rows = np.random.default_rng(1).integers(0, 60, (3, 4)).tolist()

    short, long = columns_of(table_of(sampling(), rows[:1])), columns_of(table_of(sampling(), rows))

    for name in ("low_all", "high_all"):
        assert short[name].tolist() == long[name].tolist()[:4]


def test_bad_exports_are_refused_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(direct())

    with pytest.raises(ExportError, match="cannot be written: No such file or directory"):
        write_csv(table, tmp_path / "missing" / "a.csv")
    with pytest.raises(ShapeError, match="2 places"):
        write_geojson(table, replace(PLACED, rows=1), 0, tmp_path / "a")
    with pytest.raises(RangeError, match="window is 77"):
        write_geojson(table, PLACED, 77, tmp_path / "a")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ExportError, match=r"Parquet needs the package duckdb, which comes with fleetcount\[analysis\]"):
        write_parquet(table, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, path = random_table(direct()), tmp_path / "a.csv"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match=r"a\.csv cannot be written: No space left on device"):
        write_csv(table, path)

    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]
    assert path.read_text() == "old"
