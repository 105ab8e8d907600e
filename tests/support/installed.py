"""A wheel installed as a user has it: a fresh environment with the named distributions of this one and no others.

Nothing is fetched: what the wheel needs is linked from the interpreter that runs the tests, and pip, which is told to
ask no index, refuses the wheel if something of it is missing.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

with_builder: Final = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None,
    reason="hatchling is not installed (locks/build.txt): NO wheel was built or installed",
)


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An environment with one wheel in it."""

    python: Path
    site: Path

    def run(self, *arguments: str, folder: Path, **environment: str) -> tuple[int, str, str]:
        """Run its interpreter in a folder, with no variables but a home, a path and these; return code, out, err."""
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=folder,
            env=self.variables(folder, **environment),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def variables(self, folder: Path, **environment: str) -> dict[str, str]:
        """Return the few variables that a program of it sees."""
        return {"HOME": str(folder), "LANG": "C.UTF-8", "PATH": os.defpath, **environment}


def metadata_of(wheel: Path) -> Message:
    """Return what a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def needed_by(rows: Iterable[str], extras: Iterable[str] = ()) -> set[str]:
    """Return the distributions that requirements need, theirs included; skips a test where one is not here."""
    found = set[str]()
    todo = [(row, extra) for row in rows for extra in ("", *extras)]
    while todo:
        row, extra = todo.pop()
        wanted = Requirement(row)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        try:
            held = importlib.metadata.distribution(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{wanted.name} is not installed here: the wheel was NOT tried with it")
        for inner in ("", *wanted.extras):
            if (key := f"{held.name}[{inner}]") not in found:
                found.add(key)
                todo += [(one, inner) for one in held.requires or ()]
    return {key.partition("[")[0] for key in found}


def link(site: Path, names: Iterable[str]) -> None:
    """Put distributions of this interpreter into a folder that another one imports from."""
    for name in names:
        held = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in held.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            if (site / top).exists():
                continue
            if top.endswith(".dist-info"):  # uv takes no link for what is installed.
                shutil.copytree(str(held.locate_file(top)), site / top)
            else:
                (site / top).symlink_to(str(held.locate_file(top)))


def install(directory: Path, wheel: Path, extras: Sequence[str] = ()) -> Installed:
    """Install a wheel with some of its extras into a new environment below `directory`."""
    venv.create(directory, symlinks=True)
    [site] = directory.glob("lib/python*/site-packages")
    link(site, needed_by(metadata_of(wheel).get_all("Requires-Dist", ()), extras))
    python = directory / "bin" / "python"
    installer = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]
    if importlib.util.find_spec("pip") is None:  # This environment was made by uv (scripts/bootstrap.py).
        uv = shutil.which("uv") or str(Path(sys.prefix) / "installer" / "bin" / "uv")
        installer = [uv, "pip", "install", "--python", str(python)]
    target = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    command = [*installer, "--quiet", "--no-index", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Installed(python=python, site=site)
