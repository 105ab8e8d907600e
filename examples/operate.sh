#!/bin/sh
# Two aggregators and three devices on this machine, from keys to the signed release. One person plays everybody here:
# in earnest the aggregators belong to parties that do not trust each other.
#   operate.sh [SECONDS]     in an empty folder; each round is so long (10 s)
set -eu
examples=$(cd "$(dirname "$0")" && pwd)

fleetcount keys init --output city --devices 3 --base-port 0
fleetcount aggregator serve --config city/alpha/aggregator.toml > alpha.ready 2> alpha.log &
alpha=$!
fleetcount aggregator serve --config city/beta/aggregator.toml > beta.ready 2> beta.log &
beta=$!
trap 'kill $alpha $beta 2> /dev/null || true' EXIT
until [ -s alpha.ready ] && [ -s beta.ready ]; do
  kill -0 $alpha && kill -0 $beta && sleep 0.2
done

"$examples/ask.sh" city "${1:-10}"
sleep 2 # Within a second the leader's aggregator shows devices what was submitted.
devices=""
for number in 0001 0002 0003; do
  "${PYTHON:-python3}" "$examples/embed_device.py" "city/devices/$number/device.toml" &
  devices="$devices $!"
done
for device in $devices; do
  wait "$device"
done

fleetcount question release --question speed.question --config city/analyst/analyst.toml --output released --wait 60
fleetcount verify released/release.json --config city/analyst/analyst.toml
