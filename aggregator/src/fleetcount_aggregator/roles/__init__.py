"""What an aggregator does for a task: lead it, help with it, and see to it in time."""
