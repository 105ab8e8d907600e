"""The metrics of an aggregator: states, refusals, peer calls. Names `fleetcount_*`.

No label names a device or report, and no metric counts the reports of a window: the exact number of participants is
secret.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.messages import WindowState
from fleetcount_transport.admission.admission import Broken, Shed
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_HOUR_S: Final = 3600.0


class _Refused(Collector):
    """The reasons for which anything was refused in the last whole hour: neither how often nor when in it.

    What was refused and what was not add up to who took part.
    """

    def __init__(self, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._elapsed = elapsed
        self._hour = int(elapsed() // _HOUR_S)
        self._here: set[str] = set()
        self._shown: set[str] = set()

    def note(self, reason: RejectReason) -> None:
        """Note a refusal."""
        self._turn()
        self._here.add(reason.label)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield 1 or 0 for each reason."""
        self._turn()
        family = GaugeMetricFamily(
            "fleetcount_refused", "Whether anything was refused in the last whole hour, by reason.", labels=["reason"]
        )
        for reason in RejectReason:
            family.add_metric([reason.label], float(reason.label in self._shown))
        yield family

    def _turn(self) -> None:
        hour = int(self._elapsed() // _HOUR_S)
        if hour != self._hour:
            self._shown, self._here = (self._here if hour == self._hour + 1 else set()), set()
            self._hour = hour


class Metrics:
    """The metrics of one aggregator, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._refused = _Refused()
        self.registry.register(self._refused)
        self._shed = Counter(
            "fleetcount_shed",
            "What was not taken, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._handshakes = Counter(
            "fleetcount_handshakes_failed", "TLS handshakes that broke off, by kind.", ["kind"], registry=self.registry
        )
        self._moves = Counter(
            "fleetcount_window_moves", "Moves of windows into a state.", ["state"], registry=self.registry
        )
        self._peer_calls = Counter(
            "fleetcount_peer_calls",
            "Requests to peers, by result.",
            ["peer", "result"],
            registry=self.registry,
        )
        self._poison = Counter(
            "fleetcount_poison_messages", "MQTT messages that could not be decoded.", registry=self.registry
        )
        self._mqtt_failures = Counter(
            "fleetcount_mqtt_failures",
            "MQTT messages and connections that made this program fail.",
            registry=self.registry,
        )
        self._connections = Counter(
            "fleetcount_mqtt_connections", "Connections made to the MQTT broker.", registry=self.registry
        )
        self._store_errors = Counter(
            "fleetcount_store_errors", "Requests the store could not serve.", registry=self.registry
        )
        self._damaged = Counter(
            "fleetcount_damaged",
            "Rows and files of the store found damaged, by table.",
            ["table"],
            registry=self.registry,
        )
        self._background = Counter(
            "fleetcount_background_failures", "Background work that failed, by name.", ["work"], registry=self.registry
        )
        self._loop_lag = Gauge(
            "fleetcount_event_loop_lag_seconds", "How late a tick came, the worst of a minute.", registry=self.registry
        )

    def refused(self, reason: RejectReason) -> None:
        """Note that instalments or sessions were refused."""
        self._refused.note(reason)

    def shed(self, reason: Shed) -> None:
        """Count one connection, call or message that was not taken."""
        self._shed.labels(reason.value).inc()

    def handshake_failed(self, how: Broken) -> None:
        """Count one TLS handshake that broke off."""
        self._handshakes.labels(how.value).inc()

    def window_moved(self, state: WindowState) -> None:
        """Count a window's move into a state."""
        self._moves.labels(state.value).inc()

    def peer_called(self, peer: str, result: str) -> None:
        """Count one request to a peer; `result` is "ok", "unreachable" or a problem of the closed list."""
        self._peer_calls.labels(peer, result).inc()

    def poison_message(self) -> None:
        """Count one MQTT message that no decoder understands."""
        self._poison.inc()

    def mqtt_failed(self) -> None:
        """Count one MQTT message, or one connection, that made this program fail."""
        self._mqtt_failures.inc()

    def mqtt_connected(self) -> None:
        """Count one connection to the broker."""
        self._connections.inc()

    def store_failed(self) -> None:
        """Count one request the store could not serve."""
        self._store_errors.inc()

    def damaged(self, table: str) -> None:
        """Count one damaged row or file."""
        self._damaged.labels(table).inc()

    def background_failed(self, work: str) -> None:
        """Count one failure of a named piece of background work."""
        self._background.labels(work).inc()

    def loop_lag(self, seconds: float) -> None:
        """Set how many seconds late a tick of the event loop was."""
        self._loop_lag.set(seconds)

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)
