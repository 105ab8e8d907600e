"""The deployment that attacks share; one that breaks it for good makes its own."""

from tests.support.live import broker, pair, pytest_collection_finish

__all__ = ["broker", "pair", "pytest_collection_finish"]
