"""`fleetcount publish` and `serve`: what they refuse, before anything is written, and that a site appears whole."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fleetcount_protocol.window.fields import Mode

from tests.support.protocol_samples import aggregator, every_window
from tests.support.published import trusted_toml, write_town
from tests.support.question_samples import one_round_question
from tests.support.released import write_question, write_release


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "got"
    write_town(folder, 3, 2, (0, 2))
    return folder


@pytest.fixture
def got(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "got")
    return Path("got")


def test_a_site_appears_whole_and_takes_the_place_of_an_older_one(fleetcount: Callable, got: Path) -> None:
    first = fleetcount("publish", got, "--output", "site")
    again = fleetcount("publish", got, "--output", "site", "--keys", trusted_toml(Path("trusted.toml")))

    assert (first.code, again.code) == (0, 0)
    assert "2 signed releases" in first.out
    assert "no keys are pinned" in first.out
    assert "pin the keys of trusted.toml" in again.out
    assert '"keys":null' not in Path("site/question/data/question.js").read_text()
    assert sorted(one.name for one in Path().iterdir()) == ["got", "site", "trusted.toml"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere", "--output", "site"), 2, "nowhere is no directory"),
        (("empty", "--output", "site"), 2, "empty holds no records and no release"),
        (("got", "--output", "got"), 2, "--output got lies in got"),
        (("got", "--output", "got/site"), 2, "--output got/site lies in got"),
        (("got", "--output", "."), 2, "--output . lies in got or around it"),
        (("got", "--output", "full"), 2, "'full' is not empty and no site of fleetcount"),
        (("got", "--output", "got.txt"), 2, "got.txt' exists and is not a directory"),
        (("got", "--output", "site", "--keys", "none.toml"), 2, "none.toml is not a file"),
        (("got", "--output", "site", "--keys", "got.txt"), 2, "got.txt"),
        (("got", "--output", "site", "--address", "ftp://example.org"), 2, "--address is 'ftp://example.org'"),
        (("got", "--output", "site", "--address", "https://a b/"), 2, "--address is"),
    ],
)
def test_what_cannot_be_published_is_refused_and_nothing_is_written(
    fleetcount: Callable, got: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    Path("got.txt").write_text("not = [a table")
    before = sorted(Path().rglob("*"))

    ran = fleetcount("publish", *arguments)

    assert ran.code == code
    assert said in ran.error_line
    assert sorted(Path().rglob("*")) == before


def test_the_release_of_one_window_is_published_alone_a_later_window_is_not(fleetcount: Callable, got: Path) -> None:
    for name, record in (("one", "00000.json"), ("later", "00002.json")):
        Path(name).mkdir()
        shutil.copy(got / record, Path(name) / "release.json")

    one, later = (fleetcount("publish", name, "--output", f"site-{name}") for name in ("one", "later"))

    assert (one.code, later.code) == (0, 2), one.err
    assert "is one of many windows; publish the directory of their records" in later.error_line


def test_pages_of_a_number_say_its_mean_over_all_windows(fleetcount: Callable, tmp_path: Path) -> None:
    window = every_window()["direct_mean"]
    asked = one_round_question(Mode.DIRECT, domain=window.domain, release=window.release)
    counts = np.array([100, 200, 300, 400, 500, 400, 300, 200, 100])
    (tmp_path / "in").mkdir()
    write_question(tmp_path / "in" / "speeds", asked, (0, 1, 2), lambda _: counts)
    write_release(tmp_path / "in" / "once.json", window, counts)

    assert fleetcount("publish", tmp_path / "in", "--output", tmp_path / "site").code == 0

    said = {name: (tmp_path / "site" / name / "index.html").read_text() for name in ("speeds", "once")}
    for name, page in said.items():
        (low, high) = re.findall(r"mean ([0-9.]+) to ([0-9.]+) km/h, sum [0-9,e+.]+ to", page)[0]
        # An interval of 90 % of these very draws ends at 15.249.
        assert float(low) <= 15.24 <= float(high)
        assert ("each alone, all windows together</p>" in page) is (name == "speeds")


def test_a_record_of_a_site_is_verified_as_it_lies_there(fleetcount: Callable, got: Path) -> None:
    keys = trusted_toml(Path("trusted.toml"))
    assert fleetcount("publish", got, "--output", "site", "--keys", keys).code == 0
    [first, *_] = sorted(Path("site").glob("*/records/*.json.gz"))

    verified = fleetcount("verify", first, "--config", keys)

    assert verified.code == 0, verified.err
    assert f"{first}: window " in verified.out
    assert first.stat().st_size < (got / "00000.json").stat().st_size / 2


def test_signatures_that_do_not_hold_end_it_before_a_page(fleetcount: Callable, got: Path) -> None:
    keys = trusted_toml(Path("trusted.toml"))
    text = keys.read_text()
    ids = [str(aggregator(place).aggregator_id) for place in range(2)]
    keys.write_text(text.replace(ids[0], "x").replace(ids[1], ids[0]).replace('"x"', f'"{ids[1]}"'))
    swapped = fleetcount("publish", got, "--output", "site", "--keys", keys)
    place = got / "00002.json"
    found = place.read_text()
    at = found.index('"signature": "') + 20
    place.write_text(found[:at] + ("A" if found[at] != "A" else "B") + found[at + 1 :])
    damaged = fleetcount("publish", got, "--output", "site")

    assert swapped.code in (2, 3)
    assert f"{got}: aggregator " in swapped.error_line, "of a folder of many it matters which"
    assert damaged.code == 3
    assert "signature" in damaged.error_line
    assert not Path("site").exists()


def test_a_record_that_is_missing_from_the_chain_and_mixed_question_are_refused(
    fleetcount: Callable, got: Path
) -> None:
    write_town(Path("other"), 4, 2, (0,))
    shutil.copy("other/00000.json", got / "00003.json")
    mixed = fleetcount("publish", got, "--output", "site")
    (got / "00003.json").unlink()
    (got / "00000.json").unlink()
    gone = fleetcount("publish", got, "--output", "site")

    assert mixed.code in (1, 2)
    assert gone.code == 1
    assert "came before it" in gone.error_line
    assert not Path("site").exists()


@pytest.mark.processes
def test_only_a_site_is_served_and_ctrl_c_ends_it(fleetcount: Callable, got: Path) -> None:
    assert fleetcount("publish", got, "--output", "site").code == 0
    refused = fleetcount("serve", got)
    process = subprocess.Popen(
        [sys.executable, "-m", "fleetcount", "serve", "site", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert refused.code == 2
    assert "got is no site" in refused.error_line
    assert line.startswith("site: http://127.0.0.1:")
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)
