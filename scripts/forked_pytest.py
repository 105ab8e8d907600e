"""Run pytest again and again, each time in a fork of one process that has imported the libraries already.

    python scripts/forked_pytest.py [--libraries]

It reads a JSON object a line, {"arguments": [...], "output": FILE, "timeout_s": SECONDS}, and writes one a line,
{"code": CODE, "cpu_s": SECONDS}: the code is null where the time ran out, the seconds are those of all that was begun.

Importing the libraries takes longer than most tests that are named for one planted bug. Nothing of ours is imported
before the fork, so that each run reads the sources as they are then. Without `--libraries` only pytest is imported.
What a run leaves behind is ended after it.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import supervised
from _pytest.config import default_plugins

LIBRARIES: Final = (
    "pytest",
    "hypothesis",
    "hypothesis.extra.numpy",
    "numpy",
    "scipy.optimize",
    "scipy.signal",
    "scipy.special",
    "scipy.stats",
    "numba",
    "duckdb",
    "grpc",
    "grpc.aio",
    "google.protobuf.descriptor_pb2",
    "cryptography.x509",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.serialization",
    "Crypto.Hash.TurboSHAKE128",
    "aiomqtt",
    "click",
    "structlog",
    "prometheus_client",
    "psycopg",
    "h3",
    "rich.console",
    "grpc_health.v1.health",
    "amqtt.broker",
    "concurrent.futures.process",
    "sqlite3",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "pandas",
    "mpmath",
    "pyproj",
    "shapely",
    "starlette.applications",
    "uvicorn",
    "playwright.sync_api",
    "pdb",
)
"""What the tests and our packages import from elsewhere and what takes long; one that is missing here is left out."""


def load(names: Sequence[str]) -> None:
    """Import libraries, and what pytest itself loads as it starts."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # Its handlers of forks need a gRPC that has begun to run.
    plugins = [one.module for one in importlib.metadata.entry_points(group="pytest11")]
    for name in (*names, *(f"_pytest.{plugin}" for plugin in default_plugins), *plugins):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Pytest collects garbage ten times as it ends: what is loaded here is no part of it any more.
    gc.collect()
    gc.freeze()


def run(arguments: Sequence[str], output: Path, timeout_s: float) -> int | None:
    """Run pytest in a fork; return its exit code, None if it still ran after `timeout_s` and was killed."""
    until = time.monotonic() + timeout_s
    child = os.fork()
    if child == 0:
        _become_pytest(arguments, output)
    code: int | None = None
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.01)
    supervised.end_descendants()
    return code


def _cpu_s() -> float:
    """Return the seconds of CPU of all that this process began and that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _become_pytest(arguments: Sequence[str], output: Path) -> None:
    """Be a pytest that was just started: its own session, no input, its output in a file."""
    code = 1
    try:
        os.setsid()
        written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for place, of in ((0, nothing), (1, written), (2, written)):
            os.dup2(of, place)
        import pytest

        # What a test starts by multiprocessing reads the main module of its parent again: as if pytest were run.
        sys.modules["__main__"] = importlib.import_module("pytest.__main__")
        # The libraries' own helpers for tests were imported without rewritten asserts, which changes nothing for ours.
        code = int(pytest.main(["-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Answer requests until standard input closes."""
    supervised.adopt_orphans()
    load(LIBRARIES if "--libraries" in sys.argv else ("pytest",))
    sys.path[0] = str(Path.cwd())  # As `python -m pytest` has it: not the folder of this script.
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        before = _cpu_s()
        code = run(asked["arguments"], Path(asked["output"]), asked["timeout_s"])
        print(json.dumps({"code": code, "cpu_s": _cpu_s() - before}), flush=True)
    gc.unfreeze()  # Some libraries complain of objects that outlive them.
    return 0


if __name__ == "__main__":
    sys.exit(main())
