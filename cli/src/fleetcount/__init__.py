"""The `fleetcount` command."""

__version__ = "0.1.0"
