#!/bin/sh
# diffprivlib 0.6.6 adds the noise of a count to a histogram of weights: epsilon 1 of a coach of 50 passengers is epsilon 50.
#
# Seen on Python 3.11 with numpy 2.4.6, scipy 1.17.1 and scikit-learn 1.5.2: tools.histogram(..., weights=...) sums the weights
# of each bin, as its documentation says, and takes 1 for what one record may change (sensitivity=1), whatever it weighs. Of
# twenty cars of one passenger in a cell, with and without a coach of 50, a thousand releases at epsilon 1 each are 65 to 77
# and 13 to 26, so that each of them tells which it is of; epsilon 1 leaves a guess that is right in 73 % at most. The
# BudgetAccountant counts 1, and no PrivacyLeakWarning comes, as one does of a range that is left out. histogramdd() is
# alike. A sum loses its fraction before the noise: ten cells, each with a car of weight 0.9, are all 0. So weights are
# clipped to a bound and epsilon divided by it, or each cell is a tools.sum() with bounds. Exits 0 while this is so, 1 when
# it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q diffprivlib==0.6.6 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.5.2 joblib==1.6.0 \
    > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import math
import sys

import numpy
from diffprivlib import BudgetAccountant, tools

CARS = [1] * 20
RELEASES = 1000


def releases(weights: list[int], first_seed: int, dimensions: int = 1) -> tuple[int, int]:
    """Return the smallest and the greatest of a thousand releases of the one cell in which all are, at epsilon 1."""
    places = numpy.full((len(weights), dimensions), 0.5)
    given = {"epsilon": 1, "bins": 1, "range": [(0, 1)] * dimensions, "weights": weights}
    make = tools.histogramdd
    if dimensions == 1:
        places, given["range"], make = places[:, 0], (0, 1), tools.histogram
    made = [int(make(places, random_state=first_seed + release, **given)[0].item()) for release in range(RELEASES)]
    return min(made), max(made)


without = releases(CARS, 0)
car, coach, coach_in_2d = (releases(CARS + [more], RELEASES, axes) for more, axes in ((1, 1), (50, 1), (50, 2)))
print(f"twenty cars: {without}; with a car more: {car}; with a coach of 50: {coach}, by two axes: {coach_in_2d}")
print(f"a guess at epsilon 1 is right in {math.e / (1 + math.e):.1%} at most, at epsilon 50 in all but {math.exp(-50):.0e}")
accountant = BudgetAccountant()
tools.histogram([0.5], epsilon=1, bins=1, range=(0, 1), weights=[50], accountant=accountant)
print(f"the accountant counts {accountant.total()}")
light, _ = tools.histogram(numpy.arange(10) + 0.5, epsilon=100, bins=10, range=(0, 10), weights=[0.9] * 10, random_state=0)
print(f"ten cells of a car of weight 0.9 at epsilon 100: {light.tolist()}")
as_seen = (
    without[1] < 40 < min(coach[0], coach_in_2d[0])
    and car[0] < without[1]
    and tuple(accountant.total()) == (1, 0)
    and not light.any()
)
sys.exit(0 if as_seen else 1)
PYTHON
