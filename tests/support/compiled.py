"""Compile the files of tests once, before the workers of a run each read all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_FEW = 40
"""So many files the workers compile themselves sooner than programs for it would have begun."""


def compile_tests(config: pytest.Config) -> None:
    """Let pytest read the tests of a run whose bytecode it has not kept, a part on each processor.

    pytest rewrites the assertions of every file that it reads. All workers of a run read all files, so in a new
    checkout each would do so for itself.
    """
    files = [
        file
        for folder in map(Path, dict.fromkeys(one.partition("::")[0] for one in config.args))
        for file in (folder.rglob("test_*.py") if folder.is_dir() else [folder])
    ]
    missing = [str(file) for file in sorted(files) if not _is_compiled(file)]
    if sys.dont_write_bytecode or len(missing) < _FEW:
        return
    print(f"test: compiling {len(missing)} files of tests", flush=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    command = (sys.executable, "-m", "pytest", "--collect-only", "-qq")
    reading = [
        subprocess.Popen([*command, *missing[part::cores]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for part in range(cores)
    ]
    for one in reading:
        one.wait()  # What cannot be read, the workers say.


def _is_compiled(file: Path) -> bool:
    """Return whether pytest's bytecode of a file is there; it looks itself whether that is of this file."""
    return any((file.parent / "__pycache__").glob(f"{file.stem}.*-pytest-*.pyc"))
