"""With --json every result is one JSON document on standard output, with the numbers of the lines for people."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleetcount.read.report import release_json, table_lines
from fleetcount.run.device import decimal_text

from tests.cli.test_device_question import offered  # noqa: F401 - a fixture
from tests.cli.test_question_export import RELEASED, export, kept, raw  # noqa: F401 - fixtures
from tests.cli.test_remap import files  # noqa: F401 - a fixture
from tests.support.cases import case
from tests.support.protocol_samples import every_window, record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def document(fleetcount: Callable) -> Callable[..., Any]:
    """Run a command with --json; return what its whole standard output says."""

    def run(*arguments: object, code: int = 0) -> Any:
        ran = fleetcount(*arguments, "--json")
        assert ran.code == code, ran.err
        return json.loads(ran.out)

    return run


def test_plans(document: Callable) -> None:
    size = ("--devices", "2000", "--values", "4", "--epsilon", "1")

    one, ways = document("plan", *size), document("plan", *size, "--windows", "1", "--threat", "one-honest")
    walks = document("plan", "--devices", "2000", "--values", "512", "--epsilon", "4", "--levels", "4,6")

    assert one["rows"][0]["true_count"] == 0
    assert len(one["sentences"]) == 2
    assert one["adversaries"][0]["epsilon"] == "1.00000"
    assert {way["threat"] for way in ways} == {"one-honest"}
    assert all(way["sd_0"] > 0 for way in ways)
    assert all(isinstance(walk["threshold"], int) for walk in walks)


def test_answers_of_a_question(document: Callable, kept: object) -> None:  # noqa: F811 - the fixture
    found = document(
        "question", "export", "--records", "got", "--sum", "1-2", "--windows", "0,3", "--largest", "2", "--readable",
    )  # fmt: skip
    smooth = document("question", "export", "--records", "got", "--smooth", "2,3")
    change = document("question", "export", "--records", "got", "--difference", "1,4", "--output", "t.csv")

    total = next(one for one in found["answers"] if one["question"] == "sum")
    assert total["estimate"] == raw(0, 1) + raw(0, 2) + raw(3, 1) + raw(3, 2)
    assert (total["cells"], total["windows"], total["level"]) == ([1, 2], [0, 3], "19/20")
    assert all(one["low"] <= one["estimate"] <= one["high"] for one in found["answers"] + smooth["answers"])
    assert {one["question"] for one in found["answers"]} >= {"sum", "readable"}
    assert {one["question"] for one in smooth["answers"]} == {"smooth"}
    assert {one["level"] for one in found["answers"] + smooth["answers"]} == {"19/20"}
    assert "independent steps of standard deviation 3" in smooth["answers"][0]["assumes"]
    assert found["missing"] == {"2": "paused"}
    assert (change["answers"][0]["estimate"], change["written"]) == (18, "t.csv")


def test_what_a_device_says_of_itself(document: Callable, offered: tuple[Path, Any]) -> None:  # noqa: F811
    config, question = offered

    listed = document("device", "question", "list", "--config", config)
    ledger = document("device", "ledger", "--config", config)
    log = document("device", "log", "--config", config)

    states = {one["name"]: (one["state"], one["reserved"]) for one in listed}
    assert states == {question.name: ("offered", 0), "too much": ("refused", 0)}
    assert ledger["refused"][0]["rule"] == "smallest_min_batch_size"
    assert (ledger["answered"], ledger["reserved"], ledger["charges"]) == (0, 0, [])
    assert any("refused: 'too much'" in one["text"] for one in log)
    assert document("device", "question", "reserved", "--config", config) == []
    assert document("device", "spool", "--config", config) == []
    assert document("device", "status", "--config", config)["valid"] is True


def test_a_ledger_for_programs_has_the_losses_of_its_text(
    document: Callable,
    fleetcount: Callable,
    offered: tuple[Path, Any],  # noqa: F811
) -> None:
    config, question = offered
    assert fleetcount("device", "question", "join", "--config", config, question.name).code == 0

    ledger, text = document("device", "ledger", "--config", config), fleetcount("device", "ledger", "--config", config)

    [charge] = ledger["charges"]
    [(order, loss)] = charge["renyi"].items()
    assert charge["epsilon"] is None
    assert f"Renyi {decimal_text(loss)} at order {order}" in text.out
    assert f"{ledger['charges_in_period']} charges, within epsilon {ledger['epsilon']}" in text.out
    assert f"see {ledger['answers_seen']} of these answers on average and any of them with a chance of" in text.out
    assert f"at most {ledger['chance_seen']}; trust = '{ledger['trust']}'" in text.out
    assert (ledger["one_sided"], ledger["without_epsilon"]) == (0, 0)


def test_checks_of_files(document: Callable, fleetcount: Callable, files: tuple[Path, Path], tmp_path: Path) -> None:  # noqa: F811
    release, prior = files
    vectors = ROOT / "tests" / "vectors" / "vdaf" / "Prio3Count_0.json"
    (tmp_path / "golden.json").write_text('{"nothing known": [1]}')

    verified = document("verify", release)
    replayed = document("vectors", vectors)
    missed = document("golden", tmp_path / "golden.json", code=1)
    answers = document("remap", "--release", release, "--prior", prior, "--loss", "absolute")

    assert (verified["signed_by"], verified["trusted"]) == (["alpha", "beta"], False)
    assert [(one["file"], one["result"]) for one in replayed] == [(str(vectors), "ok")]
    assert (missed[0]["group"], missed[0]["passed"]) == ("nothing known", False)
    assert len(answers["cells"]) == 6
    assert answers["expected_loss"] > 0


def test_a_release_for_programs_has_the_rows_of_its_table() -> None:
    for name in sorted(every_window()):
        with case(name):
            released = record(every_window()[name])

            found = json.loads(json.dumps(release_json(released)))

            assert [one["label"] for one in found["cells"]] == [cell.label for cell in released.cells]
            assert ("side" in found["cells"][0]) == ("side" in table_lines(released)[0].split())
            assert found["statement"]["sentences"]
            assert "participants" not in found
