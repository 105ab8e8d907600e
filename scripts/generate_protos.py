#!/usr/bin/env python3
"""Generates the protobuf and gRPC code of `protos/` into fleetcount_protocol/v1; `--check` only compares.

It must not be needed to run anything: the generated files are committed.
"""

import argparse
import importlib.resources
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
TARGET = ROOT / "protocol" / "src"
PACKAGE = Path("fleetcount_protocol") / "v1"
INIT = '"""Generated from protos/ by scripts/generate_protos.py; never edited by hand."""\n'


def generate(output: Path) -> None:
    """Write the generated package below `output`.

    Raises:
        subprocess.CalledProcessError: the compiler found a fault in a .proto file (it prints which).
    """
    (output / PACKAGE).mkdir(parents=True, exist_ok=True)
    (output / PACKAGE / "__init__.py").write_text(INIT, encoding="utf-8")
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / PACKAGE).glob("*.proto"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    outputs = [f"--{plugin}_out={output}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{well_known}", *outputs, *sources]
    subprocess.run(command, check=True, cwd=ROOT, env=_environment())


def _environment() -> dict[str, str]:
    # The mypy plugins are console scripts beside the interpreter; nothing else of the caller's environment matters.
    return {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def _contents(root: Path) -> dict[str, bytes]:
    folder = root / PACKAGE
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.py*")) if path.is_file()}


def check() -> list[str]:
    """Return the names of the committed files that differ from what the sources give."""
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        fresh, committed = _contents(Path(directory)), _contents(TARGET)
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> int:
    """Generate, or with `--check` compare and return 1 on any difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if the committed code is stale")
    if not parser.parse_args().check:
        generate(TARGET)
        return 0
    stale = check()
    for name in stale:
        print(f"stale: {TARGET.relative_to(ROOT) / PACKAGE / name}: run scripts/generate_protos.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
