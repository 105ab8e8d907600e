#!/bin/sh
# pynmea2 1.19.0 places a receiver that has no fix at latitude 0.0, longitude 0.0.
#
# Seen on Python 3.11: NMEA 0183 leaves the fields of a position empty where there is none. GGA, RMC, GLL and GNS sentences
# so written parse; their raw fields lat and lon are "", and their properties latitude and longitude, the ones in degrees,
# are the float 0.0, neither None nor NaN: just what a sentence gives that lies on the equator at Greenwich. is_valid tells
# them apart for three of the four, and GNS has none. So a garage full of cars is counted in one cell of the sea off Ghana,
# unless lat == "" is asked first. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q pynmea2==1.19.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import sys

import pynmea2

NO_FIX = (
    "GPGGA,184353.00,,,,,0,00,,,M,,M,,",
    "GPRMC,184353.00,V,,,,,,,291126,,,N",
    "GPGLL,,,,,184353.00,V,N",
    "GNGNS,184353.00,,,,,NN,00,,,,,",
)
THERE = "GPGGA,184353.00,0000.000,N,00000.000,E,1,08,0.9,12.0,M,17.0,M,,"


def read(text: str) -> pynmea2.NMEASentence:
    """Parse a sentence behind its dollar and before its checksum, which is required here."""
    return pynmea2.parse(f"${text}*{pynmea2.NMEASentence.checksum(text):02X}", check=True)


places = []
for text in (*NO_FIX, THERE):
    sentence = read(text)
    place = sentence.latitude, sentence.longitude
    valid = getattr(sentence, "is_valid", None)
    print(f"{text}: lat {sentence.lat!r}, latitude, longitude {place}, is_valid {valid}")
    places.append((sentence.lat, place, valid))
as_seen = all(lat == "" and place == (0.0, 0.0) for lat, place, _ in places[:-1])
as_seen &= [valid for *_, valid in places] == [False, False, False, None, True]
as_seen &= places[-1][:2] == ("0000.000", (0.0, 0.0))
sys.exit(0 if as_seen else 1)
PYTHON
