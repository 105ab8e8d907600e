"""The deployments that tests of this folder share."""

from tests.support.live import _compiled, broker, pair, target, trio

__all__ = ["_compiled", "broker", "pair", "target", "trio"]
