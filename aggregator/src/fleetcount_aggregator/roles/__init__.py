"""What an aggregator does for a window: lead it, help with it, and act on it in time."""
