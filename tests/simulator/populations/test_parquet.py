"""A number of a Parquet file is what it says, however wide its column is."""

from pathlib import Path

import duckdb
import numpy as np
import pytest
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.parquet import read_parquet


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "DECIMAL(9, 1)"])
def test_a_tenth_is_the_same_in_every_column_of_numbers(tmp_path: Path, kind: str) -> None:
    connection = duckdb.connect(":memory:")
    query = f"SELECT CAST(i / 10.0 AS {kind}) AS speed FROM range(1000) t(i)"
    connection.execute(f"COPY ({query}) TO '{tmp_path / 't.parquet'}' (FORMAT parquet)")
    connection.close()

    [(piece, _)] = read_parquet(
        tmp_path / "t.parquet", {"speed": Column(name="speed", form="number", low=0, high=1000)}
    )

    assert np.asarray(piece["speed"]).tolist() == [float(f"{tenth / 10}") for tenth in range(1000)]
