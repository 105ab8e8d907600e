"""The deployments that attacks share; one that breaks an aggregator for good makes its own."""
