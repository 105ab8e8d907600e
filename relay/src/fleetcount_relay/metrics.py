"""The metrics of a relay: batches, failures, bytes; by aggregator, never by device.

There is no count of instalments: it would be the number of devices that took part.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from fleetcount_transport.admission.admission import Broken, Shed
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

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
            "fleetcount_relay_malformed", "Messages of devices that are malformed.", registry=self.registry
        )
        self._shed = Counter(
            "fleetcount_relay_shed", "What was not taken, by reason.", ["reason"], registry=self.registry
        )
        self._handshakes = Counter(
            "fleetcount_relay_handshakes_failed",
            "TLS handshakes that broke off, by kind.",
            ["kind"],
            registry=self.registry,
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

    def shed(self, reason: Shed) -> None:
        """Count one connection, call or upload that was not taken."""
        self._shed.labels(reason.value).inc()

    def handshake_failed(self, how: Broken) -> None:
        """Count one TLS handshake that broke off."""
        self._handshakes.labels(how.value).inc()

    @contextmanager
    def in_memory(self, size: int) -> Generator[None]:
        """Count `size` bytes as waiting for their answer while the block runs."""
        self._bytes.inc(size)
        try:
            yield
        finally:
            self._bytes.dec(size)

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)
