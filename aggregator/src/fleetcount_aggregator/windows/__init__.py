"""The questions and windows of one aggregator: installation, budget, decisions about windows, retention, status."""
