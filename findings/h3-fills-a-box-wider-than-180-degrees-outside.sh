#!/bin/sh
# h3 4.5.0 fills a box wider than 180 degrees with cells of the rest of the world, and one of all longitudes with none.
#
# Seen on Python 3.11 with shapely 2.2.0, at resolution 2: of a GeoJSON box from 100 W to 100 E and 60 S to 60 N
# geo_to_cells() gives 2285 cells, none of which has its centre in the box, where shapely finds 2819; from 89 W to 89 E both
# find the same 2528. An edge of more than 180 degrees is taken to cross the antimeridian, though a line of GeoJSON is straight
# in its coordinates (RFC 7946, 3.1.1). What is filled is the other side of the box, of which -180 to 180 has none: 0 of 5104
# cells. One such edge of a polygon is enough, and nothing is said. So a question for everywhere asks nobody, and one from
# California to India asks the Pacific; parts of less than 180 degrees in a MultiPolygon are filled rightly. fleetcount refuses
# bounds of h3 cells that are 180 degrees wide or more (tests/simulator/cells/test_cells.py). Exits 0 while this is so, 1 when
# it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q h3==4.5.0 shapely==2.2.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import sys

import h3
import shapely

RESOLUTION = 2
SEEN = {89: (2528, 2528, 2528), 100: (2285, 0, 2819), 150: (846, 0, 4258), 180: (0, 0, 5104)}
everywhere = {}
for base in h3.get_res0_cells():
    for cell in h3.cell_to_children(base, RESOLUTION):
        latitude, longitude = h3.cell_to_latlng(cell)
        everywhere[cell] = shapely.Point(longitude, latitude)


def counted(place):
    """Return how many cells h3 gives of a place, how many of them have their centres in it, and how many there are."""
    given = set(h3.geo_to_cells(place, RESOLUTION))
    inside = {cell for cell, centre in everywhere.items() if shapely.covers(place, centre)}
    return len(given), len(given & inside), len(inside)


whole, halved = {}, {}
for east in SEEN:
    whole[east] = counted(shapely.box(-east, -60, east, 60))
    halved[east] = counted(shapely.MultiPolygon([shapely.box(-east, -60, 0, 60), shapely.box(0, -60, east, 60)]))
    given, right, there = whole[east]
    print(f"{east} W to {east} E: h3 gives {given} cells, {right} of them inside; shapely finds {there}; ", end="")
    print(f"of two halves h3 gives {halved[east][0]}, {halved[east][1]} inside")
one_edge = counted(shapely.Polygon([(-100, 40), (0, -40), (100, 40)]))
print(f"a triangle, one edge of 200 degrees: h3 gives {one_edge[0]} cells, {one_edge[1]} inside; shapely finds {one_edge[2]}")
as_seen = whole == SEEN and one_edge == (495, 0, 1061) and all(len(set(numbers)) == 1 for numbers in halved.values())
sys.exit(0 if as_seen else 1)
PYTHON
