"""Run and look after the programs of a deployment: aggregator, device, relay, console; check them."""
