"""What one process of an aggregator runs: configuration to wiring, listeners, background tasks, an orderly end."""
