"""`fleetcount remap`: every cell read with the user's prior and loss; one line for bad input."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import cycle
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from fleetcount_analysis.channels import noise_size
from fleetcount_analysis.remap import one_sided_remap, response_remap, sampling_remap
from fleetcount_mechanisms.noise import OneSidedNoise
from fleetcount_protocol.release.record import Cell, ReleaseRecord, sign_record
from fleetcount_protocol.release.record_json import record_to_json
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import Window

from tests.support import protocol_samples
from tests.support.cases import case

RAWS = (0, -3, 2, 7, 20, 90)
PRIOR = "count,weight\n0,50\n1,20\n2,10\n30,1\n"


def released(window: Window, raws: tuple[int, ...] = RAWS) -> ReleaseRecord:
    cells = tuple(
        Cell(value=v, label=window.label(v), raw=raw, estimate=Fraction(4 * raw), low=0, high=99)
        for v, raw in zip(range(1, window.design.cell_count + 1), cycle(raws))
    )
    return protocol_samples.record(window, cells=cells, baseline_raw=40 if window.mode is Mode.RESPONSE else None)


def write_release(path: Path, window: Window) -> Path:
    record = released(window)
    keys = [protocol_samples.signing_key(position) for position in range(len(window.aggregators))]
    path.write_text(record_to_json(record, [sign_record(record, key) for key in keys]))
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    prior = tmp_path / "prior.csv"
    prior.write_text(PRIOR)
    return write_release(tmp_path / "release.json", protocol_samples.sampling_window()), prior


def answers(table: Path) -> list[int]:
    return [int(row["answer"]) for row in csv.DictReader(table.read_text().splitlines())]


def prior_of_thirty() -> list[float]:
    weights = np.zeros(31)
    weights[[0, 1, 2, 30]] = [50, 20, 10, 1]
    return (weights / 81).tolist()


@pytest.mark.parametrize("loss", ["absolute", "squared", "zero-one"])
def test_cells_are_read_by_the_true_channel(fleetcount: Callable, files: tuple[Path, Path], loss: str) -> None:
    release, prior = files
    output = release.with_name("answers.csv")

    ran = fleetcount("remap", "--release", release, "--prior", prior, "--loss", loss, "--output", output)

    best = sampling_remap(prior_of_thirty(), loss, Fraction(1, 4), Fraction(17, 10), 2)
    assert ran.code == 0
    assert answers(output) == best.read(RAWS).tolist()
    assert f"{best.expected_loss:.6g} a cell" in ran.out


def test_a_loss_file_is_the_matrix_of_losses(fleetcount: Callable, files: tuple[Path, Path], tmp_path: Path) -> None:
    release, prior = files
    matrix = tmp_path / "loss.csv"
    matrix.write_text("".join(",".join(str(abs(i - j)) for j in range(31)) + "\n" for i in range(31)))

    tables = []
    for loss in ("absolute", matrix):
        output = tmp_path / f"{len(tables)}.csv"
        assert fleetcount("remap", "--release", release, "--prior", prior, "--loss", loss, "--output", output).code == 0
        tables.append(answers(output))

    assert tables[0] == tables[1]


def test_a_direct_release_has_no_sampling(fleetcount: Callable, tmp_path: Path) -> None:
    window = protocol_samples.every_window()["direct"]
    release = write_release(tmp_path / "release.json", window)
    (tmp_path / "prior.csv").write_text("count,probability\n0,1/2\n3,0.5\n")

    output = tmp_path / "answers.csv"
    ran = fleetcount(
        "remap", "--release", release, "--prior", tmp_path / "prior.csv", "--loss", "zero-one", "--output", output
    )

    assert ran.code == 0
    assert answers(output) == [0, 0, 3]


def test_long_labels_are_whole_in_files_and_end_in_an_ellipsis_in_a_terminal(
    fleetcount: Callable, tmp_path: Path
) -> None:
    direct = protocol_samples.every_window()["direct"]
    names = tuple(f"{'a component whose name is longer than a column: ' * 3}{value}" for value in range(direct.values))
    release = write_release(tmp_path / "r.json", replace(direct, domain=Categories(names=names)))
    output, prior = tmp_path / "answers.csv", tmp_path / "prior.csv"
    prior.write_text("count,weight\n0,1\n3,1\n")
    asked = ("remap", "--release", release, "--prior", prior, "--loss", "zero-one")

    shown, told = fleetcount(*asked, "--output", output), json.loads(fleetcount(*asked, "--json").out)

    assert [row["cell"] for row in csv.DictReader(output.read_text().splitlines())] == list(names)
    assert [cell["cell"] for cell in told["cells"]] == list(names)
    assert [line[:48] for line in shown.out.splitlines()[1 : 1 + len(names)]] == [names[0][:47] + "…"] * len(names)


@pytest.mark.parametrize("kind", ["mangat", "k_ary", "mangat_vector", "one_sided", "direct_zooms", "direct_total"])
def test_every_kind_of_release_is_read_by_its_own_law(fleetcount: Callable, tmp_path: Path, kind: str) -> None:
    window = protocol_samples.every_window()[kind]
    record = released(window)
    release, output, prior = (
        write_release(tmp_path / "r.json", window),
        tmp_path / "answers.csv",
        tmp_path / "prior.csv",
    )
    prior.write_text("count,weight\n0,50\n1,20\n2,10\n")

    ran = fleetcount("remap", "--release", release, "--prior", prior, "--loss", "squared", "--output", output)

    design, weights = window.design, [50 / 80, 20 / 80, 10 / 80]
    k = design.aggregators
    raws = [cell.raw for cell in record.cells[: window.values]]
    if kind == "one_sided":
        best = one_sided_remap(weights, "squared", cast("OneSidedNoise", design.noise), k)
    elif record.baseline_raw is None:
        best = sampling_remap(weights, "squared", Fraction(1), noise_size(design.noise), k)
    else:
        devices = record.baseline_raw + (0 if kind == "mangat_vector" else sum(raws))
        best = response_remap(weights, "squared", design.channel, devices, noise_size(design.noise), k)
    assert ran.code == 0
    assert answers(output) == best.read(raws).tolist()
    assert len(answers(output)) == window.values


def test_a_prior_as_editors_save_it_is_read(fleetcount: Callable, files: tuple[Path, Path]) -> None:
    release, prior = files
    asked = ("remap", "--release", release, "--prior", prior, "--loss", "absolute")
    plain = fleetcount(*asked)
    prior.write_bytes(b"\xef\xbb\xbf" + prior.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")

    again = fleetcount(*asked)

    assert (again.code, again.out) == (plain.code, plain.out) == (0, plain.out)


BAD_PRIORS = [
    ("", "has 0 bytes"),
    ("count,weight\n", "give weight to something"),
    ("count,weight\n0,1\n", "list a count above 0"),
    ("count,weight\n0,0\n1,0\n", "give weight to something"),
    ("count;weight\n0;1\n", "the header is 'count;weight'"),
    ("count,weight\n0,1\n0,2\n", "line 3: count 0 is there twice"),
    ("count,weight\n-1,1\n", "line 2: count '-1' is out of range; it must be 0 to 100000"),
    ("count,weight\n1.5,1\n", "line 2: count '1.5' is not a whole number"),
    ("count,weight\n1,nan\n", "line 2: weight 'nan' is not a number"),
    ("count,weight\n1,-1\n", "line 2: weight '-1' is out of range"),
    ("count,probability\n0,0.5\n1,0.6\n", "add up to 1.1; they must add up to 1"),
    ("count,probability\n0,1.5\n", "line 2: probability '1.5' is out of range"),
    ("count,weight\n1,2,3\n", "line 2: 3 fields"),
    ("count,weight\n1\n", "line 2: 1 fields"),
    ("count,weight\n\n1,2\n", "line 2: the line is blank"),
    ('count,weight\n1,"2\n', "line 2: unexpected end of data"),
    ("count,weight\n1,2\0\n", "NUL"),
    ("count,weight\n99999,1\n", "channel of 100000 counts"),
]


def test_a_bad_prior_is_refused_in_one_line(fleetcount: Callable, files: tuple[Path, Path]) -> None:
    for prior, named in BAD_PRIORS:
        with case(prior):
            release, path = files
            path.write_text(prior)

            ran = fleetcount("remap", "--release", release, "--prior", path, "--loss", "absolute")

            assert ran.code == 2
            assert named in ran.error_line


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "it must be absolute, squared, zero-one or a file"),
        ("0,1\n1,0\n", "there must be 31 lines of 31"),
        ("\n".join([",".join(["x"] * 31)] * 31), "line 1: loss 'x' is not a number"),
        ("\n".join([",".join(["-1"] * 31)] * 31), "line 1: loss '-1' is out of range"),
    ],
)
def test_a_bad_loss_is_refused_in_one_line(
    fleetcount: Callable, files: tuple[Path, Path], tmp_path: Path, content: str | None, named: str
) -> None:
    release, prior = files
    if content is not None:
        (tmp_path / "cubic").write_text(content)

    ran = fleetcount("remap", "--release", release, "--prior", prior, "--loss", tmp_path / "cubic")

    assert ran.code == 2
    assert named in ran.error_line


def test_a_record_that_was_changed_is_refused(fleetcount: Callable, files: tuple[Path, Path]) -> None:
    release, prior = files
    arguments = ("remap", "--release", release, "--prior", prior, "--loss", "absolute")

    release.write_text(release.read_text().replace('"raw": 20', '"raw": 21'))
    readable = fleetcount(*arguments)
    record = released(protocol_samples.sampling_window())
    other = replace(record, released_at=record.released_at + 60)
    keys = [protocol_samples.signing_key(position) for position in range(2)]
    release.write_text(record_to_json(other, [sign_record(record, key) for key in keys]))
    signed = fleetcount(*arguments)

    assert (readable.code, signed.code) == (3, 3)
    assert "not what the signed record says" in readable.error_line
    assert "signature of alpha" in signed.error_line


def test_a_missing_release_is_named(fleetcount: Callable, files: tuple[Path, Path], tmp_path: Path) -> None:
    ran = fleetcount("remap", "--release", tmp_path / "none.json", "--prior", files[1], "--loss", "absolute")

    assert ran.code == 2
    assert "none.json" in ran.error_line
