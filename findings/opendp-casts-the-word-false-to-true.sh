#!/bin/sh
# OpenDP 0.16.0 casts every text that is not empty to true, "false" and "0" among them.
#
# Seen on Python 3.11: a column of texts true, false, 0, no and nothing at all goes through make_cast_default with TOA=bool
# as four times True and once False, and a count of what is True says four of five. Nothing fails: to int the same cast
# takes what it cannot read for its default, 0. From bool to text the words are "true" and "false", so a column that is
# written and read again is true throughout. So a yes-or-no column is compared with its word: make_is_equal(value="true").
# Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q opendp==0.16.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import sys

import opendp.prelude as dp

dp.enable_features("contrib")
texts = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()
bits = dp.vector_domain(dp.atom_domain(T=bool)), dp.symmetric_distance()
column = ["true", "false", "0", "no", ""]
to_bool = dp.t.make_cast_default(*texts, TOA=bool)
cast = to_bool(column)
subset = dp.t.make_is_equal(*bits, value=True)(cast)
numbers = dp.t.make_cast_default(*texts, TOA=int)(["12", *column])
words = dp.t.make_cast_default(*bits, TOA=str)([True, False])
again = to_bool(words)
equal = dp.t.make_is_equal(*texts, value="true")(column)
print(f"{column} cast to bool: {cast}; true of {len(column)}: {sum(subset)}; equal to 'true': {equal}")
print(f"['12', *column] cast to int: {numbers}")
print(f"[True, False] cast to str: {words}; and back: {again}")
as_seen = (
    cast == [True, True, True, True, False]
    and sum(subset) == 4
    and numbers == [12, 0, 0, 0, 0, 0]
    and (words, again) == (["true", "false"], [True, True])
    and equal == [True, False, False, False, False]
)
sys.exit(0 if as_seen else 1)
PYTHON
