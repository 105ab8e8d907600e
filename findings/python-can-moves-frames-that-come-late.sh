#!/bin/sh
# python-can 4.6.1 writes a frame that is older than the first of its log at three different times, one decades ahead.
#
# Seen on Python 3.11: two interfaces hand over four frames, of second 1, 0.5, 3 and 2, which is an order that happens. The
# .csv, .db and .trc logs keep all four moments; the .blf and .log (candump) logs read 0.5 as 1, silently. The .asc log, whose
# times count from its first frame, has the second frame's whole Unix time among them (1796086800.500000 between 0.000000
# and 2.000000) and reads back, with its start added as relative_timestamp=False does, as of the year 2083; the docstring of
# ASCWriter promises the time of the frame before. So frames are sorted before they are logged as .asc. Exits 0 while this
# is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q python-can==4.6.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
cd "$folder"
TZ=UTC "$folder/venv/bin/python" - << 'PYTHON'
import datetime
import sys
from pathlib import Path

import can

START, SECONDS = 1_796_086_800.0, (1.0, 0.5, 3.0, 2.0)
frames = [can.Message(START + second, arbitration_id=0x100, is_extended_id=False, data=[1], channel=0) for second in SECONDS]
read = {}
for kind in ("csv", "db", "trc", "blf", "log", "asc"):
    with can.Logger(f"trip.{kind}") as log:
        for frame in frames:
            log(frame)
    options = {"relative_timestamp": False} if kind == "asc" else {}
    with can.LogReader(f"trip.{kind}", **options) as log:
        read[kind] = [round(frame.timestamp - START, 6) for frame in log]
    print(f".{kind}: seconds {read[kind]}")
lines = [line.split()[0] for line in Path("trip.asc").read_text().splitlines() if " 100 " in line]
year = datetime.datetime.fromtimestamp(START + read["asc"][1], datetime.timezone.utc).year
print(f".asc as written: {lines}; the second frame is of {year}")
kept, moved = list(SECONDS), [1.0, 1.0, 3.0, 2.0]
as_seen = (
    read["csv"] == read["db"] == read["trc"] == kept
    and read["blf"] == read["log"] == moved
    and lines == ["0.000000", "1796086800.500000", "2.000000", "1.000000"]
    and [read["asc"][at] for at in (0, 2, 3)] == [1.0, 3.0, 2.0]
    and year == 2083
)
sys.exit(0 if as_seen else 1)
PYTHON
