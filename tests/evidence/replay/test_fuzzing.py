"""Any bytes at any decoder end in a value or a refusal; `make fuzz` runs longer. And what is planted is found."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fleetcount_evidence.replay.decoders import Decoder, decoders
from fleetcount_protocol.errors import DecodeError

from tests.support import fuzz_decoders
from tests.support.fuzz_decoders import Finding, check, main, search

ROOT = Path(__file__).resolve().parents[3]
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="needs atheris (`make nightly` installs it where it has a wheel): decoders were NOT fuzzed by coverage",
)


def test_a_few_mutations_of_every_decoder_s_input_end_well() -> None:
    found = {name: search(name, 300, random.Random(7)) for name in decoders()}

    assert [name for name, rules in found.items() if not rules] == []
    assert len(set().union(*found.values())) > 60


@pytest.mark.nightly
@pytest.mark.processes
@needs_atheris
@pytest.mark.timeout(240)
def test_a_few_seconds_of_guided_fuzzing_find_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "3"]) == 0
    assert f"fuzz: {len(decoders())} decoders, 3 s: " in capsys.readouterr().out


PLANTED = """
import sys
from tests.support import fuzz_guided
from fleetcount_protocol.errors import DecodeError
from fleetcount_evidence.replay.decoders import Decoder

@fuzz_guided.atheris.instrument_func
def planted(data):
    if data[:1] == b"F":
        if data[1:2] == b"U":
            if data[2:3] == b"Z":
                if data[3:4] == b"Z":
                    return 1 / 0
    raise DecodeError("no")

fuzz_guided.decoders = lambda: {"planted": Decoder("planted", planted)}
fuzz_guided.fuzz(["-runs=2000000", "-seed=1", "-artifact_prefix=" + sys.argv[1] + "/"], ["planted"])
"""


@pytest.mark.nightly
@pytest.mark.processes
@needs_atheris
@pytest.mark.timeout(240)
def test_coverage_leads_to_a_crash_that_chance_would_not_find(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    command = [sys.executable, str(tmp_path / "planted.py"), str(tmp_path)]
    paths = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)

    [found] = tmp_path.glob("crash-*")
    assert done.returncode != 0, done.stderr
    assert found.read_bytes()[:5] == b"\0FUZZ"


def strict(data: bytes) -> int:
    """Stand for a decoder with mistakes: it divides by a byte and takes two spellings of a number."""
    if not 1 <= len(data) <= 2:
        raise DecodeError("not one or two bytes")
    return 10 // data[0] if len(data) == 1 else data[1]


def test_a_crash_and_a_second_spelling_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Decoder("planted", strict, lambda value: bytes([1, value]))

    assert check(planted, b"\1\7") == "taken"
    assert check(planted, b"") != "taken"
    with pytest.raises(Finding, match="ZeroDivisionError"):
        check(planted, b"\0")
    with pytest.raises(Finding, match="second spelling"):
        check(planted, b"\2\7")

    monkeypatch.setattr(fuzz_decoders, "decoders", lambda: {"planted": planted})
    monkeypatch.setattr(fuzz_decoders, "seeds", lambda _: (b"\1\7",))
    assert main(["--seconds", "20", "--unguided"], tmp_path) == 1
    [kept] = tmp_path.glob("planted-*.json")
    assert json.loads(kept.read_text())["decoder"] == "planted"
    assert str(kept) in capsys.readouterr().err


def test_an_unknown_decoder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nothing"])

    assert ended.value.code == 2
    assert "no decoder is called nothing" in capsys.readouterr().err
