#!/bin/sh
# scipy 1.17.1 has the lower tail of the discrete Laplace distribution to full precision, and of the upper nothing past 36.
#
# Seen on Python 3.11 with numpy 2.4.6, at a = 1: the distribution is symmetric, but sf(k) is taken as 1 - cdf(k), so that
# sf(36) is 1.11e-16 where cdf(-37) is 6.24e-17, and sf(40) is exactly 0 where cdf(-41) is 1.14e-18. isf(1e-17) and isf(1e-20)
# are infinite, where ppf gives -38 and -45. The same at a = 0.1: sf(400) is 0, cdf(-401) 2.0e-18. So the chance
# that noise lifts a count of nobody over a threshold, the delta of a release that hides small counts, reads as
# none, and the threshold of a given delta as infinite; ask for the lower tail, and turn the sign round. Exits 0 while this
# is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q scipy==1.17.1 numpy==2.4.6 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W ignore - << 'PYTHON'
import math
import sys

from scipy.stats import dlaplace

as_seen = True
for a, above, zero in ((1.0, 36, False), (1.0, 40, True), (0.1, 400, True)):
    exact = math.exp(-a * (above + 1)) / (1 + math.exp(-a))
    upper, lower = float(dlaplace.sf(above, a)), float(dlaplace.cdf(-above - 1, a))
    print(f"a = {a}: P(X > {above}) is {exact:.3g}; sf({above}) is {upper:.3g}, cdf({-above - 1}) is {lower:.3g}")
    wrong = upper == 0 if zero else upper > 1.7 * exact
    as_seen &= wrong and math.isclose(lower, exact, rel_tol=1e-9)
for tail in (1e-17, 1e-20):
    upper, lower = float(dlaplace.isf(tail, 1.0)), float(dlaplace.ppf(tail, 1.0))
    print(f"a = 1: isf({tail}) is {upper}, ppf({tail}) is {lower}")
    as_seen &= upper == math.inf and lower == math.floor(math.log(tail * (1 + math.exp(-1)))) + 1
sys.exit(0 if as_seen else 1)
PYTHON
