#!/bin/sh
# Ask how many vehicles are faster than 50 km/h, in a deployment of `fleetcount keys init` whose aggregators run.
#   ask.sh DEPLOYMENT [SECONDS]     writes speed.toml and speed.task; each window is so long (10 s)
# In earnest each operator signs on a machine of its own, after reading what is printed.
set -eu
deployment=${1:?"ask.sh: no deployment given, allowed: a directory of fleetcount keys init"}
seconds=${2:-10}

cat > speed.toml << SPEC
[task]
name = "How many vehicles are faster than 50 km/h?"
deployment = "test"
signal = "Vehicle.Speed"
min_batch_size = 2

[domain]
kind = "bins"
edges = ["50"]
open_above = true
unit = "km/h"

[windows]
round_one_opens = "in $seconds s"
round_one_closes = "in $((2 * seconds)) s"
round_two_closes = "in $((3 * seconds)) s"

[mechanism]
sampling_rate = "0.45"

[release]
epsilon = "1"

[[aggregators]]
descriptor = "$deployment/alpha.descriptor.toml"

[[aggregators]]
descriptor = "$deployment/beta.descriptor.toml"
SPEC

fleetcount task create --spec speed.toml --output speed.task
fleetcount task sign --config "$deployment/alpha/aggregator.toml" speed.task > signed.txt
fleetcount task sign --config "$deployment/beta/aggregator.toml" speed.task > signed.txt
fleetcount task submit --config "$deployment/alpha/aggregator.toml" speed.task
