"""The documentation site fails for what is wrong in it, and the examples run from an empty folder.

The whole site, every notebook executed, is built by `make check`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import pace

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs" / "gallery"
PAGES = {"README.md": "# Top\n\n[there](docs/there.md)\n", "docs/there.md": "# There\n\n[back](../README.md#top)\n"}

SHOWN = re.compile(r" +.* vehicles +(?P<low>[0-9.]+) to +(?P<high>[0-9.]+) (km/h|%) +(?P<true>[0-9.]+|none)")
"""A line of an example: an interval and its truth."""
AUTO = "```{eval-rst}\n.. autofunction:: fleetcount.gone\n```"


def run(folder: Path, *command: str) -> str:
    """Run an example as a person does, in a folder of its own, and return what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def pasted(folder: Path, program: str) -> str:
    """Paste the line of the page for analysts that runs an example, in an emptied environment, and return what it says.

    The folder stands for the repository: all that an example finds there are the examples.
    """
    page = (ROOT / "docs" / "for-analysts.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if program in line and line.split()[0] in ("python", "mkdir")]
    (folder / "examples").symlink_to(ROOT / "examples")
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "TMPDIR") if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    done = subprocess.run(
        ["/bin/bash", "-c", line],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), **kept},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_the_gallery_lists_its_notebooks_and_each_has_code_to_run() -> None:
    listed = re.findall(r"^([a-z]+)$", (GALLERY / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    notebooks = {path.stem: path.read_text(encoding="utf-8") for path in GALLERY.glob("*.md") if path.stem != "index"}

    assert sorted(listed) == sorted(notebooks)
    assert len(notebooks) >= 8
    assert all(
        text.startswith("---\nfile_format: mystnb\n") and "```{code-cell}" in text for text in notebooks.values()
    )


def test_every_answer_of_the_gallery_has_its_command_a_picture_and_a_table() -> None:
    _, *parts = (GALLERY / "answers.md").read_text(encoding="utf-8").split("\n## ")
    commands = [re.search(r"^`(python examples/[a-z_]+\.py)`$", part, re.MULTILINE) for part in parts]
    page = (ROOT / "docs" / "for-analysts.md").read_text(encoding="utf-8")

    assert len(parts) == 6
    assert all(one and f"\n{one[1]} " in page for one in commands)
    assert all(re.search(r"^shown\(.*\)$", part, re.MULTILINE) for part in parts)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("page", "text", "complaint"),
    [
        pytest.param("docs/there.md", "", "", marks=pytest.mark.nightly),
        ("docs/there.md", "[nowhere](gone.md)", "gone.md"),
        pytest.param("docs/there.md", "[no heading](../README.md#bottom)", "bottom", marks=pytest.mark.nightly),
        pytest.param("docs/unlisted.md", "# A page that no list holds", "toctree", marks=pytest.mark.nightly),
        pytest.param("docs/there.md", AUTO, "gone", marks=pytest.mark.nightly),
    ],
)
def test_what_leads_nowhere_fails_the_build(tmp_path: Path, page: str, text: str, complaint: str) -> None:
    # Three CPU seconds each, in a program of its own: Sphinx and its theme are loaded anew, as for the whole site.
    pytest.importorskip("sphinx", reason="the documentation tools come with `make check`")
    root = tmp_path / "tree"
    for name, content in PAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (root / "docs" / "decisions").mkdir()
    (root / "docs" / "decisions" / "README.md").write_text("# Decisions\n")
    (root / "docs" / "decisions" / "0001-one.md").write_text("# One\n")
    shutil.copytree(ROOT / "docs" / "site", root / "docs" / "site", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "docs" / "site" / "index.md").write_text(
        "# Index\n\n```{toctree}\nREADME\ndocs/there\ndocs/decisions/README\n```\n"
    )
    with (root / page).open("a") as written:
        written.write(f"\n{text}\n")
    (root / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "docs.py", root / "scripts")

    done = subprocess.run(
        [sys.executable, "scripts/docs.py"], cwd=root, capture_output=True, text=True, timeout=100, check=False
    )

    assert done.returncode == (1 if text else 0), done.stderr
    assert complaint in done.stderr
    assert (root / "out" / "docs" / "html" / "index.html").is_file()


@pytest.mark.processes
def test_a_question_is_read_from_an_empty_folder(tmp_path: Path) -> None:
    program, sample = ROOT / "examples" / "read_releases.py", GALLERY / "sample"

    told = run(tmp_path, sys.executable, str(program), str(sample / "morning"), str(sample / "trusted-morning.toml"))

    assert "6 windows of 72 cells, signed by keys that you trust" in told
    assert "window 5 less window 0: " in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_fault_codes_of_a_made_fleet_are_found_beside_their_truth(tmp_path: Path) -> None:
    told = pasted(tmp_path, "fault_codes.py")

    one_walk, walks = told.split("60 walks:")
    assert "vehicles that told this code       true   at least so many have it     true" in one_walk
    rows = [line.replace(",", "").split() for line in one_walk.splitlines()[3:]]
    found = {row[0]: [int(number) for number in row[1:] if number != "to"] for row in rows if "not" not in row}
    assert len(found) == 11
    for _, low, high, true, least, have in found.values():
        assert low == least <= true <= have
        assert true <= high
    assert found["P0420"][2] < found["P0420"][5]  # The upper end is none of those that have it.
    assert rows[10] == ["U0121", "not", "found", "53", "0", "73"]
    assert "vehicles that have it   vehicles that told this code" in walks
    rows = [line.split() for line in walks.splitlines() if line.endswith("%")]
    assert rows[0] == ["P0420", "3,697", "3,079.5", "100", "%"]
    assert [row[3] for row in rows[-2:]] == ["0", "0"]  # Codes of one or two vehicles.


@pytest.mark.processes
def test_worn_brakes_of_any_wheel_are_counted_beside_their_truth(tmp_path: Path) -> None:
    told = pasted(tmp_path, "worn_brakes.py").replace(",", "").splitlines()

    found = [[int(number) for number in re.findall(r"[0-9]+", line)] for line in told[2:4]]
    # A wheel is worn with chance .04, and not known with .01: 20,000 (1 - .96**4), and 20,000 times .95**4.
    assert abs(found[0][3] - 3_013) < 200
    assert abs(found[1][3] - 16_290) < 200
    assert all(low <= true <= high for low, high, _, true in found)
    assert told[4] == f"{20_000 - found[0][3] - found[1][3]} vehicles do not know and answer neither"


@pytest.mark.processes
def test_a_census_is_a_table_of_two_signals_beside_its_truth(tmp_path: Path) -> None:
    told = pasted(tmp_path, "census_table.py")

    assert "48,842 persons, education by age, 16 by 4" in told
    rows = [line.split() for line in told.splitlines()[2:-1]]
    assert [row[0] for row in rows[::15]] == ["Preschool", "Doctorate"]
    # Low, high, truth of all ages: in this draw one of 16 is outside; 69 is the width where added cells would have 92.
    ends = [tuple(int(row[place].replace(",", "")) for place in (1, 3, 4)) for row in rows]
    assert sum(low <= true <= high for low, high, true in ends) == 15
    assert {high - low for low, high, _ in ends} <= {68, 69, 70}
    assert "62 of 64 cells are inside their intervals" in told


@pytest.mark.processes
def test_protected_brakes_are_counted_beside_their_truth_and_proved_of_nobody(tmp_path: Path) -> None:
    told = run(tmp_path, sys.executable, str(ROOT / "examples" / "protected_brakes.py"))

    rows = [line.replace(",", "").split() for line in told.splitlines()]
    counted = {row[0]: [float(one) for one in row[1:] if one != "to"] for row in rows[2:5]}
    assert list(counted) == ["faulty", "worn", "sound"]
    for low, high, _, true, error, if_all_hid_all in counted.values():
        assert low <= true <= high
        assert error <= if_all_hid_all
    proved = {row[0]: (int(row[-4]), int(row[-2])) for row in rows if row[-1] == "vehicles"}
    assert proved["faulty"] == (0, 1_500)
    assert proved["worn"] == (0, 9_000)
    # The bit of sound brakes is never wrong upwards, and stays 1 with chance 1 - 1/e: 37,500 times .632 is 23,705.
    assert abs(proved["sound"][0] - 23_705) < 600
    assert "both operators together: epsilon 2.00000, for faulty, worn replaced by worn, sound or none" in told
    assert "that a device has sound, or does not have faulty, is not protected" in told


@pytest.mark.processes
def test_speeds_of_a_morning_are_beside_their_truth(tmp_path: Path) -> None:
    told = pasted(tmp_path, "bologna_speeds.py").splitlines()

    rows = [SHOWN.fullmatch(line) for line in told if line.startswith("  ")]
    found = [(float(row["low"]), float(row["high"]), row["true"]) for row in rows if row]
    assert len(found) == len(rows) == 1 + 3 + 5 + 16
    spans = [(low, high, float(true)) for low, high, true in found if true != "none"]
    # Of 23 intervals of 95 % fewer than 19 would hold their truth for one seed in 200; this one stays the same.
    inside = sum(low <= true <= high for low, high, true in spans)
    assert inside >= 19
    assert told[-1] == f"{inside} of {len(spans)} truths are inside their intervals, each of 95 %"
    assert spans[0][1] - spans[0][0] < 0.5  # All vehicles, by the weighted sum; a road is known up to a bin of 2.
    assert all(2 < high - low < 5 for low, high, _ in spans[1:4])
    page = (ROOT / "docs" / "for-analysts.md").read_text(encoding="utf-8").split("What epsilon 1 shows", 1)[1]
    shown = page.split("```")[1].strip().splitlines()
    assert len(shown) == 4
    assert {line.strip() for line in shown} <= {line.strip() for line in told}


@pytest.mark.processes
@pytest.mark.nightly  # Two aggregators, twelve devices: half a minute of CPU.
@pytest.mark.timeout(600)
def test_worn_brakes_are_counted_from_an_empty_folder(tmp_path: Path) -> None:
    told = pasted(tmp_path, "brakes.sh")

    assert "signed by alpha (Operator of alpha), beta (Operator of beta): trusted by" in told
    assert told.endswith("truth: 4 of 12 vehicles have a worn brake\n")
    assert (tmp_path / "try" / "released" / "release.json").is_file()


@pytest.mark.processes
@pytest.mark.nightly  # Two aggregators, three devices and nine commands are processes of their own: ten CPU seconds.
@pytest.mark.timeout(300)
def test_keys_aggregators_devices_and_a_signed_release_from_an_empty_folder(tmp_path: Path) -> None:
    told = run(tmp_path, str(ROOT / "examples" / "operate.sh"), str(int(12 * pace())))

    assert told.count("delivered: ") == 3
    assert "signed by alpha (Operator of alpha), beta (Operator of beta): trusted by" in told
    assert (tmp_path / "released" / "release.json").is_file()
