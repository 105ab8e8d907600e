"""A study of a number: its mean is right on average, and points and noise make the error that they should."""

from pathlib import Path

import numpy as np
import pytest
from fleetcount_simulator.study.registries import STANDARD
from fleetcount_simulator.study.shards import ShardOrder, decode_shard, run_shard

TEXT = """
name = "speeds"
title = "How fast are the cars of Bologna?"
seed = 7
runs = 400

[population]
kind = "bologna"
start_s = 2400
devices = 2000

[question]
cells = "number"
low_kmh = 0
high_kmh = 130
points = 5
outside = "none"

[[mechanism]]
kind = "direct"
noise_variance = 50
"""
RUNS = 400


@pytest.mark.parametrize("name", ["exact-law", "per-device"])
def test_the_mean_of_a_study_is_that_of_the_readings(name: str) -> None:
    order = ShardOrder(
        text=TEXT,
        file="speeds.toml",
        folder=str(Path.cwd()),
        seed=7,
        engine=name,  # type: ignore[arg-type]
        case=0,
        first_run=0,
        runs=RUNS,
        registries=STANDARD,
    )

    result = decode_shard(run_shard(order))

    releases, (cells,) = result.releases, result.cells
    fleet = set(releases["number_fleet"].tolist())
    assert len(fleet) == 1
    (mean,) = fleet
    assert 5 < mean < 50
    found = releases["number"]
    assert abs(found.mean() - mean) < 6 * found.std() / np.sqrt(RUNS)
    # Noise of variance 100 of five cells, and roundings of step 32.5: the error of the sum of (number - mean) is both.
    points = np.arange(5) * 32.5
    on_the_road = float(cells.first_counted[0].sum())
    assert 100 < on_the_road < releases["participants"][0] == 2000
    least = np.sqrt(100 * ((points - mean) ** 2).sum()) / on_the_road
    most = np.sqrt(100 * ((points - mean) ** 2).sum() + on_the_road * 32.5**2 / 4) / on_the_road
    assert 0.8 * least < found.std() < 1.2 * most
    # What a cell is compared with is the number of devices that round to it on average.
    assert np.abs(cells.deviation / RUNS).max() < 6 * np.sqrt((100 + on_the_road / 4) / RUNS)
