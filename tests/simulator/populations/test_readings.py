"""A table with a column for each signal: every row is the value that a device with these readings would answer."""

import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from fleetcount_protocol.window.domain import Cross
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations import build

from tests.support.cases import case

SPEED = {"signal": "Vehicle.Speed", "column": "speed", "kind": "bins", "edges": [0, 30, 50], "unit": "km/h"}
FUEL = {"signal": "Vehicle.Fuel", "column": "fuel", "kind": "categories", "names": ["diesel", "petrol"]}
MOVING = {"signal": "Vehicle.IsMoving", "kind": "categories", "names": ["true", "false"]}
PLACE = {
    "signal": "Vehicle.Place",
    "column": ["x", "y"],
    "kind": "grid",
    "x0": 0,
    "y0": 0,
    "size": 10,
    "columns": 2,
    "rows": 1,
}
ROWS = """fuel,speed,Vehicle.IsMoving,x,y,n
diesel,29.999,true,1,2,3
diesel,30,false,11,2.5,4
petrol,-1,true,1,1,5
petrol,5e0,true,1,1,6
,5,true,1,1,7
petrol,,true,1,1,8
gas,5,true,1,1,9
petrol,49.9,false,,1,10
petrol,49.9,maybe,1,1,11
"""


def made(folder: Path, *parts: dict[str, Any], file: str = "t.csv", **keys: Any) -> Population:
    return build({"kind": "readings", "file": file, **keys}, {"cells": "cross", "of": list(parts)}, 1, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(ROWS)
    duckdb.sql(f"COPY (FROM read_csv('{tmp_path / 't.csv'}')) TO '{tmp_path / 't.parquet'}'")
    return tmp_path


@pytest.mark.parametrize("file", ["t.csv", "t.parquet"])
def test_every_row_is_the_value_of_its_cells(folder: Path, file: str) -> None:
    population = made(folder, SPEED, FUEL, MOVING, file=file)
    cross = population.question.domain
    assert isinstance(cross, Cross)
    rows = [(1, 1, 1), (2, 1, 2), (0, 2, 1), (1, 2, 1), (1, 0, 1), (0, 2, 1), (1, 0, 1), (2, 2, 2), (2, 2, 0)]

    expected = np.bincount([cross.together(row) for row in rows], minlength=cross.values + 1)
    assert population.histogram(0).tolist() == expected.tolist()
    assert population.question.labels[0] == "[0, 30) km/h x diesel x true"
    assert population.devices == 9


@pytest.mark.parametrize("file", ["t.csv", "t.parquet"])
def test_rows_may_stand_for_several_devices_and_a_place_has_two_columns(folder: Path, file: str) -> None:
    population = made(folder, FUEL, PLACE, file=file, count="n")
    # Diesel in squares 1 and 2, petrol in 1; the row without an x is in none.
    assert population.histogram(0).tolist() == [7 + 9 + 10, 3, 4, 5 + 6 + 8 + 11, 0]
    assert made(folder, FUEL, PLACE, count="n", devices=630).histogram(0).sum() == 630


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("True,5\nFalse,5\n", "t.csv line 2: Vehicle.IsMoving is 'True', no value of the question, such as 'true'"),
        (",5\n1.0,5\n", "t.csv line 3: Vehicle.IsMoving is '1.0', no value"),
        ("true,60\nfalse,-1\n", "t.csv line 2: speed is '60', no value of the question, such as '[0, 30) km/h'"),
        ("true,60\nfalse,-1\ntrue,5\n", ""),
        (",\n,5\n", ""),
    ],
    ids=["truth values", "numbers", "range", "one of them", "empty"],
)
def test_a_column_that_is_spelled_in_another_way_than_the_question_is_not_none_of_them_without_a_word(
    rows: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(f"Vehicle.IsMoving,speed\n{rows}")

    if said:
        with pytest.raises(ScenarioError, match=re.escape(said)):
            made(tmp_path, MOVING, SPEED)
    else:
        made(tmp_path, MOVING, SPEED)


def test_what_is_no_table_of_readings_is_refused_with_its_place(folder: Path) -> None:
    wrong: list[tuple[tuple[dict[str, Any], ...], dict[str, Any], str]] = [
        ((SPEED,), {}, r"question\.of .*2 to 3 tables"),
        (
            (SPEED, SPEED | {"column": "fuel"}),
            {},
            r"question\.of cannot be asked: cross has the signal 'vehicle.speed' twice",
        ),
        ((SPEED | {"column": "fuel"}, MOVING), {}, r"t\.csv line 2: fuel is 'diesel', not a number"),
        ((SPEED | {"column": "brand"}, FUEL), {}, r"t\.csv line 1: no column 'brand'"),
        ((SPEED | {"column": ["x", "y"]}, FUEL), {}, r"question\.of\[0\]\.column .*the name of one column"),
        ((PLACE | {"column": "x"}, FUEL), {}, r"question\.of\[0\]\.column .*the columns of x and y"),
        ((SPEED | {"kind": "number"}, FUEL), {}, r"question\.of\[0\]\.kind is 'number'; allowed is 'bins'"),
        ((SPEED, FUEL), {"count": "y"}, r"t\.csv line 3: y is 2\.5, not a whole number"),
        ((SPEED, FUEL), {"file": "none.csv"}, r"population\.file is 'none\.csv'"),
    ]
    for parts, keys, said in wrong:
        with case(said), pytest.raises(ScenarioError, match=said):
            made(folder, *parts, **keys)
