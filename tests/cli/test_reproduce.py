"""`fleetcount reproduce`: figures, tables and claims of a quick run; same seed, same bytes; nothing half-written."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleetcount.evidence.reproduce import PAPERS, reproduce
from fleetcount_evidence.papers.catalogue import CATALOGUES, Catalogue
from fleetcount_evidence.papers.experiments import EXPERIMENTS
from fleetcount_evidence.papers.verdicts import Reproduction
from fleetcount_protocol.errors import UsageError

from tests.cli.conftest import Ran

COMMAND = [sys.executable, "-m", "fleetcount", "reproduce"]
# A quick run of all four takes forty seconds of one core.
pytestmark = pytest.mark.timeout(240)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=220, check=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of one quick run of all four papers, with a small census beside Adult."""
    data = tmp_path_factory.mktemp("data")
    rows = [f"{20 + i % 40},{'mf'[i % 2]},job{i % 7},degree{i % 11}" for i in range(2_000)]
    (data / "census.csv").write_text("\n".join(["Age,Sex,Job,Degree", *rows]) + "\n")
    output = tmp_path_factory.mktemp("quick") / "results"
    done = run("all", "--quick", "--output", str(output), "--data", str(data), "--sensitive", "Job")
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def claims(quick: Path) -> dict[str, dict[str, Any]]:
    content = json.loads((quick / "claims.json").read_text())
    return {claim["claim"]: claim for claim in content["claims"]}


@pytest.mark.nightly
def test_every_claim_of_every_catalogue_has_a_verdict(claims: dict[str, dict[str, Any]]) -> None:
    expected = [identifier for paper in CATALOGUES for identifier in Catalogue.load(paper).entries]

    assert list(claims) == expected
    assert {claim["experiment"] for claim in claims.values()} == set(PAPERS) == set(EXPERIMENTS)
    for claim in claims.values():
        assert claim["ours"] is not None, claim
        assert claim["why"] or claim["verdict"] in {"reproduced", "check of arithmetic"}, claim
        assert (claim["needs"] == claim["ran_on"]) or "stand-in" in claim["verdict"] or claim["why"], claim
        assert claim["verdict"] != "contradicted on a stand-in" or claim["by"]["factor"], claim
    assert {claim["verdict"] for claim in claims.values()} == {verdict.value for verdict in Reproduction}


@pytest.mark.nightly
def test_the_documentation_has_the_verdicts_of_a_run(claims: dict[str, dict[str, Any]]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    chapter = text.partition("\n## Every claim\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in chapter.splitlines() if line[:2] == "| "]
    stand_ins = {"holds": "holds on a stand-in", "contradicted": "contradicted on a stand-in"}
    # A row has a verdict and the names of its claims, or a claim with both values and its verdict.
    listed = [(name, row[0]) for row in rows if len(row) == 2 for name in re.findall("`([^`]+)`", row[1])]
    words = [(row[0], row[-1].split(",")[0]) for row in rows if len(row) == 6 and row[0] != "claim"]
    listed += [(name, stand_ins.get(word, word)) for name, word in words]

    # A quick run judges no run times.
    documented = {name: verdict for name, verdict in listed if not name.startswith("INF-7.3")}
    assert documented == {name: claims[name]["verdict"] for name in documented}
    assert len(documented) == len(claims) - 5


@pytest.mark.nightly
def test_claims_about_every_theta_ran_every_theta(claims: dict[str, dict[str, Any]], quick: Path) -> None:
    for name in ("inferential_mse", "inferential_queries"):
        rows = csv.DictReader((quick / f"{name}.csv").read_text(encoding="utf-8").splitlines())
        assert {row["theta"] for row in rows if row["table"] == "Adult, education"} == {"2", "4", "8", "16", "32"}
    for identifier in ("INF-7.2-anatomy", "INF-7.2-two-size", "INF-7.2-relative"):
        assert "theta = 2, 4, 8, 16, 32" in claims[identifier]["why"]


@pytest.mark.nightly
def test_the_growth_shows_what_sampling_costs(quick: Path) -> None:
    rows = list(csv.DictReader((quick / "sampling_growth.csv").read_text(encoding="utf-8").splitlines()))

    largest = {row["method"]: float(row["sd"]) for row in rows if row["population"] == "1000000000"}
    assert largest["hardened release, p = 1, ε′ = 1, k = 2"] == pytest.approx(1.9190347513349437, rel=1e-9)
    assert min(largest, key=largest.__getitem__) == "hardened release, p = 1, ε′ = 1, k = 2"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("identifier", "verdict", "ours"),
    [
        ("SP-1-sd-million", "corrected", 243.9016762584073),
        ("SP-4.4-equation-21", "reproduced", 0.9694005571881036),
        ("SP-A-equation-30", "check of arithmetic", 3.044522437723423),
        ("SP-3.1-half", "corrected", 0.725),
        ("ADP-III-A-epsilon", "corrected", 8.517193191416238),
        ("ADP-III-B-delta", "corrected", 0.04501528658519023),
        ("ADP-IV.7-bound", "reproduced", 0.950212931632136),
        ("ADP-Fig2-answers", "check of arithmetic", 5031.141199866262),
        ("ADP-Fig4-fifty", "corrected", 4.92),
        ("ADP-V.7-salap", "reproduced", 3.0),
        ("GEO-2.2-remapped", "reproduced", 1 / 12),
        ("GEO-6.1-laplace", "reproduced", 0.25),
        ("INF-T2-mean-100", "reproduced", 1.0235517720659941),
        ("INF-6-corruption", "check of arithmetic", 1 / 3),
        ("SP-5.1-ratio", "contradicted on a stand-in", [3.4575658930470006, 6.723214657202455]),
        ("ADP-Fig5-one", "contradicted on a stand-in", 4.152730940928484),
        ("ADP-Fig5-ten", "contradicted on a stand-in", 0.5802994352685651),
        ("INF-7.2-two-size", "contradicted on a stand-in", [2.704680527484842, 1.6461698801459093]),
        ("INF-7.2-anatomy", "contradicted on a stand-in", 1.8528064411214678),
        ("ADP-Fig4-alpha", "holds on a stand-in", [0.8895162243293409, 0.9878679513813694]),
    ],
)
def test_claims_have_the_known_numbers(
    claims: dict[str, dict[str, Any]], identifier: str, verdict: str, ours: float | list[float]
) -> None:
    assert claims[identifier]["verdict"] == verdict
    assert claims[identifier]["ours"] == pytest.approx(ours, rel=1e-9)


@pytest.mark.nightly
def test_the_theorems_of_the_geometric_mechanism_hold(claims: dict[str, dict[str, Any]]) -> None:
    assert abs(claims["GEO-3.1-gap"]["ours"]) < 1e-7
    assert {c["verdict"] for name, c in claims.items() if name.startswith("GEO")} == {
        "reproduced",
        "check of arithmetic",
    }


@pytest.mark.nightly
def test_every_figure_is_there_as_svg_and_png_and_every_table_has_rows(quick: Path) -> None:
    figures = {path.stem for path in quick.glob("*.png")}

    assert figures == {path.stem for path in quick.glob("*.svg")}
    assert all(any(name.startswith(paper) for name in figures) for paper in PAPERS)
    for path in quick.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    tables = list(quick.glob("*.csv"))
    assert len(tables) >= 15
    for path in tables:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        assert len(rows) > 1, path.name
        assert {len(row) for row in rows} == {len(rows[0])}, path.name


@pytest.mark.nightly
def test_a_census_of_the_user_stands_beside_adult(quick: Path) -> None:
    rows = list(csv.DictReader((quick / "inferential_mse.csv").read_text(encoding="utf-8").splitlines()))

    assert {row["table"] for row in rows} == {"Adult, occupation", "Adult, education", "census, job"}


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for output, seed in ((first, "5"), (second, "5"), (third, "6")):
        arguments = ["sampling", "--quick", "--output", str(output), "--seed", seed]
        assert CliRunner().invoke(reproduce, arguments).exit_code == 0

    names = sorted(path.name for path in first.iterdir())
    same = [name for name in names if (first / name).read_bytes() == (second / name).read_bytes()]
    assert same == names
    assert (first / "sampling_gowalla.csv").read_bytes() != (third / "sampling_gowalla.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["mystery", "--output", "x"], "mystery"),
        (["all"], "--output"),
        (["sampling", "--output", "x", "--seed", "-1"], "-1"),
        (["sampling", "--output", "x", "--sensitive", "Job"], "--data"),
        (["sampling", "--output", "x", "--data", "missing"], "'missing'"),
        (["sampling", "--output", "/dev/null"], "/dev/null"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    fleetcount: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)

    ran = fleetcount("reproduce", *arguments)

    assert ran.code == 2
    assert named in ran.error_line
    assert not Path("x").exists()


def test_a_broken_data_file_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "data" / "gowalla_nyc").mkdir(parents=True)
    (tmp_path / "data" / "gowalla_nyc" / "locations.csv").write_text("location\n1\n")
    output = tmp_path / "results"

    with pytest.raises(Exception, match="the header is"):
        CliRunner().invoke(
            reproduce,
            ["sampling", "--quick", "--output", str(output), "--data", str(tmp_path / "data")],
            catch_exceptions=False,
        )

    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_census_columns_without_a_census_are_a_usage_error() -> None:
    result = CliRunner().invoke(reproduce, ["sampling", "--output", "x", "--quasi-identifiers", "A,B"])

    assert isinstance(result.exception, UsageError)


@pytest.mark.nightly
@pytest.mark.processes
def test_an_interrupted_run_is_code_130_and_writes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "results"
    arguments = [*COMMAND, "inferential", "--output", str(output)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # The experiment has begun.
        os.kill(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        code = process.wait(timeout=60)

    assert first.startswith("inferential")
    assert code == 130
    assert rest.splitlines()[-1].endswith("interrupted")
    assert list(tmp_path.iterdir()) == []
