#!/bin/sh
# DuckDB 2.0.1's date_trunc('hour') counts both hours named two o'clock of an autumn night as one; time_bucket() counts each.
#
# Seen on Python 3.11: a TIMESTAMP WITH TIME ZONE is a moment, and no local clock makes it ambiguous: 00:30 UTC of 25 October
# 2026 is 02:30+02 in Rome, in the first of two hours of that name. Truncated to the hour it becomes 02:00+01, which is 01:00
# UTC and half an hour later than the moment itself. So of four hours with three reports each, 3, 6 and 3 are counted, in New
# York as well; truncated to the minute a moment keeps its offset, and time_bucket(INTERVAL 1 hour) counts 3, 3, 3 and 3. One
# hour a year seems to have twice the vehicles. Hours are counted with TimeZone set to UTC, or with time_bucket(). Exits 0
# while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q duckdb==2.0.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import sys

import duckdb

base = duckdb.connect()
print("DuckDB", duckdb.__version__)


def counted(zone: str, first: str, how: str) -> list[int]:
    """Return how many of twelve moments, twenty minutes apart from the first (UTC), are in each hour of the zone."""
    base.execute(f"SET TimeZone = '{zone}'")
    moments = f"SELECT '{first}+00'::TIMESTAMPTZ + to_minutes(20 * i) AS m FROM range(12) AS r(i)"
    rows = base.execute(f"SELECT {how}::VARCHAR, count(*) FROM ({moments}) GROUP BY {how} ORDER BY {how}").fetchall()
    print(f"{zone}, {how}: {rows}")
    return [number for _, number in rows]


TRUNC, BUCKET = "date_trunc('hour', m)", "time_bucket(INTERVAL 1 hour, m)"
rome = "Europe/Rome", "2026-10-24 23:10:00"
york = "America/New_York", "2026-11-01 04:10:00"
merged = [counted(*night, TRUNC) for night in (rome, york)]
apart = [counted(*night, BUCKET) for night in (rome, york)]
utc = counted("UTC", rome[1], TRUNC)
base.execute("SET TimeZone = 'Europe/Rome'")
moment = "TIMESTAMPTZ '2026-10-25 00:30:00+00'"
hour, minute, later = base.execute(
    f"SELECT date_trunc('hour', {moment})::VARCHAR, date_trunc('minute', {moment})::VARCHAR,"
    f" date_trunc('hour', {moment}) > {moment}"
).fetchone()
print(f"02:30+02 by the hour: {hour}, later than itself: {later}; by the minute: {minute}")
as_seen = (
    merged == [[3, 6, 3]] * 2
    and apart == [[3, 3, 3, 3]] * 2
    and utc == [3, 3, 3, 3]
    and (hour, minute, later) == ("2026-10-25 02:00:00+01", "2026-10-25 02:30:00+02", True)
)
sys.exit(0 if as_seen else 1)
PYTHON
