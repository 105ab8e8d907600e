"""What a reader of figures must know of the machine: processor, vectors, cores, memory, versions, load.

Reads, never measures. A fact that this system does not tell is "unknown".
"""

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

_LIBRARIES = ("numpy", "numba", "cryptography", "grpcio")
_VECTORS = (
    ("AVX-512", {"avx512f", "avx512dq", "avx512bw", "avx512vl"}),
    ("AVX2", {"avx2"}),
    ("NEON", {"asimd"}),
)


def vector_extension(flags: Set[str]) -> str:
    """Return the widest vectors among a processor's flags, as /proc/cpuinfo names them."""
    return next((name for name, needed in _VECTORS if needed <= flags), "128 bits or unknown")


def facts(root: Path) -> dict[str, Any]:
    """Return what is known of this machine, and of the source tree at `root`, as JSON values."""
    told = _processor()
    limited = os.environ.get("NUMBA_CPU_NAME", "")
    return {
        "processor": told.get("model name") or platform.processor() or "unknown",
        "vectors": vector_extension(set((told.get("flags") or told.get("Features") or "").split())),
        "compiled_for": limited or "this processor",
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "commit": _commit(root),
        "time_utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "load_1_5_15_min": [round(value, 2) for value in os.getloadavg()],
    }


def describe(machine: Mapping[str, Any]) -> str:
    """Return one line of what `facts` found."""
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    compiled = "" if machine["compiled_for"] == "this processor" else f", compiled for {machine['compiled_for']}"
    parts = (
        f"{machine['processor']}, {machine['vectors']}{compiled}",
        f"{machine['cores']} cores, {machine['memory_gib']} GiB",
        f"Python {machine['python']}, {libraries}",
        f"commit {machine['commit']}",
        f"{machine['time_utc']} UTC, load before {machine['load_1_5_15_min'][0]}",
    )
    return "; ".join(parts)


def _processor() -> dict[str, str]:
    """Return the facts of the first processor."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _commit(root: Path) -> str:
    """Return the short name of the commit, with a plus where files differ from it; "unknown" outside a repository."""
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
