"""What an aggregator does for a task: lead it, help with it, and act on it in time."""
