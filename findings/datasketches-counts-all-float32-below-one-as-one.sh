#!/bin/sh
# datasketches 5.2.0 counts a thousand different readings in float32 as one: it cuts each to a whole number first.
#
# Seen on Python 3.11 with numpy 2.4.6: update() of the HLL, CPC and theta sketches, which estimate how many different values
# they were given, takes a text, a whole number or a float. numpy.float64 is a float of Python; numpy.float32 and float16 are
# not, and go in as whole numbers, as Decimal and Fraction do. So 0.000 to 0.999 in float32 are one value, 0 to 60 degrees by
# quarters 61 of 241, and nothing is raised. Whole numbers are right in every type of integers, but the same number as a float
# is another value: of 1000 cars' numbers in int64, float32 and float64 there are 2000, float32 being with the integers here.
# So each column is brought to one type of Python's own first, as by column.astype(float).tolist(). Exits 0 while this is so,
# 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q datasketches==5.2.0 numpy==2.4.6 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
from datasketches import cpc_sketch, hll_sketch, update_theta_sketch

SKETCHES = (hll_sketch, cpc_sketch, update_theta_sketch)
UNIT, DEGREES, CARS = np.arange(1000) / 1000, np.arange(0, 60.25, 0.25), np.arange(1000)


def estimates(*columns):
    """Return what each kind of sketch, of 2^12 entries, says of columns put into it one after another."""
    said = []
    for kind in SKETCHES:
        sketch = kind(12)
        for value in (value for column in columns for value in column):
            sketch.update(value)
        said.append(round(sketch.get_estimate()))
    return said


def near(said, count):
    return all(abs(one - count) <= 0.05 * count for one in said)


as_seen = True
for name, column, least in (("0 to 0.999", UNIT, 1), ("0 to 60 by 0.25", DEGREES, 61)):
    for form in (np.float64, np.float32, np.float16):
        said = estimates(column.astype(form))
        different = len(set(column.astype(form).tolist()))
        print(f"{name} in {form.__name__}: {different} different values; HLL, CPC and theta say {said}")
        as_seen &= near(said, different if form is np.float64 else least)
plain = estimates(UNIT.astype(np.float32).astype(float).tolist())
print(f"0 to 0.999 in float32, by .astype(float).tolist(): {plain}")
exact = estimates([Decimal("0.25"), Decimal("0.5")]), estimates([Fraction(1, 4), Fraction(1, 2)])
print(f"two values of Decimal: {exact[0]}; of Fraction: {exact[1]}")
integers = [CARS.astype(form) for form in (np.int16, np.uint32, np.int64)]
narrow, wide = CARS.astype(np.float32), CARS.astype(np.float64)
joined = estimates(*integers, narrow), estimates(CARS, narrow, wide)
print(f"1000 cars' numbers, in int16, uint32, int64 and float32: {joined[0]}; in int64, float32 and float64: {joined[1]}")
as_seen &= near(plain, 1000) and exact == ([1, 1, 1], [1, 1, 1]) and near(joined[0], 1000) and near(joined[1], 2000)
sys.exit(0 if as_seen else 1)
PYTHON
