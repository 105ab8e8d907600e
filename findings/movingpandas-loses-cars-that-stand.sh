#!/bin/sh
# movingpandas 0.23.0 makes three cars of seven: who sends one fix is left out, and splitting a collection drops who stands.
#
# Seen on Python 3.11 with geopandas 1.2.0 and pandas 3.1.1. TrajectoryCollection has no trajectory for a car of one fix, or
# of two at one moment: five of seven remain. ObservationGapSplitter, given that collection, drops every part of no length,
# so the car that stood for five minutes is gone, and of one that stood, was silent and drove on only the driving is left,
# though the least length is 0, the default; a car whose every gap is long is gone as well. Given the same standing car's
# trajectory alone, it keeps it. Nothing is raised or warned. So vehicles are counted in the table, before any trajectory is
# made of it. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q movingpandas==0.23.0 geopandas==1.2.0 pandas==3.1.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W ignore - << 'PYTHON'
import sys
import warnings

import geopandas
import movingpandas
import pandas

FIXES = {  # a car's minutes, and its metres along a straight road
    "drives": ([0, 1, 2, 3, 4], [0, 100, 200, 300, 400]),
    "stands": ([0, 1, 2, 3, 4], [50, 50, 50, 50, 50]),
    "starts late": ([0, 1, 2, 120, 121], [5, 5, 5, 500, 600]),
    "pauses": ([0, 1, 2, 120, 121], [5, 6, 7, 500, 600]),
    "is seldom heard": ([0, 60, 120], [5, 80, 500]),
    "is heard once": ([0], [7]),
    "is heard twice at once": ([1, 1], [7, 8]),
}
rows = [(car, minute, metre) for car, (minutes, metres) in FIXES.items() for minute, metre in zip(minutes, metres)]
table = pandas.DataFrame(rows, columns=["car", "minute", "metre"])
table["moment"] = pandas.Timestamp("2026-11-29") + pandas.to_timedelta(table["minute"], unit="min")
points = geopandas.points_from_xy(table["metre"], [0] * len(table))
fixes = geopandas.GeoDataFrame(table, geometry=points, crs="EPSG:32632")
gap = pandas.Timedelta(minutes=30)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    cars = movingpandas.TrajectoryCollection(fixes, traj_id_col="car", t="moment")
    parts = movingpandas.ObservationGapSplitter(cars).split(gap=gap)
    (standing,) = (car for car in cars if car.id == "stands")
    alone = movingpandas.ObservationGapSplitter(standing).split(gap=gap)
told = [str(one.message) for one in warned if issubclass(one.category, UserWarning)]
names = sorted(car.id for car in cars)
split = sorted(part.id for part in parts)
kept = [part.id for part in alone]
print(f"{len(FIXES)} cars in the table; {len(names)} trajectories: {names}")
print(f"parts of the collection: {split}; of the standing car alone: {kept}; warnings of a user's concern: {told}")
as_seen = (
    names == ["drives", "is seldom heard", "pauses", "stands", "starts late"]
    and split == ["drives_0", "pauses_0", "pauses_1", "starts late_1"]
    and kept == ["stands_0"]
    and not told
)
sys.exit(0 if as_seen else 1)
PYTHON
