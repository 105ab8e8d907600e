"""The one reader of CSV: rows with their lines, whatever an exporter leaves at the end, and every fault by its line."""

import csv
import io

import pytest
from fleetcount_transport.csv_rows import CsvFault, csv_batches, csv_rows
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n", "\r\n\r\n\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_rows_have_their_lines_and_blank_lines_at_the_end_are_passed_over(size: int, end: str) -> None:
    text = "a,b\n1,2\n3,4" + end

    found = list(csv_batches(io.StringIO(text, newline=""), size))

    assert [row for _, rows in found for row in rows] == [["a", "b"], ["1", "2"], ["3", "4"]]
    assert [first + i for first, rows in found for i in range(len(rows))] == [1, 2, 3]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a,b\n\n3,4\n", 2, "blank"),
        ("\na,b\n", 1, "blank"),
        ("a,b\n1,2\n\n\n3,4\n", 3, "blank"),
        ('a,b\n"1\n2",3\n', 2, "a field holds a line end"),
        ('a,b\n1,2\n"3,4\n', 3, "unexpected end of data"),
        ('a,b\n"1,2\n3,4\n5,6\n', 2, "unexpected end of data"),
        ('a,b\n1,"2"3\n', 2, "expected after"),
    ],
)
def test_a_fault_is_named_with_its_line(size: int, text: str, line: int, problem: str) -> None:
    before: list[int] = []

    with pytest.raises(CsvFault, match=problem) as fault:
        before.extend(number for number, _ in csv_rows(io.StringIO(text, newline="")))
    with pytest.raises(CsvFault, match=problem) as again:
        list(csv_batches(io.StringIO(text, newline=""), size))

    assert fault.value.line == again.value.line == line
    assert before == list(range(1, line)), "the rows before the fault are given"


def test_another_delimiter_is_one() -> None:
    assert list(csv_rows(io.StringIO("a;b\n1,5;2\n"), ";")) == [(1, ["a", "b"]), (2, ["1,5", "2"])]


@given(
    rows=st.lists(st.lists(st.text("ab,;\"' 1", max_size=4), min_size=2, max_size=3), max_size=12),
    size=st.integers(1, 5),
)
def test_what_the_standard_writer_writes_comes_back(rows: list[list[str]], size: int) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    text.seek(0)

    assert [row for _, batch in csv_batches(text, size) for row in batch] == rows
