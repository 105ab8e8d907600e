"""Estimates, intervals, remaps, one-sided maps, buckets and the experiments of the papers."""

__all__: list[str] = []
