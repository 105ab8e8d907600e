"""The windows of one aggregator: which it takes, what they may cost, and whether a peer's ledger is whole."""
