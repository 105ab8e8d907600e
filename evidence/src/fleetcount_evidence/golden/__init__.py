"""Golden numbers: exact values of every formula, recomputed through the public functions."""
