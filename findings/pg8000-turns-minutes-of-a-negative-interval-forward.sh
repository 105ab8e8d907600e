#!/bin/sh
# pg8000 1.31.6 takes the minus of PostgreSQL's "-01:30:00" for the hours alone, and of "-00:02:00" for nothing at all.
#
# Seen on Python 3.11: PostgreSQL writes an interval with one sign for hours, minutes and seconds together (intervalstyle
# "postgres", the default). pg8000 splits at the colons and reads each number for itself, so that -00:02:00 is 120 s, -01:30:00
# is half an hour back and "-1 days -02:03:04" is 6 min 8 s off; whole hours come out right. So was it from a server 15.20, for
# 07:58 less 08:00 among others, while this script gives the reader the words and needs no server. A negative timedelta that
# is stored and read again does not show it, for it is sent as days and seconds of two signs. The style sql_standard is read
# wrong as well, and with days by more; iso_8601 and postgres_verbose are read right. So a bus that was two minutes early is
# two minutes late in every mean; ask for extract(epoch from ...). Exits 0 while this is so, 1 when it has changed, 2 when it
# could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q pg8000==1.31.6 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import sys

from pg8000.converters import INTERVAL, PG_TYPES, interval_out

SENT = {
    "00:02:00": 120,
    "-01:00:00": -3600,
    "-1 days +23:58:00": -120,
    "-00:02:00": -120,
    "-01:30:00": -5400,
    "-1 days -02:03:04": -93784,
    "-1 2:03:04": -93784,
    "P-1DT-2H-3M-4S": -93784,
    "@ 1 day 2 hours 3 mins 4 secs ago": -93784,
}
READ = [120, -3600, -120, 120, -1800, -93416, -79016, -93784, -93784]

seconds = {text: PG_TYPES[INTERVAL](text) for text in SENT}
for (text, meant), value in zip(SENT.items(), seconds.values()):
    print(f"{text} is {meant} s and read as {value.total_seconds():.0f} s: {value!r}")
print(f"a timedelta of -120 s is sent as {interval_out(seconds['-1 days +23:58:00'])!r}")
sys.exit(0 if [value.total_seconds() for value in seconds.values()] == READ else 1)
PYTHON
