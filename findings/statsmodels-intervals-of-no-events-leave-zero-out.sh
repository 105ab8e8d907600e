#!/bin/sh
# statsmodels 0.15.0 gives a rate of no events an interval without zero in it, of no width, by two of its methods.
#
# Seen on Python 3.11 with numpy 2.4.6, scipy 1.17.1 and pandas 3.1.1: confint_poisson(0, 1) at 95 % is 2.9957 to 2.9957 by
# "midp-c" and 0.9604 to 0.9604 by "sqrt"; by "exact-c" it is 0 to 3.689, by "score" 0 to 3.841. The upper end of "midp-c" is
# right, the logarithm of 20, and the search for the lower end, which is 0, ends there too; "sqrt" has a middle above 0 and
# a width in proportion to the root of the count. Of one event all four are intervals with a width. So of hundred cells in
# which truly no vehicle is, these two hold the truth of none, whatever the level, and a map says three vehicles, give or
# take nothing, of each: take another method, or say 0 of the lower end. Exits 0 while this is so, 1 when it has changed,
# 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q statsmodels==0.15.0 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import math
import sys

from statsmodels.stats.rates import confint_poisson


def interval(count, method, alpha=0.05):
    low, high = confint_poisson(count, 1, method=method, alpha=alpha)
    return float(low), float(high)


METHODS = ("exact-c", "score", "midp-c", "sqrt")
for method in METHODS:
    none, one, half = interval(0, method), interval(1, method), interval(0, method, 0.5)
    print(f"{method}: of 0 events {none[0]:.4f} to {none[1]:.4f}, at 50 % {half[0]:.4f} to {half[1]:.4f}; ", end="")
    print(f"of 1 event {one[0]:.4f} to {one[1]:.4f}")
sound = all(interval(0, method)[0] == 0 < interval(0, method)[1] - 3 for method in METHODS[:2])
points = {method: [interval(0, method, alpha) for alpha in (0.05, 0.5)] for method in METHODS[2:]}
narrow = all(math.isclose(low, high, abs_tol=1e-6) and low > 0.1 for both in points.values() for low, high in both)
upper = math.isclose(points["midp-c"][0][1], math.log(20), abs_tol=1e-6)
ones = all(0 <= interval(1, method)[0] < 0.2 and interval(1, method)[1] > 3.9 for method in METHODS)
sys.exit(0 if sound and narrow and upper and ones else 1)
PYTHON
