#!/bin/sh
# pyshp 3.1.6 writes a number that is longer than its field without its last digits: 123456 as 12345, and says nothing.
#
# Seen on Python 3.11: of a column of five digits 99999 is read back, 100000 as 10000, 1234567 as 12345 and -12345 as -1234;
# of one of seven places and two decimals 1234.56 is read back and 1234567.5 as 1234567. The first digits are kept, so what is
# cut is a tenth or a hundredth of itself and still a sound number; a minus takes a place. No warning comes and the file is
# valid. So a table whose columns were measured by a small city says of the busiest cells of a large one that they are
# quiet. A column is as wide as the longest number that may come; left out, the width is fifty. Exits 0 while this is
# so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q pyshp==3.1.6 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
cd "$folder"
"$folder/venv/bin/python" -W error - << 'PYTHON'
import logging
import sys

import shapefile

COUNTS = [99999, 100000, 1234567, -12345]
MEANS = [1234.56, 12345.67, 1234567.5, -1234.56]
said = []
logging.getLogger().addHandler(logging.Handler())
logging.getLogger().handlers[0].emit = said.append
with shapefile.Writer("cells", shapeType=shapefile.POINT) as made:
    made.field("vehicles", "N", 5)
    made.field("mean", "N", 7, 2)
    made.field("asked", "N")
    for count, mean in zip(COUNTS, MEANS):
        made.point(11.34, 44.49)
        made.record(count, mean, count)
with shapefile.Reader("cells") as read:
    counts, means, wide = (list(column) for column in zip(*read.records()))
print(f"five digits: {COUNTS} are read as {counts}; as wide as pyshp makes them unasked: {wide}")
print(f"seven places, two decimals: {MEANS} are read as {means}; lines of a log: {len(said)}")
as_seen = (
    counts == [99999, 10000, 12345, -1234]
    and means == [1234.56, 12345.6, 1234567, -1234.5]
    and wide == COUNTS
    and not said
)
sys.exit(0 if as_seen else 1)
PYTHON
