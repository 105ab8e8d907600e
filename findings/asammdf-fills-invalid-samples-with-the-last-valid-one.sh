#!/bin/sh
# asammdf 8.8.28 leaves samples out that an MDF 4 file marks as invalid, and in tables puts the last valid value there.
#
# Seen on Python 3.11 with numpy 2.4.6 and pandas 3.1.1: of six samples 10, 20, 255, 255, 50, 60 of a temperature the third and
# fourth are marked invalid by the file's invalidation bits. MDF.get() gives four samples, with their four moments. In
# to_dataframe() and in the file that export("csv") writes, where a second channel has six samples, the temperature has six
# too: 10, 20, 20, 20, 50, 60, and nothing tells the two that were made from those that were measured. So a count over the
# table counts a sensor that said nothing at its last value. get(..., ignore_invalidation_bits=True) gives all six, with the
# bits beside them. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q asammdf==8.8.28 numpy==2.4.6 pandas==3.1.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
cd "$folder"
"$folder/venv/bin/python" - << 'PYTHON'
import csv
import sys
from pathlib import Path

import numpy as np
from asammdf import MDF, Signal

seconds = np.arange(6.0)
invalid = np.array([False, False, True, True, False, False])
warmth = np.array([10, 20, 255, 255, 50, 60], np.uint8)
with MDF(version="4.20") as made:
    made.append(
        [
            Signal(warmth, seconds, name="Warmth", unit="degC", invalidation_bits=invalid),
            Signal(np.arange(6, dtype=np.uint8), seconds, name="Speed"),
        ]
    )
    made.save("trip.mf4")
with MDF("trip.mf4") as read:
    alone = read.get("Warmth")
    marked = read.get("Warmth", ignore_invalidation_bits=True)
    table = read.to_dataframe()
    read.export("csv", "trip.csv")
(written,) = Path().glob("trip*.csv")
with written.open() as lines:
    exported = [float(row["Warmth"]) for row in csv.DictReader(lines)]
print(f"get: {alone.samples.tolist()} at {alone.timestamps.tolist()}")
print(f"get with the bits: {marked.samples.tolist()}, {marked.invalidation_bits.tolist()}")
print(f"table: {table['Warmth'].tolist()}; csv: {exported}")
filled = [10, 20, 20, 20, 50, 60]
as_seen = (
    alone.samples.tolist() == [10, 20, 50, 60]
    and marked.invalidation_bits.tolist() == invalid.tolist()
    and table["Warmth"].tolist() == filled
    and exported == filled
)
sys.exit(0 if as_seen else 1)
PYTHON
