"""A name that somebody chose is no formula in the reader's spreadsheet, and a number stays one."""

from pathlib import Path

import pytest
from fleetcount_analysis.csv_texts import csv_cell, csv_table, csv_text

ROOT = Path(__file__).parents[2]
WRITERS = {"analysis/src/fleetcount_analysis/csv_texts.py", "simulator/src/fleetcount_simulator/study/results.py"}
"""Who writes CSV itself: the one function for it, and DuckDB for the long tables of a study."""


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1a", "－a", "＠a", "-", "=5"],
)
def test_what_begins_as_a_formula_is_marked_as_text(text: str) -> None:
    assert csv_text(text) == "'" + text


@pytest.mark.parametrize("text", ["", "Via Zamboni", "1,10", "-5", "+5", "-0.25", "-1e3", "'=1", "a=b", "#5", " =1"])
def test_other_texts_and_numbers_stay_as_they_are(text: str) -> None:
    assert csv_text(text) == text


def test_a_table_is_csv_with_no_formula_in_any_cell_or_column_s_name() -> None:
    rows = [("=1", -1, None, 'a "b", c'), ("x", -2.5, True, "-")]

    assert csv_table(("@a", "b", "c", "d"), rows) == '\'@a,b,c,d\n\'=1,-1,,"a ""b"", c"\nx,-2.5,True,\'-\n'
    assert [csv_cell(one) for one in (None, -1, "-1")] == [None, -1, "-1"]


def test_every_csv_file_that_goes_out_has_its_texts_from_here() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("*/src/**/*.py")
        for text in [path.read_text(encoding="utf-8")]
        if any(word in text for word in ("csv.writer(", "csv.DictWriter(", "FORMAT csv", ".to_csv("))
    }

    assert found == WRITERS
    assert all("csv_cell" in (ROOT / one).read_text(encoding="utf-8") for one in WRITERS)
