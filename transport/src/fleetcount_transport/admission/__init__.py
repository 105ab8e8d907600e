"""Admission control: identity, shares, turns and faults, the same for every listener of every server."""
