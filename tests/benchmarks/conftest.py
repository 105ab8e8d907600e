"""Lets the tests import what the benchmarks share: they are scripts beside each other, not a package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
