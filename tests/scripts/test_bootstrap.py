"""`make setup` installs the locked files, with uv where it is there and with pip otherwise, and refuses other files."""

import hashlib
import json
import shutil
import stat
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts.test_supply import script
from tests.support.installed import link

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
    (root / "locks" / "all.txt").write_text(needed(files))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(files))
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
    module = script("bootstrap")
    places = {"ROOT": root, "VENV": root / ".venv", "PINNED": root / "constraints.txt", "LOCKS": root / "locks"}
    places |= {"VENV_PYTHON": root / ".venv" / "bin" / "python", "PIP_LOG": root / ".venv" / "setup.log"}
    places |= {"STAMP": root / ".venv" / ".fleetcount-setup.json", "INSTALLER": root / ".venv" / "installer"}
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


@pytest.mark.usefixtures("quick_venv")
def test_without_uv_pip_installs_and_the_second_time_nothing_is_done(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_uv", list)

    assert setup.main(["all"]) == 0
    first = capsys.readouterr().out
    assert setup.main(["all"]) == 0

    assert holds_what_is_locked(setup)
    assert json.loads(setup.STAMP.read_text())["extra"] == "all"
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
@pytest.mark.parametrize("by", ["pip", "uv"])
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
