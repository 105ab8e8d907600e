"""The deployments that tests of this folder share."""

from tests.support.live import broker, pair, pytest_collection_finish, trio

__all__ = ["broker", "pair", "pytest_collection_finish", "trio"]
