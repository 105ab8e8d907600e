"""The catalogue of bad input: one line with value and range, a documented code, nothing written."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cases import case

BAD_EPSILONS = ["0", "-1", "nan", "inf", "1e-320", "1e4", "1,5", "１", "", "1_0", "0x1"]
DEMO = [
    *[(["--epsilon", text], "at least 0.001 and at most 10") for text in BAD_EPSILONS],
    *[
        (["--sampling-rate", text], "at least 1e-06 and below 0.5")
        for text in ["0", "1e-7", "1.0000001", "0.5", "nan", "-0.1"]
    ],
    *[(["--aggregators", text], "2 to 5") for text in ["1", "0", "999", "-2", "2.0", "two", "２"]],
    *[(["--vehicles", text], "2 to 100000") for text in ["0", "1", "-1", "1e12", "1000000000000", ""]],
    *[(["--seed", text], "0 to 18446744073709551615") for text in ["-1", "18446744073709551616", "1e3", "0x1"]],
    (["--transport", "smoke"], "'smoke'"),
    (["--mode", "guess"], "'guess'"),
    (["--epsilon"], "requires an argument"),
    (["--epsilon", "1", "--epsilon", "2"], "given twice"),
    (["--nonsense"], "'--nonsense'"),
    (["surplus"], "unexpected extra argument"),
    (["--mode", "mangat", "--sampling-rate", "0.2"], "--sampling-rate goes with --mode sampling"),
    (["--yes", "a"], "--yes goes with --mode mangat and --truths"),
]


def test_demo_options_outside_their_range_are_refused_with_value_and_range(
    fleetcount: Callable, tmp_path: Path
) -> None:
    for arguments, named in DEMO:
        with case(" ".join(arguments)):
            ran = fleetcount("demo", "--output", tmp_path / "out", *arguments)

            assert ran.code == 2
            assert named in ran.error_line
            assert ran.out == ""
            assert list(tmp_path.iterdir()) == []


def bad_files(tmp_path: Path) -> dict[str, Path]:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "directory.csv").mkdir()
    (tmp_path / "semicolons.csv").write_text("vehicle;value\n1;a\n")
    (tmp_path / "one.csv").write_text("vehicle,value\n1,a\n")
    names = ["absent.csv", "pipe", "empty.csv", "directory.csv", "semicolons.csv", "one.csv"]
    return {name: tmp_path / name for name in names}


def test_a_truth_file_that_cannot_be_used_is_refused_by_name(fleetcount: Callable, tmp_path: Path) -> None:
    for name, path in bad_files(tmp_path).items():
        ran = fleetcount("demo", "--output", tmp_path / "out", "--truths", path)

        assert ran.code == 2, name
        assert name in ran.error_line
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_take_files_is_refused_before_any_work(fleetcount: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        ran = fleetcount("demo", "--output", path)

        assert ran.code == 2
        assert str(path) in ran.error_line


MISSPELT = [
    (["demoo"], "demo"),
    (["question", "exprt"], "export"),
    (["device", "ldeger"], "ledger"),
    (["demo", "--mode", "samplng"], "sampling"),
    (["demo", "--windws", "2"], "--windows"),
    (["simulate", "--engine", "exact-lw"], "exact-law"),
    (["simulate", "--example", "covrage"], "coverage"),
    (["audit", "--design", "samplng"], "sampling"),
    (["reproduce", "asymetric", "--output", "X"], "asymmetric"),
    (["plan", "--noise", "gausian"], "gaussian"),
    (["keys", "init", "--output", "X", "--transport", "mqt"], "mqtt"),
    (["question", "export", "--records", "X", "--format", "geojsn"], "geojson"),
]


def test_a_misspelt_command_option_or_value_has_the_nearest_named(fleetcount: Callable) -> None:
    for arguments, meant in MISSPELT:
        with case(" ".join(arguments)):
            ran = fleetcount(*arguments)

            assert ran.code == 2
            assert f"did you mean '{meant}'?" in ran.error_line.lower()


def test_a_misspelt_yes_has_the_nearest_category_named(fleetcount: Callable, tmp_path: Path) -> None:
    truths = tmp_path / "truths.csv"
    truths.write_text("vehicle,value\na,diesel\nb,petrol\n")

    ran = fleetcount("demo", "--truths", truths, "--mode", "mangat", "--yes", "desel", "--output", tmp_path / "out")

    assert ran.code == 2
    assert "did you mean 'diesel'?" in ran.error_line


@pytest.mark.parametrize(
    "command",
    [
        ["question", "export", "--records", "absent"],
        ["question", "places", "--records", "absent"],
        ["remap", "--release", "absent", "--prior", "absent", "--loss", "absolute"],
    ],
)
def test_an_output_file_that_cannot_be_written_is_refused_before_anything_is_read(
    fleetcount: Callable, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "taken.csv").mkdir()

    for path, said in [(tmp_path / "taken.csv", "a directory, not a file"), (tmp_path / "no" / "a.csv", "write to")]:
        ran = fleetcount(*command, "--output", path)

        assert ran.code == 2
        assert "output" in ran.error_line
        assert said in ran.error_line


OTHERS = [
    (["keys", "init"], "'--output'"),
    (["keys", "init", "--output", "X", "--aggregators", "alpha"], "2 to 5 ids"),
    (["keys", "init", "--output", "X", "--aggregators", "a,b,c,d,e,f"], "2 to 5 ids"),
    (["keys", "init", "--output", "X", "--aggregators", "alpha,alpha"], "every id must be another one"),
    (["keys", "init", "--output", "X", "--aggregators", "alpha,ca"], "'ca'"),
    (["keys", "init", "--output", "X", "--aggregators", "alpha,../x"], "'../x'"),
    (["keys", "init", "--output", "X", "--aggregators", "alpha,Beta"], "'Beta'"),
    (["keys", "init", "--output", "X", "--operators", "one"], "it must name 2"),
    (["keys", "init", "--output", "X", "--operators", "Same,same"], "one operator only"),
    (["keys", "init", "--output", "X", "--devices", "-1"], "0 to 10000"),
    (["keys", "init", "--output", "X", "--devices", "1e3"], "0 to 10000"),
    (["keys", "init", "--output", "X", "--base-port", "70000"], "0 to 65000"),
    (["keys", "init", "--output", "X", "--deployment", "Über"], "a-z, 0-9 and '-'"),
    (["keys", "init", "--output", "X", "--broker", "nowhere"], "host:port"),
    (["keys", "init", "--output", "X", "--broker", "h:0"], "1 to 65535"),
    (["keys", "init", "--output", "X", "--transport", "mqtt"], "--broker"),
    (["keys", "init", "--output", "X", "--host", "192.0.2.1", "--base-port", "0"], "no address of this machine"),
    (["question"], "Missing command"),
    (["question", "create", "--spec", "absent.toml", "--output", "q.question"], "absent.toml"),
    (["question", "create", "--spec", "absent.toml", "--output", "q.txt"], ".question"),
    (["question", "sign", "--config", "absent.toml", "q.question"], "absent.toml"),
    (["question", "sign", "--config", "absent.toml", "a.question", "b.question"], "unexpected extra argument"),
    (
        ["question", "release", "--question", "absent.question", "--config", "c.toml", "--output", "X"],
        "absent.question",
    ),
    (
        ["question", "release", "--question", "a.question", "--config", "c.toml", "--output", "X", "--wait", "-1"],
        "0 to 31622400",
    ),
    (["doctor"], "'--config'"),
    (["doctor", "--config", "absent.toml"], "absent.toml"),
    (["doctor", "--config", "."], "a directory"),
    (["vectors", "."], "cannot be read"),
]


def test_other_commands_refuse_bad_input_in_one_line(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, named in OTHERS:
        with case(" ".join(arguments)):
            monkeypatch.chdir(tmp_path)

            ran = fleetcount(*arguments)

            assert ran.code == 2
            assert named in ran.error_line
            assert list(tmp_path.iterdir()) == []
