#!/bin/sh
# sumolib 1.28.0 reads a negative time that it wrote itself as a time of the other sign and another length.
#
# Seen on Python 3.11: humanReadableTime(-3661) of sumolib.miscutils is "-01:01:01", and parseTime of that is 3539.0. The
# sign stands before the hours and counts for them alone, and is then applied to the whole sum once more: 3600 less 61.
# "-1:01:00:30", a day, an hour and 30 s early, becomes 82770. Below one hour, where the hours are a zero, the sign comes
# out right: -30 goes there and back. So of a table of how late buses are, whoever was 61 minutes early is read
# as an hour late, and a look at smaller numbers does not show it. Take seconds, which parseTime reads as they are, or cut
# the sign off first. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q sumolib==1.28.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import sys

from sumolib.miscutils import humanReadableTime, parseTime

SECONDS = (3661, 90030, -30, -3599, -3600, -3661, -90030)
written = {second: humanReadableTime(second) for second in SECONDS}
again = {second: parseTime(text) for second, text in written.items()}
for second, text in written.items():
    print(f"{second} s is written {text} and read as {again[second]}; as seconds: {parseTime(str(second))}")
as_seen = (
    [written[second] for second in (-3661, -90030)] == ["-01:01:01", "-1:01:00:30"]
    and [again[second] for second in (3661, 90030, -30, -3599)] == [3661, 90030, -30, -3599]
    and [again[second] for second in (-3600, -3661, -90030)] == [3600, 3539, 82770]
    and all(parseTime(str(second)) == second for second in SECONDS)
)
sys.exit(0 if as_seen else 1)
PYTHON
