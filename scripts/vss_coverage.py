"""Which leaves of a catalogue of the Vehicle Signal Specification a question can ask without being silently "none".

vss_coverage.py CATALOGUE.json --commit ID [--least 92]. The file is what the exporter of the vss-tools writes as JSON
of a checkout of COVESA/vehicle_signal_specification at that commit. For each leaf the question that its entry suggests
is made, and values that the entry allows go the way of a device: from a databroker's reading to the question's value.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_client.shapes import Shape
from fleetcount_client.signals import Reading, fault_of, misfit
from fleetcount_protocol.window.domain import Bins, Categories, FixedDomain
from fleetcount_protocol.window.signal import Kind, Signal, Single

_BITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
ASKED, NAMES, REFUSED, SILENT = "asked", "asked, names from the analyst", "refused with the reason", "silently none"


def leaves(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every leaf below a node with its path."""
    if node["type"] != "branch":
        yield path, node
        return
    for name, child in node["children"].items():
        yield from leaves(child, f"{path}.{name}")


def readings_of(leaf: Mapping[str, Any]) -> list[Signal]:
    """Return values that an entry allows, as a databroker says them: all that it lists, or both ends and the middle."""
    kind = leaf["datatype"]
    if kind == "boolean":
        return [True, False]
    if "allowed" in leaf:
        return list(leaf["allowed"])
    if kind == "string":
        return ["a name"]
    bits = _BITS.get(kind, 20)
    low = leaf.get("min", 0 if kind.startswith("u") else -(2**bits))
    high = leaf.get("max", 2**bits - 1)
    ends = [low, high, (low + high) / 2 if kind in ("float", "double") else (low + high) // 2]
    return [Single(one) if kind == "float" else one for one in ends]


def question_of(leaf: Mapping[str, Any], readings: list[Signal]) -> FixedDomain:
    """Return the values that a question about a leaf would have: its names, or bins of its unit over its range."""
    if leaf["datatype"] in ("boolean", "string") or "allowed" in leaf:
        names = ("true", "false") if leaf["datatype"] == "boolean" else tuple(map(str, readings))
        return Categories(names=names)
    numbers = [Fraction(one) for one in readings if isinstance(one, int | float)]
    return Bins(edges=(min(numbers), max(numbers)), open_above=True, unit=leaf.get("unit", ""))


def verdict(leaf: Mapping[str, Any]) -> str:
    """Return what becomes of a question about a leaf."""
    if leaf["datatype"].endswith("[]"):
        domains = (Categories(names=("a",)), Bins(edges=(Fraction(0),), open_above=True, unit=""))
        return REFUSED if all(misfit(one, Kind.OTHER) for one in domains) else SILENT
    readings = readings_of(leaf)
    domain = question_of(leaf, readings)
    for said in readings:
        reading = Shape().read(Reading(value=said, unit=leaf.get("unit", "")))
        if isinstance(reading.value, frozenset) or domain.value_of(reading.value) == 0:
            return REFUSED if fault_of(reading, domain) else SILENT
    return NAMES if leaf["datatype"] == "string" and "allowed" not in leaf else ASKED


def main() -> int:
    """Print how many leaves there are of each verdict; return 1 where fewer than the least share can be asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalogue", type=Path)
    parser.add_argument("--commit", required=True, help="of COVESA/vehicle_signal_specification, for the reader")
    parser.add_argument("--least", type=float, default=92.0, help="percent of the leaves (92)")
    asked = parser.parse_args()
    tree = json.loads(asked.catalogue.read_text(encoding="utf-8"))
    found = [(path, verdict(leaf)) for root, node in tree.items() for path, leaf in leaves(node, root)]
    counts = Counter(said for _, said in found)
    for said in (ASKED, NAMES, REFUSED, SILENT):
        print(f"{counts[said]:6,} {100 * counts[said] / len(found):5.1f} % {said}")
    print(f"{len(found):6,} leaves of COVESA/vehicle_signal_specification at {asked.commit}")
    for path, said in found:
        if said == SILENT:
            print(f"silently none: {path}")
    return int(100 * counts[ASKED] < asked.least * len(found) or counts[SILENT] > 0)


if __name__ == "__main__":
    sys.exit(main())
