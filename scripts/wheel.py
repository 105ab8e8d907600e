#!/usr/bin/env python3
"""Build the wheels: the same sources give the same bytes, whoever builds them, where and when.

    scripts/wheel.py DIRECTORY      writes fleetcount-VERSION-py3-none-any.whl and fleetcount_client-VERSION-... there
                                    and prints their SHA-256

The builder is the locked hatchling (locks/build.txt), used without isolation, so that nothing is fetched. Times in the
archive are a constant, file modes are normalized, files are in order, and compiled ones stay out.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MOMENT: Final = "1577836800"
"""2020-01-01, the time of every file in the wheel: that of a build says nothing about what is in it."""
PROJECTS: Final = (".", "client")
"""Where a pyproject.toml lies: everything, and what a car runs."""


def build(root: Path, directory: Path, project: str = ".", target: str = "wheel") -> Path:
    """Build the wheel (or `sdist`) of a project of a tree into a directory and return it.

    Raises:
        subprocess.CalledProcessError: the builder failed; its output says why.
    """
    directory.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": MOMENT}
    with tempfile.TemporaryDirectory(dir=directory) as place:
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", place]
        subprocess.run(command, cwd=root / project, env=environment, capture_output=True, text=True, check=True)
        [built] = Path(place).iterdir()
        return built.replace(directory / built.name)


def main(arguments: Sequence[str]) -> int:
    """Build the wheels and print their digests; return the exit code."""
    if len(arguments) != 1:
        print("wheel: give the directory that the wheels go to", file=sys.stderr)
        return 2
    try:
        wheels = [build(ROOT, Path(arguments[0]).resolve(), project) for project in PROJECTS]
    except subprocess.CalledProcessError as error:
        print(f"wheel: {error.stderr.strip() or error}", file=sys.stderr)
        return 5
    for wheel in wheels:
        print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
