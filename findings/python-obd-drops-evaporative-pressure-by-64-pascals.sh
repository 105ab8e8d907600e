#!/bin/sh
# python-OBD 0.7.3 reads a pressure of the fuel vapour that rises from 31.75 to 32 Pa as one that falls to -32 Pa.
#
# Seen on Python 3.11: PID 32 of service 01 (SAE J1979) is one number of sixteen bits in two's complement, of quarters of a
# pascal. EVAP_VAPOR_PRESSURE takes each of its two bytes for a signed one, so that of every 256 steps the upper 128 come out
# 64 Pa too low: 00 7F is 31.75, 00 80 is -32, 00 FF is -0.25 and 01 00 is 64. Every value is in range and has its
# unit, and half of all readings are right, that of a tank at rest, 0, among them. So of a fleet that is asked how many tanks
# hold a vacuum those at 32 to 63.75 Pa above the air are counted too. The two bytes themselves are in the response, as the
# last of messages[0].data. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q obd==0.7.3 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import sys

import obd
from obd.protocols import ISO_15765_4_11bit_500k

vehicle = ISO_15765_4_11bit_500k(["7E8 06 41 00 BE 3F A8 13"])


def pressure(quarters):
    """Return what is read of an engine's answer of so many quarters of a pascal."""
    data = (quarters % 65536).to_bytes(2, "big").hex(" ").upper()
    response = obd.commands.EVAP_VAPOR_PRESSURE(vehicle([f"7E8 04 41 32 {data}"]))
    whole = int.from_bytes(response.messages[0].data[-2:], "big", signed=True)
    print(f"{data}, {quarters / 4} Pa: {response.value}; from its two bytes {whole / 4}")
    return float(response.value.to("pascal").magnitude), whole


sent = (0, 127, 128, 255, 256, -128, -129, 32767, -32768)
read = [pressure(quarters) for quarters in sent]
off = [value - quarters / 4 for (value, _), quarters in zip(read, sent)]
as_seen = off == [0, 0, -64, -64, 0, -64, 0, -64, 0] and [whole for _, whole in read] == list(sent)
sys.exit(0 if as_seen else 1)
PYTHON
