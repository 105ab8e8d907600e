#!/bin/sh
# v2xflexstack 0.11.2 forgets a vehicle as it hears it: of twenty that send ten times a second its table mostly has none.
#
# Seen on Python 3.11: the stack (ETSI C-ITS) keeps a location table of the vehicles that it hears, each for 20 s after its last
# packet (itsGnLifetimeLocTE; EN 302 636-4-1, section 8.1.3). With each packet it drops those that are older, and takes for the
# present the last whole second. A position of the second that runs lies ahead of it, and as ages are taken modulo 2^32 ms it
# is 49.7 days old. Of twenty vehicles whose packets take 5 ms, and whose clocks are right, the table has none after 5,370 of
# 6,000 packets and never more than two. Of twenty that send once a second it has one, two and eleven in the end where a packet
# takes 5, 50 and 500 ms, and all where it takes a second: those whose packet was made in one second and came in the next. So
# the length of get_neighbours() is no count of the vehicles around a road side unit; count the senders of messages. Exits 0
# while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q v2xflexstack==0.11.2 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import sys
from datetime import datetime, timezone

from flexstack.geonet.gn_address import MID, ST, GNAddress, M
from flexstack.geonet.location_table import LocationTable
from flexstack.geonet.mib import MIB
from flexstack.geonet.position_vector import LongPositionVector
from flexstack.utils.time_service import TimeService

START_MS = int(datetime(2026, 12, 1, 9, tzinfo=timezone.utc).timestamp()) * 1000
VEHICLES = 20
now_ms = START_MS
TimeService.time = staticmethod(lambda: now_ms / 1000)


def neighbours_seen(every_ms: int, delay_ms: int) -> list[int]:
    """Return how many neighbours the table has after each packet of half a minute."""
    global now_ms
    table = LocationTable(MIB())
    counts = []
    for sent_ms in range(START_MS, START_MS + 30_000, every_ms // VEHICLES):
        vehicle = (sent_ms - START_MS) // (every_ms // VEHICLES) % VEHICLES
        address = GNAddress(m=M.GN_UNICAST, st=ST.PASSENGER_CAR, mid=MID(vehicle.to_bytes(6, "big")))
        position = LongPositionVector(gn_addr=address).set_tst_in_normal_timestamp_milliseconds(sent_ms)
        now_ms = sent_ms + delay_ms
        table.new_shb_packet(position, sent_ms.to_bytes(100, "big"))
        counts.append(len(table.get_neighbours()))
    return counts


print(f"lifetime of an entry: {MIB().itsGnLifetimeLocTE} s; vehicles that send: {VEHICLES}")
often = neighbours_seen(100, 5)
print(f"ten times a second, 5 ms: none after {often.count(0)} of {len(often)} packets, at most {max(often)}")
last = {}
for delay_ms in (5, 50, 500, 1000):
    last[delay_ms] = neighbours_seen(1000, delay_ms)[-1]
    print(f"once a second, {delay_ms} ms: {last[delay_ms]} in the end")
as_seen = (often.count(0), len(often), max(often)) == (5370, 6000, 2) and last == {5: 1, 50: 2, 500: 11, 1000: 20}
sys.exit(0 if as_seen and MIB().itsGnLifetimeLocTE == 20 else 1)
PYTHON
