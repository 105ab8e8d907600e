#!/bin/sh
# fastavro 1.13.1 and avro 1.12.2 write one whole number by another branch of the same union, and each rounds where the other
# does not.
#
# Seen on Python 3.11: a schema that lets a signal be a float or a long, as one field for all signals of a vehicle does. A
# whole number fits both. fastavro takes the float where it stands before the long, Apache's avro where it stands behind: the
# moment 1796086800 becomes 1796086784.0, 16 s early, and 16777217 becomes 16777216.0, so that two vehicles of neighbouring
# numbers are one. Of a float and a double fastavro takes the double in either order, avro the later one. All files are valid,
# nothing is said, and both libraries read the same from each. So numbers above 2^24 have a field of their own, or a union
# without a float. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q fastavro==1.13.1 avro==1.12.2 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import io
import json
import sys

import avro.datafile
import avro.io
import avro.schema
import fastavro

SENT = [1796086800, 16777217]
ROUNDED = [1796086784.0, 16777216.0]


def by_fastavro(schema):
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(schema), [{"value": number} for number in SENT])
    return file


def by_avro(schema):
    file = io.BytesIO()
    writer = avro.datafile.DataFileWriter(file, avro.io.DatumWriter(), avro.schema.parse(json.dumps(schema)))
    for number in SENT:
        writer.append({"value": number})
    writer.flush()
    return file


def read(file):
    """Return what both libraries read, which has to be the same."""
    file.seek(0)
    one = [record["value"] for record in fastavro.reader(file)]
    file.seek(0)
    other = [record["value"] for record in avro.datafile.DataFileReader(file, avro.io.DatumReader())]
    return one if repr(one) == repr(other) else [one, other]


seen = {}
for union in (("float", "long"), ("long", "float"), ("float", "double"), ("double", "float")):
    schema = {"type": "record", "name": "signal", "fields": [{"name": "value", "type": ["null", *union]}]}
    for writes in (by_fastavro, by_avro):
        seen[*union, writes] = read(writes(schema))
        print(f"{union} {writes.__name__}: {SENT} is read as {seen[*union, writes]}")
as_seen = (
    repr(seen["float", "long", by_fastavro]) == repr(seen["long", "float", by_avro]) == repr(ROUNDED)
    and repr(seen["float", "long", by_avro]) == repr(seen["long", "float", by_fastavro]) == repr(SENT)
    and all(seen[*union, by_fastavro] == SENT for union in (("float", "double"), ("double", "float")))
    and (seen["float", "double", by_avro], seen["double", "float", by_avro]) == (SENT, ROUNDED)
)
sys.exit(0 if as_seen else 1)
PYTHON
