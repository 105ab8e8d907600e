"""Truth files: what the grammar knows is read exactly, everything else is refused with its line."""

import re

import pytest
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.truths import parse_truths
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import said_by


def test_a_plain_file_is_read_in_order_with_none_for_an_empty_value() -> None:
    truths = parse_truths("vehicle,value\na,red\nb,\nc,blue\nd,red\n", "t.csv")

    assert truths.values == ("red", "", "blue", "red")
    assert truths.categories == ("blue", "red")


def test_byte_order_mark_crlf_quotes_and_column_order_are_accepted() -> None:
    truths = parse_truths('\ufeffvalue,vehicle\r\n"a, b",1\r\n"say ""x""",2\r\n', "t.csv")

    assert truths.values == ("a, b", 'say "x"')


def test_two_spellings_of_one_text_are_one_category() -> None:
    truths = parse_truths("vehicle,value\n1,é\n2,e\u0301\n", "t.csv")

    assert truths.categories == ("é",)


BAD_FILES: list[tuple[str, str]] = [
    ("", "0 vehicles"),
    ("vehicle,value\n", "0 vehicles"),
    ("vehicle,value\n1,a\n", "1 vehicles"),
    ("vehicle;value\n1;a\n", "separated by semicolons"),
    ("id,value\n1,a\n", "the header is 'id,value'"),
    ("vehicle,value,x\n1,a,b\n", "the header"),
    ("vehicle,vehicle\n1,a\n", "the header"),
    ("vehicle,value\n1,a\n1,b\n", "line 3: vehicle '1' occurs twice"),
    ("vehicle,value\n1,a,b\n", "line 2: 3 fields, not 2"),
    ("vehicle,value\n1\n", "line 2: 1 fields, not 2"),
    ("vehicle,value\n\n1,a\n", "line 2: the line is blank"),
    ("vehicle,value\n,a\n", "line 2: the vehicle is empty"),
    ("vehicle,value\n1,a\0b\n", "NUL"),
    ('vehicle,value\n1,"a\n2,b\n', "t.csv line"),
    ('vehicle,value\n1,"a\nb"\n', "a field holds a line end"),
    ("vehicle,value\n1,a\tb\n", "control or format character"),
    ("vehicle,value\n1,\u0645\u06cc\u200c\u062e\n2,a\n", "line 2: 'می\\u200cخ' holds a control or format character"),
    ("vehicle,value\n1,\U0001f469\u200d\U0001f467\n2,a\n", "line 2"),
    ("vehicle,value\n1, a\n", "blank"),
    ("vehicle,value\n1," + "a" * 201 + "\n", "longer than 200 bytes"),
    ("vehicle,value\n" + "v" * 10**6 + ",a\n", "t.csv line 2"),
    ("vehicle,value\n1,\n2,\n", "0 distinct values"),
    ("vehicle,value\n" + "".join(f"{i},c{i}\n" for i in range(4096)), "4096 distinct values; it must be 1 to 4095"),
    ("vehicle,value\n1,\ud800\n2,a\n", "control or format character"),
]


def test_anything_else_is_refused_with_its_line() -> None:
    for text, named in BAD_FILES:
        said = said_by(ScenarioError, parse_truths, text, "t.csv")

        assert named in said, text[:60]
        assert len(said) < 200, text[:60]


@pytest.mark.parametrize(("wrong", "more"), [(2, ""), (10, ""), (13, "; and 3 more")])
def test_bad_rows_are_named_together_ten_at_most(wrong: int, more: str) -> None:
    rows = "".join(f"{number},a\n{number},{'b' * 300}\n" for number in range(wrong))

    with pytest.raises(ScenarioError) as caught:
        parse_truths("vehicle,value\n" + rows, "t.csv")

    said = str(caught.value)
    lines = [3 + 2 * number for number in range(min(wrong, 10))]
    assert said.startswith(f"t.csv: {wrong} bad rows: line 3: 'bbb")
    assert [int(one) for one in re.findall(r"line (\d+): ", said)] == lines
    assert said.endswith(more or "bytes")


def test_rows_behind_a_broken_quote_are_not_judged() -> None:
    with pytest.raises(ScenarioError, match=r"t.csv: 2 bad rows: line 2: the vehicle is empty; line 3: "):
        parse_truths('vehicle,value\n,a\n1,"a\n2,b\n', "t.csv")


def test_more_vehicles_than_the_limit_are_refused() -> None:
    text = "vehicle,value\n" + "".join(f"{i},a\n" for i in range(100_001))

    with pytest.raises(ScenarioError, match="more than 100000 vehicles"):
        parse_truths(text, "t.csv")


@given(st.text(max_size=60))
def test_any_text_is_truths_or_a_named_refusal(body: str) -> None:
    try:
        truths = parse_truths("vehicle,value\n" + body, "t.csv")
    except ScenarioError as refusal:
        assert str(refusal).startswith("t.csv")  # noqa: PT017 either outcome is allowed, a refusal must name the file
    else:
        assert 1 <= len(truths.categories) <= len(truths.values)
