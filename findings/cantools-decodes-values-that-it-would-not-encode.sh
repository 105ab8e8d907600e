#!/bin/sh
# cantools 45.1.0 holds the range of a DBC signal as it encodes, and not as it decodes; its named values cannot be counted.
#
# Seen on Python 3.11, with a message of three signals: a temperature whose range is [-40|210] decodes to 214, a speed in
# [0|250] whose bits are all ones, by which vehicles say "not available", decodes to 655.35, and encode() refuses the same
# numbers. A range of [0|0] reads as no range, so a signal that can only be 0 cannot be told from one without limits. A value
# that the DBC names decodes to a NamedSignalValue: equal to its name, not to its number, neither a str nor an int, and
# without a hash, so that collections.Counter and a set raise TypeError. So whoever counts decoded signals checks
# signal.minimum and maximum, and takes str(value) or value.value. Exits 0 while this is so, 1 when it has changed, 2 when it
# could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q cantools==45.1.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import collections
import sys

import cantools

DBC = """VERSION ""
NS_ :
BS_:
BU_: ECU
BO_ 256 ENGINE: 8 ECU
 SG_ Coolant : 0|8@1+ (1,-40) [-40|210] "degC" ECU
 SG_ Speed : 8|16@1+ (0.01,0) [0|250] "km/h" ECU
 SG_ Gear : 24|8@1+ (1,0) [0|0] "" ECU
VAL_ 256 Gear 0 "park" 1 "reverse" ;
"""
message = cantools.database.load_string(DBC, "dbc").get_message_by_name("ENGINE")
gear = message.get_signal_by_name("Gear")
decoded = message.decode(bytes([254, 255, 255, 1, 0, 0, 0, 0]))
try:
    message.encode({"Coolant": 20, "Speed": 655.35, "Gear": 1})
    encoding = "encodes"
except cantools.database.errors.EncodeError as error:
    encoding = f"EncodeError: {error}"
try:
    counted = repr(collections.Counter([decoded["Gear"]]))
except TypeError as error:
    counted = f"TypeError: {error}"
equal = (decoded["Gear"] == "reverse", decoded["Gear"] == 1, isinstance(decoded["Gear"], str | int))
print(f"decoded: Coolant {decoded['Coolant']}, Speed {decoded['Speed']}; encoding Speed 655.35: {encoding}")
print(f"Gear's range [0|0]: {gear.minimum} to {gear.maximum}; equal to name, number; str or int: {equal}")
print(f"counted: {counted}")
as_seen = (
    (decoded["Coolant"], decoded["Speed"]) == (214, 655.35)
    and encoding.startswith("EncodeError")
    and (gear.minimum, gear.maximum) == (None, None)
    and equal == (True, False, False)
    and counted.startswith("TypeError")
)
sys.exit(0 if as_seen else 1)
PYTHON
