#!/bin/sh
# mapbox-vector-tile 2.2.0 leaves a count that NumPy made out of its tile, and keeps the average beside it.
#
# Seen on Python 3.11 with numpy 2.4.6: of the properties of a feature only those are written whose value is a str, bool, int
# or float of Python, and the others are skipped, which the README does not say and nothing warns of. What np.unique() or
# np.bincount() counts is np.int64, which is no int; a mean is np.float64, which is a float. So the tile is valid (Vector Tile
# Specification 2.1, section 4.4, has signed and unsigned 64-bit values) and has each cell's name and mean, but no cell's
# count, and a flag of NumPy is missing alike. A map that takes a missing count for 0 shows an empty city. json.dumps() raises
# TypeError of the same properties. Counts are made int() before. Exits 0 while this is so, 1 when it has changed, 2 when it
# could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q mapbox-vector-tile==2.2.0 numpy==2.4.6 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error::UserWarning - << 'PYTHON'
import importlib.metadata
import json
import logging
import sys

import mapbox_vector_tile
import numpy as np

said = []
logging.getLogger().addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: said.append(record)})())
cells = np.array(["a", "b", "b", "b", "c"])
speeds = np.array([30.0, 50.0, 40.0, 60.0, 20.0])
names, counts = np.unique(cells, return_counts=True)


def read(number) -> list[dict]:
    """Return the properties of each cell in a tile whose counts were made by `number`, as the same package reads them."""
    features = [
        {
            "geometry": f"POINT ({place} 1)",
            "properties": {
                "cell": str(name),
                "count": number(count),
                "speed": speeds[cells == name].mean(),
                "empty": count == 0,
            },
        }
        for place, (name, count) in enumerate(zip(names, counts))
    ]
    try:
        json.dumps(features)
    except TypeError as error:
        print(f"json.dumps(): {error}")
    layer = mapbox_vector_tile.decode(mapbox_vector_tile.encode({"name": "cells", "features": features}))["cells"]
    return [feature["properties"] for feature in layer["features"]]


print({name: importlib.metadata.version(name) for name in ("mapbox-vector-tile", "numpy")})
as_counted, as_int = read(lambda count: count), read(int)
print(f"counts of {type(counts[0]).__name__}: {as_counted}")
print(f"counts of int: {as_int}")
means = [{"cell": "a", "speed": 30}, {"cell": "b", "speed": 50}, {"cell": "c", "speed": 20}]
with_counts = [{**cell, "count": count} for cell, count in zip(means, (1, 3, 1))]
sys.exit(0 if as_counted == means and as_int == with_counts and not said else 1)
PYTHON
