"""The tasks of one aggregator: which it takes, what they may cost, and whether the past is still there."""
