"""Real fleets on one machine: aggregator processes, real devices, connections; for the network engine and the demo."""
