"""A row's verdict and checks, and the tables and page made of rows."""

import json
import math
from pathlib import Path
from typing import Any

import machine
import page
import pytest
import table
from rows import ROWS_VARIABLE, SIZES_VARIABLE, Row, Taken, line, number, report

from tests.support.cases import case

ROOT = Path(__file__).resolve().parents[2]


def taken(benchmark: str = "store", **values: Any) -> Taken:
    """Return a row as a benchmark took it."""
    row = Row(**({"path": "a path", "ours": 10.0, "unit": "us"} | values))
    return Taken(benchmark=benchmark, row=row, cpu_s=1.25, load=0.5)


VERDICTS = [
    (76.0, 100, 28, True, "missed"),
    (40.0, 15, 40, True, "aim met"),
    (39.9, 15, 40, True, "must met"),
    (15.0, 15, 40, True, "must met"),
    (14.9, 15, 40, True, "missed"),
    (0.35, 0.6, 0.35, False, "aim met"),
    (0.36, 0.6, 0.35, False, "must met"),
    (0.6, 0.6, 0.35, False, "must met"),
    (0.61, 0.6, 0.35, False, "missed"),
    (2.5, 2.5, None, True, "must met"),
    (2.4, 2.5, None, True, "missed"),
    (2.4, None, None, True, ""),
    (2.4, None, 2.4, True, "aim met"),
    (2.3, None, 2.4, True, "aim missed"),
    (60.1, None, 60, False, "aim missed"),
    (None, 2.5, 3, True, ""),
]


def test_the_verdict_compares_the_ratio_in_the_direction_of_the_row() -> None:
    for ratio, must, aim, larger, verdict in VERDICTS:
        with case(str((ratio, must, aim, larger))):
            row = Row(path="a", ours=1.0, unit="s", ratio=ratio, must=must, aim=aim, larger_is_better=larger)
            assert row.verdict == verdict


def test_what_did_not_run_has_no_other_verdict() -> None:
    assert Row(path="a", ours=None, unit="s", ratio=99.0, must=1, note="no disk").verdict == "not run"


@pytest.mark.parametrize(
    "values",
    [
        {"ours": math.nan},
        {"ours": 4.0, "peer_value": 8.0, "ratio": 2.1},
        {"ours": 4.0, "peer_value": 8.0, "ratio": 0.49},
        {"ours": 4.0, "peer_value": math.inf, "ratio": 2.0},
    ],
)
def test_figures_that_do_not_fit_each_other_are_refused(values: dict[str, Any], capsys: Any) -> None:
    with pytest.raises(ValueError, match="a path"):
        report(taken(**values).row)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_reported_rows_are_appended_and_read_back(
    ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(ROWS_VARIABLE, str(tmp_path / "rows"))
    monkeypatch.delenv(SIZES_VARIABLE, raising=False)
    rows = [
        taken(ours=4.0, peer="a peer", peer_value=8.0, ratio=ratio, must=1, aim=3, note="seen").row,
        taken(ours=None, note="why").row,
    ]
    for row in rows:
        report(row)
    kept = [json.loads(text) for text in (tmp_path / "rows").read_text().splitlines()]
    assert [Taken.from_json(one).row for one in kept] == rows
    assert [one["verdict"] for one in kept] == [rows[0].verdict, "not run"]
    assert all(one["cpu_s"] >= 0 for one in kept)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("sizes", "notes"),
    [("full", ["seen", ""]), ("quick", ["seen; quick run", "quick run"]), ("smoke", ["seen; smoke run", "smoke run"])],
)
def test_a_row_says_when_its_sizes_were_small(
    sizes: str, notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROWS_VARIABLE, str(tmp_path / "rows"))
    monkeypatch.setenv(SIZES_VARIABLE, sizes)
    for note in ("seen", ""):
        report(taken(note=note).row)
    assert [json.loads(text)["note"] for text in (tmp_path / "rows").read_text().splitlines()] == notes


@pytest.mark.parametrize("change", [{"colour": 1}, {"must": ...}])
def test_a_kept_row_with_other_names_is_refused(change: dict[str, Any]) -> None:
    values = taken().to_json() | change
    [name] = change
    if change[name] is ...:
        del values[name]
    with pytest.raises(ValueError, match=name):
        Taken.from_json(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.12345, "0.1235"), (12.3456, "12.35"), (1234.5, "1,234"), (999999.0, "999,999"), (1e7, "1e+07")],
)
def test_numbers_have_about_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_line_says_all_of_a_row() -> None:
    one = taken(ours=4.0, peer="a peer", peer_value=8.0, ratio=2.0, must=1, aim=3, note="seen").row
    for part in ("a path", "4 us", "a peer: 8", "2x", "must >= 1", "aim >= 3", "must met", "seen"):
        assert part in line(one)


MIXED = [
    taken(path="fast", ours=4.0, peer="a | b", peer_value=8.0, ratio=2.0, must=1, aim=2, note="same note"),
    taken(path="slow", ours=8.0, peer_value=4.0, ratio=2.0, must=1, larger_is_better=False, note="same note"),
    taken(path="absent", ours=None, note="no <disk>"),
    taken(path="free", ours=1234.5, unit="/s"),
]


def test_the_table_has_a_line_a_row_in_columns_and_each_note_once() -> None:
    lines = table.text_table(MIXED).splitlines()
    assert len(lines) == 2 + len(MIXED) + 2
    assert lines[-2:] == ["[1] same note", "[2] no <disk>"]
    column = lines[0].index("verdict")
    verdicts = [text[column:].split("  ")[0] for text in lines[2:6]]
    assert verdicts == ["aim met", "missed", "not run", ""]
    assert [text[0] for text in lines[2:6]] == [" ", "!", "-", " "]
    assert [text.rstrip()[-3:] for text in lines[2:5]] == ["[1]", "[1]", "[2]"]


def test_the_markdown_table_has_as_many_cells_in_every_line() -> None:
    lines = table.markdown_table(MIXED).splitlines()
    cells = [text.replace("\\|", "").count("|") for text in lines[: 2 + len(MIXED)]]
    assert set(cells) == {cells[0]}
    assert lines[1].count("---") == cells[0] - 1
    assert "a \\| b" in lines[2]
    assert "**missed**" in lines[3]
    assert "&lt;= 1" in lines[3]
    assert lines[-1].strip() == "[2] no &lt;disk&gt;"


def test_verdicts_are_counted() -> None:
    assert table.verdicts(MIXED) == "1 aim met, 1 missed, 1 not run"
    assert table.verdicts(MIXED[3:]) == "nothing was demanded"


def test_the_page_has_every_part_and_a_row_in_one_of_them() -> None:
    text = page.page_of(MIXED, "this machine")
    assert [text.count(f"\n## {heading}\n") for heading in page.PARTS.values()] == [1] * len(page.PARTS)
    assert text.count("this machine") == 1
    assert text.count("| fast |") == 1
    assert text.count("Not measured in this run.") == len(page.PARTS) - 2


@pytest.mark.parametrize(
    ("one", "part"),
    [
        (taken(), "others"),
        (taken("network", ours=None), "others"),
        (taken(unit="MiB"), "memory"),
        (taken(ratio=1.0, aim=1.0), "demanded"),
        (taken(unit="MiB", ratio=1.0, must=1.0), "demanded"),
        (taken("growth", ratio=1.0), "growth"),
        (taken("start", unit="MiB"), "starts"),
        (taken("kernel", path="verifying, AVX2"), "vectors"),
        (taken("kernel", path="a verifier: later starts"), "starts"),
    ],
    ids=str,
)
def test_a_row_stands_in_the_part_it_belongs_to(one: Taken, part: str) -> None:
    assert page.part_of(one) == part
    assert part in page.PARTS


@pytest.mark.parametrize(
    ("flags", "vectors"),
    [
        ({"avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl"}, "AVX-512"),
        ({"avx2", "avx512f", "avx512dq", "avx512bw"}, "AVX2"),
        ({"asimd"}, "NEON"),
        ({"sse2"}, "128 bits or unknown"),
        (set(), "128 bits or unknown"),
    ],
)
def test_the_widest_vectors_are_named(flags: set[str], vectors: str) -> None:
    assert machine.vector_extension(flags) == vectors


def test_the_machine_is_described_in_one_line() -> None:
    facts = machine.facts(ROOT)
    text = machine.describe(facts)
    assert "\n" not in text
    for part in (facts["processor"], facts["vectors"], "cores", "load before", facts["commit"]):
        assert part in text
    assert json.loads(json.dumps(facts)) == facts
    assert str(ROOT) not in json.dumps(facts)
