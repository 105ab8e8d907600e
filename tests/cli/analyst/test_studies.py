"""A study in Python: the scenario's file, its tables, and what is left out on purpose."""

import re
from collections.abc import Callable
from pathlib import Path

import fleetcount as fc
import pytest
from fleetcount_protocol.errors import UsageError
from fleetcount_simulator.examples import example_text


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coverage.toml").write_text(example_text("coverage"))
    return tmp_path / "coverage.toml"


def test_a_study_has_the_tables_of_the_command(scenario: Path, fleetcount: Callable) -> None:
    study = fc.simulate("coverage.toml", runs=2, seed=7, output="ours")
    assert fleetcount("simulate", "coverage.toml", "--runs", "2", "--seed", "7", "--output", "theirs").code == 0

    ours, theirs = study.cells.to_pandas(), fc.simulate(scenario, runs=2, seed=7, output="theirs").cells.to_pandas()

    assert ours.equals(theirs)
    assert {"truth", "estimate", "low", "high", "label"} <= set(ours.columns)
    assert len(study.cases) == len(study.summaries)
    assert len(study.releases.to_pandas()) == 2 * len(study.summaries)
    assert len(study.statement.to_pandas()) > 0
    assert "coverage" in study._repr_html_()
    assert repr(study.cases).startswith("<Table 'cases' of ")


def test_the_name_of_a_study_s_folder_is_no_column_of_its_tables(scenario: Path) -> None:
    plain, named = (
        fc.simulate(scenario, runs=2, seed=7, output=output)
        for output in ("plain", "runs/epsilon=7/estimate=0.001/case=[1]")
    )

    for table in ("cases", "releases", "cells", "statement"):
        ours, theirs = (getattr(study, table).to_pandas() for study in (named, plain))
        assert ours.equals(theirs), table
    moments = re.compile("<dt>(Started|Took)</dt><dd>[^<]*")
    pages = [moments.sub("", study.report().read_text(encoding="utf-8")) for study in (named, plain)]
    assert pages[0] == pages[1]


def test_what_is_not_there_or_out_of_range_is_said(scenario: Path) -> None:
    text = scenario.read_text()
    scenario.write_text(text.replace("[metrics]", "[metrics]\nkeep_cells = false"))
    assert "[metrics]" in text
    study = fc.simulate(scenario, runs=1)

    with pytest.raises(UsageError, match="no rows of 'cells'; the scenario says keep_cells = false"):
        _ = study.cells
    with pytest.raises(UsageError, match="runs is 0, allowed: 1 to 1000000"):
        fc.simulate(scenario, runs=0)
    with pytest.raises(UsageError, match="workers is 999"):
        fc.simulate(scenario, workers=999)


def test_a_table_in_a_notebook_rounds_ends_outwards_and_losses_up() -> None:
    columns = {name: [1.23456] for name in ("estimate", "low", "high", "epsilon", "total_epsilon")}

    shown = re.findall(r"<td[^>]*>([^<]*)</td>", fc.Table(columns=columns)._repr_html_())

    assert shown == ["1.235", "1.234", "1.235", "1.235", "1.235"]
    assert ">-0.5678<" in fc.Table(columns={"high": [-0.56789]})._repr_html_()
