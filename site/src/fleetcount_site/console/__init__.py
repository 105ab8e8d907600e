"""The console of one aggregator's operator: a read-only page on this machine over its store and its own pages."""
