"""What one aggregator remembers: the rules of every store, a store in memory, and the durable one with its logs."""
