"""The demo's picture, streets of Bologna over a map of Bologna and over no other, and what it says to do next."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.show.demo_results import asking_line, draw
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_simulator.demo_scenarios import BOLOGNA_GRID

from tests.support.protocol_samples import record, sampling_window


@pytest.mark.parametrize("grid", [BOLOGNA_GRID, replace(BOLOGNA_GRID, frame=None)], ids=["bologna", "somewhere"])
def test_streets_are_drawn_where_the_grid_lies_in_bologna_alone(grid: SquareGrid, tmp_path: Path) -> None:
    made = record(sampling_window(domain=grid, mechanism=SamplingDie.uniform(Fraction(1, 4), grid.values)))

    draw(tmp_path / "map", "Where?", made, [1] * grid.values)

    assert ("Bologna scenario, EPL-2.0" in (tmp_path / "map.svg").read_text()) == (grid.frame is not None)


@pytest.mark.parametrize(("values", "most"), [(1, 1), (72, 3)])
def test_the_command_that_asks_the_records_asks_for_no_more_counts_than_there_are(values: int, most: int) -> None:
    assert asking_line(Path("got"), values).endswith(f"--records got --largest {most}")
