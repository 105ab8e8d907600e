"""Run every benchmarks/bench_*.py, print what it measures, and keep the figures in out/bench.json.

Each benchmark runs ours and the peer in one process; this script adds the machine and its load, and decides nothing.
"""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "out" / "bench.json"


def machine() -> dict[str, object]:
    """Return what a reader needs to judge the figures: interpreter, cores, load."""
    load = os.getloadavg()
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load_1_5_15_min": [round(value, 2) for value in load],
        "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def run(script: Path) -> dict[str, object]:
    """Run one benchmark, echo its lines, and return them with its time and exit code."""
    started = time.perf_counter()
    before = os.getloadavg()[0]
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - started
    print(f"== {script.name} ({seconds:.1f} s, load before {before:.2f})")
    print(done.stdout, end="" if done.stdout.endswith("\n") else "\n", flush=True)
    lines = done.stdout.splitlines()
    return {
        "script": script.name,
        "seconds": round(seconds, 2),
        "exit": done.returncode,
        "load": before,
        "lines": lines,
    }


def main(wanted: list[str]) -> int:
    """Run all benchmarks, or those whose name holds one of `wanted`; exit 1 if one failed."""
    scripts = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    chosen = [script for script in scripts if not wanted or any(word in script.name for word in wanted)]
    if not chosen:
        print(f"bench: no benchmark matches {' '.join(wanted)}; there are {[s.stem for s in scripts]}", file=sys.stderr)
        return 2
    results = {"machine": machine(), "benchmarks": [run(script) for script in chosen]}
    OUTPUT.parent.mkdir(exist_ok=True)
    unfinished = OUTPUT.with_suffix(".new")
    unfinished.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(OUTPUT)
    print(f"bench: figures in {OUTPUT.relative_to(ROOT)}")
    failed = [result["script"] for result in results["benchmarks"] if result["exit"] != 0]  # type: ignore[index,union-attr] # a list of the dicts above
    if failed:
        print(f"bench: failed: {', '.join(map(str, failed))}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
