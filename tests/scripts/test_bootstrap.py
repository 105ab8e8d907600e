"""`make setup` installs the locked files, with uv where it is there and with pip otherwise, and refuses other files."""

import hashlib
import json
import shutil
import stat
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts.test_supply import script
from tests.support.installed import link

pytestmark = pytest.mark.processes  # pip and uv, real ones but where a test says otherwise.
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ABOUT = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n"
BACKEND = f"""
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "fleetcount-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as archive:
        archive.writestr("fleetcount.pth", "")
        archive.writestr("fleetcount-1.0.dist-info/METADATA", {ABOUT.format("fleetcount")!r})
        archive.writestr("fleetcount-1.0.dist-info/WHEEL", {WHEEL!r})
        archive.writestr("fleetcount-1.0.dist-info/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "fleetcount"
version = "1.0"
"""
FETCHED = Path(sys.prefix) / "installer" / "bin" / "uv"
UV = next(([str(one)] for one in (shutil.which("uv"), FETCHED) if one and Path(one).exists()), [])
UV = UV or ([sys.executable, "-m", "uv"] if find_spec("uv") else [])


def needed(folder: Path) -> str:
    """Write the one distribution that the project needs; return the line of a lock."""
    wheel = folder / "carried-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carried.py", "here = True\n")
        archive.writestr("carried-1.0.dist-info/METADATA", ABOUT.format("carried"))
        archive.writestr("carried-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("carried-1.0.dist-info/RECORD", "")
    return f"carried==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script at work in a small project whose one locked file lies beside it; no index is asked."""
    root, files, programs = tmp_path / "tree", tmp_path / "files", tmp_path / "programs"
    for folder in (root / "locks", files, programs):
        folder.mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    (root / "constraints.txt").write_text("carried==1.0\n")
    carried = needed(files)
    (root / "locks" / "all.txt").write_text(carried)
    (root / "locks" / "test.txt").write_text("-r all.txt\n")
    for name in ("check", "nightly"):
        (root / "locks" / f"{name}.txt").write_text("-r test.txt\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(files))
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
    module = script("bootstrap")
    places = {"ROOT": root, "VENV": root / ".venv", "PINNED": root / "constraints.txt", "LOCKS": root / "locks"}
    places |= {"VENV_PYTHON": root / ".venv" / "bin" / "python", "PIP_LOG": root / ".venv" / "setup.log"}
    places |= {"STAMP": root / ".venv" / ".fleetcount-setup.json", "INSTALLER": root / ".venv" / "installer"}
    places |= {"PART": root / ".venv" / "setup-part.txt"}
    for name, place in places.items():
        monkeypatch.setattr(module, name, place)
    return module


def uv_that(setup: ModuleType, lines: str) -> None:
    """Put a program named uv into the way that does as the lines of shell say, and answers --version."""
    program = setup.ROOT.parent / "programs" / "uv"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{lines}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def holds_what_is_locked(setup: ModuleType) -> bool:
    return bool(
        setup.works([setup.VENV_PYTHON, "-c", "import carried, importlib.metadata as m; m.version('fleetcount')"])
    )


@pytest.fixture
def quick_venv(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments get the pip of this interpreter by a link: making one with a pip of its own takes seconds."""
    if find_spec("pip") is None:
        return

    def made() -> None:
        venv.create(setup.VENV, symlinks=True)
        link(next(setup.VENV.glob("lib/python*/site-packages")), ["pip"])

    monkeypatch.setattr(setup, "make_venv", made)


@pytest.mark.nightly  # As the one below: five seconds of a core for what pip does by itself.
@pytest.mark.usefixtures("quick_venv")
def test_without_uv_pip_installs_and_the_second_time_nothing_is_done(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_uv", list)

    assert setup.main(["all"]) == 0
    first = capsys.readouterr().out
    assert setup.main(["all"]) == 0

    assert holds_what_is_locked(setup)
    assert json.loads(setup.STAMP.read_text())["extras"] == ["all"]
    assert ("done in" in first, "with uv" in first.splitlines()[-1]) == (True, False)
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not UV, reason="uv is not installed: setting up with it was NOT tried")
def test_with_uv_it_installs_the_same(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_uv", lambda: UV)

    assert setup.main(["all"]) == 0

    assert holds_what_is_locked(setup)
    assert capsys.readouterr().out.rstrip().endswith("with uv")


@pytest.mark.skipif(not UV, reason="uv is not installed: setting up with it was NOT tried")
def test_with_uv_a_file_that_is_not_the_locked_one_is_refused(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_uv", lambda: UV)
    (setup.LOCKS / "all.txt").write_text(f"carried==1.0 --hash=sha256:{'0' * 64}\n")

    assert setup.main(["all"]) == 5

    assert "mismatch" in capsys.readouterr().err
    assert not setup.STAMP.exists()


@pytest.mark.nightly  # Makes a whole environment with a pip of its own, as without uv: five seconds of a core.
def test_where_uv_fails_pip_installs(setup: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    uv_that(setup, "echo no index >&2; exit 2")

    assert setup.find_uv() == [str(setup.ROOT.parent / "programs" / "uv")]
    assert setup.main(["all"]) == 0

    assert holds_what_is_locked(setup)
    assert "uv cannot install here" in capsys.readouterr().out


@pytest.mark.usefixtures("quick_venv")
@pytest.mark.parametrize("by", [pytest.param("pip", marks=pytest.mark.nightly), "uv"])
def test_a_file_that_is_not_the_locked_one_is_refused_and_not_installed_another_way(
    setup: ModuleType, by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (setup.LOCKS / "all.txt").write_text(f"carried==1.0 --hash=sha256:{'0' * 64}\n")
    if by == "uv":
        uv_that(setup, '[ "$1" = venv ] && exit 0; echo "Hash mismatch for `carried==1.0`" >&2; exit 1')
    else:
        monkeypatch.setattr(setup, "find_uv", list)

    assert setup.main(["all"]) == 5

    said = capsys.readouterr()
    assert "UNLOCKED" not in said.out
    assert "taking pip" not in said.out
    assert any(words in said.err for words in setup.OTHER_FILES)
    assert not setup.STAMP.exists()


def fetchable_uv(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """Put a distribution that brings a uv, which does as the lines of shell say, beside the others, and lock it."""
    wheel = setup.ROOT.parent / "files" / "uv-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        program = zipfile.ZipInfo("uv-1.0.data/scripts/uv")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{lines}\n')
        archive.writestr("uv-1.0.dist-info/METADATA", ABOUT.format("uv"))
        archive.writestr("uv-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("uv-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if find_spec("pip") is None:  # This environment was made by uv; the Python below it has a pip.
        monkeypatch.setattr(sys, "executable", sys._base_executable)
    if not setup.works([sys.executable, "-m", "pip", "--version"]):
        pytest.skip("no pip here: fetching uv by it was NOT tried")
    (setup.LOCKS / "installer.txt").write_text(f"uv==1.0 --hash=sha256:{digest}\n")


def test_where_there_is_no_uv_pip_fetches_the_locked_one_and_an_old_environment_does_not_take_it_away(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_uv", list)
    # What it is asked for: an environment, the locked files, the project. Each leaves a file of its name.
    fetchable_uv(setup, monkeypatch, 'mkdir -p .venv/bin; touch ".venv/did-$#"')
    (setup.VENV / "lib").mkdir(parents=True)

    assert setup.main(["all"]) == 0

    assert capsys.readouterr().out.rstrip().endswith("with uv")
    assert (setup.VENV / "installer" / "bin" / "uv").exists()
    assert not (setup.VENV / "lib").exists()
    assert len(list(setup.VENV.glob("did-*"))) == 3
    assert setup.fetch_uv() == [str(setup.VENV / "installer" / "bin" / "uv")]


def test_a_uv_that_is_not_the_locked_one_is_refused(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_uv", list)
    fetchable_uv(setup, monkeypatch, "exit 0")
    (setup.LOCKS / "installer.txt").write_text(f"uv==1.0 --hash=sha256:{'0' * 64}\n")

    assert setup.main(["all"]) == 5

    assert "DO NOT MATCH" in capsys.readouterr().err
    assert not setup.INSTALLER.exists()
    assert not setup.STAMP.exists()


# What is in it already, how much there is to fetch, and how far it is.


def uv_that_writes_down(setup: ModuleType, more: str = "") -> Path:
    """Put a uv into the way that makes an environment and writes down how it is called, and the part that it is at."""
    rows = setup.ROOT.parent / "asked"
    lines = f"""
[ "$1" = venv ] && mkdir -p .venv/bin && ln -sf {sys.executable} .venv/bin/python && exit 0
echo "$@" >> {rows}
cat .venv/setup-part.txt >> {rows}
{more}"""
    uv_that(setup, lines)
    return rows


def lock_of(setup: ModuleType, name: str, *sizes: int) -> None:
    """Lock distributions a, b, c ... of some sizes."""
    rows = [f"{chr(97 + n)}==1.{n} \\\n    --hash=sha256:{n:064}\n" for n in range(len(sizes))]
    (setup.LOCKS / f"{name}.txt").write_text(
        "".join(f"{row}    # {size} bytes, needed by x\n" for row, size in zip(rows, sizes, strict=True))
    )


def held(setup: ModuleType, *names: str) -> None:
    """Let the environment look as if it held distributions."""
    setup.VENV_PYTHON.parent.mkdir(parents=True, exist_ok=True)
    setup.VENV_PYTHON.unlink(missing_ok=True)
    setup.VENV_PYTHON.symlink_to(sys.executable)
    for name in names:
        (setup.VENV / "lib" / "python3.11" / "site-packages" / f"{name}.dist-info").mkdir(parents=True, exist_ok=True)


def test_check_and_nightly_contain_test_and_neither_takes_the_other_away(setup: ModuleType) -> None:
    asked = uv_that_writes_down(setup)

    for extra in ("nightly", "check"):
        assert setup.main([extra]) == 0
    done = asked.read_text()
    for extra in ("all", "test", "check", "nightly"):
        assert setup.main([extra]) == 0

    assert asked.read_text() == done
    assert json.loads(setup.STAMP.read_text())["extras"] == ["check", "nightly"]


def test_what_only_the_other_extra_contains_is_not_taken_for_installed(setup: ModuleType) -> None:
    uv_that_writes_down(setup)

    assert setup.main(["check"]) == 0

    assert [setup.up_to_date(extra) for extra in ("all", "test", "check", "nightly")] == [True, True, True, False]
    (setup.LOCKS / "check.txt").write_text("-r test.txt\n\n")
    assert not any(setup.up_to_date(extra) for extra in setup.EXTRAS)


def test_it_says_first_how_much_there_is_to_fetch_and_asks_for_no_more(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = uv_that_writes_down(setup)
    lock_of(setup, "all", 3_000_000, 40_000_000, 2_600_000)
    held(setup, "a-1.0", "B-1.0")  # Of b another version.

    assert setup.main(["all"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[1] == "setup: 2 distributions, about 43 MB; fetched is what the cache of the installer does not have"
    rows = asked.read_text()
    assert [f"\n{name}==1." in rows for name in "abc"] == [False, True, True]
    assert f"0{2}\n    # 2600000 bytes" in rows


@pytest.mark.skipif(not UV, reason="uv is not installed: a program beside fleetcount was NOT installed")
def test_a_program_beside_has_an_environment_of_its_own_that_is_whole_or_made_anew(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_uv", lambda: UV)
    whole = (setup.LOCKS / "all.txt").read_text()
    (setup.LOCKS / "peer.txt").write_text(f"carried==1.0 --hash=sha256:{'0' * 64}\n")

    for _ in range(2):
        with pytest.raises(setup.SetupError, match="Hash mismatch"):
            setup.install_beside("peer")
    capsys.readouterr()
    (setup.LOCKS / "peer.txt").write_text(whole)
    python = setup.install_beside("peer")
    said = capsys.readouterr().out.splitlines()
    assert setup.install_beside("peer") == python

    assert setup.works([python, "-c", "import carried"])
    assert python.parent.parent == setup.VENV / "peer"
    assert not setup.VENV_PYTHON.exists()
    assert len(said) == 1
    assert capsys.readouterr().out == ""


def test_what_is_for_another_machine_is_not_counted(setup: ModuleType) -> None:
    places = {
        "sys_platform == 'win32'": False,
        "sys_platform != 'emscripten' and sys_platform != 'win32'": True,
        "python_full_version < '3.9'": False,
        "python_full_version < '3.100'": True,
        "python_full_version < '3.9' or sys_platform != 'win32'": True,
        "(python_full_version >= '3.100' and platform_machine == 'x') or (implementation_name == 'y')": False,
        "platform_release == 'who knows'": True,
    }

    assert {marker: setup.needed_here(marker) for marker in places} == places


def test_every_lock_of_this_tree_can_be_counted_before_it_is_fetched(setup: ModuleType) -> None:
    locks = Path(__file__).resolve().parents[2] / "locks"

    for extra in setup.EXTRAS:
        found = setup.locked(locks / f"{extra}.txt")
        assert len({one.pin for one in found}) == len(found) > 50
        assert all(one.size for one in found)
        parts = setup.parts_of(found)
        assert [one for part in parts for one in part] == found
        assert setup.PARTS / 2 < len(parts) < 3 * setup.PARTS


@pytest.mark.parametrize("terminal", [True, False])
def test_how_far_it_is_rises_to_all_of_it(
    setup: ModuleType, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uv_that_writes_down(setup)
    lock_of(setup, "all", 10_000_000, 30_000_000, 60_000_000)
    monkeypatch.setattr(setup, "SAY_S", 0.0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)

    assert setup.main(["all"]) == 0

    said = capsys.readouterr().out
    bars = [line.rpartition(",")[0] for line in said.replace("\r", "\n").splitlines() if "[" in line and "#" in line]
    assert list(dict.fromkeys(bars)) == [
        "setup: [##                  ] 1 of 3, 10 of 100 MB",
        "setup: [########            ] 2 of 3, 40 of 100 MB",
        "setup: [####################] 3 of 3, 100 of 100 MB",
    ]
    assert ("\r" in said) == terminal
    assert said.splitlines()[-1].startswith("setup: done in ")


@pytest.mark.parametrize("signal", ["INT", "TERM"])
def test_an_interruption_ends_the_installer_and_what_it_was_at_is_installed_again(
    setup: ModuleType, signal: str
) -> None:
    (setup.ROOT / "scripts").mkdir()
    program = shutil.copy(setup.__file__, setup.ROOT / "scripts")
    lock_of(setup, "all", 10_000_000, 30_000_000, 60_000_000)
    at_b = 'case "$*" in *setup-part*) grep -q ^b== .venv/setup-part.txt;; *) false;; esac'
    killing = f"echo $$ > ../installer; kill -{signal} $PPID; exec sleep 60"
    asked = uv_that_writes_down(setup, f"if {at_b}; then {killing}; fi")

    interrupted = subprocess.run([sys.executable, program, "all"], capture_output=True, text=True, check=False)

    assert (interrupted.returncode, interrupted.stderr) == (130, "setup: interrupted\n")
    assert not Path(f"/proc/{(setup.ROOT.parent / 'installer').read_text().strip()}").exists()
    assert not setup.STAMP.exists()
    held(setup, "a-1.0", "b-1.1")  # Of b some files at least.
    asked.unlink()
    uv_that_writes_down(setup)
    assert setup.main(["all"]) == 0
    rows = asked.read_text()
    again, _, rest = rows.partition("\nc==1.2")
    assert ("\nb==1.1" in again, "--force-reinstall" in again) == (True, True)
    assert (rest != "", "\na==1.0" in rows, "--force-reinstall" in rest) == (True, False, False)
    assert not setup.PART.exists()
