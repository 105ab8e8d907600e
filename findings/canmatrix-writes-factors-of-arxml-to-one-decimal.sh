#!/bin/sh
# canmatrix 1.3.3 writes the factors and offsets of an .arxml file with one decimal, 0.01 as 0.0, and no sign that it reads.
#
# Seen on Python 3.11: a DBC file has a speed of 0.01 km/h a step, a consumption of 0.25, a pressure with an offset
# of 0.04 and a signed temperature. In the .arxml that canmatrix makes of it the linear CompuMethods (AUTOSAR System Template)
# have 0.0, 0.2 and 0.0 there. A factor of 0.0 is read back as 1, and the base type sint16, which is written without its
# encoding "2C", as unsigned. So one frame is 387.84 km/h and -1 degree by the DBC file, and 38784 km/h and 65535 degrees by
# the .arxml, and nothing is said. The .kcd and .json of the same matrix keep all digits and signs: .arxml is read here, and
# not written. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q canmatrix==1.3.3 lxml==6.1.3 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
cd "$folder"
venv/bin/python - << 'PYTHON'
import importlib.metadata
import logging
import sys
from pathlib import Path

import canmatrix.formats
from lxml import etree

DBC = """VERSION ""

NS_ :

BS_:

BU_: Engine

BO_ 256 Drive: 8 Engine
 SG_ Speed : 0|16@1+ (0.01,0) [0|655.35] "km/h" Engine
 SG_ Use : 16|16@1+ (0.25,0) [0|16383.75] "l/h" Engine
 SG_ Oil : 32|8@1+ (0.1,0.04) [0.04|25.54] "bar" Engine
 SG_ Temp : 40|16@1- (1,0) [-32768|32767] "degC" Engine
"""
FRAME = (38784).to_bytes(2, "little") + (400).to_bytes(2, "little") + bytes([3, 0xFF, 0xFF, 0])
said = []
logging.getLogger().addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: said.append(record)})())
Path("trip.dbc").write_text(DBC)
(matrix,) = canmatrix.formats.loadp("trip.dbc").values()
read = {}
for kind in ("kcd", "json", "arxml"):
    canmatrix.formats.dumpp({"": matrix}, f"again.{kind}")
    (again,) = canmatrix.formats.loadp(f"again.{kind}").values()
    read[kind] = {name: float(value.phys_value) for name, value in again.frames[0].decode(FRAME).items()}
as_given = {name: float(value.phys_value) for name, value in matrix.frames[0].decode(FRAME).items()}
numbers = {}
for method in etree.parse("again.arxml").iter("{*}COMPU-METHOD"):
    numbers[method.findtext("{*}SHORT-NAME")] = [one.text for one in method.findall(".//{*}COMPU-NUMERATOR/{*}V")]
encodings = [one.text for one in etree.parse("again.arxml").iter("{*}BASE-TYPE-ENCODING")]
warned = [record.getMessage() for record in said if record.levelno >= logging.WARNING]
print("canmatrix", importlib.metadata.version("canmatrix"))
print(f"by the DBC file: {as_given}")
for kind, values in read.items():
    print(f"by the .{kind} made of it: {values}")
print(f"offsets and factors in the .arxml: {numbers}; encodings of its base types: {encodings}; warnings: {warned}")
as_seen = (
    read["kcd"] == read["json"] == as_given == {"Speed": 387.84, "Use": 100, "Oil": 0.34, "Temp": -1}
    and read["arxml"] == {"Speed": 38784, "Use": 80, "Oil": 0.3, "Temp": 65535}
    and numbers == {"Speed": ["0.0", "0.0"], "Use": ["0.0", "0.2"], "Oil": ["0.0", "0.1"], "Temp": ["0.0", "1.0"]}
    and "2C" not in encodings
    and not warned
)
sys.exit(0 if as_seen else 1)
PYTHON
