#!/bin/sh
# canmatrix 1.3.3 packs the number 123.45 as 123 steps, which its own decode() reads as 1.23 km/h, and the text "123.45" whole.
#
# Seen on Python 3.11, with a DBC message of a temperature, factor 1 and offset -40, and of a speed, factor 0.01. The values
# that Frame.encode() is given by name are taken for raw steps where they are numbers, and cut to whole ones, without a word:
# a temperature of 20 goes out as -20, a speed of 123.45 as 1.23, and 50 as 0.50. Of a text of the same number offset and
# factor are removed, and it comes back as it was. cantools takes numbers for scaled in the same call, and the docstring says
# "data dictionary" and no more. So a frame that is made from what was decoded is another frame, of values in range: encode
# str(value), or signal.phys2raw(value). Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q canmatrix==1.3.3 cantools==45.1.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import sys

import canmatrix.formats
import cantools

DBC = """VERSION ""
NS_ :
BS_:
BU_: ECU
BO_ 256 ENGINE: 8 ECU
 SG_ Coolant : 0|8@1+ (1,-40) [-40|210] "degC" ECU
 SG_ Speed : 8|16@1+ (0.01,0) [0|250] "km/h" ECU
"""
GIVEN = ({"Coolant": 20, "Speed": 123.45}, {"Coolant": "20", "Speed": "123.45"}, {"Coolant": 20, "Speed": 50})
READ = [(-20, 1.23), (20, 123.45), (-20, 0.5)]

(matrix,) = canmatrix.formats.loads(DBC, "dbc").values()
frame = matrix.frame_by_name("ENGINE")
other = cantools.database.load_string(DBC, "dbc").get_message_by_name("ENGINE")


def scaled(sent):
    decoded = frame.decode(sent)
    return tuple(float(decoded[name].phys_value) for name in GIVEN[0])


read = [scaled(frame.encode(values)) for values in GIVEN]
for values, back in zip(GIVEN, read):
    print(f"encode({values}) is decoded as {back}")
theirs = scaled(other.encode(GIVEN[0]))
print(f"what cantools encodes of {GIVEN[0]} is decoded as {theirs}")
sys.exit(0 if read == READ and theirs == (20, 123.45) else 1)
PYTHON
