"""A name that somebody chose is no formula in the reader's spreadsheet, and a number stays one."""

import pytest
from fleetcount_analysis.csv_texts import csv_text


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "＝1", "＋1a", "－a", "＠a", "-", "=5"]
)
def test_what_begins_as_a_formula_is_marked_as_text(text: str) -> None:
    assert csv_text(text) == "'" + text


@pytest.mark.parametrize("text", ["", "Via Zamboni", "1,10", "-5", "+5", "-0.25", "-1e3", "'=1", "a=b", "#5", " =1"])
def test_other_texts_and_numbers_stay_as_they_are(text: str) -> None:
    assert csv_text(text) == text
