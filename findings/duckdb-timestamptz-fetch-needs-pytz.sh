#!/bin/sh
# DuckDB 1.4.4 for Python hands out a moment with a zone only where pytz is installed, which its package does not require.
#
# Seen on Python 3.11 with duckdb 1.4.4 and nothing else in the environment: the query runs, and its result can be counted,
# cast to text or asked for its microseconds, but fetchall() of the column raises InvalidInputException, "Required module
# 'pytz' failed to import". Such columns come unasked: read_csv takes ISO 8601 texts that end in Z for TIMESTAMP WITH TIME
# ZONE. So a table that says UTC, as it should, is read in one environment and not in another; epoch_us(column) is read
# in both. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q --no-deps duckdb==1.4.4 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
printf 'opens,cell\n2026-12-01T01:00:00Z,1\n' > "$folder/table.csv"
"$folder/venv/bin/python" - "$folder/table.csv" << 'PYTHON'
import sys

import duckdb

table = f"read_csv('{sys.argv[1]}')"
kind = duckdb.sql(f"DESCRIBE SELECT opens FROM {table}").fetchall()[0][1]
micros = duckdb.sql(f"SELECT epoch_us(opens), opens::VARCHAR IS NOT NULL FROM {table}").fetchall()
print(f"duckdb {duckdb.__version__}: opens is {kind}; its microseconds: {micros[0][0]}")
try:
    said = repr(duckdb.sql(f"SELECT opens FROM {table}").fetchall())
except duckdb.InvalidInputException as error:
    said = f"InvalidInputException: {str(error).splitlines()[0]}"
print(f"fetchall() without pytz: {said}")
as_seen = kind == "TIMESTAMP WITH TIME ZONE" and micros == [(1796086800000000, True)] and "'pytz'" in said
sys.exit(0 if as_seen else 1)
PYTHON
