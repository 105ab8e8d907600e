#!/bin/sh
# pynmeagps 1.1.8 makes a week and its time of the last 18 seconds of a Saturday, and reads them as those a week earlier.
#
# Seen on Python 3.11: GPS weeks begin at 23:59:42 UTC on Saturday, 18 s before UTC's, since GPS time has no leap seconds.
# utc2wnotow() counts the week in UTC and adds the 18 s to the time within it alone. So 23:59:50 on 28 November 2026 becomes
# week 2446 and 604,808,000 ms, where a week ends at 604,800,000; right is week 2447 and 8,000 ms. wnotow2utc() takes the time
# modulo a week, as its docstring says, and gives 21 November. Up to 23:59:41 and from midnight on both agree. pyubx2 1.4.0,
# of the same author, makes the same weeks in utc2itow(). So a report of a busy Saturday night falls into the week before;
# take a time of 604,800,000 or more as one of the next week. Exits 0 while this is so, 1 when it has changed, 2 when it could
# not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q pynmeagps==1.1.8 pyubx2==1.4.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import sys
from datetime import datetime, timedelta, timezone

from pynmeagps import utc2wnotow, wnotow2utc
from pyubx2 import utc2itow

SATURDAY = datetime(2026, 11, 28, 23, 59, 41, tzinfo=timezone.utc)
AFTER_S = (0, 1, 9, 18, 19)
WEEK_MS = 604_800_000
MADE = [
    (2446, WEEK_MS - 1000),
    (2446, WEEK_MS),
    (2446, WEEK_MS + 8000),
    (2446, WEEK_MS + 17_000),
    (2447, 18_000),
]

made, ublox, late = [], [], []
for after in AFTER_S:
    moment = SATURDAY + timedelta(seconds=after)
    week, time_ms, leap_s = utc2wnotow(moment, modwno=False)
    again = wnotow2utc(week, time_ms, modwno=False)
    made.append((week, time_ms))
    ublox.append(utc2itow(moment.replace(tzinfo=None)))
    late.append(again - moment)
    print(f"{moment} is week {week} and {time_ms} ms, leap seconds {leap_s}; read again: {again}")
print(f"weeks and times of pyubx2: {ublox}")
days = [span / timedelta(days=1) for span in late]
sys.exit(0 if made == ublox == MADE and days == [0, -7, -7, -7, 0] else 1)
PYTHON
