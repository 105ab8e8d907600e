#!/bin/sh
# gtfs-realtime-bindings 3.0.0 reads a bus that says nothing of its passengers as EMPTY, and a carriage of it as "no data".
#
# Seen on Python 3.11 with protobuf 7.36.2: the specification has a value NO_DATA_AVAILABLE, but occupancy_status of a vehicle
# has no default and so the first of its enumeration, EMPTY, with occupancy_percentage 0; the field of the same type and name
# in a carriage's details defaults to NO_DATA_AVAILABLE, with -1. A vehicle without a position is at 0.0, 0.0, one
# without a stop is IN_TRANSIT_TO it, and one without a time is of 1970. Other enumerations of the same feed do have a
# first value that says "unknown" (congestion_level). So buses are counted as empty, and reports as old, unless HasField()
# is asked of each field. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q gtfs-realtime-bindings==3.0.0 protobuf==7.36.2 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import collections
import sys

from google.transit import gtfs_realtime_pb2 as gtfs

feed = gtfs.FeedMessage()
feed.header.gtfs_realtime_version = "2.0"
for number in range(3):
    bus = feed.entity.add(id=str(number)).vehicle
    bus.vehicle.id = f"bus {number}"
    bus.multi_carriage_details.add(id="1", carriage_sequence=1)
feed.entity[2].vehicle.occupancy_status = gtfs.VehiclePosition.FULL
buses = [entity.vehicle for entity in gtfs.FeedMessage.FromString(feed.SerializeToString()).entity]


def counted(enumeration, numbers):
    """Return how often each named value is read."""
    return dict(collections.Counter(enumeration.Name(number) for number in numbers))


occupancy = gtfs.VehiclePosition.OccupancyStatus
vehicles = counted(occupancy, (bus.occupancy_status for bus in buses))
carriages = counted(occupancy, (bus.multi_carriage_details[0].occupancy_status for bus in buses))
said = counted(occupancy, (bus.occupancy_status for bus in buses if bus.HasField("occupancy_status")))
congestion = counted(gtfs.VehiclePosition.CongestionLevel, (bus.congestion_level for bus in buses))
silent = buses[0]
percentages = silent.occupancy_percentage, silent.multi_carriage_details[0].occupancy_percentage
status = gtfs.VehiclePosition.VehicleStopStatus.Name(silent.current_status)
place = silent.position.latitude, silent.position.longitude, silent.timestamp
print(f"three buses, of which one says FULL: read {vehicles}; with HasField {said}; their carriages {carriages}")
print(f"percentage of a silent bus and its carriage: {percentages}; stop: {status}; place and time: {place}; {congestion}")
as_seen = (
    vehicles == {"EMPTY": 2, "FULL": 1}
    and said == {"FULL": 1}
    and carriages == {"NO_DATA_AVAILABLE": 3}
    and congestion == {"UNKNOWN_CONGESTION_LEVEL": 3}
    and (percentages, status, place) == ((0, -1), "IN_TRANSIT_TO", (0.0, 0.0, 0))
)
sys.exit(0 if as_seen else 1)
PYTHON
