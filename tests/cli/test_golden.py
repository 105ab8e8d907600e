"""`fleetcount golden`: every group is recomputed, a changed number is a miss, a file of another form is refused."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleetcount.command.base import CheckFailedError
from fleetcount.evidence.golden import golden, parse_golden
from fleetcount_evidence.golden.comparison import check_group
from fleetcount_evidence.golden.rows import MalformedGoldenError
from fleetcount_protocol.errors import UsageError

from tests.cli.conftest import Ran

PATH = Path(__file__).parents[1] / "golden" / "golden.json"
GOLDEN: dict[str, Any] = json.loads(PATH.read_text())
# The rows that take a solver are changed once each, below, instead of at every leaf.
SLOW = {"bucket.opt"}


def check(content: object, name: str) -> bool:
    """Return whether one group passes, read as the command reads it."""
    parsed = parse_golden(json.dumps({name: content}), "golden.json")
    return check_group(name, parsed[name]).passed


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every number in a group."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def changed(value: Any, path: tuple[str | int, ...], change: Callable[[Any], Any]) -> Any:
    """Return a copy of a group with one number changed."""
    copied = copy.deepcopy(value)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place[path[-1]])
    return copied


def nudged(value: Any) -> Any:
    """Return a number that is wrong in the eighth digit, an integer that is one off, or a fraction a thousandth off."""
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "1"
    return value + 1 if isinstance(value, int) else value * (1 + 3e-9) + (1e-12 if value == 0 else 0)


def test_every_group_is_reproduced() -> None:
    assert [name for name, content in GOLDEN.items() if not check(content, name)] == []


# What a row is computed from, and so cannot be wrong in itself.
ARGUMENTS = {
    "sampling.eps": {"pi0", "pis"},
    "sampling.eps29": {"piv", "pis"},
    "sampling.linked_delta": {"pis"},
    "sampling.central_delta": {"pis", "n1", "eps"},
    "sampling.sd": {"pis", "n"},
    "rr": {"q", "r"},
    "warner.sd": {"eps", "N"},
    "mangat.sd": {"eps", "N", "n"},
    "krr.sd": {"eps", "k", "N", "n"},
    "oue.sd": {"eps", "N", "n"},
    "hardened.eps": {"pis", "e1"},
    "hardened.e1": {"pis", "eps"},
    "hardened.sd": {"pis", "eps", "k", "n"},
    "hardened.ci95": {"y", "pis", "e1", "k"},
    "kov": {"eps", "Q", "delta"},
    "kov.inverse": {"Q", "total", "delta"},
    "local.pis": {"eps", "V"},
    "ageo.row": {"f", "n", "eps", "direction"},
    "adp.beta": {"eps", "k", "alpha"},
    "dp.beta": {"eps", "k", "alpha", "delta"},
    "adp.beta_k_noise": {"eps", "m", "k"},
    "adp.city": {"h012", "busy"},
    "geo.ex22": {"n", "a"},
    "geo.s61": {"a"},
    "bucket.pair_list": {"T", "S1", "S2"},
    "bucket.ex532": {"o", "B"},
    "inference": {"x", "y", "b"},
}


def test_every_single_wrong_answer_is_a_miss() -> None:
    for name in (name for name in GOLDEN if name not in SLOW):
        answers = [path for path in leaves(GOLDEN[name]) if not ARGUMENTS.get(name, set()) & set(path)]
        passed = [path for path in answers if check(changed(GOLDEN[name], path, nudged), name)]

        assert answers, name
        assert passed == [], name


def test_a_wrong_bucket_setting_or_loss_is_a_miss() -> None:
    row = GOLDEN["bucket.opt"][1]

    assert check([row], "bucket.opt")
    for path in [("fp", 3), ("M",), ("two", 0), ("two", 4), ("multi", 0, 0), ("multi_loss",), ("optimal_loss",)]:
        assert not check([changed(row, path, nudged)], "bucket.opt"), path
    assert not check([{**row, "optimal": [[4, 25]]}], "bucket.opt"), "not valid for these thresholds"
    assert check([{**row, "multi": row["multi"][::-1]}], "bucket.opt")


def test_rows_never_seen_before_are_recomputed() -> None:
    assert check([{"pis": 0.5, "n": 4, "sd": 2.0}], "sampling.sd")
    assert check([{"n": 1, "a": "1/3", "face_unbounded": "1/2", "face_Gn": "1/4", "remapped": "1/4"}], "geo.ex22")
    assert check([["3/4", "1/4"], ["1/4", "3/4"]], "geo.Gn")


@pytest.fixture
def run(fleetcount: Callable[..., Ran], tmp_path: Path) -> Callable[[str], Ran]:
    """Run the command over a file of this text."""

    def call(text: str) -> Ran:
        (tmp_path / "golden.json").write_text(text)
        return fleetcount("golden", tmp_path / "golden.json")

    return call


def test_an_unknown_group_is_a_miss_line_and_code_1(run: Callable[[str], Ran]) -> None:
    text = json.dumps({"sampling.sd": GOLDEN["sampling.sd"], "mystery\n": [{"x": 1}]})

    ran = run(text)

    assert ran.code == 1
    first, second = ran.out.splitlines()
    assert first == "ok    sampling.sd: 3 rows"
    assert second.startswith("MISS  'mystery\\n'")
    assert ran.error_line


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "0 bytes"),
        ("{", "not JSON"),
        ("[]", "one object"),
        ("{}", "one object"),
        ('{"sampling.sd": []}', "at least one row"),
        ('{"salap.law": {}}', "at least one row"),
        ('{"sampling.sd": [1]}', "row 1"),
        ('{"sampling.sd": [{"pis": 0.5, "n": 4}]}', "'sd' is missing"),
        ('{"sampling.sd": [{"pis": 0.5, "n": 4, "sd": 2.0, "extra": 1}]}', "'extra'"),
        ('{"sampling.sd": [{"pis": "0.5", "n": 4, "sd": 2.0}]}', "must be a number"),
        ('{"sampling.sd": [{"pis": 0.5, "n": 4.0, "sd": 2.0}]}', "must be an integer"),
        ('{"sampling.sd": [{"pis": NaN, "n": 4, "sd": 2.0}]}', "NaN"),
        ('{"sampling.sd": [{"pis": 0.5, "pis": 0.4, "n": 4, "sd": 2.0}]}', "stands twice"),
        ('{"geo.Gn": [["a quarter"]]}', "geo.Gn[0][0]"),
        ('{"geo.Gn": "x"}', "matrix"),
        ('{"salap.law": {"__import__": 1.0}}', "outcome"),
        ("[" * 100_000, "nested"),
    ],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "golden.json"
    file.write_text(text)

    done = CliRunner().invoke(golden, [str(file)])

    assert isinstance(done.exception, UsageError | MalformedGoldenError), done.exception
    assert named in str(done.exception)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ('{"pis": 1e999999999, "n": 4, "sd": 2.0}', "number 1e999999999"),
        ('{"pis": 0.5, "n": 4, "sd": 1e-100001}', "number 1e-100001"),
        ('{"pis": 0.5, "n": 4, "sd": 1e-99999999999999999999}', "number 1e-9999"),
        (f'{{"pis": 0.5, "n": {"9" * 61}, "sd": 2.0}}', "60 digits"),
    ],
)
def test_a_number_that_cannot_be_judged_is_a_miss_of_its_row_alone(
    run: Callable[[str], Ran], wrong: str, named: str
) -> None:
    good = '{"pis": 0.5, "n": 4, "sd": 2.0}'
    text = f'{{"sampling.sd": [{good}, {wrong}], "geo.Gn": [[1e-200000]], "local.pis": [@]}}'
    text = text.replace("@", json.dumps(GOLDEN["local.pis"][0]))

    ran = run(text)

    assert ran.code == 1, ran.err
    first, second, third = ran.out.splitlines()
    assert first.startswith("MISS  sampling.sd: sampling.sd row 2: ")
    assert named in first
    assert "allowed: " in first
    assert "(and" not in first
    assert second.startswith("MISS  geo.Gn: ")
    assert third == "ok    local.pis: 1 row"


def test_a_decimal_that_no_float_holds_is_compared_exactly(run: Callable[[str], Ran]) -> None:
    row = {"inputs": {"p": "1/10", "units": "20000"}, "how": ""}
    text = json.dumps({"exposure_all": [{**row, "expected": "@"}]}).replace('"@"', "1e-20000")

    assert run(text).code == 0
    assert run(text.replace("1e-20000", "1.0001e-20000")).code == 1


def test_a_malformed_file_is_code_2_and_one_line(run: Callable[[str], Ran]) -> None:
    ran = run('{"sampling.sd": [{"pis": 0.5, "n": 4}]}')

    assert (ran.code, ran.out) == (2, "")
    assert ran.error_line


def test_arguments_the_api_refuses_are_a_miss_not_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    file.write_text('{"geo.ex22": [{"n": 4, "a": "1/2", "face_unbounded": "1", "face_Gn": "1", "remapped": "1"}]}')

    done = CliRunner().invoke(golden, [str(file)])

    assert isinstance(done.exception, CheckFailedError)
    assert "a refusal" in done.stdout
