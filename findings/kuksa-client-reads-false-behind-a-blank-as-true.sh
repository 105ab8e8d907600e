#!/bin/sh
# kuksa-client 0.6.0 sends an array of booleans "[true, false, false]" as three times true, and without blanks as it is.
#
# Seen on Python 3.11 with protobuf 7.36.2: an array goes into a Datapoint as a text, a list is not taken, and is cast to the
# type of its VSS signal as it is sent. The text is to be JSON by the documentation (docs/cli.md, on specifying data), which
# allows blanks between values (RFC 8259, section 2); json.dumps() and str() of Python write one behind each comma. Of
# whole numbers, floats and texts the blanks are taken off. Of booleans " false" is compared with them on, is none of the
# words for false and so true; the first value is right, and so is a flag on its own, in both versions of the protocol,
# kuksa.val.v1 and v2. So a car whose belts are [true, false, false] tells its broker that all are fastened, and is counted
# so: dump arrays with separators=(",", ":"). Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q kuksa-client==0.6.0 protobuf==7.36.2 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import json
import logging
import sys

from kuksa_client.grpc import Datapoint, DataType

said = []
logging.getLogger().addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: said.append(record)})())


def sent(text, kind, field):
    """Return what the messages of both versions of the protocol carry of a text."""
    messages = Datapoint(text).v1_to_message(kind), Datapoint(text).v2_to_message(kind).value
    return [list(value.values) if hasattr(value, "values") else value for value in (getattr(one, field) for one in messages)]


BELTS = [True, False, False]
dumped, dense = json.dumps(BELTS), json.dumps(BELTS, separators=(",", ":"))
with_blanks, printed, without = (sent(text, DataType.BOOLEAN_ARRAY, "bool_array") for text in (dumped, str(BELTS), dense))
alone = sent("false", DataType.BOOLEAN, "bool")
print(f"{dumped} is sent as {with_blanks}, {BELTS} as {printed}")
print(f"{dense} is sent as {without}")
print(f"false on its own is sent as {alone}")
others = []
for values, kind, field in (
    ([3, -4], DataType.INT8_ARRAY, "int32_array"),
    ([0.5, 2.0], DataType.DOUBLE_ARRAY, "double_array"),
    (["P0301", "P0420"], DataType.STRING_ARRAY, "string_array"),
):
    others.append(sent(json.dumps(values), kind, field) == [values, values])
    print(f"{json.dumps(values)} is sent as it is: {others[-1]}; lines of a log: {len(said)}")
as_seen = with_blanks == printed == [[True] * 3] * 2 and without == [BELTS] * 2 and alone == [False] * 2
sys.exit(0 if as_seen and all(others) and not said else 1)
PYTHON
