#!/bin/sh
# How many of twelve vehicles have a worn brake: any of four wheels, each a truth value, from keys to the signed release.
# One person plays everybody here: in earnest the aggregators belong to parties that do not trust each other.
#   brakes.sh      in an empty folder; about two minutes
set -eu

fleetcount keys init --output city --devices 12 --base-port 0
fleetcount aggregator serve --config city/alpha/aggregator.toml > alpha.ready 2> alpha.log &
alpha=$!
fleetcount aggregator serve --config city/beta/aggregator.toml > beta.ready 2> beta.log &
beta=$!
trap 'kill $alpha $beta 2> /dev/null || true' EXIT
until [ -s alpha.ready ] && [ -s beta.ready ]; do
  kill -0 $alpha && kill -0 $beta && sleep 0.2
done

fleetcount question create --sample brakes --output city/brakes.question
fleetcount question sign --config city/alpha/aggregator.toml city/brakes.question > signed.txt
fleetcount question sign --config city/beta/aggregator.toml city/brakes.question > signed.txt
fleetcount question submit --config city/alpha/aggregator.toml city/brakes.question
sleep 2 # Within a second the leader's aggregator shows devices what was submitted.

vehicle=0
worn=0
devices=""
for device in city/devices/*; do
  for wheel in front-left front-right rear-left rear-right; do
    echo false > "$device/worn-$wheel.json"
  done
  # Every third vehicle has a worn brake at one wheel.
  if [ $((vehicle % 3)) -eq 0 ]; then
    echo true > "$device/worn-rear-left.json"
    worn=$((worn + 1))
  fi
  vehicle=$((vehicle + 1))
  fleetcount device run --once --config "$device/device.toml" &
  devices="$devices $!"
done
for device in $devices; do
  wait "$device"
done

fleetcount question release --question city/brakes.question --config city/analyst/analyst.toml --output released --wait 120
fleetcount verify released/release.json --config city/analyst/analyst.toml
echo "truth: $worn of $vehicle vehicles have a worn brake"
