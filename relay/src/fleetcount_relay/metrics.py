"""What a relay's operator may count: batches, failures, bytes; by aggregator, never by device.

Not instalments: their exact number is the number of devices that took part.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

__all__ = ["RelayMetrics"]

_AGGREGATOR: Final = ["aggregator"]


class RelayMetrics:
    """The metrics of one relay, in a registry of their own. Names `fleetcount_relay_*`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._batches = Counter(
            "fleetcount_relay_batches", "Batches that were answered.", _AGGREGATOR, registry=self.registry
        )
        self._failures = Counter(
            "fleetcount_relay_stream_failures", "Streams to an aggregator lost.", _AGGREGATOR, registry=self.registry
        )
        self._malformed = Counter(
            "fleetcount_relay_malformed", "Uploads of devices that are no batch.", registry=self.registry
        )
        self._busy = Counter(
            "fleetcount_relay_busy", "Uploads refused since the memory is full.", registry=self.registry
        )
        self._bytes = Gauge("fleetcount_relay_bytes", "Bytes of uploads not answered yet.", registry=self.registry)

    def answered(self, aggregator: str) -> None:
        """Count one answered batch."""
        self._batches.labels(aggregator).inc()

    def stream_lost(self, aggregator: str) -> None:
        """Count one lost stream."""
        self._failures.labels(aggregator).inc()

    def malformed(self) -> None:
        """Count one upload that was refused unread."""
        self._malformed.inc()

    def busy(self) -> None:
        """Count one upload for which there was no room."""
        self._busy.inc()

    def in_memory(self, change: int) -> None:
        """Note that so many bytes more, or fewer, wait for their answer."""
        self._bytes.inc(change)

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)
