#!/bin/sh
# dp-accounting 0.6.0 makes 5.06 of 100,000 releases with discrete Laplace noise whose losses sum to 0.1 at most.
#
# Seen on Python 3.11 with numpy 2.4.6 and scipy 1.17.1: 100,000 compositions of pure loss 1e-6 each, at delta 1e-6.
# from_laplace_mechanism says 0.0097, from_discrete_laplace_mechanism 5.055 of the same noise in whole numbers: fifty times
# the plain sum, which no composition exceeds, with delta 0.99 at that sum where it is 0. Both round losses to multiples of
# 1e-4 by default; only the first joins the multiples by lines (use_connect_dots), the second rounds each loss up, and a
# loss far below 1e-4 counts as one of 1e-4. With use_connect_dots=True the two agree. So a budget of many small whole-number
# releases is checked against its plain sum. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q dp-accounting==0.6.0 numpy==2.4.6 scipy==1.17.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import sys

from dp_accounting.pld import privacy_loss_distribution as losses

EACH, RELEASES, DELTA = 1e-6, 100_000, 1e-6
total = EACH * RELEASES
made = {
    "continuous": losses.from_laplace_mechanism(1 / EACH),
    "discrete": losses.from_discrete_laplace_mechanism(EACH),
    "discrete, use_connect_dots": losses.from_discrete_laplace_mechanism(EACH, use_connect_dots=True),
}
said = {}
for name, one in made.items():
    every = one.self_compose(RELEASES)
    said[name] = every.get_epsilon_for_delta(DELTA), every.get_delta_for_epsilon(total)
    print(f"{name}: epsilon at delta {DELTA}: {said[name][0]:.4f}; delta at epsilon {total:.1f}: {said[name][1]:.2g}")
as_seen = (
    5 < said["discrete"][0] < 5.1
    and said["discrete"][1] > 0.9
    and all(0.009 < said[name][0] < 0.01 and said[name][1] < 1e-9 for name in ("continuous", "discrete, use_connect_dots"))
)
sys.exit(0 if as_seen else 1)
PYTHON
