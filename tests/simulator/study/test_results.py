"""Tables: columns of the right type with NULL where there is nothing, whole files, names that need quoting."""

from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest
from fleetcount_protocol.errors import MachineError
from fleetcount_simulator.model import AnswerSpace, Places
from fleetcount_simulator.study.directory import StudyDirectory
from fleetcount_simulator.study.results import TableWriter, joined, place_columns, place_numbers, row_columns


def written(
    directory: Path, columns: dict[str, object], *, csv: bool = False
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Write a table and return its types and rows."""
    TableWriter(StudyDirectory(directory), csv=csv).write("made", columns)  # type: ignore[arg-type] # arrays
    with duckdb.connect() as database:
        path = str(directory / "made.parquet").replace("'", "''")
        table = database.execute(f"SELECT * FROM '{path}'")
        return [str(column[1]) for column in table.description or ()], table.fetchall()


def test_rows_become_columns_of_their_types(tmp_path: Path) -> None:
    columns = row_columns(
        [
            {"whole": 1, "part": 0.5, "mixed": 1, "truth": True, "word": "a", "some": 3},
            {"whole": 2, "part": None, "mixed": 2.5, "truth": None, "word": None, "some": None},
        ],
        ("word",),
    )
    types, rows = written(tmp_path, dict(columns))

    assert list(columns) == ["word", "whole", "part", "mixed", "truth", "some"]
    assert types == ["VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "BOOLEAN", "BIGINT"]
    assert rows == [("a", 1, 0.5, 1.0, True, 3), (None, 2, None, 2.5, None, None)]


def test_no_rows_leave_the_columns(tmp_path: Path) -> None:
    assert written(tmp_path, dict(row_columns((), ("case", "attacker"))))[1] == []


def test_a_tally_that_one_part_lacks_is_zero_there() -> None:
    parts = [
        {"run": np.array([0, 1]), "tally:lost": np.array([5, 6])},
        {"run": np.array([2]), "tally:late": np.array([7])},
    ]

    table = {name: column.tolist() for name, column in joined(parts).items()}

    assert table == {"run": [0, 1, 2], "lost": [5, 6, 0], "late": [0, 0, 7]}


def test_names_with_quotes_and_points_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()

    _, rows = written(folder, {"mechanism.epsilon": np.array([1.5])}, csv=True)

    assert rows == [(1.5,)]
    assert (folder / "made.csv").read_text().splitlines() == ["mechanism.epsilon", "1.5"]


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path)
    directory.write("kept", b"old")

    def fail(temporary: Path) -> None:
        temporary.write_bytes(b"new")
        raise RuntimeError

    with pytest.raises(RuntimeError), directory.appearing("kept") as temporary:
        fail(temporary)

    assert (tmp_path / "kept").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_disk_that_takes_nothing_is_a_machine_error(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="x cannot be written"):
        StudyDirectory(tmp_path / "gone").write("x", b"1")


def test_places_are_written_once_for_all_cases_that_ask_of_them() -> None:
    square = (((0.0, 0.0), (250.0, 0.0), (250.0, 250.0), (0.0, 250.0)),)
    road = (((0.0, 0.0), (5.0, 1.0), (9.0, 1.5)),)
    asked = [
        AnswerSpace(title="Where?", labels=("0,0",), places=Places(outlines=square, unit="m")),
        AnswerSpace(title="Where again?", labels=("0,0",), places=Places(outlines=square, unit="m")),
        AnswerSpace(title="Which?", labels=("yes",)),
        AnswerSpace(title="On which road?", labels=("A1",), places=Places(outlines=road, unit="m", lines=True)),
    ]
    cases = [SimpleNamespace(population=SimpleNamespace(question=question)) for question in asked]

    numbers, table = place_numbers(cases), place_columns(cases)  # type: ignore[arg-type] # all that is read of a case

    assert numbers == [0, 0, None, 1]
    assert table["places"].tolist() == [0, 1]
    assert table["label"].tolist() == ["0,0", "A1"]
    assert table["outline"].tolist() == [
        "POLYGON((0.0 0.0, 250.0 0.0, 250.0 250.0, 0.0 250.0, 0.0 0.0))",
        "LINESTRING(0.0 0.0, 5.0 1.0, 9.0 1.5)",
    ]
