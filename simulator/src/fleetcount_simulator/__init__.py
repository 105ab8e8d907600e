"""Populations, fleets of real clients, and the demo's scenario."""

__all__: list[str] = []
