"""What a command says of a file of the shelf: a line with the file, code 2 and nothing written, or its tables."""

import csv
from collections import Counter
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from fleetcount.__main__ import run_command

from tests.shelf.shelf import FILES

SCENARIO = """
name = "shelf"
runs = 1
[[mechanism]]
kind = "sampling"
sampling_rate = "1/4"
epsilon = 1
[question]
{question}
[population]
{population}
"""
BUSES = """
kind = "trace"
file = '{file}'
time = "timestamp"
time_form = "utc"
vehicle = "vehicle_id"
lon = "longitude"
lat = "latitude"
"""
HEXAGONS = 'cells = "h3"\nresolution = 8'
SPEC = """
acknowledge = "anonymised, not differentially private"
quasi_identifiers = ["age", "sex", "education"]
allow_unique = ["age"]
drop = ["income"]
rule = { theta = "3", offset = "0.02" }
"""


def scenario(folder: Path, population: str, question: str = HEXAGONS) -> str:
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(question=question, population=population))
    return str(path)


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that must refuse its file; return the line that it says."""
    before = sorted(folder.rglob("*"))
    code = run_command([str(one) for one in arguments])
    said = capsys.readouterr()
    assert code == 2, said.err
    assert said.out == ""
    assert sorted(folder.rglob("*")) == before
    assert "Traceback" not in said.err
    return said.err.splitlines()[-1]  # Progress may stand before it.


def test_a_table_with_decimal_commas_is_refused_with_line_column_and_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = BUSES.format(file=FILES / "buses" / "pandas-decimal-comma.csv") + 'delimiter = ";"'

    line = refused(tmp_path, capsys, "simulate", scenario(tmp_path, keys), "--output", tmp_path / "out")

    assert "pandas-decimal-comma.csv line 2: longitude is '-2,91799', not a number like -12.5" in line


def test_a_foreign_table_of_truths_is_refused_by_its_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truths = FILES / "counts" / "pandas.csv"

    line = refused(tmp_path, capsys, "demo", "--truths", truths, "--output", tmp_path / "out")

    assert "pandas.csv: the header is 'education,count', not 'vehicle,value'" in line


def test_a_foreign_configuration_is_refused_by_its_first_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(tmp_path, capsys, "simulate", FILES / "toml" / "device.toml", "--output", tmp_path / "out")

    assert "device.toml line 5: device is unknown" in line


def test_published_persons_are_read_back_with_every_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    table, out = FILES / "persons" / "polars.csv", tmp_path / "out"
    arguments = ["--input", table, "--spec", tmp_path / "spec.toml", "--sensitive", "occupation", "--output", out]

    assert run_command(["microdata", *map(str, arguments)]) == 0, capsys.readouterr().err

    with table.open(encoding="utf-8", newline="") as file:
        true = Counter((row["age"], row["sex"], row["education"]) for row in csv.DictReader(file))
    made = out / "quasi_identifiers.csv"
    frame = pd.read_csv(made, dtype=str, keep_default_na=False)
    rows = duckdb.sql(f"SELECT age, sex, education FROM read_csv('{made}', all_varchar = true)").fetchall()
    assert Counter(zip(frame["age"], frame["sex"], frame["education"], strict=True)) == Counter(rows) == true
