"""Scenario files: strict reading, sweeps, and the cases they name."""
