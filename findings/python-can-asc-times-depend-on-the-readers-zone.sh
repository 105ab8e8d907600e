#!/bin/sh
# python-can 4.6.1 reads other moments from an .asc file in another time zone, and the same from .blf, .csv and .log.
#
# Seen on Python 3.11: a machine in Rome writes the same frame into each format. Read with absolute times
# (relative_timestamp=False) by a machine in UTC, the frame of the .asc file is an hour late in winter and two in
# summer, and in New York six: the format has a wall clock without a zone, which the reader takes for its own. In the
# hour that autumn repeats, the machine that wrote it reads it an hour early. So of a fleet's recordings that are
# gathered on a server, the same drive lies at another time by its file's suffix, and vehicles stand where they were
# an hour before. TZ must be that of the recording before Python starts; for the repeated hour only another format
# helps. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q python-can==4.6.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
cd "$folder"
cat > frames.py << 'PYTHON'
import sys

import can

MOMENTS = {"winter": 1769443022.25, "summer": 1782489422.25, "repeated": 1792891022.25}
FORMATS = {"blf": {}, "log": {}, "csv": {}, "asc": {"relative_timestamp": False}}
if sys.argv[1] == "write":
    for name, moment in MOMENTS.items():
        for suffix in FORMATS:
            with can.Logger(f"{name}.{suffix}") as file:
                file(can.Message(timestamp=moment, arbitration_id=0x123, data=b"\1\2", is_extended_id=False))
else:
    for suffix, options in FORMATS.items():
        late = []
        for name, moment in MOMENTS.items():
            with can.LogReader(f"{name}.{suffix}", **options) as file:
                late += [f"{name} {frame.timestamp - moment:+.0f}" for frame in file]
        print(f"{sys.argv[1]} {suffix}: {', '.join(late)} s")
PYTHON
rome=CET-1CEST,M3.5.0,M10.5.0/3
TZ=$rome venv/bin/python frames.py write
{
  TZ=$rome venv/bin/python frames.py Rome
  TZ=UTC0 venv/bin/python frames.py UTC
  TZ=EST5EDT,M3.2.0,M11.1.0 venv/bin/python frames.py New_York
} > seen
cat seen
for place in Rome UTC New_York; do
  for suffix in blf log csv; do
    echo "$place $suffix: winter +0, summer +0, repeated +0 s"
  done
done > wanted
cat >> wanted << 'TEXT'
Rome asc: winter +0, summer +0, repeated -3600 s
UTC asc: winter +3600, summer +7200, repeated +3600 s
New_York asc: winter +21600, summer +21600, repeated +18000 s
TEXT
sort seen > sorted
sort wanted | cmp -s - sorted
