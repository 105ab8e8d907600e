"""Who gets in, and how much of it: identity, shares, turns and faults, the same for every door of every server."""
