"""`fleetcount microdata` as the shell sees it: whole output or none, one line of refusal, a documented code."""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.__main__ import main
from fleetcount.study import microdata as microdata_command
from fleetcount.study.microdata import EXAMPLE_SPEC
from fleetcount_protocol.errors import MachineError
from scipy import stats

from tests.support.cases import case
from tests.support.input_order import InputOrder

PUBLISHED = ["quasi_identifiers.csv", "sensitive.csv"]
KEPT = ["report.json", "report.txt"]
THRESHOLDS = {"flu": Fraction(31, 50), "asthma": Fraction(1, 2), "hiv": Fraction(1, 5)}
Run = Callable[..., tuple[int, str]]


def persons(records: int) -> list[list[str]]:
    """Names, attributes and values in an order that gives the values away: 6 flu, 3 asthma, 1 hiv of every 10."""
    diseases = ["flu"] * (records * 6 // 10) + ["asthma"] * (records * 3 // 10) + ["hiv"] * (records // 10)
    return [[f"p{i}", str(20 + i % 50), f"d{i}", disease] for i, disease in enumerate(diseases)]


def write_table(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["name", "age", "district", "disease"], *rows])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a table of 100 persons and the specification of the help."""
    write_table(tmp_path / "table.csv", persons(100))
    (tmp_path / "spec.toml").write_text('allow_unique = ["district"]\n' + EXAMPLE_SPEC)
    return tmp_path


@pytest.fixture
def run(place: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in `place`; return its code, and its output or its single line of refusal."""

    def call(*more: str, output: str = "out", sensitive: str = "disease") -> tuple[int, str]:
        files = ["--input", str(place / "table.csv"), "--spec", str(place / "spec.toml")]
        with pytest.raises(SystemExit) as ended:
            main(["microdata", *files, "--sensitive", sensitive, "--output", str(place / output), *more])
        shown = capsys.readouterr()
        code = int(ended.value.code or 0)
        if code:
            assert shown.out == ""
            assert len(shown.err.splitlines()) == 1
            assert "Traceback" not in shown.err
        return code, shown.out if code == 0 else shown.err

    return call


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_the_published_tables_keep_every_threshold_and_hold_every_record(run: Run, place: Path) -> None:
    code, said = run()

    assert code == 0
    assert sorted(file.name for file in (place / "out").iterdir()) == sorted(PUBLISHED + KEPT)
    attributes, values = (read_csv(place / "out" / name) for name in PUBLISHED)
    assert attributes[0] == ["bucket", "age", "district"]
    assert values[0] == ["bucket", "value", "count"]
    raw = {(age, district): disease for _, age, district, disease in persons(100)}
    members: dict[str, list[str]] = defaultdict(list)
    for bucket, age, district in attributes[1:]:
        members[bucket].append(raw.pop((age, district)))
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for bucket, value, count in values[1:]:
        held[bucket][value] += int(count)
    assert raw == {}
    assert {bucket: Counter(found) for bucket, found in members.items()} == held
    for found in held.values():
        assert all(Fraction(count, found.total()) <= THRESHOLDS[value] for value, count in found.items())
    assert "100 records of 3 values" in said
    assert "publish this table once" in said


def test_the_report_is_the_holders_and_says_what_the_tables_are_not(run: Run, place: Path) -> None:
    run()

    report = json.loads((place / "out" / "report.json").read_text())
    text = (place / "out" / "report.txt").read_text()
    assert {row["value"]: Fraction(row["threshold"]) for row in report["values"]} == THRESHOLDS
    assert all(Fraction(row["worst_posterior"]) <= Fraction(row["threshold"]) for row in report["values"])
    assert report["equivalent"]["diversity"] == 5
    assert report["asked"]["dropped"] == ["name"]
    for said in ("not differentially private", "can be intersected", "had a holder", "l = 5", "which this table"):
        assert said in " ".join(text.split())
    modes = {name: (place / "out" / name).stat().st_mode & 0o077 for name in PUBLISHED + KEPT}
    assert [modes[name] for name in KEPT] == [0, 0]


def test_no_dropped_column_is_in_the_output(run: Run, place: Path) -> None:
    names = {name for name, *_ in persons(100)}

    run()

    for table in PUBLISHED:
        assert not names & {cell for row in read_csv(place / "out" / table) for cell in row}
    for report in KEPT:
        assert not names & set(re.findall(r"\w+", (place / "out" / report).read_text()))


def test_a_person_s_text_is_no_formula_in_the_published_tables(run: Run, place: Path) -> None:
    rows = [[name, f"-{age}", district.replace("d", "=d"), disease] for name, age, district, disease in persons(100)]
    write_table(place / "table.csv", rows)

    code, _ = run()

    assert code == 0
    published = read_csv(place / "out" / PUBLISHED[0])[1:]
    assert {district for _, _, district in published} == {f"'{row[2]}" for row in rows}
    assert {age for _, age, _ in published} == {row[1] for row in rows}


def test_the_output_does_not_tell_the_inputs_order(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(place / "table.csv", persons(4_000))

    run(output="first")
    run(output="second")
    monkeypatch.setattr(microdata_command, "SystemRandom", InputOrder)
    run(output="unshuffled")

    rows = {name: read_csv(place / name / "quasi_identifiers.csv")[1:] for name in ("first", "second", "unshuffled")}
    first, second, unshuffled = ([int(district[1:]) for _, _, district in found] for found in rows.values())
    assert rows["first"] != rows["second"]
    for left, right in itertools.combinations([range(4_000), first, second], 2):
        assert stats.spearmanr(left, right).pvalue > 1e-20
    assert stats.spearmanr(range(4_000), unshuffled).pvalue < 1e-20


def test_the_specification_of_the_help_works_as_it_stands(
    run: Run, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["microdata", "--help"])
    text = capsys.readouterr().out
    start = text.index("    acknowledge")
    (place / "spec.toml").write_text(textwrap.dedent(text[start : text.index("\n\n", start)]))
    write_table(place / "table.csv", [[name, age, "here", disease] for name, age, _, disease in persons(100)])

    assert run()[0] == 0
    assert "two publications of one table can be intersected" in " ".join(text.split())


@pytest.mark.parametrize("algorithm", ["two-size", "multi-size", "optimal"])
def test_every_algorithm_and_a_rule_for_all_values(run: Run, place: Path, algorithm: str) -> None:
    spec, _, _ = EXAMPLE_SPEC.partition("[thresholds]")
    extra = f'allow_unique = ["district"]\nalgorithm = "{algorithm}"\nsizes = [2, 12]\n'
    (place / "spec.toml").write_text(spec + extra + '[rule]\ntheta = "3/2"\noffset = 0\n')

    assert run()[0] == 0

    report = json.loads((place / "out" / "report.json").read_text())
    assert report["asked"]["algorithm"] == algorithm
    assert [row["threshold"] for row in report["values"]] == ["9/10", "9/20", "3/20"]


def test_anatomy_takes_fakes(run: Run, place: Path) -> None:
    rows = [[f"p{i}", str(i % 9), "here", f"v{i % 6}"] for i in range(120)]
    write_table(place / "table.csv", rows)
    spec, _, _ = EXAMPLE_SPEC.partition("[thresholds]")
    extra = 'algorithm = "anatomy"\nfakes = 2\nassociation_support = 100\n[rule]\ntheta = 1\noffset = "1/6"\n'
    (place / "spec.toml").write_text(spec + extra)

    assert run()[0] == 0

    values = Counter(bucket for bucket, _, _ in read_csv(place / "out" / "sensitive.csv")[1:])
    records = Counter(bucket for bucket, *_ in read_csv(place / "out" / "quasi_identifiers.csv")[1:])
    assert {bucket: values[bucket] - records[bucket] for bucket in values} == dict.fromkeys(records, 2)


# Refusals: nothing is written.


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


WRONG_SPECIFICATIONS = [
    (
        replaced("anonymised, not", "yes,"),
        "acknowledge is 'yes, differentially private'; allowed is 'anony",
    ),
    (replaced("acknowledge", "acknowlege"), "acknowlege is unknown; did you mean 'acknowledge'?"),
    (lambda text: text.split("\n", 2)[2], "acknowledge is missing"),
    (replaced("[thresholds]", "[thresholds]\nflue = 1"), "thresholds names 'flue', no value of 'disease'; did you"),
    (replaced('hiv = "0.2"', ""), "thresholds misses 'hiv'"),
    (
        replaced('"0.2"', "0.2"),
        'hiv is 0.2; allowed is a number like "0.45" or "9/20", as text, above 0',
    ),
    (replaced('"0.2"', '"0"'), "thresholds.hiv is '0'; allowed is a number like"),
    (replaced('"0.2"', "0"), "thresholds.hiv is 0;"),
    (replaced('"0.2"', '"1.01"'), "thresholds.hiv is '1.01'"),
    (replaced('"0.2"', '"nan"'), "thresholds.hiv is 'nan'"),
    (replaced('"0.2"', "nan"), "thresholds.hiv is nan"),
    (replaced('"0.2"', '"1/0"'), "thresholds.hiv is '1/0'"),
    (replaced('"0.2"', "true"), "thresholds.hiv is true"),
    (replaced('"0.2"', '"-0.2"'), "thresholds.hiv is '-0.2'"),
    (replaced('"0.2"', '"0,2"'), "thresholds.hiv is '0,2'"),
    (
        replaced("[thresholds]", "[rule]\ntheta = 2\noffset = 0\n[thresholds]"),
        "exactly one of [thresholds], one per value",
    ),
    (lambda text: text.partition("[thresholds]")[0], "thresholds is missing; allowed is exactly one of"),
    (lambda text: text.partition("[thresholds]")[0] + '[rule]\ntheta = "0.9"\noffset = 0', "rule.theta is '0.9'"),
    (lambda text: text.partition("[thresholds]")[0] + "[rule]\ntheta = 2", "rule.offset is missing"),
    (lambda text: text.partition("[thresholds]")[0] + "thresholds = 3", "thresholds is 3; allowed is a table"),
    (replaced('["name"]', '["name", "age"]'), "column 'age' is named twice"),
    (replaced('["name"]', "[]"), "column 'name' has no role; list it under quasi_identifiers or under drop"),
    (replaced('["name"]', '["nme"]'), "column 'name' has no role; list it under quasi_identifiers or under drop"),
    (replaced('["name"]', '["name", "id"]'), "column 'id' is not in the table"),
    (replaced('["name"]', '"name"'), "drop is 'name'; allowed is a list of column names"),
    (replaced("allow_unique", "#"), "quasi-identifier 'district' has a different value in each of the 100 records"),
    (replaced("drop", 'algorithm = "best"\ndrop'), "algorithm is 'best'; allowed is 'two-size' or 'multi-size'"),
    (replaced("drop", "sizes = [5]\ndrop"), "sizes is [5]; allowed is two whole numbers"),
    (replaced("drop", "sizes = [5, 5]\ndrop"), "sizes is 5 to 5; allowed is 1 <= smallest < largest"),
    (replaced("drop", 'algorithm = "anatomy"\nsizes = [2, 5]\ndrop'), "sizes is [2, 5]; allowed is nothing"),
    (replaced("drop", "fakes = 2\ndrop"), "fakes is 2 for algorithm 'multi-size'"),
    (replaced("drop", "fakes = -1\ndrop"), "fakes is -1; allowed is a whole number"),
    (replaced("drop", "association_support = 2\ndrop"), "together with fakes"),
    (replaced("drop", 'drop = ["name"]\ndrop'), "is not TOML"),
]


def test_a_specification_that_cannot_be_used_is_refused_by_key(run: Run, place: Path) -> None:
    sound = (place / "spec.toml").read_text()
    for change, said in WRONG_SPECIFICATIONS:
        with case(said):
            (place / "spec.toml").write_text(change(sound))

            code, line = run()

            assert code == 2
            assert said in line
            assert sorted(file.name for file in place.iterdir()) == ["spec.toml", "table.csv"]


WRONG_TABLES = [
    (b"", "has 0 bytes"),
    (b"name,age,district,disease\n", "has 0 records; it must have 2"),
    (b"name,age,district,disease\na,1,2,flu\n", "has 1 records"),
    (b"name,age,age,disease\na,1,2,flu\n", "names column 'age' 2 times"),
    (b"name,age,district,disease\na,1,2\n", "line 2 has 3 fields"),
    (b"name,age,district,disease\na,1,2,\n", "line 2, column 'disease' is empty"),
    (b'name,age,district,disease\na,1,"2,flu\nb,1,2,flu\n', "line 2 is not CSV"),
    (b"name,age,district,disease\na,1,2,fl\0u\n", "holds a NUL character"),
    (b"name,age,district,disease\na,1,2,fl\xff\n", "not UTF-8 text (byte 34)"),
    (b"name;age;district;disease\na;1;2;flu\n", "fields are separated by commas"),
]


def test_a_table_that_cannot_be_used_is_refused_by_line(run: Run, place: Path) -> None:
    for content, said in WRONG_TABLES:
        with case(said):
            (place / "table.csv").write_bytes(content)

            code, line = run()

            assert code == 2
            assert "table.csv" in line
            assert said in line
            assert not (place / "out").exists()


def test_thresholds_that_no_bucket_can_keep_end_with_code_3_and_name_the_value(run: Run, place: Path) -> None:
    spec = (place / "spec.toml").read_text()

    (place / "spec.toml").write_text(spec.replace('"0.2"', '"0.0999"'))
    frequent = run()
    (place / "spec.toml").write_text(spec.replace('"0.2"', '"1/10"') + "\n")
    (place / "spec.toml").write_text("sizes = [2, 9]\n" + (place / "spec.toml").read_text())
    tight = run()

    assert frequent[0] == tight[0] == 3
    assert "cannot be satisfied: value 'hiv' has 10 of 100 records, a share of 1/10 above its threshold" in frequent[1]
    assert "no bucket sizes from 2 to 9 keep every threshold for 100 records; the tightest is that of 'hiv'" in tight[1]
    assert not (place / "out").exists()


def test_a_second_publication_into_the_same_directory_is_refused_and_says_why(run: Run, place: Path) -> None:
    run()
    before = {file.name: file.read_bytes() for file in (place / "out").iterdir()}

    code, line = run()

    assert code == 2
    assert "holds a publication already; two publications of one table can be intersected" in line
    assert {file.name: file.read_bytes() for file in (place / "out").iterdir()} == before


def test_an_output_that_is_not_new_is_refused(run: Run, place: Path) -> None:
    (place / "full").mkdir()
    (place / "full" / "mine.txt").touch()

    assert "is not empty; choose a new directory" in run(output="full")[1]
    assert "is not a directory" in run(output="spec.toml")[1]


def test_a_column_that_is_not_there_and_options_that_do_not_exist_are_refused(run: Run) -> None:
    assert run(sensitive="diseases")[0] == 2
    assert "column 'disease' has no role" in run(sensitive="diseases")[1]
    assert "No such option '--seed'" in run("--seed", "1")[1]
    assert "is given twice" in run("--sensitive", "age")[1]


def test_nothing_stays_when_writing_fails(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(report: object) -> str:
        raise MachineError("disk full")

    monkeypatch.setattr(microdata_command, "report_text", fail)

    code, line = run()

    assert code == 5
    assert "disk full" in line
    assert sorted(file.name for file in place.iterdir()) == ["spec.toml", "table.csv"]


def test_an_input_that_is_a_pipe_is_refused_and_not_waited_for(run: Run, place: Path) -> None:
    (place / "table.csv").unlink()
    os.mkfifo(place / "table.csv")

    assert "a pipe, not a file" in run()[1]


@pytest.mark.processes
def test_the_command_runs_as_a_program(place: Path) -> None:
    command = [sys.executable, "-m", "fleetcount", "microdata", "--sensitive", "disease", "--output", "out"]

    done = subprocess.run(
        [*command, "--input", "table.csv", "--spec", "spec.toml"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "publish out/quasi_identifiers.csv and out/sensitive.csv" in done.stdout
