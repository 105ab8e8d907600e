#!/bin/sh
# Ask how many vehicles are faster than 50 km/h, in a deployment of `fleetcount keys init` whose aggregators run.
#   ask.sh DEPLOYMENT [SECONDS]     writes speed.toml and speed.question; each round is so long (10 s)
# In earnest each operator signs on a machine of its own, after reading what is printed.
set -eu
deployment=${1:?"ask.sh: no deployment given, allowed: a directory of fleetcount keys init"}
seconds=${2:-10}

cat > speed.toml << SPEC
[question]
name = "How many vehicles are faster than 50 km/h?"
deployment = "test"
signal = "Vehicle.Speed"
min_batch_size = 2

[domain]
kind = "bins"
edges = ["50"]
open_above = true
unit = "km/h"

[schedule]
opens = "in $seconds s"
window = "$((2 * seconds)) s"

[mechanism]
sampling_rate = "0.45"

[release]
epsilon = "1"

[[aggregators]]
descriptor = "$deployment/alpha.descriptor.toml"

[[aggregators]]
descriptor = "$deployment/beta.descriptor.toml"
SPEC

fleetcount question create --spec speed.toml --output speed.question
fleetcount question sign --config "$deployment/alpha/aggregator.toml" speed.question > signed.txt
fleetcount question sign --config "$deployment/beta/aggregator.toml" speed.question > signed.txt
fleetcount question submit --config "$deployment/alpha/aggregator.toml" speed.question
