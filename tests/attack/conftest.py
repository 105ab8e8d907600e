"""The deployments that attacks share; one that breaks an aggregator for good makes its own."""

from tests.support.live import _compiled, broker, pair, target

__all__ = ["_compiled", "broker", "pair", "target"]
