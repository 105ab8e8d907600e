#!/bin/sh
# psycopg 3.3.9 reads PostgreSQL's infinite interval as timedelta(0), where it refuses infinite dates and moments by name.
#
# Seen on Python 3.11 with the C implementation, psycopg-binary 3.3.9. PostgreSQL has intervals of infinity and -infinity
# since 17 and sends these words for them: SELECT 'infinity'::interval gave timedelta(0) from a server 18.4 too, while this
# script gives the loaders the words themselves and needs no server. date and timestamptz raise DataError for the same word,
# "too large (after year 10K)". In an array as well the element is 0, beside a sound one. So a retention of "for ever" is
# read as one of nothing, and whoever deletes what is older deletes all; a column that may be infinite is asked isfinite()
# in SQL. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q psycopg==3.3.9 psycopg-binary==3.3.9 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import datetime
import sys

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import Format

loaders = Transformer()
types = psycopg.adapters.types


def loaded(name: str, word: bytes):
    """Return the value that a fetched column of this type has, or what is raised."""
    kind = types[name.removesuffix("[]")]
    try:
        return loaders.get_loader(kind.array_oid if name.endswith("[]") else kind.oid, Format.TEXT).load(word)
    except psycopg.DataError as error:
        return f"DataError: {error}"


sent = [("interval", word) for word in (b"infinity", b"-infinity", b"90 days")]
sent.append(("interval[]", b'{infinity,"90 days"}'))
read = [loaded(*one) for one in sent]
refused = [loaded(name, b"infinity") for name in ("date", "timestamp", "timestamptz")]
for (name, word), value in zip(sent, read):
    print(f"{name} {word.decode()}: {value!r}")
print(f"date, timestamp and timestamptz infinity: {refused}; implementation: {psycopg.pq.__impl__}")
nothing, days = datetime.timedelta(0), datetime.timedelta(days=90)
as_seen = read == [nothing, nothing, days, [nothing, days]] and all("too large" in str(value) for value in refused)
sys.exit(0 if as_seen else 1)
PYTHON
