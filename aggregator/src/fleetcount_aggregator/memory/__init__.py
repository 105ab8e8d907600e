"""What one aggregator holds in memory, each value with its invariants: windows, questions, sessions, its peers."""
