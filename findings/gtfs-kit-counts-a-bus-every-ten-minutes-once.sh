#!/bin/sh
# gtfs-kit 13.0.1 counts a bus that frequencies.txt sends every ten minutes as one trip of the day, without a word.
#
# Seen on Python 3.11 with pandas 3.1.1, geopandas 1.2.0, shapely 2.2.0 and numpy 2.4.6: a feed has a trip of half an
# hour that runs by headway from 06:00 to 25:00, 114 times a day with three buses on the road at once. The feed is
# valid and its frequencies are read; yet the statistics of the network have 1 trip, at most 1 bus at a time and half
# an hour of service, and those of the route no headway at all. After expand_frequencies(), which has to be known,
# there are 114 trips, 3 buses at a time, 57 hours and a headway of ten minutes. So where a city mixes timetables and
# headways, its busiest lines count least. Exits 0 while this is so, 1 when it has changed, 2 when it could not be
# tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q gtfs-kit==13.0.1 pandas==3.1.1 geopandas==1.2.0 shapely==2.2.0 numpy==2.4.6 \
    > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
cd "$folder"
venv/bin/python - << 'PYTHON'
import sys
from pathlib import Path

import gtfs_kit

TABLES = {
    "agency": "agency_id,agency_name,agency_url,agency_timezone\na,Buses,http://buses.example,Europe/Rome\n",
    "stops": "stop_id,stop_name,stop_lat,stop_lon\ns,South,44.48,11.30\nn,North,44.50,11.32\n",
    "routes": "route_id,agency_id,route_short_name,route_type\nr,a,1,3\n",
    "calendar": "service_id,monday,tuesday,wednesday,thursday,friday,saturday,sunday,start_date,end_date\n"
    "daily,1,1,1,1,1,1,1,20260101,20261231\n",
    "trips": "route_id,service_id,trip_id,direction_id\nr,daily,t,0\n",
    "stop_times": "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
    "t,06:00:00,06:00:00,s,1\nt,06:30:00,06:30:00,n,2\n",
    "frequencies": "trip_id,start_time,end_time,headway_secs,exact_times\nt,06:00:00,25:00:00,600,1\n",
}
Path("feed").mkdir()
for name, rows in TABLES.items():
    Path("feed", f"{name}.txt").write_text(rows)


def counted(feed):
    """Return trips, most buses at a time, hours of service and the mean headway of a Monday."""
    network = feed.compute_network_stats(["20260126"]).iloc[0]
    headway = feed.compute_route_stats(["20260126"]).iloc[0]["mean_headway"]
    numbers = network[["num_trips", "peak_num_trips", "service_duration"]].tolist()
    return [float(one) for one in numbers], None if headway != headway else float(headway)


read = gtfs_kit.read_feed("feed", dist_units="km")
as_read, expanded = counted(read), counted(read.expand_frequencies())
print(f"frequencies that were read: {len(read.frequencies)}")
print(f"trips, buses at a time, hours; headway in minutes: as read {as_read}, after expand_frequencies() {expanded}")
as_seen = len(read.frequencies) == 1 and as_read == ([1, 1, 0.5], None) and expanded == ([114, 3, 57], 10)
sys.exit(0 if as_seen else 1)
PYTHON
