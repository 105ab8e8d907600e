#!/bin/sh
# scikit-mobility 1.3.1 lays squares of "meters=1000" whose sides are 715 m in Bologna and 504 m in Oslo.
#
# Seen on Python 3.11 with geopandas 0.10.2, shapely 2.0.7 and numpy 1.26.4: tilers.tiler.get("squared", ...) counts off its
# metres in Web Mercator (EPSG:3857), whose unit is a metre at the equator alone and shrinks with the cosine of the latitude;
# no warning says so. Measured on the ellipsoid a square has half the area that was asked for in Bologna and a quarter in Oslo,
# and squares of one tessellation differ from south to north. So a density by the area that was asked for is two to four times
# too low, and cells that were chosen as coarse enough to hide in are finer. Squares are laid in a zone of UTM and handed in.
# Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q scikit-mobility==1.3.1 geopandas==0.10.2 pandas==1.5.3 shapely==2.0.7 numpy==1.26.4 \
    scipy==1.13.1 scikit-learn==1.5.2 matplotlib==3.8.4 pyproj==3.7.2 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON' 2> "$folder/said.log" || { code=$?; cat "$folder/said.log" >&2; exit "$code"; }
import importlib.metadata
import sys

import geopandas
from pyproj import Geod
from shapely.geometry import LineString, box
from skmob.tessellation import tilers

EARTH, METRES = Geod(ellps="WGS84"), 1000


def side_and_area(south: float) -> tuple[float, float]:
    """Return the southern side in metres and the area in km² of the first square of a box of a tenth of a degree."""
    area = geopandas.GeoDataFrame(geometry=[box(11, south, 11.1, south + 0.1)], crs="EPSG:4326")
    square = tilers.tiler.get("squared", base_shape=area, meters=METRES).geometry.iloc[0]
    west, low, east, _ = square.bounds
    return EARTH.geometry_length(LineString([(west, low), (east, low)])), abs(EARTH.geometry_area_perimeter(square)[0]) / 1e6


print("scikit-mobility", importlib.metadata.version("scikit-mobility"))
found = {place: side_and_area(south) for place, south in {"equator": 0, "Bologna": 44.45, "Oslo": 59.85}.items()}
for place, (side, area) in found.items():
    print(f"{place}: a square of {METRES} m has a side of {side:.0f} m and {area:.2f} km²")
sides = [round(side) for side, _ in found.values()]
areas = [round(area, 2) for _, area in found.values()]
sys.exit(0 if sides == [1000, 715, 504] and areas == [0.99, 0.51, 0.25] else 1)
PYTHON
